//! When each seed was written and when the clock wants it rotated: pure, time and randomness are arguments.

use std::time::{Duration, Instant};

use lb_common::seed::{SHARED, Seed};

use super::view::SeedView;
use crate::seeds;

/// Ages and due times by index into `SEEDS`.
#[derive(Clone, Debug)]
pub struct SeedClock {
    interval: Duration,
    jitter: f64,
    seeds: Vec<SeedView>,
}

impl SeedClock {
    /// An `interval` of zero rotates on command only.
    pub fn new(interval: Duration, jitter: f64) -> Self {
        Self {
            interval,
            jitter,
            seeds: Vec::new(),
        }
    }

    /// Takes another rhythm; due times are drawn anew.
    pub fn set_rhythm(
        &mut self,
        interval: Duration,
        jitter: f64,
        now: Instant,
        mut random: impl FnMut() -> u64,
    ) {
        self.interval = interval;
        self.jitter = jitter;
        for index in 0..self.seeds.len() {
            self.seeds[index].next = self.next_after(index, now, random());
        }
    }

    /// Learns what the maps hold; a seed of another generation than before is new.
    pub fn observe(&mut self, observed: &[Seed], now: Instant, mut random: impl FnMut() -> u64) {
        for (index, seed) in observed.iter().enumerate() {
            if self
                .seeds
                .get(index)
                .is_some_and(|known| known.generation == seed.generation)
            {
                continue;
            }
            let next = self.next_after(index, now, random());
            let view = SeedView {
                generation: seed.generation,
                since: now,
                next,
            };
            match self.seeds.get_mut(index) {
                Some(known) => *known = view,
                None => self.seeds.push(view),
            }
        }
    }

    /// Seeds whose time has come.
    pub fn due(&self, now: Instant) -> Vec<u32> {
        let due = (0u32..)
            .zip(&self.seeds)
            .filter(|(_, seed)| seed.next.is_some_and(|next| next <= now));
        due.map(|(index, _)| index).collect()
    }

    /// Tries again later: the rotation of these failed.
    pub fn postpone(&mut self, indices: &[u32], until: Instant) {
        for index in indices {
            if let Some(seed) = self.seeds.get_mut(*index as usize) {
                seed.next = Some(until);
            }
        }
    }

    pub fn views(&self) -> Vec<SeedView> {
        self.seeds.clone()
    }

    /// The shared seed changes on command only: every CPU and every node of a fleet picks with it.
    fn next_after(&self, index: usize, now: Instant, random: u64) -> Option<Instant> {
        if index == SHARED as usize || self.interval.is_zero() {
            return None;
        }
        Some(now + seeds::next_rotation(self.interval, self.jitter, random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(generation: u32) -> Seed {
        Seed {
            k0: 1,
            k1: 2,
            generation,
            reserved: 0,
        }
    }

    #[test]
    fn cpu_seeds_become_due_and_the_shared_one_never() {
        let start = Instant::now();
        let mut clock = SeedClock::new(Duration::from_secs(100), 0.0);
        clock.observe(&[seed(1), seed(1), seed(1)], start, || 0);
        assert!(clock.due(start + Duration::from_secs(99)).is_empty());
        let later = start + Duration::from_secs(100);
        assert_eq!(clock.due(later), [1, 2]);
        clock.observe(&[seed(1), seed(2), seed(1)], later, || 0);
        assert_eq!(clock.due(later), [2]);
        clock.postpone(&[2], later + Duration::from_secs(5));
        assert!(clock.due(later).is_empty());
    }

    #[test]
    fn an_interval_of_zero_waits_for_a_command() {
        let start = Instant::now();
        let mut clock = SeedClock::new(Duration::ZERO, 0.1);
        clock.observe(&[seed(1), seed(1)], start, || 0);
        assert!(clock.due(start + Duration::from_secs(1_000_000)).is_empty());
        clock.set_rhythm(Duration::from_secs(10), 0.0, start, || 0);
        assert_eq!(clock.due(start + Duration::from_secs(10)), [1]);
    }
}
