//! How loudly an alarm should be raised.

use super::{Effect, Ratio};

/// What a stream counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// New flows by backend.
    Backends,
    /// The hash histogram of all CPUs together.
    Histogram,
    /// The hash histogram of one CPU.
    CpuHistogram,
}

/// In rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Real, and shown to be small.
    Info,
    Warn,
    /// Wake someone.
    Page,
}

/// Part of the flows shown to be misplaced, ratio shown to be exceeded or not reached, from which on to page.
const PAGE_TV: f64 = 0.10;
const PAGE_OVER: f64 = 1.5;
const PAGE_UNDER: f64 = 0.5;
/// On one CPU of many a fault moves the whole little yet; but this is how it begins.
const PAGE_TV_CPU: f64 = 0.25;

/// The severity of an alarm whose effect over the last minute, or since its change, is `effect`. Effects alone, without
/// an alarm, have none: at few flows they are chance.
pub fn severity(effect: &Effect, watched: Watched) -> Severity {
    let over = |ratio: &Ratio| ratio.interval[0] >= PAGE_OVER || ratio.interval[1] <= PAGE_UNDER;
    let misplaced = effect.tv_interval[0];
    let page = match watched {
        Watched::Backends => misplaced >= PAGE_TV || effect.ratios.iter().any(over),
        Watched::Histogram => misplaced >= PAGE_TV,
        Watched::CpuHistogram => misplaced >= PAGE_TV_CPU,
    };
    if page {
        Severity::Page
    } else if effect.is_small() {
        Severity::Info
    } else {
        Severity::Warn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counts: &[u64], watched: Watched) -> Severity {
        let p = vec![1.0 / counts.len() as f64; counts.len()];
        severity(&Effect::measure(counts, &p, 0.01), watched)
    }

    #[test]
    fn severity_follows_what_is_shown() {
        let cases = [
            ("exact, many flows", vec![100_000; 4], Severity::Info),
            (
                "5 % off one of four",
                vec![105_000, 100_000, 100_000, 100_000],
                Severity::Info,
            ),
            (
                "20 % off one of four",
                vec![120_000, 100_000, 100_000, 100_000],
                Severity::Warn,
            ),
            ("exact, few flows: ratios not known", vec![50; 4], Severity::Warn),
            (
                "a fourth of the flows misplaced",
                vec![50_000, 150_000, 100_000, 100_000],
                Severity::Page,
            ),
            (
                "a small backend gets twice its share",
                [vec![1000; 19], vec![2000]].concat(),
                Severity::Page,
            ),
            (
                "a small backend gets nothing",
                [vec![1000; 49], vec![0]].concat(),
                Severity::Page,
            ),
        ];
        for (name, counts, wanted) in cases {
            assert_eq!(of(&counts, Watched::Backends), wanted, "{name}");
        }
    }

    #[test]
    fn buckets_page_by_the_misplaced_part_alone() {
        let one_double = [vec![10_000; 255], vec![20_000]].concat();
        assert_eq!(of(&one_double, Watched::Histogram), Severity::Warn);
        assert_eq!(of(&one_double, Watched::Backends), Severity::Page);
        let fifth_lost = [vec![10_000; 205], vec![0; 51]].concat();
        assert_eq!(of(&fifth_lost, Watched::Histogram), Severity::Page);
        assert_eq!(of(&fifth_lost, Watched::CpuHistogram), Severity::Warn);
        let stuck = [vec![0; 255], vec![400]].concat();
        assert_eq!(of(&stuck, Watched::CpuHistogram), Severity::Page);
    }
}
