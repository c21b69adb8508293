//! Native or generic: which XDP mode an interface takes, and why.

use std::io;

use aya::programs::{ProgramError, Xdp, XdpError, XdpMode as AyaMode, links::FdLink};
use rustix::io::Errno;

use super::{AttachError, AttachedMode, XdpMode};
use crate::net::Interface;

/// Attaches in the wanted mode, or the next best when that is allowed; with the reason when it is not native.
pub(crate) fn attach_in_mode(
    program: &mut Xdp,
    interface: &Interface,
    wanted: XdpMode,
) -> Result<(FdLink, AttachedMode, Option<String>), AttachError> {
    let name = || interface.name.clone();
    if wanted == XdpMode::Generic {
        let link = attach_as(program, interface, AttachedMode::Generic)?;
        let reason = "xdp_mode = \"generic\"".to_owned();
        return Ok((link, AttachedMode::Generic, Some(reason)));
    }
    match attach_as(program, interface, AttachedMode::Native) {
        Ok(link) => Ok((link, AttachedMode::Native, None)),
        Err(AttachError::Attach { source, .. }) if is_about_mode(&source) => {
            if wanted == XdpMode::Native {
                return Err(AttachError::Native { name: name(), source });
            }
            let reason = format!("the driver refuses native XDP: {}", cause(&source));
            let link = attach_as(program, interface, AttachedMode::Generic)?;
            Ok((link, AttachedMode::Generic, Some(reason)))
        }
        Err(error) => Err(error),
    }
}

fn attach_as(program: &mut Xdp, interface: &Interface, mode: AttachedMode) -> Result<FdLink, AttachError> {
    let failed = |source| AttachError::Attach {
        name: interface.name.clone(),
        mode,
        source,
    };
    let flag = match mode {
        AttachedMode::Native => AyaMode::Driver,
        AttachedMode::Generic => AyaMode::Skb,
    };
    let id = program
        .attach_to_if_index(interface.index, flag)
        .map_err(failed)?;
    let link = program.take_link(id).map_err(failed)?;
    FdLink::try_from(link).map_err(|source| AttachError::NoLinks {
        name: interface.name.clone(),
        source,
    })
}

/// Whether generic mode may succeed where this failed: not when the interface is taken, gone, or forbidden.
fn is_about_mode(error: &ProgramError) -> bool {
    let errno = os_error(error).map(Errno::from_raw_os_error);
    !matches!(
        errno,
        Some(Errno::BUSY | Errno::EXIST | Errno::PERM | Errno::ACCESS | Errno::NODEV)
    )
}

fn os_error(error: &ProgramError) -> Option<i32> {
    match error {
        ProgramError::SyscallError(call) => call.io_error.raw_os_error(),
        ProgramError::XdpError(XdpError::NetlinkError(error)) | ProgramError::NetlinkError(error) => {
            error.raw_os_error()
        }
        ProgramError::IOError(error) => error.raw_os_error(),
        _ => None,
    }
}

fn cause(error: &ProgramError) -> String {
    os_error(error).map_or_else(
        || error.to_string(),
        |code| io::Error::from_raw_os_error(code).to_string(),
    )
}
