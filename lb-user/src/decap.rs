//! `evenkeel decap`: the XDP program that strips IPIP on a backend without a tunnel device.

use std::path::{Path, PathBuf};

use aya::{
    EbpfError,
    programs::{ProgramError, Xdp, links::LinkError, xdp::XdpLink},
};

use crate::{
    net::{self, NetError},
    program::{
        AttachError, AttachedInterface, AttachedMode, MissingPrivilege, PinError, PinnedXdpLink, XdpMode,
        attach_in_mode, check_bpf_file_system, check_privileges, loader, next_step, object, pin_name,
    },
};

/// Name of the program in the object.
pub const PROGRAM: &str = "decap";
const DIRECTORY: &str = "/sys/fs/bpf";

/// Why the program is not on, or not off, an interface.
#[derive(Debug, thiserror::Error)]
pub enum DecapError {
    #[error(transparent)]
    Privilege(#[from] MissingPrivilege),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Attach(Box<AttachError>),
    #[error("there is no interface {name}; see `ip link`")]
    NoInterface { name: String },
    #[error("interface {name} already runs XDP program {program_id} of something else; detach it first")]
    Foreign { name: String, program_id: u32 },
    #[error("no decap program is attached to interface {name}")]
    NotAttached { name: String },
    #[error("the kernel refuses the object; {next_step}")]
    Object {
        next_step: String,
        source: Box<EbpfError>,
    },
    #[error("the object has no XDP program {PROGRAM}; rebuild with `cargo xtask build`")]
    NoProgram,
    #[error("the kernel refuses program {PROGRAM}; {next_step}")]
    Program {
        next_step: String,
        source: Box<ProgramError>,
    },
    #[error("cannot replace the program on interface {name}")]
    Update { name: String, source: ProgramError },
    #[error("cannot read the link pinned at {}", path.display())]
    ReadLink { path: PathBuf, source: LinkError },
    #[error("cannot pin the link at {}", path.display())]
    PinLink {
        path: PathBuf,
        source: aya::pin::PinError,
    },
}

impl From<AttachError> for DecapError {
    fn from(error: AttachError) -> Self {
        Self::Attach(Box::new(error))
    }
}

/// Attaches the program to an interface; it stays when this process ends. Where it is already, it is updated
/// in place.
pub fn attach(interface: &str, mode: XdpMode) -> Result<AttachedInterface, DecapError> {
    check_privileges()?;
    check_bpf_file_system(Path::new(DIRECTORY))?;
    let seen = net::interfaces()?
        .remove(interface)
        .ok_or_else(|| DecapError::NoInterface {
            name: interface.to_owned(),
        })?;
    let path = pin(interface);
    let pinned = open(&path)?;
    let on_it = pinned.as_ref().is_some_and(|link| link.interface == seen.index);
    if let (Some(xdp), false) = (seen.xdp, on_it) {
        return Err(DecapError::Foreign {
            name: interface.to_owned(),
            program_id: xdp.program_id,
        });
    }
    let mut ebpf = loader().load(object()).map_err(|source| DecapError::Object {
        next_step: next_step(&source),
        source: source.into(),
    })?;
    let program: &mut Xdp = ebpf
        .program_mut(PROGRAM)
        .and_then(|program| program.try_into().ok())
        .ok_or(DecapError::NoProgram)?;
    program.load().map_err(|source| DecapError::Program {
        next_step: next_step(&source),
        source: source.into(),
    })?;
    match pinned {
        Some(link) if on_it => update(program, &seen, link),
        stale => {
            stale.map_or(Ok(()), PinnedXdpLink::remove)?;
            let (link, mode, reason) = attach_in_mode(program, &seen, mode)?;
            link.pin(&path)
                .map_err(|source| DecapError::PinLink { path, source })?;
            Ok(AttachedInterface {
                name: seen.name,
                index: seen.index,
                mode,
                reason,
                adopted: false,
            })
        }
    }
}

/// Takes the program off an interface.
pub fn remove(interface: &str) -> Result<(), DecapError> {
    match open(&pin(interface))? {
        Some(link) => Ok(link.remove()?),
        None => Err(DecapError::NotAttached {
            name: interface.to_owned(),
        }),
    }
}

fn pin(interface: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("evenkeel-decap-{}", pin_name(interface)))
}

fn open(path: &Path) -> Result<Option<PinnedXdpLink>, DecapError> {
    PinnedXdpLink::open(path).map_err(|source| DecapError::ReadLink {
        path: path.to_owned(),
        source,
    })
}

fn update(
    program: &mut Xdp,
    interface: &net::Interface,
    link: PinnedXdpLink,
) -> Result<AttachedInterface, DecapError> {
    let failed = |source| DecapError::Update {
        name: interface.name.clone(),
        source,
    };
    let path = link.path;
    let link = XdpLink::try_from(link.link).map_err(|source| DecapError::ReadLink { path, source })?;
    let id = program.attach_to_link(link).map_err(failed)?;
    drop(program.take_link(id).map_err(failed)?);
    let native = interface.xdp.is_some_and(|xdp| xdp.native);
    Ok(AttachedInterface {
        name: interface.name.clone(),
        index: interface.index,
        mode: if native {
            AttachedMode::Native
        } else {
            AttachedMode::Generic
        },
        reason: (!native).then(|| "kept from before".to_owned()),
        adopted: true,
    })
}
