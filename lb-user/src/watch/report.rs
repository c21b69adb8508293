//! What the daemon knows about the spread of new flows, in the words of `GET /v1/skew` and `evenkeel skew --json`.
//!
//! Shares are parts of 1. Evidence and thresholds are natural logarithms (nats): evidence that reaches its threshold is
//! an alarm, and every nat more makes chance e times less likely. Counts are over the window that the field says.

mod build;
mod names;
mod words;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use build::{
    BackendCounts, alpha, backend_rows, cause_of, entropy_bits, evidence_of, expected_entropy_bits, nearer,
};
pub use names::{CauseName, SeverityName, StateName, WarningName};
pub use words::{Names, advice, conclusion, explanation, listed, remedy_done, scope_of, whose, withheld};

use crate::state::desired::BackendState;

/// `GET /v1/skew`: the spread of every service (with `?service=NAME` of one), of every CPU's hash, and what was checked
/// and done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkewReport {
    /// When this was true, in milliseconds since 1970.
    pub at: u64,
    /// Seconds between checks.
    pub interval_seconds: f64,
    /// Streams of counts that are watched, and share the budget of false alarms.
    pub streams: u64,
    /// ln A: on average at least A checks pass to a false alarm of one stream.
    pub ln_threshold: f64,
    /// Budget of false alarms of the whole box in a year. More than these are not to be expected.
    pub false_alarms_per_year: f64,
    /// Whether remedies are applied without being asked for.
    pub auto_heal: bool,
    /// Seconds over which counts, shares and effects are taken: from the start on, then the last 60 to 70 checks. After
    /// another table a service's are over less.
    pub window_seconds: f64,
    /// In order of names.
    pub services: Vec<ServiceSkew>,
    /// Hash histograms: of all CPUs together (`cpu` is null), then of each.
    pub cpus: Vec<CpuSkew>,
    /// What is checked without traffic.
    pub self_checks: Vec<SelfCheck>,
    /// What is worth knowing beside alarms of services; alarms first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    pub remedies: Remedies,
}

/// One service's spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceSkew {
    pub service: String,
    pub state: StateName,
    pub severity: SeverityName,
    /// The latest verdict; `None` before the first.
    pub cause: Option<CauseName>,
    /// Where the cause is at work: `all CPUs`, `CPU 3`, `CPUs 3 and 7`; `None` where that says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// A sentence: the cause with the numbers behind it.
    pub explanation: String,
    /// Seconds in `state`.
    pub since_seconds: f64,
    /// Seconds since the estimated beginning of the fault, while an alarm stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onset_seconds_ago: Option<f64>,
    /// New flows in the window, and those of them whose key was seen for the first time in its seed's life.
    pub flows: u64,
    pub fresh_flows: u64,
    /// Frames forwarded in the window.
    pub packets: u64,
    /// Evidence now, of the part of the detector that is nearest to its threshold. At 0 where there is none.
    pub evidence: f64,
    pub threshold: f64,
    /// Evidence with which the standing alarm was raised, or passed a threshold since, whichever is most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm_evidence: Option<f64>,
    pub effect: EffectSkew,
    /// Bets from seed to seed; `None` where none are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeds: Option<EpochSkew>,
    /// In order of addresses.
    pub backends: Vec<BackendSkew>,
    /// Flows with a twentieth of the service's packets or more, as samples of packets show them; most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heavy_flows: Vec<HeavyFlowSkew>,
    /// Sentences: what was done about it, oldest first.
    pub done: Vec<String>,
    /// Sentences: what to do, most urgent first.
    pub todo: Vec<String>,
}

/// A flow with many packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeavyFlowSkew {
    /// The client's address and port; `None` in a replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<SocketAddr>,
    pub endpoint: IpAddr,
    /// Part of the service's packets, 0 to 1.
    pub packets: f64,
    /// Part of the octets of the service's IP packets, 0 to 1; 0 in a replay.
    pub octets: f64,
}

/// Bets on the backends' parts of all new flows under one seed after the other: slow, and valid whatever the clients are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochSkew {
    /// Seeds that have ended since the start or the last alarm.
    pub ended: u32,
    pub evidence: f64,
    pub threshold: f64,
}

/// Something worth knowing that is no alarm of a service's spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    pub warning: WarningName,
    /// A service by its name, or what of the host.
    pub object: String,
    pub since_seconds: f64,
    /// A sentence.
    pub text: String,
    /// A sentence: what to do.
    pub todo: String,
}

/// How large the unevenness of fresh flows over the window is. Each interval is missed with probability [`alpha`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectSkew {
    /// Coefficient of variation of observed over expected flows, less what chance alone gives ("percentage variance" is
    /// 100 times this).
    pub cv: f64,
    pub cv_low: f64,
    /// `None`: without flows there is no bound.
    pub cv_high: Option<f64>,
    /// Total variation: part of the flows that is misplaced, 0..=1.
    pub tv: f64,
    pub tv_low: f64,
    pub tv_high: f64,
    /// The largest of the backends' observed over expected flows, with the interval of that backend. `None` where no
    /// backend should get flows, or none came.
    pub max_ratio: Option<RatioSkew>,
    /// The smallest.
    pub min_ratio: Option<RatioSkew>,
}

/// A backend's observed over expected flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioSkew {
    pub endpoint: IpAddr,
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
}

/// One backend's part in its service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendSkew {
    pub endpoint: IpAddr,
    pub state: BackendState,
    /// Part of the slots that it owns in the table as published, 0..=1.
    pub expected: f64,
    /// Part of the window's fresh flows, 0..=1, with its interval (simultaneous over all backends). `None` without any.
    pub observed: Option<f64>,
    pub low: f64,
    pub high: f64,
    /// In the window.
    pub fresh_flows: u64,
    pub flows: u64,
    pub packets: u64,
    /// Evidence that this backend alone gets too much or too little.
    pub evidence: f64,
}

/// A hash histogram: whether fresh flows are spread over 256 buckets of the slot tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuSkew {
    /// `None`: all CPUs together.
    pub cpu: Option<u32>,
    /// In the window.
    pub fresh_flows: u64,
    pub evidence: f64,
    pub threshold: f64,
    /// Shannon entropy of the window's histogram, at most 8 bits.
    pub entropy_bits: f64,
    /// What a perfect hash shows with so many flows.
    pub expected_entropy_bits: f64,
    pub alarm: bool,
    /// Of the seed in the datapath; 0 is unset, `None` where there is no single one.
    pub seed_generation: Option<u32>,
}

/// Something that is read back or computed again, without traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfCheck {
    /// `seeds`, `hash`, `slots`, `samples`.
    pub name: String,
    pub ok: bool,
    /// `None`: not yet.
    pub checked_seconds_ago: Option<f64>,
    /// A sentence: what was compared, and what was found.
    pub detail: String,
}

/// What may be done by itself, and what was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remedies {
    /// Remedies that may still be carried out in the budget's window.
    pub left_in_budget: u32,
    /// Seconds until the next one is allowed; 0: now. `None`: never.
    pub next_allowed_seconds: Option<f64>,
    /// The last ones, oldest first.
    pub last: Vec<RemedyDone>,
}

/// A remedy that was carried out, or failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemedyDone {
    /// In milliseconds since 1970.
    pub at: u64,
    /// `rotate-seeds`, `rewrite-seeds`, `rewrite-slots`.
    pub remedy: String,
    pub service: String,
    pub ok: bool,
    /// A sentence.
    pub text: String,
}

impl SkewReport {
    /// The services with an alarm.
    pub fn firing(&self) -> impl Iterator<Item = &ServiceSkew> {
        self.services.iter().filter(|service| service.state.is_alarm())
    }

    /// The self-checks that failed.
    pub fn failed_checks(&self) -> impl Iterator<Item = &SelfCheck> {
        self.self_checks.iter().filter(|check| !check.ok)
    }

    /// Whether something is wrong: an alarm stands or a self-check failed.
    pub fn is_alarm(&self) -> bool {
        let warned = self.warnings.iter().any(|warning| warning.warning.is_alarm());
        self.firing().next().is_some() || self.failed_checks().next().is_some() || warned
    }

    /// Once in how many years chance alone brings a box to such evidence, at most as often. At the threshold: the inverse
    /// of the budget of false alarms.
    pub fn years_by_chance(&self, evidence: f64, threshold: f64) -> f64 {
        (evidence - threshold).exp() / self.false_alarms_per_year
    }
}
