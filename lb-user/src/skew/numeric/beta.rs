//! The incomplete beta function in logarithms.

use super::stable::{LN_SQRT_2_PI, deviance, stirling_error};

/// ln I_θ(a, b) = ln P(Beta(a, b) ≤ θ), for a, b > 0. `rest` is 1 − θ, given by itself since it may be tiny.
///
/// Continued fraction (DLMF 8.17.22) with a prefactor that does not cancel; exact in its lower tail, however small.
pub fn ln_beta_cdf(a: f64, b: f64, theta: f64, rest: f64) -> f64 {
    if theta <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if rest <= 0.0 {
        return 0.0;
    }
    let ln_front = ln_beta_kernel(a, b, theta, rest);
    if theta <= (a + 1.0) / (a + b + 2.0) {
        (ln_front - a.ln() + fraction(a, b, theta).ln()).min(0.0)
    } else {
        let upper = (ln_front - b.ln() + fraction(b, a, rest).ln()).min(0.0);
        (-upper.exp()).ln_1p()
    }
}

/// ln of θ^a·(1 − θ)^b / B(a, b).
pub fn ln_beta_kernel(a: f64, b: f64, theta: f64, rest: f64) -> f64 {
    let n = a + b;
    let misfit = deviance(a, n * theta) + deviance(b, n * rest);
    0.5 * (a.ln() + b.ln() - n.ln()) - LN_SQRT_2_PI - misfit + stirling_error(n)
        - stirling_error(a)
        - stirling_error(b)
}

/// ln B(a, b).
pub fn ln_beta(a: f64, b: f64) -> f64 {
    let n = a + b;
    // (½ − x)·ln x terms of Stirling's formula, with the n·ln n parts taken out first.
    let entropy = a * (a / n).ln() + b * (b / n).ln();
    entropy - 0.5 * (a.ln() + b.ln() - n.ln()) + LN_SQRT_2_PI + stirling_error(a) + stirling_error(b)
        - stirling_error(n)
}

const MAX_STEPS: u32 = 50_000_000;

/// Lentz's method, two terms a step.
fn fraction(a: f64, b: f64, theta: f64) -> f64 {
    const TINY: f64 = 1e-290;
    let keep = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / keep(1.0 - (a + b) * theta / (a + 1.0));
    let mut value = d;
    for step in 1..MAX_STEPS {
        let m = f64::from(step);
        let even = m * (b - m) * theta / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / keep(1.0 + even * d);
        c = keep(1.0 + even / c);
        value *= d * c;
        let odd = -(a + m) * (a + b + m) * theta / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / keep(1.0 + odd * d);
        c = keep(1.0 + odd / c);
        let factor = d * c;
        value *= factor;
        if (factor - 1.0).abs() <= f64::EPSILON {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn closed_forms() {
        let at = |a, b, theta: f64| ln_beta_cdf(a, b, theta, 1.0 - theta).exp();
        assert!((at(1.0, 1.0, 0.3) - 0.3).abs() < 1e-15);
        assert!((at(2.0, 1.0, 0.3) - 0.09).abs() < 1e-15);
        assert!((at(1.0, 3.0, 0.9) - (1.0 - 1e-3)).abs() < 1e-14);
        assert_eq!(at(3.0, 4.0, 0.0), 0.0);
        assert_eq!(at(3.0, 4.0, 1.0), 1.0);
        assert!((ln_beta(0.5, 0.5) - std::f64::consts::PI.ln()).abs() < 1e-14);
        assert!((ln_beta(3.0, 4.0) + 60f64.ln()).abs() < 1e-13);
    }

    #[test]
    fn tiny_tails_keep_their_digits() {
        // I_θ(a, 1) = θ^a.
        assert!((ln_beta_cdf(1e6, 1.0, 0.5, 0.5) + 1e6 * std::f64::consts::LN_2).abs() < 1e-8);
        assert!((ln_beta_cdf(3.0, 1.0, 1e-200, 1.0) - 3.0 * 1e-200f64.ln()).abs() < 1e-10);
    }

    proptest! {
        #[test]
        fn reflection_holds(a in 0.5f64..1e6, b in 0.5f64..1e6, sway in -4.0f64..4.0) {
            let mean = a / (a + b);
            let sigma = (mean * (1.0 - mean) / (a + b + 1.0)).sqrt();
            let theta = (mean + sway * sigma).clamp(1e-9, 1.0 - 1e-9);
            let sum = ln_beta_cdf(a, b, theta, 1.0 - theta).exp() + ln_beta_cdf(b, a, 1.0 - theta, theta).exp();
            prop_assert!((sum - 1.0).abs() < 1e-11, "{sum}");
        }
    }
}
