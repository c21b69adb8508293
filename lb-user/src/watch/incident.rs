//! One service's, or the box's, state machine with what is remembered about it, and its events as sentences.

use std::time::Duration;

use super::report::{self, Names, RemedyDone, SeverityName, StateName, conclusion, explanation, remedy_done};
use crate::{
    events::Kind,
    skew::{
        attribution::{self, Verdict},
        effect::Severity,
        state::{Budget, Event, Input, Output, Policy, Remedy, Report, ServiceName, SkewState, Withheld},
    },
};

/// Sentences about what was done that are kept.
const DONE: usize = 8;

/// What a check says about a service, or about the box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sign {
    pub level: f64,
    pub alarm: bool,
    pub crossed: bool,
    /// Right at the last look, and wrong now.
    pub relapsed: bool,
    /// By a look or a computation, not by statistics.
    pub proven: bool,
    pub severity: Severity,
}

/// When a check is taken: time by the monitor's clock, and number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub at: Duration,
    pub check: u32,
}

/// What a check is judged by, and what its sentences call things.
pub(super) struct Terms<'a> {
    pub policy: Policy,
    pub budget: &'a mut Budget,
    pub names: Names<'a>,
}

/// An event in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub kind: Kind,
    pub object: String,
    pub text: String,
}

/// A state machine and its memory.
#[derive(Debug)]
pub(super) struct Incident {
    state: SkewState,
    report: Report,
    /// The latest, with or without an alarm.
    pub verdict: Option<Verdict>,
    /// Check in which the standing alarm was seen first.
    pub alarm_check: Option<u32>,
    /// Time since which the state is what it is.
    pub since: Duration,
    severity: Severity,
    pub done: Vec<String>,
    withheld: Option<Withheld>,
    proven: bool,
}

impl Incident {
    pub fn new(name: ServiceName) -> Self {
        Self {
            state: SkewState::new(name),
            report: Report::None,
            verdict: None,
            alarm_check: None,
            since: Duration::ZERO,
            severity: Severity::Info,
            done: Vec::new(),
            withheld: None,
            proven: false,
        }
    }

    /// Whether a verdict is due in this check.
    pub fn asks(&self, sign: &Sign, check: u32) -> bool {
        let since = self.alarm_check.map(|first| check.saturating_sub(first));
        match (sign.alarm, since) {
            (true, None) => true,
            (true, Some(since)) => since <= attribution::SETTLE_CHECKS || since.is_multiple_of(10),
            // The first ones at once, so that who has just started the daemon, or recorded little, is told something.
            (false, _) => {
                check.is_multiple_of(attribution::QUIET_CHECKS)
                    || check < attribution::QUIET_CHECKS && check.is_power_of_two()
            }
        }
    }

    /// What became of the remedy that was asked for.
    pub fn carried_out(&mut self, remedy: &Remedy, result: &Result<usize, String>) {
        self.report = match result {
            Ok(_) => Report::Started,
            Err(_) => Report::Failed,
        };
        self.remember(match result {
            Ok(_) => remedy_done(remedy),
            Err(error) => format!("tried and failed: {}: {error}", remedy_done(remedy)),
        });
    }

    /// Takes a check; the events go to `told`.
    pub fn step(&mut self, now: Now, sign: Sign, terms: Terms<'_>, told: &mut Vec<Told>) -> Output {
        let Now { at, check } = now;
        let Terms {
            policy,
            budget,
            names,
        } = terms;
        let input = Input {
            at,
            level: sign.level,
            alarm: sign.alarm,
            crossed: sign.crossed,
            relapsed: sign.relapsed,
            severity: sign.severity,
            verdict: self.verdict.as_ref(),
            report: std::mem::replace(&mut self.report, Report::None),
        };
        let before = self.name();
        self.proven = sign.proven;
        let output = self.state.step(input, &policy, budget);
        if self.name() != before {
            self.since = at;
        }
        self.alarm_check = match (sign.alarm, self.alarm_check) {
            (true, None) => Some(check),
            (true, first) => first,
            (false, _) => None,
        };
        for event in &output.events {
            told.extend(self.tell(event, names, at));
        }
        output
    }

    pub fn name(&self) -> StateName {
        self.state.state().into()
    }

    pub fn severity(&self) -> SeverityName {
        match self.name().is_alarm() {
            true => self.severity.into(),
            false => SeverityName::None,
        }
    }

    /// The cause to show: of the alarm while there is one, else the latest.
    pub fn shown(&self) -> Option<&Verdict> {
        self.state.verdict().or(self.verdict.as_ref())
    }

    pub fn withheld(&self) -> Option<&Withheld> {
        self.withheld.as_ref().filter(|_| self.name().is_alarm())
    }

    fn remember(&mut self, sentence: String) {
        if self.done.len() == DONE {
            self.done.remove(0);
        }
        self.done.push(sentence);
    }

    fn tell(&mut self, event: &Event, names: Names<'_>, at: Duration) -> Option<Told> {
        let (kind, text) = match event {
            Event::Suspected { level } => (
                Kind::Skew,
                format!("suspected: {:.0}% of the evidence for an alarm", level * 100.0),
            ),
            Event::Dismissed { after } => (
                Kind::Heal,
                format!("no longer suspected, after {} s", after.as_secs()),
            ),
            Event::Fired {
                severity,
                level,
                again,
            } => {
                self.severity = *severity;
                self.withheld = None;
                if !again {
                    self.done.clear();
                }
                let word = SeverityName::from(*severity).name();
                let how = match self.proven {
                    true => "found by reading back or computing again".to_owned(),
                    false => format!("evidence at {level:.2} of its threshold"),
                };
                // The cause of an alarm that comes again is known, and not told once more.
                let text = match &self.verdict {
                    Some(verdict) if *again => {
                        let cause = report::cause_of(&verdict.cause).name();
                        let why = explanation(verdict, names);
                        format!("firing again ({word}), {how}; cause {cause}: {why}")
                    }
                    _ => format!("firing ({word}): {how}"),
                };
                (Kind::Skew, text)
            }
            Event::Escalated { severity } => {
                self.severity = *severity;
                (
                    Kind::Skew,
                    format!("became worse: {}", SeverityName::from(*severity).name()),
                )
            }
            Event::Explained { verdict } => {
                let cause = report::cause_of(&verdict.cause).name();
                (
                    Kind::Skew,
                    format!("cause {cause}: {}", explanation(verdict, names)),
                )
            }
            Event::Withheld { why } => {
                self.withheld = Some(why.clone());
                if *why == Withheld::NoVerdict {
                    return None;
                }
                (Kind::Skew, report::withheld(why, at))
            }
            Event::Started { remedy } => {
                self.withheld = None;
                (Kind::Heal, remedy_done(remedy))
            }
            Event::Failed { remedy } => (
                Kind::Skew,
                format!(
                    "the remedy {} could not be carried out",
                    RemedyDone::name_of(remedy)
                ),
            ),
            Event::DidNotHelp {
                remedy,
                conclusion: found,
            } => {
                let found = conclusion(*found).map_or_else(String::new, |found| format!(": {found}"));
                let text = format!("{} did not help{found}", remedy_done(remedy));
                self.remember(text.clone());
                (Kind::Skew, text)
            }
            Event::Resolved {
                after,
                remedy: _,
                conclusion: found,
            } => {
                let found = conclusion(*found).map_or_else(String::new, |found| format!(": {found}"));
                let text = format!("resolved after {:.1} s{found}", after.as_secs_f64());
                self.remember(text.clone());
                (Kind::Heal, text)
            }
            Event::Closed => (Kind::Heal, "quiet again".to_owned()),
        };
        Some(Told {
            kind,
            object: names.service.to_owned(),
            text,
        })
    }
}
