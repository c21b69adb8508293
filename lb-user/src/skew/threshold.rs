//! From the false alarms one can bear to the evidence that an alarm needs.

use super::tilt::TILTS;

/// ln A for `streams` streams that together raise one false alarm in `checks` checks on average: A = streams · checks.
///
/// The expected number of false alarms of all streams in T checks is then at most T / `checks`, however they depend on
/// each other. Fewer than one stream or check counts as one.
pub fn ln_arl(streams: u64, checks: f64) -> f64 {
    (streams.max(1) as f64).ln() + checks.max(1.0).ln()
}

/// What the largest S must reach, `categories` (K) being bet on: half of the evidence is the sparse part's, and each of
/// its bets has an equal part of that.
pub fn sparse(ln_arl: f64, categories: usize) -> f64 {
    ln_arl + sparse_price(categories)
}

/// What ln of the dense part's mean must reach.
pub fn dense(ln_arl: f64) -> f64 {
    ln_arl + std::f64::consts::LN_2
}

/// What the sparse part's threshold has above ln A.
pub(super) fn sparse_price(categories: usize) -> f64 {
    std::f64::consts::LN_2 + ((TILTS * categories.max(1)) as f64).ln()
}

pub(super) fn next_power_of_two(categories: usize) -> usize {
    categories.max(1).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_those_of_the_design() {
        // 1,000 services and 65 histograms, one false alarm a year of checks a second.
        let ln_a = ln_arl(1065, 365.25 * 86_400.0);
        assert!((ln_a - 24.24).abs() < 0.01);
        assert!((sparse(ln_a, 264) - ln_a - (2.0f64 * 8.0 * 264.0).ln()).abs() < 1e-12);
        assert_eq!(dense(1.0), 1.0 + std::f64::consts::LN_2);
    }

    #[test]
    fn nothing_counts_as_one() {
        assert_eq!(ln_arl(0, 0.0), 0.0);
        assert_eq!(sparse(0.0, 0), sparse(0.0, 1));
        assert_eq!(next_power_of_two(0), 1);
        assert_eq!(next_power_of_two(5), 8);
    }
}
