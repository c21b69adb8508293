//! States, severities and causes by the names that reports and metrics use.

use serde::{Deserialize, Serialize};

/// Where a service is on the way from quiet to an alarm and back; see `skew::state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateName {
    #[default]
    Quiet,
    Suspected,
    /// An alarm stands.
    Firing,
    /// A remedy was carried out, and has not been shown to help yet.
    Healing,
    /// The alarm is over, and stays in view for a while.
    Resolved,
}

impl StateName {
    pub const ALL: [Self; 5] = [
        Self::Quiet,
        Self::Suspected,
        Self::Firing,
        Self::Healing,
        Self::Resolved,
    ];

    /// As in JSON and as label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Suspected => "suspected",
            Self::Firing => "firing",
            Self::Healing => "healing",
            Self::Resolved => "resolved",
        }
    }

    /// Whether an alarm stands.
    pub const fn is_alarm(self) -> bool {
        matches!(self, Self::Firing | Self::Healing)
    }
}

/// How loud an alarm is; `None` without one. The order is that of the metric's values 0 to 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeverityName {
    #[default]
    None,
    /// Real, and shown to be small.
    Info,
    Warn,
    /// Wake someone.
    Page,
}

impl SeverityName {
    pub const ALL: [Self; 4] = [Self::None, Self::Info, Self::Warn, Self::Page];

    /// As in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Page => "page",
        }
    }

    /// Value of `evenkeel_skew_severity`.
    pub const fn value(self) -> u8 {
        self as u8
    }
}

/// What is warned of beside alarms of the spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WarningName {
    /// Slots do not stand for weights: the table is too small for them.
    Weights,
    /// The filter of fresh keys of the shared seed is nearly full.
    FreshKeysFull,
    /// A filter of fresh keys takes new keys for known ones.
    FreshKeysStarved,
    /// Seed after seed prefers or neglects one backend.
    Seeds,
}

impl WarningName {
    pub const ALL: [Self; 4] = [
        Self::Weights,
        Self::FreshKeysFull,
        Self::FreshKeysStarved,
        Self::Seeds,
    ];

    /// As in JSON and as label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::FreshKeysFull => "fresh-keys-full",
            Self::FreshKeysStarved => "fresh-keys-starved",
            Self::Seeds => "seeds",
        }
    }

    /// Whether it is an alarm: new flows are spread wrongly, or nobody could tell if they were.
    pub const fn is_alarm(self) -> bool {
        matches!(self, Self::FreshKeysStarved | Self::Seeds)
    }
}

/// Why the spread is as it is; see `skew::attribution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CauseName {
    /// Seeds in the datapath are not as written.
    SeedFailure,
    /// The hash does not spread.
    HashFailure,
    /// The slot table is not the one that was published.
    TableMismatch,
    /// Some CPUs use another table than the others.
    StaleState,
    /// Few clients make most of the flows.
    KeyConcentration,
    /// Few flows carry most of the packets.
    ElephantFlows,
    /// Backends drain or were removed.
    Drained,
    TooLittleData,
    Healthy,
}

impl CauseName {
    pub const ALL: [Self; 9] = [
        Self::SeedFailure,
        Self::HashFailure,
        Self::TableMismatch,
        Self::StaleState,
        Self::KeyConcentration,
        Self::ElephantFlows,
        Self::Drained,
        Self::TooLittleData,
        Self::Healthy,
    ];

    /// As in JSON and as label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SeedFailure => "seed-failure",
            Self::HashFailure => "hash-failure",
            Self::TableMismatch => "table-mismatch",
            Self::StaleState => "stale-state",
            Self::KeyConcentration => "key-concentration",
            Self::ElephantFlows => "elephant-flows",
            Self::Drained => "drained",
            Self::TooLittleData => "too-little-data",
            Self::Healthy => "healthy",
        }
    }

    /// Whether the balancer itself is at fault.
    pub const fn is_fault(self) -> bool {
        matches!(
            self,
            Self::SeedFailure | Self::HashFailure | Self::TableMismatch | Self::StaleState
        )
    }
}
