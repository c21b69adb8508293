//! Pinned XDP links: what holds the program on an interface while no daemon runs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use aya::programs::links::{FdLink, LinkError, PinnedLink};

use super::PinError;
use crate::net::{self, NetError};

/// A link that was found pinned.
pub struct PinnedXdpLink {
    pub path: PathBuf,
    pub link: FdLink,
    pub program_id: u32,
    /// 0 when the interface is gone.
    pub interface: u32,
}

impl PinnedXdpLink {
    /// Opens the link at `path`; `None` when nothing is pinned there.
    pub fn open(path: &Path) -> Result<Option<Self>, LinkError> {
        if !path.exists() {
            return Ok(None);
        }
        let link = FdLink::from(PinnedLink::from_pin(path)?);
        let info = link.info()?;
        Ok(Some(Self {
            path: path.to_owned(),
            program_id: info.program_id(),
            interface: interface_of(info.id()).unwrap_or(0),
            link,
        }))
    }

    /// Moves the pin; the program stays on the interface.
    pub fn move_to(&mut self, path: PathBuf) -> Result<(), PinError> {
        fs::rename(&self.path, &path).map_err(|source| PinError::Move {
            from: self.path.clone(),
            path: path.clone(),
            source,
        })?;
        self.path = path;
        Ok(())
    }

    /// Removes the pin and with it the program from the interface.
    pub fn remove(self) -> Result<(), PinError> {
        remove_pin(&self.path)
    }
}

pub fn remove_pin(path: &Path) -> Result<(), PinError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(PinError::Remove {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// The kernel lets go of an unpinned link a moment later; waits until no interface runs these programs.
pub fn wait_until_gone(programs: &BTreeSet<u32>, interfaces: &BTreeSet<u32>) -> Result<(), NetError> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let here = net::interfaces()?.into_values().any(|interface| {
            interfaces.contains(&interface.index)
                && interface
                    .xdp
                    .is_some_and(|xdp| programs.contains(&xdp.program_id))
        });
        if !here || Instant::now() > deadline {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The interface of a link of which this process has a descriptor, from `/proc/self/fdinfo`: the kernel's
/// answer about links has it too (`bpf_link_info.xdp.ifindex`), but aya does not show it.
fn interface_of(link_id: u32) -> Option<u32> {
    fs::read_dir("/proc/self/fdinfo")
        .ok()?
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .find(|text| field(text, "link_id") == Some(link_id))
        .and_then(|text| field(&text, "ifindex"))
}

fn field(text: &str, name: &str) -> Option<u32> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_and_interface_are_read_from_fdinfo() {
        let text = "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t4\nprog_tag:\tab\n\
                    prog_id:\t31\nifindex:\t12\n";
        assert_eq!(field(text, "link_id"), Some(4));
        assert_eq!(field(text, "ifindex"), Some(12));
        assert_eq!(field(text, "link"), None);
    }
}
