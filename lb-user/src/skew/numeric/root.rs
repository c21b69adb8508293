//! Where a monotone function crosses zero.

/// The zero of `f` between `low` and `high`, to the last places of a double.
///
/// `f` must be monotone, with opposite signs (or a zero) at the ends; infinite values are allowed. Regula falsi with
/// the Illinois rule, and a bisection in every third step for functions it is slow on.
pub fn between(mut f: impl FnMut(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    let (mut at_low, mut at_high) = (f(low), f(high));
    if at_low == 0.0 || at_high == 0.0 {
        return if at_low == 0.0 { low } else { high };
    }
    for step in 1..=MAX_STEPS {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high || high - low <= RESOLUTION * low.abs().max(high.abs()) {
            break;
        }
        let chord = (low * at_high - high * at_low) / (at_high - at_low);
        let inside = chord > low && chord < high && step % 3 != 0;
        let x = if inside { chord } else { middle };
        let at_x = f(x);
        if at_x == 0.0 {
            return x;
        }
        // The end that stays weighs half, so that the chord cannot creep along one side.
        if (at_x > 0.0) == (at_low > 0.0) {
            (low, at_low, at_high) = (x, at_x, at_high / 2.0);
        } else {
            (high, at_high, at_low) = (x, at_x, at_low / 2.0);
        }
    }
    low + (high - low) / 2.0
}

const MAX_STEPS: u32 = 300;
const RESOLUTION: f64 = 4.0 * f64::EPSILON;

/// The smallest of `start`, 2·`start`, 4·`start`, … at which `reached` holds.
pub fn double_until(start: f64, mut reached: impl FnMut(f64) -> bool) -> f64 {
    let mut x = start;
    while x < f64::MAX / 2.0 && !reached(x) {
        x *= 2.0;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_zeros_of_kind_and_of_nasty_functions() {
        let close = |found: f64, wanted: f64| assert!((found - wanted).abs() <= 1e-14 * wanted, "{found}");
        close(between(|x| x * x - 2.0, 0.0, 2.0), 2f64.sqrt());
        close(between(|x| x.ln() + 20.0, 0.0, 1.0), (-20f64).exp());
        close(between(|x| 1.0 - x.powi(40), 0.0, 10.0), 1.0);
        close(
            between(|x| if x < 0.3 { f64::NEG_INFINITY } else { 1.0 }, 0.0, 1.0),
            0.3,
        );
    }

    #[test]
    fn an_end_that_is_the_zero_is_returned() {
        assert_eq!(between(|x| x, 0.0, 1.0), 0.0);
        assert_eq!(between(|x| x - 1.0, 0.0, 1.0), 1.0);
        assert_eq!(double_until(1.0, |x| x >= 5.0), 8.0);
    }
}
