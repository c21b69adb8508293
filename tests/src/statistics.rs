//! Pearson's chi-squared test for a spread over a few backends, with bounds that a right balancer practically never breaks.

use anyhow::{Result, ensure};

/// Exceeded by a right spread once in a million tests, by degrees of freedom 1, 2, 3 (Abramowitz and Stegun, 26.4).
const ONE_IN_A_MILLION: [f64; 3] = [23.93, 27.63, 30.66];

/// Fails when `counts` are not spread as `weights` say.
pub fn spread_as(counts: &[u64], weights: &[u64]) -> Result<()> {
    ensure!(counts.len() == weights.len(), "{counts:?} against {weights:?}");
    let (total, weight): (u64, u64) = (counts.iter().sum(), weights.iter().sum());
    let mut chi_squared = 0.0;
    for (count, own) in counts.iter().zip(weights) {
        let expected = total as f64 * *own as f64 / weight as f64;
        ensure!(expected >= 5.0, "too few for a test: {counts:?}");
        chi_squared += (*count as f64 - expected).powi(2) / expected;
    }
    let limit = ONE_IN_A_MILLION[counts.len() - 2];
    ensure!(
        chi_squared < limit,
        "{counts:?} for weights {weights:?}: chi-squared {chi_squared:.1} > {limit}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_spread_passes_and_a_skewed_one_does_not() {
        assert!(spread_as(&[2480, 2530, 4990], &[1, 1, 2]).is_ok());
        assert!(spread_as(&[2250, 2750, 5000], &[1, 1, 2]).is_err());
        assert!(spread_as(&[3333, 3333, 3334], &[1, 1, 2]).is_err());
        assert!(spread_as(&[0, 0, 1], &[1, 1, 2]).is_err());
    }
}
