//! The slot tables of a running datapath, read from its maps and not asked of the daemon.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_common::backend::state;
use lb_user::{maps::PinnedMaps, state::desired::address_from};

use super::Daemon;

/// Short beside what is measured by it, long enough to leave the processor to others.
const PAUSE: Duration = Duration::from_micros(500);

/// Who gets new flows, of all services together.
pub struct Slots(PinnedMaps);

impl Slots {
    pub fn open(daemon: &Daemon) -> Result<Self> {
        Ok(Self(PinnedMaps::open_read_only(daemon.pins())?))
    }

    /// Entries in use, and how many of them own slots.
    pub fn used(&self) -> (usize, usize) {
        let entries = (1..self.0.capacity().backends).filter_map(|id| self.0.backend(id));
        let used = entries.filter(|entry| entry.state != state::UNSET).count();
        (used, self.owners().len())
    }

    /// Addresses that own slots.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let entries = self.owners().into_iter().filter_map(|id| self.0.backend(id));
        entries
            .map(|entry| address_from(&entry.address, entry.family))
            .collect()
    }

    /// Waits until an address owns slots, or none; when that was seen.
    pub fn wait(&self, address: IpAddr, owns: bool, limit: Duration) -> Result<Instant> {
        let end = Instant::now() + limit;
        loop {
            let is = self.addresses().contains(&address);
            let now = Instant::now();
            if is == owns {
                return Ok(now);
            }
            ensure!(
                now < end,
                "{address} {} after {limit:?}",
                if is { "still owns slots" } else { "owns no slot" }
            );
            thread::sleep(PAUSE);
        }
    }

    /// Ids in the slots.
    fn owners(&self) -> BTreeSet<u32> {
        let services = self.0.services().into_values();
        let slots = services.flat_map(|service| self.0.slots_of(&service));
        slots
            .filter(|slot| !slot.is_unset())
            .map(|slot| slot.id())
            .collect()
    }
}
