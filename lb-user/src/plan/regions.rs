//! Where in `SLOTS` a new table goes: a stretch that no service used before the plan or uses after it.

use std::collections::BTreeMap;

use crate::state::observed::Observed;

/// The stretches in use, by first slot. What the plan frees stays in use: a CPU may be reading it still.
pub(super) struct Regions {
    /// First slot → the slot after the last.
    used: BTreeMap<u32, u32>,
    capacity: u32,
}

impl Regions {
    pub fn of(observed: &Observed) -> Self {
        let capacity = observed.capacity.slots;
        let mut regions = Self {
            used: BTreeMap::new(),
            capacity,
        };
        for service in observed
            .services
            .values()
            .filter(|service| service.slots_count > 0)
        {
            let end = service.slots_offset.saturating_add(service.slots_count);
            regions.keep(service.slots_offset, end);
        }
        regions
    }

    /// Gives nothing out of `start..end`.
    pub fn keep(&mut self, start: u32, end: u32) {
        let (start, end) = (start.min(self.capacity), end.min(self.capacity));
        let known = self.used.entry(start).or_insert(end);
        *known = end.max(*known);
    }

    /// The first free stretch of `length` slots, or else the length of the largest one.
    pub fn take(&mut self, length: u32) -> Result<u32, u32> {
        let (mut free, mut largest) = (0u32, 0);
        let end_of_map = [(&self.capacity, &self.capacity)];
        let fits = self.used.iter().chain(end_of_map).any(|(&start, &end)| {
            let gap = start.saturating_sub(free);
            largest = largest.max(gap);
            if gap < length {
                free = free.max(end);
            }
            gap >= length
        });
        if !fits {
            return Err(largest);
        }
        self.used.insert(free, free + length);
        Ok(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(used: &[(u32, u32)], capacity: u32) -> Regions {
        Regions {
            used: used.iter().copied().collect(),
            capacity,
        }
    }

    #[test]
    fn the_first_gap_that_fits_is_taken() {
        let mut regions = regions(&[(10, 20), (25, 40), (60, 100)], 120);
        assert_eq!(regions.take(10), Ok(0));
        assert_eq!(regions.take(6), Ok(40));
        assert_eq!(regions.take(5), Ok(20));
        assert_eq!(regions.take(20), Ok(100));
        assert_eq!(regions.take(15), Err(14));
        assert_eq!(regions.take(14), Ok(46));
    }

    #[test]
    fn overlapping_and_outlying_stretches_are_avoided() {
        let mut regions = regions(&[(0, 50), (10, 20), (90, 100)], 100);
        assert_eq!(regions.take(41), Err(40));
        assert_eq!(regions.take(40), Ok(50));
        assert_eq!(regions.take(1), Err(0));
    }
}
