//! One service's (or the box's) way from quiet to an alarm, through a remedy, and back.
//!
//! ```text
//!             level ≥ ½                   alarm
//!  ┌───────┐ ───────────► ┌───────────┐ ─────────► ┌────────┐   remedy started   ┌─────────┐
//!  │ Quiet │              │ Suspected │            │        │ ─────────────────► │         │
//!  │       │ ◄─────────── └───────────┘            │ Firing │                    │ Healing │
//!  │       │   level < ¼                           │        │ ◄───────────────── │         │
//!  │       │ ────────────────────────────────────► └────────┘  failed, did not   └─────────┘
//!  │       │          alarm                          │    ▲    help, or relapse       │
//!  │       │                                   clear │    │ alarm                     │ clear
//!  │       │             held          ┌──────────┐ ◄┘    │                           │
//!  │       │ ◄──────────────────────── │ Resolved │ ──────┘                           │
//!  └───────┘                           │          │ ◄─────────────────────────────────┘
//!                                      └──────────┘
//! ```
//!
//! "Alarm" and "clear" are those of the streams. While firing the state asks for a remedy as soon as there is a verdict
//! that has one: if healing by itself is allowed, at most so often in a time, and not shortly after the last one. When
//! the remedy has been carried out the streams' evidence starts from zero ([`Output::restart`]), so that evidence which
//! passes a threshold after that means that the remedy did not help; it is not asked for again. Rotated seeds that
//! leave the histogram uneven mean that the hash itself is broken, not the seed. What a look finds wrong after it was
//! right is another fault (a relapse): what was written before has helped, and is written again.
//!
//! [`Budget`] is one for the whole box, since a rotation concerns all services; everything else is one for each.

mod budget;
mod remedy;
mod terms;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use budget::{Budget, Limits};
pub use remedy::{Conclusion, Remedy, Withheld};
pub use terms::{Event, Input, Output, Policy, Report, ServiceName, State};

use super::{attribution::Verdict, effect::Severity};
use remedy::Attempts;

/// The state machine of one service.
#[derive(Clone, Debug)]
pub struct SkewState {
    service: ServiceName,
    state: State,
    last: Duration,
    severity: Severity,
    verdict: Option<Verdict>,
    /// Asked for, and not reported on yet.
    asked: Option<(Duration, Remedy)>,
    attempts: Attempts,
    withheld: Option<Withheld>,
}

impl SkewState {
    pub fn new(service: ServiceName) -> Self {
        Self {
            service,
            state: State::Quiet,
            last: Duration::ZERO,
            severity: Severity::Info,
            verdict: None,
            asked: None,
            attempts: Attempts::default(),
            withheld: None,
        }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// The cause found last, while an alarm stands or is resolved.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Takes one check.
    pub fn step(&mut self, input: Input<'_>, policy: &Policy, budget: &mut Budget) -> Output {
        let input = Input {
            at: input.at.max(self.last),
            ..input
        };
        self.last = input.at;
        let mut output = Output::default();
        match self.state.clone() {
            State::Quiet => self.quiet(input, policy, &mut output),
            State::Suspected { since } => self.suspected(input, policy, since, &mut output),
            State::Firing { since } => self.firing(input, since, &mut output),
            State::Healing {
                since,
                started,
                remedy,
            } => {
                self.healing(input, policy, (since, started), remedy, &mut output);
            }
            State::Resolved { since } => self.resolved(input, policy, since, &mut output),
        }
        self.follow(input, &mut output);
        if matches!(self.state, State::Firing { .. }) {
            self.ask(input, policy, budget, &mut output);
        }
        output
    }

    fn quiet(&mut self, input: Input<'_>, policy: &Policy, output: &mut Output) {
        if input.alarm {
            self.fire(input, false, output);
        } else if input.level >= policy.suspect {
            self.state = State::Suspected { since: input.at };
            output.events.push(Event::Suspected { level: input.level });
        }
    }

    fn suspected(&mut self, input: Input<'_>, policy: &Policy, since: Duration, output: &mut Output) {
        if input.alarm {
            self.fire(input, false, output);
        } else if input.level < policy.dismiss {
            self.state = State::Quiet;
            let after = input.at - since;
            output.events.push(Event::Dismissed { after });
        }
    }

    fn firing(&mut self, input: Input<'_>, since: Duration, output: &mut Output) {
        if input.relapsed {
            self.attempts.forget_rewrites();
        }
        let reported = match input.report {
            Report::None => None,
            Report::Started | Report::Failed => self.asked.take().map(|(_, remedy)| remedy),
        };
        if let Some(remedy) = &reported {
            output.events.push(match input.report {
                Report::Started => Event::Started {
                    remedy: remedy.clone(),
                },
                Report::None | Report::Failed => Event::Failed {
                    remedy: remedy.clone(),
                },
            });
        }
        let started = reported.filter(|_| input.report == Report::Started);
        if !input.alarm {
            self.resolve(input.at, since, started, output);
        } else if let Some(remedy) = started {
            let started = input.at;
            self.state = State::Healing {
                since,
                started,
                remedy,
            };
            output.restart = true;
        }
    }

    fn healing(
        &mut self,
        input: Input<'_>,
        policy: &Policy,
        (since, started): (Duration, Duration),
        remedy: Remedy,
        output: &mut Output,
    ) {
        if !input.alarm {
            self.resolve(input.at, since, Some(remedy), output);
        } else if input.report == Report::Failed {
            self.state = State::Firing { since };
            output.events.push(Event::Failed { remedy });
        } else if input.relapsed {
            self.attempts.forget_rewrites();
            self.fire(input, true, output);
        } else if input.crossed && input.at - started >= policy.settle {
            self.attempts.note(&remedy);
            self.state = State::Firing { since };
            let conclusion = Conclusion::of_useless(&remedy, self.verdict.as_ref());
            output.events.push(Event::DidNotHelp { remedy, conclusion });
        }
    }

    fn resolved(&mut self, input: Input<'_>, policy: &Policy, since: Duration, output: &mut Output) {
        if input.alarm {
            self.fire(input, true, output);
        } else if input.at - since >= policy.hold {
            self.state = State::Quiet;
            self.verdict = None;
            output.events.push(Event::Closed);
        }
    }

    /// A new alarm. What did not help shortly before is remembered when it is the old one come again.
    fn fire(&mut self, input: Input<'_>, again: bool, output: &mut Output) {
        self.state = State::Firing { since: input.at };
        self.severity = input.severity;
        self.withheld = None;
        self.asked = None;
        if !again {
            self.verdict = None;
            self.attempts = Attempts::default();
        }
        output.events.push(Event::Fired {
            severity: input.severity,
            level: input.level,
            again,
        });
    }

    fn resolve(&mut self, at: Duration, since: Duration, remedy: Option<Remedy>, output: &mut Output) {
        self.state = State::Resolved { since: at };
        self.asked = None;
        output.events.push(Event::Resolved {
            after: at - since,
            conclusion: Conclusion::of_cure(remedy.as_ref(), self.verdict.as_ref()),
            remedy,
        });
    }

    /// While an alarm stands: what became worse, and what is now known about it.
    fn follow(&mut self, input: Input<'_>, output: &mut Output) {
        if !matches!(self.state, State::Firing { .. } | State::Healing { .. }) {
            return;
        }
        if input.severity > self.severity {
            self.severity = input.severity;
            let severity = input.severity;
            output.events.push(Event::Escalated { severity });
        }
        let Some(verdict) = input.verdict else {
            return;
        };
        let known = self.verdict.as_ref();
        let changed = known
            .is_none_or(|known| known.cause.name() != verdict.cause.name() || known.scope != verdict.scope);
        if changed {
            output.events.push(Event::Explained {
                verdict: verdict.clone(),
            });
        }
        // The numbers of the latest, in any case.
        self.verdict = Some(verdict.clone());
    }

    fn ask(&mut self, input: Input<'_>, policy: &Policy, budget: &mut Budget, output: &mut Output) {
        if let Some((at, _)) = &self.asked
            && input.at - *at < budget.cooldown()
        {
            return;
        }
        let wanted = remedy::choose(self.verdict.as_ref(), &self.service, &self.attempts);
        let granted = wanted.and_then(|remedy| match policy.auto_heal {
            true => budget.spend(input.at).map(|()| remedy),
            false => Err(Withheld::AutoHealOff),
        });
        match granted {
            Ok(remedy) => {
                self.withheld = None;
                self.asked = Some((input.at, remedy.clone()));
                output.remedy = Some(remedy);
            }
            Err(why) => {
                if self.withheld.as_ref() != Some(&why) {
                    output.events.push(Event::Withheld { why: why.clone() });
                }
                self.withheld = Some(why);
            }
        }
    }
}
