//! Tails of the noncentral chi-square distribution, and the noncentrality that an observed value speaks for.

use super::{
    gamma::{ln_chi2_upper, ln_poisson, ln_tails},
    root,
};

/// ln P(X ≤ x), X noncentral chi-square with `degrees` > 0 and noncentrality `lambda` ≥ 0; x below 1e-100 counts as 0.
pub fn ln_lower(x: f64, degrees: f64, lambda: f64) -> f64 {
    if x < 1e-100 {
        return f64::NEG_INFINITY;
    }
    mixture(Tail::Lower, x / 2.0, degrees / 2.0, lambda / 2.0)
}

/// ln P(X > x).
pub fn ln_upper(x: f64, degrees: f64, lambda: f64) -> f64 {
    mixture(Tail::Upper, x / 2.0, degrees / 2.0, lambda / 2.0)
}

/// The noncentralities at which `x` lies at the upper and at the lower α/2 point: a 1 − α interval, 0 where even the
/// central distribution puts `x` further in. No degrees of freedom leave nothing to estimate: [0, 0].
pub fn lambda_interval(x: f64, degrees: f64, alpha: f64) -> [f64; 2] {
    if degrees <= 0.0 || x.is_nan() {
        return [0.0, 0.0];
    }
    if alpha <= 0.0 || x == f64::INFINITY {
        return [0.0, f64::INFINITY];
    }
    let wanted = alpha.min(1.0).ln() - std::f64::consts::LN_2;
    if x > LARGE {
        return large_interval(x, degrees, wanted);
    }
    // √X is nearly normal with variance 1 around √(λ + degrees); far from there the sums are long.
    let (centre, reach) = ((x - degrees).max(0.0).sqrt(), (-2.0 * wanted).sqrt() + 2.0);
    let solve = |excess: &dyn Fn(f64) -> f64| {
        let mut low = (centre - reach).max(0.0).powi(2);
        if low > 0.0 && excess(low) >= 0.0 {
            low = 0.0;
        }
        if low == 0.0 && excess(0.0) >= 0.0 {
            return 0.0;
        }
        let high = root::double_until((centre + reach).powi(2), |lambda| excess(lambda) >= 0.0);
        root::between(excess, low, high)
    };
    [
        solve(&|lambda| ln_upper(x, degrees, lambda) - wanted),
        solve(&|lambda| wanted - ln_lower(x, degrees, lambda)),
    ]
}

/// Above this the mixture has too many terms, and √X is normal to ten places.
const LARGE: f64 = 1e10;

/// √(X − (degrees − 1)) is close to N(√λ, 1) when λ is large: relative error of λ about degrees / x.
fn large_interval(x: f64, degrees: f64, ln_tail: f64) -> [f64; 2] {
    // The normal quantile, as the root of a chi-square of one degree: P(Z² > z²) = 2·P(Z > z).
    let excess = |z: f64| ln_tail + std::f64::consts::LN_2 - ln_chi2_upper(z * z, 1.0);
    let high = root::double_until(1.0, |z| excess(z) >= 0.0);
    let z = root::between(excess, 0.0, high);
    let centre = (x - (degrees - 1.0)).max(0.0).sqrt();
    [(centre - z).max(0.0).powi(2), (centre + z).powi(2)]
}

#[derive(Clone, Copy, PartialEq)]
enum Tail {
    Lower,
    Upper,
}

/// Σ Poisson(j; μ)·tail(a + j, y), j = 0, 1, …, in logarithms.
///
/// The terms are log-concave in j. The sum starts where the Poisson weights become negligible on the side where the
/// tail is small too, and ends when the terms no longer count.
fn mixture(tail: Tail, y: f64, a: f64, mu: f64) -> f64 {
    if mu <= 0.0 {
        return ln_tail_of(tail, a, y);
    }
    let Some((mut terms, ln_first)) = Terms::start(tail, y, a, mu) else {
        return f64::NEG_INFINITY;
    };
    // Relative to e^scale.
    let (mut sum, mut last, mut scale) = (1.0, 1.0, ln_first);
    while let Some(term) = terms.next() {
        sum += term;
        if term <= last && term <= sum * 1e-18 {
            break;
        }
        last = term;
        if terms.are_large() {
            terms.rescale();
            scale += term.ln();
            (sum, last) = (sum / term, 1.0);
        }
    }
    (scale + sum.ln()).min(0.0)
}

/// Terms of the mixture, one after the other, relative to the first.
///
/// The first tail comes from the incomplete gamma function, the next ones by its recurrence, in the direction in which
/// something is added, never subtracted.
struct Terms {
    tail: Tail,
    y: f64,
    a: f64,
    mu: f64,
    j: f64,
    weight: f64,
    value: f64,
    /// From this tail to the next.
    step: f64,
}

impl Terms {
    /// With ln of the first term; `None` if that is 0.
    fn start(tail: Tail, y: f64, a: f64, mu: f64) -> Option<(Self, f64)> {
        let spread = 9.0 * mu.sqrt() + 40.0;
        let (j, step_at) = match tail {
            Tail::Lower => ((mu + spread).ceil(), a + (mu + spread).ceil() - 1.0),
            Tail::Upper => {
                let j = (mu - spread).floor().max(0.0);
                (j, a + j)
            }
        };
        let ln_tail = ln_tail_of(tail, a + j, y);
        if ln_tail == f64::NEG_INFINITY {
            return None;
        }
        let terms = Self {
            tail,
            y,
            a,
            mu,
            j,
            weight: 1.0,
            value: 1.0,
            step: (ln_poisson_any(step_at, y) - ln_tail).exp(),
        };
        Some((terms, ln_poisson_count(j, mu) + ln_tail))
    }

    fn next(&mut self) -> Option<f64> {
        if self.tail == Tail::Lower && self.j < 1.0 {
            return None;
        }
        self.value += self.step;
        match self.tail {
            Tail::Lower => {
                self.step *= (self.a + self.j - 1.0) / self.y;
                self.weight *= self.j / self.mu;
                self.j -= 1.0;
            }
            Tail::Upper => {
                self.step *= self.y / (self.a + self.j + 1.0);
                self.weight *= self.mu / (self.j + 1.0);
                self.j += 1.0;
            }
        }
        Some(self.weight * self.value)
    }

    fn are_large(&self) -> bool {
        self.value.max(self.weight) > 1e140
    }

    /// Makes the last term 1.
    fn rescale(&mut self) {
        self.step /= self.value;
        (self.weight, self.value) = (1.0, 1.0);
    }
}

fn ln_tail_of(tail: Tail, a: f64, y: f64) -> f64 {
    let tails = ln_tails(a, y);
    match tail {
        Tail::Lower => tails.lower,
        Tail::Upper => tails.upper,
    }
}

/// ln of the Poisson probability of j = 0, 1, … at mean μ > 0.
fn ln_poisson_count(j: f64, mu: f64) -> f64 {
    if j == 0.0 { -mu } else { ln_poisson(j, mu) }
}

/// ln of y^a·e^−y / Γ(a + 1) for a > −1.
fn ln_poisson_any(a: f64, y: f64) -> f64 {
    if a > 0.0 {
        ln_poisson(a, y)
    } else {
        a * y.ln() - y - libm::lgamma(a + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_noncentrality_is_the_central_distribution() {
        for x in [0.1, 3.0, 50.0] {
            assert_eq!(ln_upper(x, 4.0, 0.0), ln_chi2_upper(x, 4.0));
            assert!((ln_lower(x, 4.0, 0.0).exp() + ln_upper(x, 4.0, 0.0).exp() - 1.0).abs() < 1e-14);
        }
    }

    /// One degree of freedom is a shifted normal: P(X ≤ x) = Φ(√x − √λ) − Φ(−√x − √λ).
    #[test]
    fn one_degree_is_a_shifted_normal() {
        let upper = |z: f64| libm::erfc(z / std::f64::consts::SQRT_2) / 2.0;
        for (x, lambda) in [
            (1.0f64, 0.5f64),
            (9.0, 30.0),
            (400.0, 250.0),
            (4e4, 5e4),
            (1e6, 1.01e6),
        ] {
            let above = upper(x.sqrt() - lambda.sqrt()) + upper(x.sqrt() + lambda.sqrt());
            let below = upper(lambda.sqrt() - x.sqrt()) - upper(lambda.sqrt() + x.sqrt());
            assert!((ln_upper(x, 1.0, lambda) - above.ln()).abs() < 1e-9 * above.ln().abs().max(1.0));
            assert!((ln_lower(x, 1.0, lambda) - below.ln()).abs() < 1e-9 * below.ln().abs().max(1.0));
        }
    }

    #[test]
    fn interval_covers_the_unbiased_estimate_and_meets_its_large_form() {
        for (x, degrees) in [(270.0, 9.0), (4e4, 99.0), (9.9e9, 9.0)] {
            let [low, high] = lambda_interval(x, degrees, 0.01);
            assert!(low < x - degrees && x - degrees < high, "{low} {high}");
        }
        let x = 9.9e9;
        let exact = lambda_interval(x, 9.0, 0.01);
        let large = large_interval(x, 9.0, 0.005f64.ln());
        for (exact, large) in exact.into_iter().zip(large) {
            assert!((exact - large).abs() < 1e-8 * exact, "{exact} {large}");
        }
    }

    #[test]
    fn nothing_to_estimate_gives_zero_or_everything() {
        assert_eq!(lambda_interval(0.0, 0.0, 0.01), [0.0, 0.0]);
        assert_eq!(lambda_interval(0.0, 3.0, 0.01), [0.0, 0.0]);
        assert_eq!(lambda_interval(5.0, 3.0, 0.0), [0.0, f64::INFINITY]);
        assert_eq!(lambda_interval(f64::INFINITY, 3.0, 0.01), [0.0, f64::INFINITY]);
        let [low, high] = lambda_interval(1e30, 3.0, 0.01);
        assert!(low > 0.99e30 && high.is_finite());
    }
}
