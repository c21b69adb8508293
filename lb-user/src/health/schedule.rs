//! When the checks of one backend are due.

use std::time::{Duration, Instant};

/// Due times at most one interval apart, each shorter by up to the jitter. They follow from one another and never from
/// when a check was made, so lateness does not add up.
///
/// Jitter only shortens: `fall` intervals are never longer than what an operator reckons a death is noticed within.
#[derive(Clone, Debug)]
pub struct Schedule {
    due: Instant,
    interval: Duration,
    jitter: f64,
    random: Random,
}

impl Schedule {
    /// `jitter` is a share of the interval; what is not from 0 to 1 counts as the nearer of them.
    pub fn new(first: Instant, interval: Duration, jitter: f64, random: Random) -> Self {
        Self {
            due: first,
            // Zero would never get past now.
            interval: interval.max(Duration::from_millis(1)),
            jitter: if jitter.is_nan() {
                0.0
            } else {
                jitter.clamp(0.0, 1.0)
            },
            random,
        }
    }

    pub const fn due(&self) -> Instant {
        self.due
    }

    /// Moves on to the next time that has not passed. Says how many were passed over: a check that took longer is not
    /// made up for.
    pub fn advance(&mut self, now: Instant) -> u64 {
        let behind = now.saturating_duration_since(self.due).as_nanos() / self.interval.as_nanos();
        // After a suspended night, in one stride rather than by thousands of steps.
        let stride = u32::try_from(behind.saturating_sub(2)).unwrap_or(u32::MAX);
        self.due += self.interval.saturating_mul(stride);
        let mut skipped = u64::from(stride);
        self.step();
        while self.due < now {
            self.step();
            skipped += 1;
        }
        skipped
    }

    /// Moves on after a failure that may be the first of a death: the next time is `sooner` than an interval later, and
    /// now if that has passed. None is passed over.
    pub fn hasten(&mut self, now: Instant, sooner: Duration) {
        self.step();
        self.due = self.due.checked_sub(sooner).unwrap_or(now).max(now);
    }

    fn step(&mut self) {
        let factor = 1.0 - self.jitter * self.random.unit();
        // Jitter of 1 may come to zero, which would make two checks of one.
        self.due += self.interval.mul_f64(factor).max(Duration::from_millis(1));
    }
}

/// Small and fast randomness for spreading checks (splitmix64, Steele, Lea and Flood 2014); nothing secret is made of it.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator, for one backend.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lateness_does_not_add_up() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut schedule = Schedule::new(start, second, 0.0, Random::new(1));
        for check in 1..1000 {
            let late = schedule.due() + Duration::from_millis(900);
            assert_eq!(schedule.advance(late), 0);
            assert_eq!(schedule.due(), start + second * check);
        }
    }

    #[test]
    fn a_long_check_is_not_made_up_for() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        for (took, skipped) in [(500, 0), (1000, 0), (1001, 1), (3500, 3), (3_600_500, 3600)] {
            let mut schedule = Schedule::new(start, second, 0.0, Random::new(1));
            let now = start + Duration::from_millis(took);
            assert_eq!(schedule.advance(now), skipped, "{took} ms");
            assert!(
                schedule.due() >= now && schedule.due() < now + second,
                "{took} ms"
            );
        }
    }

    proptest! {
        #[test]
        fn each_interval_is_shorter_by_at_most_the_jitter(
            seed: u64,
            millis in 1_u64..100_000,
            jitter in 0.0_f64..=1.0,
        ) {
            let interval = Duration::from_millis(millis);
            let start = Instant::now();
            let mut schedule = Schedule::new(start, interval, jitter, Random::new(seed));
            for _ in 0..50 {
                let before = schedule.due();
                schedule.advance(before);
                let gap = (schedule.due() - before).as_secs_f64() / interval.as_secs_f64();
                prop_assert!(gap <= 1.0 + 1e-3);
                prop_assert!(gap >= 1.0 - jitter - 1e-3);
            }
        }

        #[test]
        fn intervals_are_shorter_by_half_the_jitter_on_average(seed: u64) {
            let start = Instant::now();
            let interval = Duration::from_secs(2);
            let mut schedule = Schedule::new(start, interval, 0.1, Random::new(seed));
            for _ in 0..1000 {
                schedule.advance(schedule.due());
            }
            // Standard deviation of the sum: 2 s × 0.1 / √12 × √1000 = 1.8 s.
            let off = (schedule.due() - start).as_secs_f64() - 1900.0;
            prop_assert!(off.abs() < 8.0 * 1.8, "{off} s");
        }

        #[test]
        fn nothing_is_passed_over_after_a_failure(
            seed: u64,
            took in 0_u64..10_000,
            sooner in 0_u64..20_000,
        ) {
            let start = Instant::now();
            let second = Duration::from_secs(1);
            let mut schedule = Schedule::new(start, second, 0.1, Random::new(seed));
            let now = start + Duration::from_millis(took);
            schedule.hasten(now, Duration::from_millis(sooner));
            prop_assert!(schedule.due() >= now);
            prop_assert!(schedule.due() <= now.max(start + second));
        }
    }
}
