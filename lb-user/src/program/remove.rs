//! Takes program, links and maps off the host.

use std::{collections::BTreeSet, fs, path::Path};

use lb_common::map_names;

use super::{
    Datapath, PinError,
    links::{PinnedXdpLink, remove_pin, wait_until_gone},
    pins::{Pins, check_bpf_file_system},
};
use crate::net::NetError;

/// What was taken away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detached {
    pub interfaces: Vec<String>,
    pub maps: usize,
}

/// Why something is still there.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Net(#[from] NetError),
}

impl Datapath {
    /// Takes everything away that this datapath pinned.
    pub fn detach(self) -> Result<Detached, DetachError> {
        let Self {
            ebpf,
            pins,
            lock,
            unused,
            ..
        } = self;
        drop(ebpf);
        if let Some(unused) = unused {
            unused.keep();
        }
        let detached = remove_all(&pins);
        drop(lock);
        detached
    }
}

/// Takes everything away that is pinned in a directory. Refuses while a daemon uses it.
pub fn detach(pin_directory: &Path) -> Result<Detached, DetachError> {
    if !pin_directory.exists() {
        return Ok(Detached::default());
    }
    // Nothing but pins may be removed under these names.
    check_bpf_file_system(pin_directory)?;
    let pins = Pins::new(pin_directory);
    let _lock = pins.lock()?;
    remove_all(&pins)
}

/// Links first: traffic must not meet a program whose maps are going.
pub(super) fn remove_all(pins: &Pins) -> Result<Detached, DetachError> {
    let interfaces = pins.linked_interfaces()?;
    let (mut programs, mut indices) = (BTreeSet::new(), BTreeSet::new());
    for name in &interfaces {
        let path = pins.link(name);
        // A link that cannot be read is removed all the same.
        if let Ok(Some(link)) = PinnedXdpLink::open(&path) {
            programs.insert(link.program_id);
            indices.insert(link.interface);
        }
        remove_pin(&path)?;
    }
    wait_until_gone(&programs, &indices)?;
    remove_pin(&pins.next_program())?;
    remove_pin(&pins.program())?;
    let mut maps = 0;
    for map in map_names::ALL {
        let path = pins.map(map.name);
        if path.exists() {
            remove_pin(&path)?;
            maps += 1;
        }
    }
    // Something of someone else's in there keeps the directories; the pins are gone either way.
    for directory in [pins.links(), pins.directory().to_owned()] {
        let _ = fs::remove_dir(directory);
    }
    Ok(Detached { interfaces, maps })
}
