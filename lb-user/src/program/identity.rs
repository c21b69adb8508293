//! Which program is loaded.

use std::time::UNIX_EPOCH;

use aya::programs::ProgramInfo;
use serde::{Deserialize, Serialize};

/// The loaded program as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramIdentity {
    pub id: u32,
    /// The kernel's hash of the instructions, as `bpftool prog` shows it.
    pub tag: String,
    /// Of the binary that loaded it.
    pub version: String,
    /// Unix time, seconds.
    pub loaded_at: Option<u64>,
    /// Instructions that the verifier walked.
    pub instructions: Option<u32>,
}

impl ProgramIdentity {
    pub(super) fn new(info: &ProgramInfo) -> Self {
        Self {
            id: info.id(),
            tag: format!("{:016x}", info.tag()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            loaded_at: info
                .loaded_at()
                .and_then(|at| at.duration_since(UNIX_EPOCH).ok())
                .map(|since| since.as_secs()),
            instructions: info.verified_instruction_count(),
        }
    }
}
