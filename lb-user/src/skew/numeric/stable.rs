//! Sums of exponentials, and the pieces of the gamma function that do not cancel at large arguments.

/// ln √(2π).
pub const LN_SQRT_2_PI: f64 = 0.918_938_533_204_672_8;

/// ln(1 + e^x) without overflow.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// ln of the mean of e^v; −∞ for no values.
pub fn ln_mean_exp(values: &[f64]) -> f64 {
    let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !top.is_finite() {
        return top;
    }
    let sum: f64 = values.iter().map(|value| (value - top).exp()).sum();
    top + (sum / values.len() as f64).ln()
}

/// x·ln(x/mean) − x + mean, never negative, exact where x is close to `mean`.
///
/// The deviance part of Loader, "Fast and accurate computation of binomial probabilities" (2000). `mean` 0 gives
/// +∞ unless x is 0 too.
pub fn deviance(x: f64, mean: f64) -> f64 {
    if x == mean {
        return 0.0;
    }
    if x <= 0.0 {
        return mean;
    }
    let (gap, sum) = (x - mean, x + mean);
    if gap.abs() >= 0.1 * sum {
        return x * (x / mean).ln() - gap;
    }
    // With v = (x − mean)/(x + mean): ln(x/mean) = 2·(v + v³/3 + v⁵/5 + …).
    let v = gap / sum;
    let (mut total, mut power) = (gap * v, 2.0 * x * v);
    for odd in (3..).step_by(2) {
        power *= v * v;
        let next = total + power / f64::from(odd);
        if next == total {
            break;
        }
        total = next;
    }
    total
}

/// ln Γ(z) − [(z − ½)·ln z − z + ln √(2π)] for z > 0: what Stirling's formula leaves out.
pub fn stirling_error(z: f64) -> f64 {
    if z < 16.0 {
        return libm::lgamma(z) - ((z - 0.5) * z.ln() - z + LN_SQRT_2_PI);
    }
    // Coefficients B₂ₖ / (2k·(2k − 1)): Abramowitz and Stegun 6.1.41.
    const SERIES: [f64; 7] = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
        -691.0 / 360_360.0,
        1.0 / 156.0,
    ];
    let square = z * z;
    let sum = SERIES.iter().rev().fold(0.0, |sum, term| sum / square + term);
    sum / z
}

/// 1 − Σp, exact to the last place of the p given (Neumaier's sum).
pub fn complement_of_sum(p: &[f64]) -> f64 {
    let (mut sum, mut lost) = (1.0, 0.0);
    for share in p {
        let next = sum - share;
        lost += if f64::abs(sum) >= share.abs() {
            (sum - next) - share
        } else {
            (-share - next) + sum
        };
        sum = next;
    }
    sum + lost
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn softplus_has_its_limits() {
        assert_eq!(softplus(0.0), std::f64::consts::LN_2);
        assert_eq!(softplus(f64::NEG_INFINITY), 0.0);
        assert_eq!(softplus(-800.0), 0.0);
        assert_eq!(softplus(1e9), 1e9);
    }

    #[test]
    fn mean_of_exponentials_does_not_overflow() {
        assert_eq!(ln_mean_exp(&[]), f64::NEG_INFINITY);
        assert_eq!(ln_mean_exp(&[f64::NEG_INFINITY; 3]), f64::NEG_INFINITY);
        assert_eq!(ln_mean_exp(&[1e6, 1e6]), 1e6);
        assert!((ln_mean_exp(&[0.0, f64::NEG_INFINITY]) + std::f64::consts::LN_2).abs() < 1e-15);
    }

    #[test]
    fn stirling_error_meets_its_series_at_the_seam() {
        let below = stirling_error(16.0 - 1e-9);
        assert!((below - stirling_error(16.0)).abs() < 1e-12);
        // ln Γ(1) = 0, ln Γ(171) = ln 170!
        assert!((stirling_error(1.0) - (1.0 - LN_SQRT_2_PI)).abs() < 1e-15);
        let factorial: f64 = (1..=170).map(|k| f64::from(k).ln()).sum();
        let stirling = 170.5 * 171f64.ln() - 171.0 + LN_SQRT_2_PI;
        assert!((factorial - stirling - stirling_error(171.0)).abs() < 1e-11);
    }

    #[test]
    fn complement_sees_what_a_plain_sum_loses() {
        assert_eq!(complement_of_sum(&[]), 1.0);
        // Ten times the double next to 0.1 is 1 + 10 · 5.55e-18 short of rounding.
        assert!((complement_of_sum(&[0.1; 10]) + 10.0 * 5.551_115_123_125_783e-18).abs() < 1e-30);
    }

    proptest! {
        #[test]
        fn deviance_is_never_negative_nor_nan(x in 0.0f64..1e19, mean in 0.0f64..1e19) {
            prop_assert!(deviance(x, mean) >= 0.0);
        }

        #[test]
        fn deviance_is_the_plain_formula_where_that_does_not_cancel(x in 1.0f64..1e6, ratio in 1.05f64..20.0) {
            let mean = x * ratio;
            let plain = x * (x / mean).ln() - x + mean;
            prop_assert!((deviance(x, mean) - plain).abs() <= 1e-11 * mean);
        }
    }
}
