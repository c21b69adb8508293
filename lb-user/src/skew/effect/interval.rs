//! Intervals for one share.

use crate::skew::numeric::{
    beta::{ln_beta, ln_beta_cdf, ln_beta_kernel},
    root,
};

/// Clopper-Pearson: an interval for the share of which `x` of `n` flows are the sample, missed with probability `alpha` at
/// most. `x` above `n` counts as `n`; no flows give [0, 1]. Of more than 2^37 flows the interval is that of
/// so many with the same share, which is wider.
pub fn clopper_pearson(x: u64, n: u64, alpha: f64) -> [f64; 2] {
    if n == 0 || alpha.is_nan() || alpha <= 0.0 {
        return [0.0, 1.0];
    }
    let (hits, total) = (x.min(n) as f64, n as f64);
    let ln_tail = (alpha.min(1.0) / 2.0).ln();
    if n <= MOST_FLOWS {
        return [lower_end(hits, total, ln_tail), upper_end(hits, total, ln_tail)];
    }
    let most = MOST_FLOWS as f64;
    let scaled = hits / total * most;
    [
        lower_end(scaled.floor(), most, ln_tail),
        upper_end(scaled.ceil(), most, ln_tail),
    ]
}

/// Flows up to which intervals are exact: a year at 4,000 a second.
const MOST_FLOWS: u64 = 1 << 37;

/// The share at which `x` hits or more have this probability.
fn lower_end(x: f64, n: f64, ln_tail: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let excess = |theta: f64| ln_beta_cdf(x, n - x + 1.0, theta, 1.0 - theta) - ln_tail;
    let near = (x - reach(x, ln_tail)) / n;
    let low = if near > 0.0 && excess(near) < 0.0 {
        near
    } else {
        0.0
    };
    // At x/n the tail can be a little less than the half that α = 1 asks for.
    root::between(excess, low, (x + 1.0) / (n + 1.0))
}

/// The share at which `x` hits or fewer have this probability.
fn upper_end(x: f64, n: f64, ln_tail: f64) -> f64 {
    if x >= n {
        return 1.0;
    }
    if x <= 0.0 {
        // 1 − (α/2)^(1/n), where the general way would lose digits.
        return -(ln_tail / n).exp_m1();
    }
    let excess = |theta: f64| ln_beta_cdf(n - x, x + 1.0, 1.0 - theta, theta) - ln_tail;
    let near = (x + reach(x, ln_tail)) / n;
    let high = if near < 1.0 && excess(near) < 0.0 {
        near
    } else {
        1.0
    };
    root::between(excess, x / (n + 1.0), high)
}

/// Further from `x` hits than an end with this tail usually is: a start for the search.
fn reach(x: f64, ln_tail: f64) -> f64 {
    let sigmas = (-2.0 * ln_tail).sqrt() + 1.0;
    sigmas * (x.sqrt() + sigmas)
}

/// The prior of the mixture that anytime intervals use: Beta(a, b).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    pub a: f64,
    pub b: f64,
}

impl Prior {
    /// Jeffreys'.
    pub const JEFFREYS: Self = Self { a: 0.5, b: 0.5 };
}

/// ln of the evidence against the share `theta`: a mixture of bets over `prior`, a martingale in n if `theta` is true.
pub fn ln_evidence(x: u64, n: u64, theta: f64, prior: Prior) -> f64 {
    let (hits, others) = (x.min(n) as f64, (n - x.min(n)) as f64);
    let (a, b) = (hits + prior.a, others + prior.b);
    let limit = |count: f64| {
        if count > 0.0 {
            f64::INFINITY
        } else {
            ln_beta(a, b) - ln_beta(prior.a, prior.b)
        }
    };
    if theta <= 0.0 {
        return limit(hits);
    }
    if theta >= 1.0 {
        return limit(others);
    }
    let from_prior = prior.a * theta.ln() + prior.b * (-theta).ln_1p() - ln_beta(prior.a, prior.b);
    from_prior - ln_beta_kernel(a, b, theta, 1.0 - theta)
}

/// A confidence sequence: shares against which there is less evidence than 1/α. It covers the true share at all times
/// together with probability 1 − α, so one may look as often as one likes.
pub fn anytime(x: u64, n: u64, alpha: f64, prior: Prior) -> [f64; 2] {
    if n == 0 || alpha.is_nan() || alpha <= 0.0 {
        return [0.0, 1.0];
    }
    let x = x.min(n);
    let middle = x as f64 / n as f64;
    let excess = |theta: f64| ln_evidence(x, n, theta, prior) + alpha.min(1.0).ln();
    if excess(middle) >= 0.0 {
        return [middle, middle];
    }
    let end = |end: f64| {
        if excess(end) < 0.0 {
            end
        } else {
            root::between(excess, end.min(middle), end.max(middle))
        }
    };
    [end(0.0), end(1.0)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_seen_means_nothing_known() {
        assert_eq!(clopper_pearson(0, 0, 0.01), [0.0, 1.0]);
        assert_eq!(anytime(0, 0, 0.01, Prior::JEFFREYS), [0.0, 1.0]);
        assert_eq!(clopper_pearson(3, 9, 0.0), [0.0, 1.0]);
        assert_eq!(anytime(3, 9, f64::NAN, Prior::JEFFREYS), [0.0, 1.0]);
    }

    #[test]
    fn all_or_none_reach_the_ends() {
        assert_eq!(clopper_pearson(5, 5, 0.01)[1], 1.0);
        assert_eq!(clopper_pearson(0, 5, 0.01)[0], 0.0);
        // One of one: the lower end is α/2 itself.
        assert!((clopper_pearson(1, 1, 0.01)[0] - 0.005).abs() < 1e-16);
        assert!((clopper_pearson(0, 1, 0.01)[1] - 0.995).abs() < 1e-15);
    }

    /// mpmath at 60 digits.
    #[test]
    fn a_few_of_a_thousand_million_keep_their_digits() {
        let cases = [
            (1, 0.01, [5.012_541_823_531_719e-12, 7.430_129_476_391_775e-9]),
            (7, 1e-6, [4.499_012_015_607_731e-10, 3.005_887_105_308_398e-8]),
            (300, 1e-4, [2.372_711_388_181_119e-7, 3.732_590_684_437_451e-7]),
        ];
        for (x, alpha, wanted) in cases {
            let found = clopper_pearson(x, 1_000_000_000, alpha);
            for (found, wanted) in found.into_iter().zip(wanted) {
                assert!((found / wanted - 1.0).abs() < 1e-7, "{found} is not {wanted}");
            }
        }
    }

    #[test]
    fn endless_counts_end() {
        for (x, n) in [
            (u64::MAX / 3, u64::MAX),
            (1, u64::MAX),
            (u64::MAX - 1, u64::MAX),
            (u64::MAX, 7),
        ] {
            for [low, high] in [clopper_pearson(x, n, 1e-6), anytime(x, n, 1e-6, Prior::JEFFREYS)] {
                assert!(
                    (0.0..=1.0).contains(&low) && low <= high && high <= 1.0,
                    "{x} of {n}: {low} {high}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn intervals_hold_the_share_seen_and_nest(n in 1u64..2_000_000_000, part in 0.0f64..=1.0, ln_alpha in -40.0f64..-0.1) {
            let x = (n as f64 * part) as u64;
            let (seen, alpha) = (x as f64 / n as f64, ln_alpha.exp());
            let fixed = clopper_pearson(x, n, alpha);
            let anytime = anytime(x, n, alpha, Prior::JEFFREYS);
            prop_assert!(fixed[0] <= seen && seen <= fixed[1]);
            // Looking for ever costs width, unless chance is granted so much that both are about a point.
            prop_assert!(alpha > 0.3 || (anytime[0] <= fixed[0] + 1e-12 && fixed[1] <= anytime[1] + 1e-12));
        }
    }
}
