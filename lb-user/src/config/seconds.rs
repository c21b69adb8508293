//! Times in the configuration, written with a unit: whole seconds as in `30s`, `10m` or `6h`, and milliseconds as in `500ms`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time of at least one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u32);

impl Seconds {
    pub const fn get(self) -> u32 {
        self.0
    }

    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |why: &str| {
            format!(
                "{text:?} is no time: {why}; write whole seconds with a unit, like \"30s\", \"10m\", \"6h\""
            )
        };
        let duration = humantime::parse_duration(text).map_err(|error| refuse(&error.to_string()))?;
        if duration.subsec_nanos() != 0 {
            return Err(refuse("it has a fraction of a second"));
        }
        match u32::try_from(duration.as_secs()) {
            Ok(0) => Err(refuse("it is shorter than a second")),
            Ok(seconds) => Ok(Self(seconds)),
            Err(_) => Err(refuse("it is longer than 136 years")),
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, unit) = match self.0 {
            seconds if seconds % 3600 == 0 => (seconds / 3600, "h"),
            seconds if seconds % 60 == 0 => (seconds / 60, "m"),
            seconds => (seconds, "s"),
        };
        write!(f, "{seconds}{unit}")
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Seconds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with a unit, like \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Seconds, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A time of at least one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u32);

impl Millis {
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }
}

impl FromStr for Millis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |why: &str| {
            format!("{text:?} is no time: {why}; write one with a unit, like \"500ms\" or \"2s\"")
        };
        let duration = humantime::parse_duration(text).map_err(|error| refuse(&error.to_string()))?;
        if duration.subsec_nanos() % 1_000_000 != 0 {
            return Err(refuse("it has a fraction of a millisecond"));
        }
        match u32::try_from(duration.as_millis()) {
            Ok(0) => Err(refuse("it is shorter than a millisecond")),
            Ok(millis) => Ok(Self(millis)),
            Err(_) => Err(refuse("it is longer than 49 days")),
        }
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            millis if millis % 1000 == 0 => Seconds(millis / 1000).fmt(f),
            millis => write!(f, "{millis}ms"),
        }
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_read_and_written() {
        for (text, millis, shown) in [
            ("500ms", 500, "500ms"),
            ("2s", 2000, "2s"),
            ("1s 500ms", 1500, "1500ms"),
        ] {
            assert_eq!(text.parse(), Ok(Millis(millis)));
            assert_eq!(Millis(millis).to_string(), shown);
        }
        for text in ["", "0ms", "10us", "3", "60days"] {
            assert!(
                text.parse::<Millis>()
                    .is_err_and(|error| error.contains("\"500ms\"")),
                "{text}"
            );
        }
    }

    #[test]
    fn times_are_read_and_written() {
        for (text, seconds, shown) in [
            ("30s", 30, "30s"),
            ("120s", 120, "2m"),
            ("6h", 21_600, "6h"),
            ("1h 30m", 5400, "90m"),
            ("1d", 86_400, "24h"),
        ] {
            assert_eq!(text.parse(), Ok(Seconds(seconds)));
            assert_eq!(Seconds(seconds).to_string(), shown);
            assert_eq!(shown.parse(), Ok(Seconds(seconds)));
        }
    }

    #[test]
    fn other_times_are_refused() {
        for text in ["", "30", "s", "0s", "1500ms", "-3s", "200years", "3 apples"] {
            assert!(
                text.parse::<Seconds>()
                    .is_err_and(|error| error.contains("\"30s\"")),
                "{text}"
            );
        }
    }
}
