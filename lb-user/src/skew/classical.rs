//! Pearson's and the likelihood-ratio test, and the Dirichlet-multinomial Bayes factor: valid when looked at once, or
//! for an effect's size; not what alarms are made of.

use super::numeric::{
    gamma::ln_chi2_upper,
    stable::{LN_SQRT_2_PI, complement_of_sum, deviance, stirling_error},
};

fn total(counts: &[u64]) -> f64 {
    counts.iter().map(|count| u128::from(*count)).sum::<u128>() as f64
}

fn pairs<'a>(counts: &'a [u64], p: &'a [f64]) -> impl Iterator<Item = (f64, f64)> + 'a {
    counts.iter().map(|count| *count as f64).zip(p.iter().copied())
}

/// Σ (x − N·p)²/(N·p) over categories with an expected share; the others' flows count in N only.
pub fn chi2(counts: &[u64], p: &[f64]) -> f64 {
    let n = total(counts);
    if n <= 0.0 {
        return 0.0;
    }
    let expected = pairs(counts, p).filter(|(_, share)| *share > 0.0);
    expected
        .map(|(x, share)| (x - n * share).powi(2) / (n * share))
        .sum()
}

/// G = 2·Σ x·ln(x/(N·p)). A flow where none is expected makes it infinite.
pub fn g(counts: &[u64], p: &[f64]) -> f64 {
    let n = total(counts);
    let deviances: f64 = pairs(counts, p).map(|(x, share)| deviance(x, n * share)).sum();
    // Deviances hold Σ (N·p − x), which is not quite 0 when the p are rounded.
    2.0 * (deviances + n * complement_of_sum(p))
}

/// Degrees of freedom of both: categories with an expected share, less one.
pub fn degrees(p: &[f64]) -> usize {
    p.iter().filter(|share| **share > 0.0).count().saturating_sub(1)
}

/// ln P(chi-square ≥ `statistic`).
pub fn ln_p(statistic: f64, degrees: usize) -> f64 {
    ln_chi2_upper(statistic, degrees as f64)
}

/// ln of the Bayes factor of "any shares, drawn from Dirichlet(k·p)" against "the shares p" (Lindon and Malek, NeurIPS
/// 2022): cumulative counts may be looked at as often as one likes.
pub fn ln_bayes_factor(counts: &[u64], p: &[f64], k: f64) -> f64 {
    let n = total(counts);
    if n <= 0.0 {
        return 0.0;
    }
    let sum = k + n;
    let mut categories = 0.0;
    // With Stirling's formula for each Γ, Σ α·ln(α/(sum·p)) becomes deviances, and no large terms are left to cancel.
    let mut ln_factor = sum * complement_of_sum(p) + 0.5 * sum.ln() - stirling_error(sum) + ln_gamma(k);
    for (x, share) in pairs(counts, p) {
        if share <= 0.0 {
            if x > 0.0 {
                return f64::INFINITY;
            }
            continue;
        }
        let (prior, posterior) = (k * share, k * share + x);
        ln_factor += deviance(posterior, sum * share) - 0.5 * posterior.ln() + stirling_error(posterior);
        ln_factor += prior * share.ln() - ln_gamma(prior);
        categories += 1.0;
    }
    ln_factor + (categories - 1.0) * LN_SQRT_2_PI
}

/// What a Bayes factor says in terms of a p-value that is valid at all times.
pub fn anytime_p(ln_bayes_factor: f64) -> f64 {
    (-ln_bayes_factor).exp().min(1.0)
}

fn ln_gamma(z: f64) -> f64 {
    libm::lgamma(z)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_seen_says_nothing() {
        let p = [0.25, 0.75];
        assert_eq!((chi2(&[0, 0], &p), g(&[0, 0], &p)), (0.0, 0.0));
        assert_eq!(ln_bayes_factor(&[0, 0], &p, 100.0), 0.0);
        assert_eq!(ln_p(0.0, 0), 0.0);
        assert_eq!(anytime_p(-3.0), 1.0);
    }

    #[test]
    fn what_cannot_be_is_infinite_evidence_but_no_nan() {
        assert_eq!(g(&[5, 1], &[1.0, 0.0]), f64::INFINITY);
        assert_eq!(ln_bayes_factor(&[5, 1], &[1.0, 0.0], 2.0), f64::INFINITY);
        assert!(ln_bayes_factor(&[5, 0], &[1.0, 0.0], 2.0).abs() < 1e-12);
        assert_eq!(degrees(&[1.0, 0.0]), 0);
    }

    #[test]
    fn a_bayes_factor_of_two_categories_is_the_beta_binomial() {
        // Uniform prior: every number of hits is equally likely, so BF = 1/((n + 1)·Binomial(x; n, ½)).
        let binomial = 252.0 / 1024.0;
        let wanted = (1.0f64 / (11.0 * binomial)).ln();
        assert!((ln_bayes_factor(&[5, 5], &[0.5, 0.5], 2.0) - wanted).abs() < 1e-13);
    }
}
