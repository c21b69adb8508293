//! The XDP program: loaded, pinned, attached, replaced and taken away; and the programs of checks through the VIP.

use serde::{Deserialize, Serialize};

mod attach;
mod capacity;
mod check_path;
mod check_programs;
mod identity;
mod links;
mod load;
mod log;
mod mode;
mod pins;
mod privileges;
mod probe;
mod refusal;
mod remove;

pub use crate::config::XdpMode;
pub use attach::{AttachError, AttachOptions};
pub use capacity::WantedCapacity;
pub use check_path::{CheckPath, Entered};
pub use check_programs::{CheckPathError, has_tcx};
pub use identity::ProgramIdentity;
pub use load::{Datapath, LoadError, LoadOptions, RareError};
pub use pins::{DEFAULT_PIN_DIRECTORY, PinError};
pub use privileges::{MissingPrivilege, check_privileges};
pub use probe::{Answer, Probe, ProbeError, Question};
pub use remove::{DetachError, Detached, detach};

pub(crate) use links::PinnedXdpLink;
pub(crate) use load::loader;
pub(crate) use mode::attach_in_mode;
pub(crate) use pins::{check_bpf_file_system, pin_name};
pub(crate) use refusal::next_step;

/// Name of the load balancer's program in the object.
pub const PROGRAM: &str = "evenkeel";

/// The mode that an attached program runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachedMode {
    Native,
    Generic,
}

impl AttachedMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// An interface that the program is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedInterface {
    pub name: String,
    pub index: u32,
    pub mode: AttachedMode,
    /// Why the mode is not native.
    pub reason: Option<String>,
    /// Whether a link from before was updated in place.
    pub adopted: bool,
}

/// The BPF object that this binary carries.
pub fn object() -> &'static [u8] {
    aya::include_bytes_aligned!(env!("EVENKEEL_XDP_OBJECT"))
}
