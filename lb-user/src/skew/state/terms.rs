//! The words of the state machine: states, inputs, events.

use std::time::Duration;

use super::{Conclusion, Remedy, Withheld};
use crate::skew::{attribution::Verdict, effect::Severity};

/// What is watched, by the name that events and remedies use.
pub type ServiceName = std::sync::Arc<str>;

/// Where a service is.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Quiet,
    Suspected {
        since: Duration,
    },
    Firing {
        since: Duration,
    },
    /// `since`: of the alarm; `started`: of the remedy.
    Healing {
        since: Duration,
        started: Duration,
        remedy: Remedy,
    },
    Resolved {
        since: Duration,
    },
}

/// When states change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Whether remedies may be asked for at all.
    pub auto_heal: bool,
    /// Level (1 is an alarm) from which on a service is suspected, and below which it no longer is.
    pub suspect: f64,
    pub dismiss: f64,
    /// How long after a remedy was carried out evidence may still be of the time before.
    pub settle: Duration,
    /// How long a resolved alarm stays in view.
    pub hold: Duration,
}

impl Policy {
    pub const DEFAULT: Self = Self {
        auto_heal: true,
        suspect: 0.5,
        dismiss: 0.25,
        settle: Duration::from_secs(5),
        hold: Duration::from_secs(300),
    };
}

/// What became of the remedy asked for, since the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nothing is known, or none was asked for.
    None,
    /// It has been carried out.
    Started,
    /// It could not be carried out.
    Failed,
}

/// One check as this machine sees it.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Since any origin. A time before the last one counts as the last one.
    pub at: Duration,
    /// The largest of the streams' [`crate::skew::Stream::level`].
    pub level: f64,
    /// Whether a stream has an alarm.
    pub alarm: bool,
    /// Whether a stream's evidence passed a threshold in this check: [`crate::skew::Measure::crossed`].
    pub crossed: bool,
    /// Whether what a look found right the last time is wrong now: a fault of its own, which no remedy before has met.
    pub relapsed: bool,
    pub severity: Severity,
    pub verdict: Option<&'a Verdict>,
    pub report: Report,
}

/// Something worth telling.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Suspected {
        level: f64,
    },
    Dismissed {
        after: Duration,
    },
    /// `again`: before the last alarm went out of view.
    Fired {
        severity: Severity,
        level: f64,
        again: bool,
    },
    /// The severity rose.
    Escalated {
        severity: Severity,
    },
    /// A cause was found, or another one than before.
    Explained {
        verdict: Verdict,
    },
    Withheld {
        why: Withheld,
    },
    Started {
        remedy: Remedy,
    },
    Failed {
        remedy: Remedy,
    },
    DidNotHelp {
        remedy: Remedy,
        conclusion: Conclusion,
    },
    Resolved {
        after: Duration,
        remedy: Option<Remedy>,
        conclusion: Conclusion,
    },
    Closed,
}

/// What a step came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    pub events: Vec<Event>,
    /// To be carried out, and reported on in a later step.
    pub remedy: Option<Remedy>,
    /// A remedy has begun to work: call [`crate::skew::Stream::restart`] for the streams that this machine looks at.
    pub restart: bool,
}
