//! JSON as Python writes it: with bare words for what is no finite number, and whole numbers that may be floats.

use serde::{Deserialize, Deserializer, de::Error};

/// A count: a whole number, however it is written.
#[derive(Clone, Copy)]
pub(super) struct Count(pub(super) u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(deserializer)?;
        let float = || {
            number
                .as_f64()
                .filter(|value| value.fract() == 0.0 && (0.0..2f64.powi(64)).contains(value))
        };
        let count = number.as_u64().or_else(|| float().map(|value| value as u64));
        count
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{number} is no count")))
    }
}

pub(super) fn plain(counts: &[Count]) -> Vec<u64> {
    counts.iter().map(|count| count.0).collect()
}

/// Puts quotes around `Infinity`, `-Infinity` and `NaN` outside strings.
pub(super) fn without_bare_words(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for (index, part) in split_strings(text).into_iter().enumerate() {
        if index % 2 == 1 {
            quoted.push_str(part);
            continue;
        }
        let part = part
            .replace("-Infinity", "\"-inf\"")
            .replace("Infinity", "\"inf\"");
        quoted.push_str(&part.replace("NaN", "\"nan\""));
    }
    quoted
}

/// Alternately what is outside strings and what is inside, quotes included.
fn split_strings(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut inside, mut escaped) = (Vec::new(), 0, false, false);
    for (at, octet) in text.bytes().enumerate() {
        match octet {
            b'"' if !inside => {
                parts.push(&text[start..at]);
                (start, inside) = (at, true);
            }
            b'"' if !escaped => {
                parts.push(&text[start..=at]);
                (start, inside) = (at + 1, false);
            }
            _ => {}
        }
        escaped = inside && octet == b'\\' && !escaped;
    }
    parts.push(&text[start..]);
    parts
}

#[test]
fn counts_are_whole_numbers() {
    let read = |text: &str| serde_json::from_str::<Count>(text).ok().map(|count| count.0);
    assert_eq!(read("18446744073709551615"), Some(u64::MAX));
    assert_eq!(read("1e9"), Some(1_000_000_000));
    assert_eq!(
        (read("1.5"), read("-1"), read("1e30"), read("null")),
        (None, None, None, None)
    );
}

#[test]
fn bare_words_become_strings_and_strings_stay() {
    let text = r#"{"a": [Infinity, -Infinity, NaN], "Infinity \" NaN": 1}"#;
    assert_eq!(
        without_bare_words(text),
        r#"{"a": ["inf", "-inf", "nan"], "Infinity \" NaN": 1}"#
    );
}
