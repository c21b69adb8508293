//! The heaviest keys of a stream of samples, in bounded memory: space-saving (Metwally, Agrawal and El Abbadi 2005).

use std::{collections::BTreeMap, hash::Hash};

/// Counts of at most `room` keys. A key that has more than 1/room of all counts is among them; its count may be too high
/// by what the key had that it replaced.
#[derive(Clone, Debug)]
pub struct Heavy<K> {
    room: usize,
    counts: BTreeMap<K, u64>,
}

impl<K: Ord + Copy + Hash> Heavy<K> {
    pub fn new(room: usize) -> Self {
        Self {
            room: room.max(1),
            counts: BTreeMap::new(),
        }
    }

    pub fn count(&mut self, key: K, amount: u64) {
        if let Some(count) = self.counts.get_mut(&key) {
            *count = count.saturating_add(amount);
            return;
        }
        let inherited = if self.counts.len() < self.room {
            0
        } else {
            let least = self.counts.iter().min_by_key(|(_, count)| **count);
            let Some((least, count)) = least.map(|(key, count)| (*key, *count)) else {
                return;
            };
            self.counts.remove(&least);
            count
        };
        self.counts.insert(key, inherited.saturating_add(amount));
    }

    /// The heaviest first.
    pub fn heaviest(&self) -> Vec<(K, u64)> {
        let mut all: Vec<(K, u64)> = self.counts.iter().map(|(key, count)| (*key, *count)).collect();
        all.sort_by_key(|(key, count)| (std::cmp::Reverse(*count), *key));
        all
    }

    /// Halves every count, so that what was long ago weighs less; keys that have none left go.
    pub fn fade(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_key_is_found_among_many_light_ones_in_little_room() {
        let mut heavy = Heavy::new(8);
        for light in 0..10_000u32 {
            heavy.count(light + 100, 1);
            if light % 3 == 0 {
                heavy.count(7, 1);
            }
        }
        let (key, count) = heavy.heaviest()[0];
        assert_eq!(key, 7);
        // Never too low, and too high by at most 1/room of all.
        assert!((3334..=3334 + 13_334 / 8).contains(&count), "{count}");
        assert_eq!(heavy.heaviest().len(), 8);
    }

    #[test]
    fn what_was_long_ago_fades() {
        let mut heavy = Heavy::new(2);
        heavy.count(1, 5);
        heavy.count(2, 1);
        heavy.fade();
        assert_eq!(heavy.heaviest(), [(1, 2)]);
    }
}
