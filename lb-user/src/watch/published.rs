//! What the controller has put into the datapath, as it wrote it: what the watch compares with and takes shares from.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use lb_common::{
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey, flag},
};

use crate::state::desired::BackendState;

/// Seeds and tables as they were written last.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// By index into `SEEDS`.
    pub seeds: BTreeMap<u32, Seed>,
    pub services: BTreeMap<ServiceKey, Arc<Table>>,
}

/// A service's slot table and who is in it. Clones of a `Published` share it until it changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub name: Arc<str>,
    /// The entry as written.
    pub service: Service,
    pub slots: Arc<[BackendRef]>,
    /// Every backend that has an entry, in order of addresses; draining ones own no slots.
    pub members: Vec<Member>,
}

/// A backend of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub endpoint: IpAddr,
    pub reference: BackendRef,
    pub state: BackendState,
    /// Slots of the table.
    pub owned: u32,
    /// As wanted; 0 while it has no next hop, and therefore no slots.
    pub weight: u32,
}

impl Table {
    /// Whether the seed of no single CPU picks for it.
    pub fn uses_shared_seed(&self) -> bool {
        self.service.flags & (flag::FLEET | flag::CLIENT_AFFINITY) != 0
    }

    pub fn by_client(&self) -> bool {
        self.service.flags & flag::CLIENT_AFFINITY != 0
    }
}

/// Slots by owner.
pub fn owned(slots: &[BackendRef]) -> BTreeMap<BackendRef, u32> {
    let mut sorted = slots.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|one, other| one == other);
    runs.map(|run| (run[0], run.len() as u32)).collect()
}

/// Where the controller leaves what it wrote. Readers can tell whether it is writing right now.
#[derive(Debug, Default)]
pub struct Board {
    /// Odd while the maps are being written.
    epoch: AtomicU64,
    published: RwLock<Arc<Published>>,
}

impl Board {
    pub fn read(&self) -> Arc<Published> {
        Arc::clone(&self.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `None` while the maps are being written; else a number that is another one when they were written meanwhile.
    pub fn epoch(&self) -> Option<u64> {
        let epoch = self.epoch.load(Ordering::Acquire);
        epoch.is_multiple_of(2).then_some(epoch)
    }

    /// The maps are written from here on until the answer is dropped.
    pub fn writing(&self) -> Writing<'_> {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        Writing(self)
    }
}

/// The maps are being written.
pub struct Writing<'a>(&'a Board);

impl Writing<'_> {
    /// What stands in the maps now.
    pub fn publish(&self, published: Published) {
        *self.0.published.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(published);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.epoch.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_shows_and_leaves_another_number() {
        let board = Board::default();
        let before = board.epoch();
        {
            let writing = board.writing();
            assert_eq!(board.epoch(), None);
            let seeds = [(0, Seed::default())].into();
            writing.publish(Published {
                seeds,
                ..Published::default()
            });
        }
        assert!(board.epoch().is_some_and(|after| Some(after) != before));
        assert_eq!(board.read().seeds.len(), 1);
    }
}
