//! How often chance alone would bring so much evidence, in words.

const HOUR: f64 = 1.0 / (365.25 * 24.0);
const DAY: f64 = 24.0 * HOUR;

/// "once in 12,000 years": of evidence that a box reaches by chance once in `years` years, at most. `None`: more than
/// once an hour, which is nothing to speak of.
pub(super) fn words(years: f64) -> Option<String> {
    let (number, unit) = match years {
        _ if years.is_nan() || years < HOUR => return None,
        _ if years < DAY => (years / HOUR, "hour"),
        _ if years < 1.0 => (years / DAY, "day"),
        _ if years >= 1e9 => return Some("less than once in a billion years".to_owned()),
        _ if years >= 1e6 => (years / 1e6, "million year"),
        _ => (years, "year"),
    };
    Some(match rounded(number) {
        1 => format!("once in a {unit}"),
        number => format!("once in {} {unit}s", crate::cli::table::count(number)),
    })
}

/// To two digits that say something.
fn rounded(number: f64) -> u64 {
    let step = 10f64.powf(number.max(1.0).log10().floor() - 1.0).max(1.0);
    ((number / step).round() * step) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_told_in_units_that_people_know() {
        let cases = [
            (3.0 * HOUR, "once in 3 hours"),
            (DAY, "once in a day"),
            (40.0 * DAY, "once in 40 days"),
            (1.0, "once in a year"),
            (123.4, "once in 120 years"),
            (98_765.0, "once in 99,000 years"),
            (123_456_789.0, "once in 120 million years"),
            (4e12, "less than once in a billion years"),
            (f64::INFINITY, "less than once in a billion years"),
        ];
        assert_eq!((words(f64::NAN), words(1e-9)), (None, None));
        for (years, wanted) in cases {
            assert_eq!(words(years).as_deref(), Some(wanted), "{years}");
        }
    }
}
