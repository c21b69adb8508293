//! Durations as people write and read them: `90s`, `5m`, `2h`.

use std::time::Duration;

/// Reads `90`, `90s`, `5m`, `2h` or `1d`; a bare number means seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        other => return Err(format!("unknown unit {other:?}: write s, m, h or d, as in 5m")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is no duration: write 90s, 5m or 2h"))?;
    number
        .checked_mul(unit)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text} is too long"))
}

/// At most two units: `3d 4h`, `12m 5s`, `7s`.
pub fn show(seconds: u64) -> String {
    let (days, hours, minutes, rest) = (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    );
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        assert_eq!(parse("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse("2h"), Ok(Duration::from_secs(7200)));
        for bad in [
            "",
            "m",
            "-1s",
            "1.5h",
            "5 m",
            "3w",
            "99999999999999999999d",
            "9999999999999999d",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_shown_in_two_units() {
        assert_eq!(show(7), "7s");
        assert_eq!(show(725), "12m 5s");
        assert_eq!(show(7260), "2h 1m");
        assert_eq!(show(273_600), "3d 4h");
    }
}
