//! One line of the result: what was measured, and what it is held to.

use serde_json::{Value, json};

/// How long the incident of July 2025 went unnoticed: 42 h 46 min, in seconds.
pub const INCIDENT: f64 = 153_960.0;

/// One target, or a part of one.
#[derive(Clone, Debug)]
pub struct Row {
    /// Of the target, T1 to T11.
    pub id: &'static str,
    pub scenario: String,
    pub measured: f64,
    /// Standard error of `measured`; 0 for counts and extremes.
    pub error: f64,
    pub unit: Unit,
    pub limit: Limit,
    /// What the study's own program measured.
    pub study: Option<f64>,
    /// What no detector can beat, or what is guaranteed.
    pub bound: Option<(f64, Unit)>,
    /// Time to detection, in seconds.
    pub seconds: Option<f64>,
    /// How many of what it was measured on.
    pub from: (u64, &'static str),
}

/// How a number is to be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    Count,
    Ratio,
    /// Part of 1.
    Part,
    Seconds,
    Milliseconds,
    Megabytes,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// Printed to compare with, and held to nothing.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    Pass,
    Fail,
    Information,
}

impl Row {
    /// A row that is held to `limit`.
    pub fn new(
        id: &'static str,
        scenario: impl Into<String>,
        measured: f64,
        unit: Unit,
        limit: Limit,
    ) -> Self {
        Self {
            id,
            scenario: scenario.into(),
            measured,
            error: 0.0,
            unit,
            limit,
            study: None,
            bound: None,
            seconds: None,
            from: (1, "run"),
        }
    }

    pub fn error(self, error: f64) -> Self {
        Self { error, ..self }
    }

    pub fn study(self, study: impl Into<Option<f64>>) -> Self {
        let study = study.into();
        Self { study, ..self }
    }

    pub fn bound(self, bound: f64, unit: Unit) -> Self {
        let bound = Some((bound, unit));
        Self { bound, ..self }
    }

    /// Of a detection: how long it took.
    pub fn seconds(self, seconds: f64) -> Self {
        let seconds = Some(seconds);
        Self { seconds, ..self }
    }

    pub fn from(self, count: u64, what: &'static str) -> Self {
        let from = (count, what);
        Self { from, ..self }
    }

    /// `errors` standard errors beyond the limit are borne.
    pub fn result(&self, errors: f64) -> Result {
        let borne = errors * self.error;
        let fine = match self.limit {
            Limit::AtMost(limit) => self.measured - borne <= limit,
            Limit::AtLeast(limit) => self.measured + borne >= limit,
            Limit::None => return Result::Information,
        };
        if fine { Result::Pass } else { Result::Fail }
    }

    /// How many times sooner than in the incident.
    fn sooner(&self) -> Option<f64> {
        self.seconds
            .filter(|seconds| *seconds > 0.0)
            .map(|seconds| INCIDENT / seconds)
    }

    pub fn heading() -> String {
        format!(
            "{:<4} {:<4} {:<80} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}  {}",
            "id", "", "scenario", "measured", "limit", "study", "bound", "found in", "42h46m ÷", "from"
        )
    }

    pub fn line(&self, errors: f64) -> String {
        let dash = || "–".to_owned();
        let limit = match self.limit {
            Limit::AtMost(limit) => format!("≤ {}", self.unit.show(limit)),
            Limit::AtLeast(limit) => format!("≥ {}", self.unit.show(limit)),
            Limit::None => dash(),
        };
        let study = self.study.map_or_else(dash, |study| self.unit.show(study));
        let bound = self.bound.map_or_else(dash, |(bound, unit)| unit.show(bound));
        let seconds = self
            .seconds
            .map_or_else(dash, |seconds| Unit::Seconds.show(seconds));
        let sooner = self.sooner().map_or_else(dash, |sooner| format!("{sooner:.0}"));
        let (count, what) = self.from;
        format!(
            "{:<4} {:<4} {:<80} {:>10} {limit:>10} {study:>10} {bound:>10} {seconds:>10} {sooner:>12}  {count} {what}",
            self.id,
            self.result(errors).word(),
            self.scenario,
            self.unit.show(self.measured),
        )
    }

    pub fn json(&self, errors: f64) -> Value {
        let (comparison, limit) = match self.limit {
            Limit::AtMost(limit) => ("at most", Some(limit)),
            Limit::AtLeast(limit) => ("at least", Some(limit)),
            Limit::None => ("none", None),
        };
        json!({
            "id": self.id,
            "scenario": self.scenario,
            "result": self.result(errors).word(),
            "measured": self.measured,
            "standard_error": self.error,
            "unit": self.unit.name(),
            "comparison": comparison,
            "limit": limit,
            "study": self.study,
            "bound": self.bound.map(|(bound, unit)| json!({"value": bound, "unit": unit.name()})),
            "seconds_to_detection": self.seconds,
            "times_sooner_than_the_incident": self.sooner(),
            "from": {"count": self.from.0, "of": self.from.1},
        })
    }
}

impl Unit {
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Seconds => duration(value),
            Self::Count => format!("{value:.0}"),
            Self::Ratio if value.abs() < 0.1 => format!("{value:.3}"),
            Self::Ratio => format!("{value:.2}"),
            Self::Part => format!("{:.2} %", 100.0 * value),
            Self::Milliseconds => format!("{value:.2} ms"),
            Self::Megabytes => format!("{value:.0} MB"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Ratio => "ratio",
            Self::Part => "part",
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Megabytes => "megabytes",
        }
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds.is_infinite() => "never".to_owned(),
        ..120.0 => format!("{seconds:.1} s"),
        ..7200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

impl Result {
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Information => "info",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measured: f64, limit: Limit) -> Row {
        Row::new("T0", "a row", measured, Unit::Ratio, limit).error(0.1)
    }

    #[test]
    fn limits_decide_and_errors_are_borne_where_asked() {
        assert_eq!(row(1.1, Limit::AtMost(1.0)).result(0.0), Result::Fail);
        assert_eq!(row(1.1, Limit::AtMost(1.0)).result(3.0), Result::Pass);
        assert_eq!(row(1.4, Limit::AtMost(1.0)).result(3.0), Result::Fail);
        assert_eq!(row(0.9, Limit::AtLeast(1.0)).result(0.0), Result::Fail);
        assert_eq!(row(1.0, Limit::AtLeast(1.0)).result(0.0), Result::Pass);
        assert_eq!(row(9.0, Limit::None).result(0.0), Result::Information);
    }

    /// What could not be measured is no success.
    #[test]
    fn no_number_and_never_fail() {
        for measured in [f64::NAN, f64::INFINITY] {
            assert_eq!(row(measured, Limit::AtMost(1.0)).result(3.0), Result::Fail);
        }
        assert_eq!(row(f64::NAN, Limit::AtLeast(1.0)).result(3.0), Result::Fail);
    }

    #[test]
    fn durations_are_readable() {
        let shown: Vec<String> = [3.94, 119.0, 1260.0, 153_960.0, f64::INFINITY]
            .map(duration)
            .into();
        assert_eq!(shown, ["3.9 s", "119.0 s", "21.0 min", "42.8 h", "never"]);
    }
}
