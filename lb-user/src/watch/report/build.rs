//! From what the skew library says to the words of the report.

use std::net::IpAddr;

use super::{BackendSkew, CauseName, CpuSkew, EffectSkew, RatioSkew, RemedyDone, SeverityName, StateName};
use crate::{
    skew::{
        Stream,
        attribution::Cause,
        effect::{Effect, Ratio, Severity, interval::clopper_pearson},
        state::{Remedy, State},
    },
    state::desired::BackendState,
};

/// The probability with which an interval of the report misses what it is about.
pub const fn alpha() -> f64 {
    0.01
}

/// A verdict's cause by the name that reports and metrics use.
pub const fn cause_of(cause: &Cause) -> CauseName {
    match cause {
        Cause::Seed { .. } => CauseName::SeedFailure,
        Cause::Hash(_) => CauseName::HashFailure,
        Cause::Table(_) => CauseName::TableMismatch,
        Cause::StaleTable(_) => CauseName::StaleState,
        Cause::KeyConcentration(_) => CauseName::KeyConcentration,
        Cause::Drained { .. } => CauseName::Drained,
        Cause::TooLittleData(_) => CauseName::TooLittleData,
        Cause::ElephantFlows(_) => CauseName::ElephantFlows,
        Cause::Healthy => CauseName::Healthy,
    }
}

impl From<&State> for StateName {
    fn from(state: &State) -> Self {
        match state {
            State::Quiet => Self::Quiet,
            State::Suspected { .. } => Self::Suspected,
            State::Firing { .. } => Self::Firing,
            State::Healing { .. } => Self::Healing,
            State::Resolved { .. } => Self::Resolved,
        }
    }
}

impl From<Severity> for SeverityName {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Info,
            Severity::Warn => Self::Warn,
            Severity::Page => Self::Page,
        }
    }
}

impl RemedyDone {
    /// Every name of a remedy.
    pub const NAMES: [&str; 3] = ["rotate-seeds", "rewrite-seeds", "rewrite-slots"];

    /// A remedy's name in reports and as label in metrics.
    pub const fn name_of(remedy: &Remedy) -> &'static str {
        match remedy {
            Remedy::RotateSeeds { .. } => "rotate-seeds",
            Remedy::RewriteSeeds => "rewrite-seeds",
            Remedy::RewriteSlots { .. } => "rewrite-slots",
        }
    }
}

impl EffectSkew {
    /// `endpoints`: by category of the effect.
    pub fn of(effect: &Effect, endpoints: &[IpAddr]) -> Self {
        let named = |ratio: Ratio| {
            let endpoint = *endpoints.get(ratio.category)?;
            Some(RatioSkew {
                endpoint,
                ratio: ratio.seen,
                low: ratio.interval[0],
                high: ratio.interval[1],
            })
        };
        let seen = |ratio: Option<Ratio>| ratio.filter(|_| effect.flows > 0).and_then(named);
        Self {
            cv: effect.cv,
            cv_low: effect.cv_interval[0],
            cv_high: Some(effect.cv_interval[1]).filter(|high| high.is_finite()),
            tv: effect.tv,
            tv_low: effect.tv_interval[0],
            tv_high: effect.tv_interval[1],
            max_ratio: seen(effect.most()),
            min_ratio: seen(effect.least()),
        }
    }
}

/// Evidence of a stream and its threshold, of the part that is nearer to its own: both parts' thresholds stand for the
/// same odds.
pub fn evidence_of(stream: &Stream) -> (f64, f64) {
    let reading = stream.reading();
    nearer(
        (reading.max_s, stream.sparse_threshold()),
        (reading.ln_dense, stream.dense_threshold()),
    )
}

/// The pair of evidence and threshold that lacks least.
pub fn nearer(one: (f64, f64), other: (f64, f64)) -> (f64, f64) {
    let lack = |(evidence, threshold): (f64, f64)| threshold - evidence;
    let (evidence, threshold) = if lack(other) < lack(one) { other } else { one };
    (evidence.max(0.0), threshold)
}

/// Counts of a service's window by backend.
#[derive(Clone, Copy, Debug)]
pub struct BackendCounts {
    pub endpoint: IpAddr,
    pub state: BackendState,
    pub fresh: u64,
    pub flows: u64,
    pub packets: u64,
}

/// One row a backend; `counts` in the order of the stream's categories.
pub fn backend_rows(stream: &Stream, counts: &[BackendCounts]) -> Vec<BackendSkew> {
    let fresh: u64 = counts.iter().map(|backend| backend.fresh).sum();
    let each = alpha() / counts.len().max(1) as f64;
    let row = |(category, backend): (usize, &BackendCounts)| {
        let [low, high] = clopper_pearson(backend.fresh, fresh, each);
        let s = stream.s(category).unwrap_or_default();
        BackendSkew {
            endpoint: backend.endpoint,
            state: backend.state,
            expected: stream
                .shares()
                .ids()
                .get(category)
                .map_or(0.0, |_| stream.shares().share(category)),
            observed: (fresh > 0).then(|| backend.fresh as f64 / fresh as f64),
            low,
            high,
            fresh_flows: backend.fresh,
            flows: backend.flows,
            packets: backend.packets,
            evidence: s.into_iter().fold(0.0, f32::max).into(),
        }
    };
    let mut rows: Vec<BackendSkew> = counts.iter().enumerate().map(row).collect();
    rows.sort_by_key(|row| row.endpoint);
    rows
}

impl CpuSkew {
    /// Of a histogram's stream and its window of fresh flows by bucket.
    pub fn of(cpu: Option<u32>, stream: &Stream, fresh: &[u64], seed_generation: Option<u32>) -> Self {
        let (evidence, threshold) = evidence_of(stream);
        let flows = fresh.iter().sum();
        Self {
            cpu,
            fresh_flows: flows,
            evidence,
            threshold,
            entropy_bits: entropy_bits(fresh),
            expected_entropy_bits: expected_entropy_bits(flows, &stream.shares().to_vec()),
            alarm: stream.alarm().is_some(),
            seed_generation,
        }
    }
}

/// Shannon entropy of a histogram in bits; 0 when it is empty.
pub fn entropy_bits(counts: &[u64]) -> f64 {
    let total: f64 = counts.iter().map(|count| *count as f64).sum();
    let terms = counts.iter().filter(|count| **count > 0).map(|count| {
        let part = *count as f64 / total;
        part * (1.0 / part).log2()
    });
    // Not `sum`, whose zero is negative.
    terms.fold(0.0, |sum, term| sum + term)
}

/// Mean entropy in bits of `flows` flows that fall into buckets with shares `p`: below that of `p`, the more the fewer
/// flows there are.
pub fn expected_entropy_bits(flows: u64, p: &[f64]) -> f64 {
    if flows == 0 {
        return 0.0;
    }
    let n = flows as f64;
    // H = log2 N − Σ x·log2 x / N, and the mean of a sum is the sum of means.
    let mut known: Option<(f64, f64)> = None;
    let mut spent = 0.0;
    for share in p.iter().copied().filter(|share| *share > 0.0) {
        let mean = match known {
            Some((same, mean)) if same == share => mean,
            _ => mean_x_log2_x(n, share),
        };
        known = Some((share, mean));
        spent += mean;
    }
    (n.log2() - spent / n).max(0.0)
}

/// Mean flows in a bucket from which on the series in 1/mean is exact to 1e-4 bits.
const MANY: f64 = 100.0;

/// E[x·log2 x] of a binomial x.
fn mean_x_log2_x(n: f64, p: f64) -> f64 {
    let mean = n * p;
    if mean > MANY || p >= 1.0 {
        // E[f(x)] ≈ f(m) + v/2·f''(m), f'' = 1/(m·ln 2) (Miller 1955 has it for entropies).
        return mean * mean.log2() + (1.0 - p) / (2.0 * std::f64::consts::LN_2);
    }
    let mut probability = (n * (-p).ln_1p()).exp();
    let odds = p / (1.0 - p);
    let mut sum = 0.0;
    let last = (mean + 12.0 * mean.sqrt() + 20.0).min(n);
    let mut x = 0.0;
    while x < last {
        probability *= (n - x) / (x + 1.0) * odds;
        x += 1.0;
        sum += probability * x * x.log2();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skew::shares::histogram_shares;

    #[test]
    fn entropy_of_known_histograms() {
        assert_eq!(entropy_bits(&[]), 0.0);
        assert_eq!(entropy_bits(&[7, 0]), 0.0);
        assert_eq!(entropy_bits(&[5; 256]), 8.0);
        assert_eq!(entropy_bits(&[1, 1, 2]), 1.5);
    }

    /// Counted by hand: of two flows in two even buckets half are together (0 bits), half apart (1 bit).
    #[test]
    fn few_flows_have_little_entropy_even_when_they_are_spread_well() {
        assert!((expected_entropy_bits(2, &[0.5, 0.5]) - 0.5).abs() < 1e-12);
        assert!((expected_entropy_bits(3, &[0.5, 0.5]) - 0.75 * 0.918_295_834_054_489_6).abs() < 1e-12);
        assert_eq!(expected_entropy_bits(0, &[0.5, 0.5]), 0.0);
        assert_eq!(expected_entropy_bits(1, &histogram_shares(1021)), 0.0);
        assert_eq!(expected_entropy_bits(9, &[1.0]), 0.0);
    }

    #[test]
    fn the_sum_and_the_series_meet() {
        let p = 1.0 / 256.0;
        let (below, above) = (mean_x_log2_x(MANY / p - 1.0, p), mean_x_log2_x(MANY / p + 1.0, p));
        assert!((below - above).abs() / above < 1e-4, "{below} {above}");
        let many = expected_entropy_bits(1_000_000_000, &[p; 256]);
        assert!((7.999_99..=8.0).contains(&many), "{many}");
    }

    #[test]
    fn the_part_that_lacks_least_is_shown() {
        assert_eq!(nearer((10.0, 30.0), (12.0, 25.0)), (12.0, 25.0));
        assert_eq!(nearer((31.0, 30.0), (12.0, 25.0)), (31.0, 30.0));
        assert_eq!(
            nearer((f64::NEG_INFINITY, 30.0), (f64::NEG_INFINITY, 25.0)),
            (0.0, 30.0)
        );
    }
}
