//! From successive readings of cumulative counters to counts per check, or to the knowledge that there are none.
//!
//! | reading | what becomes of it |
//! |---|---|
//! | the first | baseline |
//! | of another source: maps made anew, or other CPUs than before | baseline |
//! | of another number of counters | baseline |
//! | not later than the one before (a clock that was set back) | baseline |
//! | more than 5 intervals later (a suspended daemon, a clock that was set forward) | baseline |
//! | a counter is lower (a backend's entry made anew, a reset) | baseline, for all counters: the total would be wrong |
//! | late or early, but none of these | counts; a check with more or fewer flows is as valid as any |
//! | a counter passed 2^64 | counts: differences wrap as the counters do |
//!
//! A baseline gives no counts: what happened up to it is not known well enough to be evidence. The next reading is
//! compared with it.

use std::time::Duration;

/// Gaps longer than so many intervals are not counted as one check: they may span changes that nobody noted.
pub const LONGEST_GAP: u32 = 5;

/// One reading of a stream's counters.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// Since any origin, by a clock that should not be set.
    pub at: Duration,
    /// What was read; see [`source`].
    pub source: u64,
    /// Cumulative counts by category, summed over CPUs by [`add`].
    pub counters: &'a [u64],
}

/// What a reading is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Counts since the reading before, which was so long ago.
    Counts { elapsed: Duration },
    /// Counts are known from here on only.
    Baseline(Cause),
}

/// Why a reading is a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    First,
    Source,
    Length,
    Clock,
    Gap,
    Lower,
}

/// The last reading of one stream's counters.
#[derive(Clone, Debug)]
pub struct Intake {
    interval: Duration,
    last: Option<Last>,
    counters: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Duration,
    source: u64,
}

impl Intake {
    /// For readings that are `interval` apart when nothing is late.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            last: None,
            counters: Vec::new(),
        }
    }

    /// Takes a reading and leaves the counts since the one before in `counts`; zeros if it is a baseline.
    pub fn take(&mut self, reading: Reading<'_>, counts: &mut Vec<u64>) -> Taken {
        counts.clear();
        let taken = self.judge(&reading, counts);
        if let Taken::Baseline(_) = taken {
            counts.clear();
            counts.resize(reading.counters.len(), 0);
        }
        self.last = Some(Last {
            at: reading.at,
            source: reading.source,
        });
        self.counters.clear();
        self.counters.extend_from_slice(reading.counters);
        taken
    }

    fn judge(&self, reading: &Reading<'_>, counts: &mut Vec<u64>) -> Taken {
        let Some(last) = self.last else {
            return Taken::Baseline(Cause::First);
        };
        let Some(elapsed) = reading
            .at
            .checked_sub(last.at)
            .filter(|elapsed| !elapsed.is_zero())
        else {
            return Taken::Baseline(Cause::Clock);
        };
        if last.source != reading.source {
            return Taken::Baseline(Cause::Source);
        }
        if self.counters.len() != reading.counters.len() {
            return Taken::Baseline(Cause::Length);
        }
        if elapsed > self.interval.saturating_mul(LONGEST_GAP) {
            return Taken::Baseline(Cause::Gap);
        }
        counts.extend(
            reading
                .counters
                .iter()
                .zip(&self.counters)
                .map(|(now, before)| now.wrapping_sub(*before)),
        );
        // No counter moves by 2^63 in a few intervals: it went down.
        if counts.iter().any(|count| *count > u64::MAX / 2) {
            return Taken::Baseline(Cause::Lower);
        }
        Taken::Counts { elapsed }
    }

    /// Forgets the last reading, so that the next one is a baseline: what is read next is known to be something else.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.counters.capacity() * size_of::<u64>()
    }
}

/// A name for what was summed: the counters' map (any number that is another one when the map is made anew) and the CPUs.
/// The order of CPUs does not matter. A CPU that appears brings all it ever counted, and one that disappears takes it
/// away; with another name neither is taken for flows.
pub fn source(map: u64, cpus: impl IntoIterator<Item = u32>) -> u64 {
    let start = mix(map);
    cpus.into_iter()
        .fold(start, |sum, cpu| sum.wrapping_add(mix(u64::from(cpu) + 1)))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Adds one CPU's counters to a sum, which wraps as they do. Categories that the sum does not have yet are appended.
pub fn add(sum: &mut Vec<u64>, counters: impl IntoIterator<Item = u64>) {
    for (category, counter) in counters.into_iter().enumerate() {
        match sum.get_mut(category) {
            Some(sum) => *sum = sum.wrapping_add(counter),
            None => sum.push(counter),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Bench {
        intake: Intake,
        counts: Vec<u64>,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                intake: Intake::new(SECOND),
                counts: Vec::new(),
            }
        }

        fn take(&mut self, at_ms: u64, source: u64, counters: &[u64]) -> (Taken, Vec<u64>) {
            let at = Duration::from_millis(at_ms);
            let taken = self
                .intake
                .take(Reading { at, source, counters }, &mut self.counts);
            (taken, self.counts.clone())
        }
    }

    fn counted(ms: u64) -> Taken {
        Taken::Counts {
            elapsed: Duration::from_millis(ms),
        }
    }

    /// Name, milliseconds, source, counters; what becomes of them, counts.
    type Row = (&'static str, u64, u64, &'static [u64], Taken, &'static [u64]);

    #[test]
    fn each_row_of_the_table() {
        // Before: at 10 s, source 1, counters 100 and 200.
        let cases: [Row; 11] = [
            ("on time", 11_000, 1, &[103, 200], counted(1000), &[3, 0]),
            ("early", 10_001, 1, &[101, 200], counted(1), &[1, 0]),
            ("late", 15_000, 1, &[150, 260], counted(5000), &[50, 60]),
            (
                "too late",
                15_001,
                1,
                &[150, 260],
                Taken::Baseline(Cause::Gap),
                &[0, 0],
            ),
            (
                "long suspended",
                1_000_000_000,
                1,
                &[150, 260],
                Taken::Baseline(Cause::Gap),
                &[0, 0],
            ),
            (
                "at the same time",
                10_000,
                1,
                &[103, 200],
                Taken::Baseline(Cause::Clock),
                &[0, 0],
            ),
            (
                "clock set back",
                9_000,
                1,
                &[103, 200],
                Taken::Baseline(Cause::Clock),
                &[0, 0],
            ),
            (
                "other source",
                11_000,
                2,
                &[103, 200],
                Taken::Baseline(Cause::Source),
                &[0, 0],
            ),
            (
                "more categories",
                11_000,
                1,
                &[103, 200, 7],
                Taken::Baseline(Cause::Length),
                &[0, 0, 0],
            ),
            (
                "one counter lower",
                11_000,
                1,
                &[103, 5],
                Taken::Baseline(Cause::Lower),
                &[0, 0],
            ),
            (
                "all counters reset",
                11_000,
                1,
                &[0, 0],
                Taken::Baseline(Cause::Lower),
                &[0, 0],
            ),
        ];
        for (name, at, source, counters, wanted, counts) in cases {
            let mut bench = Bench::new();
            assert_eq!(
                bench.take(10_000, 1, &[100, 200]).0,
                Taken::Baseline(Cause::First)
            );
            assert_eq!(
                bench.take(at, source, counters),
                (wanted, counts.to_vec()),
                "{name}"
            );
            // Whatever it was, it is what the next reading is compared with.
            let next: Vec<u64> = counters.iter().map(|counter| counter + 1).collect();
            let after = bench.take(at + 1000, source, &next);
            assert_eq!(after, (counted(1000), vec![1; counters.len()]), "after {name}");
        }
    }

    #[test]
    fn counters_may_pass_their_end() {
        let mut bench = Bench::new();
        bench.take(0, 1, &[u64::MAX - 2, 7]);
        assert_eq!(bench.take(1000, 1, &[4, 7]), (counted(1000), vec![7, 0]));
    }

    #[test]
    fn cpus_that_come_and_go_are_another_source() {
        let of = |cpus: &[u32]| source(9, cpus.iter().copied());
        assert_eq!(of(&[0, 1, 2]), of(&[2, 0, 1]));
        assert_ne!(of(&[0, 1, 2]), of(&[0, 1]));
        assert_ne!(of(&[0, 1, 2]), of(&[0, 1, 2, 3]));
        assert_ne!(of(&[0, 1, 2]), of(&[0, 1, 3]));
        assert_ne!(source(9, [0]), source(10, [0]));
        // CPU 2 brings a history of 1,000.
        let mut bench = Bench::new();
        bench.take(0, of(&[0, 1]), &[50]);
        assert_eq!(
            bench.take(1000, of(&[0, 1, 2]), &[1060]).0,
            Taken::Baseline(Cause::Source)
        );
        assert_eq!(bench.take(2000, of(&[0, 1, 2]), &[1070]).1, [10]);
    }

    #[test]
    fn what_is_forgotten_is_no_baseline() {
        let mut bench = Bench::new();
        bench.take(0, 1, &[5]);
        bench.intake.forget();
        assert_eq!(bench.take(1000, 1, &[9]).0, Taken::Baseline(Cause::First));
    }

    #[test]
    fn sums_wrap_and_grow() {
        let mut sum = Vec::new();
        add(&mut sum, [u64::MAX, 1]);
        add(&mut sum, [2, 1, 5]);
        assert_eq!(sum, [1, 2, 5]);
    }

    proptest! {
        /// However readings are spaced, no flow is counted twice and none is invented.
        #[test]
        fn counts_between_baselines_add_up(
            start in any::<u64>(),
            steps in proptest::collection::vec((1u64..8000, 0u64..1_000_000), 1..40),
        ) {
            let mut bench = Bench::new();
            let (mut at, mut counter, mut unknown) = (0, start, 0u64);
            bench.take(at, 1, &[counter]);
            let mut counted = 0;
            for (gap, flows) in steps {
                (at, counter) = (at + gap, counter.wrapping_add(flows));
                match bench.take(at, 1, &[counter]) {
                    (Taken::Counts { .. }, counts) => counted += counts[0],
                    (Taken::Baseline(_), _) => unknown += flows,
                }
            }
            prop_assert_eq!(start.wrapping_add(counted).wrapping_add(unknown), counter);
        }
    }
}
