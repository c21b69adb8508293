//! Which id a new backend entry gets, so that a flow that still names an old entry is not taken for one of the new.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use lb_common::{
    backend::{Backend, state},
    ids::{BackendRef, next_generation},
};

/// Gives out ids: those that never were in use first, then the one removed longest ago, with the next generation.
///
/// Only entries that were free when the snapshot was taken are given out: one that the same plan removes stays
/// named by slots until the plan has switched its service.
pub struct IdPool<'a> {
    entries: &'a BTreeMap<u32, Backend>,
    capacity: u32,
    /// The first id above all entries of the snapshot that was not given out yet.
    above: u32,
    /// Below, in the order of use. Filled when the ids above are used up: a walk over all entries.
    below: Option<BinaryHeap<Reverse<(u32, u32, u8)>>>,
}

impl<'a> IdPool<'a> {
    /// `entries` are those that are not all-zero, `capacity` counts the unused id 0.
    pub fn new(entries: &'a BTreeMap<u32, Backend>, capacity: u32) -> Self {
        let above = entries.last_key_value().map_or(1, |(id, _)| id.saturating_add(1));
        Self {
            entries,
            capacity,
            above,
            below: None,
        }
    }

    /// The next free id and the generation its new entry must have; `None` when all are in use.
    pub fn take(&mut self) -> Option<BackendRef> {
        if self.above < self.capacity {
            self.above += 1;
            return Some(BackendRef::new(self.above - 1, next_generation(0)));
        }
        let below = self
            .below
            .get_or_insert_with(|| free_below(self.entries, self.capacity));
        let Reverse((_, id, generation)) = below.pop()?;
        Some(BackendRef::new(id, next_generation(generation)))
    }
}

/// Holes count as removed at second 0, before everything else.
fn free_below(entries: &BTreeMap<u32, Backend>, capacity: u32) -> BinaryHeap<Reverse<(u32, u32, u8)>> {
    let mut free = BinaryHeap::new();
    let mut expected = 1;
    for (&id, entry) in entries.range(1..capacity.max(1)) {
        free.extend((expected..id).map(|hole| Reverse((0, hole, 0))));
        expected = id + 1;
        if entry.state == state::UNSET {
            free.push(Reverse((entry.removed_at, id, entry.generation)));
        }
    }
    // What lies above the last entry was given out already, unless that entry is outside the map.
    if entries.range(capacity..).next().is_some() {
        free.extend((expected..capacity).map(|hole| Reverse((0, hole, 0))));
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(generation: u8) -> Backend {
        Backend {
            generation,
            state: state::SERVING,
            service: 1,
            ..Backend::default()
        }
    }

    fn removed(generation: u8, removed_at: u32) -> Backend {
        Backend {
            generation,
            removed_at,
            ..Backend::default()
        }
    }

    fn all(entries: &BTreeMap<u32, Backend>, capacity: u32) -> Vec<(u32, u8)> {
        let mut pool = IdPool::new(entries, capacity);
        std::iter::from_fn(|| pool.take())
            .map(|taken| (taken.id(), taken.generation()))
            .collect()
    }

    #[test]
    fn an_empty_map_gives_out_every_id_but_zero() {
        assert_eq!(all(&BTreeMap::new(), 4), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(all(&BTreeMap::new(), 0), []);
    }

    #[test]
    fn never_used_ids_come_first_then_the_longest_removed() {
        let entries = BTreeMap::from([
            (1, used(1)),
            (2, removed(7, 300)),
            (4, removed(255, 100)),
            (5, used(9)),
            (6, removed(3, 200)),
        ]);
        assert_eq!(all(&entries, 8), [(7, 1), (3, 1), (4, 1), (6, 4), (2, 8)]);
    }

    #[test]
    fn a_full_map_gives_nothing() {
        let entries = BTreeMap::from([(1, used(1)), (2, used(1))]);
        assert_eq!(all(&entries, 3), []);
    }

    #[test]
    fn an_entry_outside_the_capacity_is_not_reused() {
        let entries = BTreeMap::from([(9, removed(1, 5))]);
        assert_eq!(all(&entries, 3), [(1, 1), (2, 1)]);
    }
}
