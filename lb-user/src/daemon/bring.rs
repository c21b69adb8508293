//! Bringing a proposal about: checked against the rest and this host, entered into the ledger, reported – or refused whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::task::block_in_place;

use super::{
    change::invalid,
    controller::{Controller, failed, unplanned},
    edits::with_sources,
    host,
    ledger::{BringError, Draft, NotEntered, TakenBack},
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{Done, Problem, steps_written},
    },
    config::{self, Config, validate},
    events::Kind,
    metrics::Trigger,
    net::settle,
    state::overlay::{Effective, EffectiveService, Overlay},
};

/// How long a change waits for the next hops of new backends before it goes on without them.
const SETTLE: Duration = Duration::from_millis(300);

/// How long a source's new backends wait: the kernel knows the way to most at once, and then tables are written once.
const GLANCE: Duration = Duration::from_millis(10);

/// With so many backends that stay for each that goes, a service does not wait for those that come.
const STAYING: usize = 10;

/// What should become true.
pub(super) struct Proposal {
    /// Another configuration than the one in force.
    pub config: Option<Config>,
    pub overlay: Overlay,
    pub trigger: Trigger,
    /// What to say when it is.
    pub text: String,
    /// Services that may differ; `None`: any.
    pub names: Option<BTreeSet<String>>,
    /// When it was first known.
    pub since: Instant,
}

/// Services that a proposal changes, as they will be; `None`: removed.
pub(super) type Changed = BTreeMap<String, Option<EffectiveService>>;

impl Controller {
    /// Brings a proposal about, or refuses it and leaves everything as it was.
    pub(super) async fn bring(&mut self, proposal: Proposal) -> Result<Done, Refusal> {
        let changed = block_in_place(|| self.differences(&proposal))?;
        let new = self.unknown_addresses(&changed);
        if !new.is_empty() {
            self.resolver.want_also(new.clone());
            // Sources speak often, and nobody waits for an answer: their backends follow when they can be reached. But
            // what takes the place of others must be reachable when those go, or there are too few to serve.
            let waits = proposal.trigger != Trigger::Discovery || self.replaces_backends(&changed);
            self.settle(&new, if waits { SETTLE } else { GLANCE }).await;
        }
        block_in_place(|| {
            let result = self.carry_out(proposal, changed, &new);
            if result.is_err() && !new.is_empty() {
                self.resolver.want(self.ledger.addresses());
            }
            result
        })
    }

    /// Waits for next hops. A backend that dies meanwhile does not wait for that: its way out of the slots is no part of
    /// the proposal.
    async fn settle(&mut self, new: &BTreeSet<IpAddr>, limit: Duration) {
        // A receiver of its own: answers about others stay unseen here, and are followed afterwards.
        let mut answers = self.answers.clone();
        let mut settled = std::pin::pin!(settle(&mut answers, new, limit));
        loop {
            tokio::select! {
                () = &mut settled => return,
                Some(change) = self.changes.recv() => self.hear_checks(change),
            }
        }
    }

    /// The services that a proposal changes, checked against each other and this host.
    pub(super) fn differences(&mut self, proposal: &Proposal) -> Result<Changed, Refusal> {
        let injected;
        let file = match &proposal.config {
            None => &self.sources.base,
            Some(config) => {
                injected = self.sources.inject(&config.services);
                &injected
            }
        };
        let new: Changed = match &proposal.names {
            Some(names) => names
                .iter()
                .map(|name| (name.clone(), proposal.overlay.effective_service(file, name)))
                .collect(),
            None => {
                let Effective { services } = proposal.overlay.effective(file);
                let mut all: Changed = self
                    .ledger
                    .effective
                    .services
                    .keys()
                    .map(|name| (name.clone(), None))
                    .collect();
                all.extend(services.into_iter().map(|(name, service)| (name, Some(service))));
                all
            }
        };
        let differs = |(name, service): &(String, Option<EffectiveService>)| {
            self.ledger.effective.services.get(name) != service.as_ref()
        };
        let changed: Changed = new.into_iter().filter(differs).collect();
        if let Some(config) = &proposal.config {
            let specs = proposal.overlay.effective(file).specs();
            validate(&specs).map_err(|problems| invalid(&config::Problems(problems)))?;
            host::check(&Config {
                services: specs,
                ..config.clone()
            })?;
        } else if proposal.trigger != Trigger::Discovery {
            // Those of sources were looked at one by one.
            self.check_new_backends(&changed)?;
        }
        Ok(changed)
    }

    /// Only new backends are compared with the host: an address that it got later must not block other edits.
    fn check_new_backends(&self, changed: &Changed) -> Result<(), Refusal> {
        let mut specs = Vec::new();
        for (name, service) in changed {
            let Some(service) = service else { continue };
            let known = self.ledger.effective.services.get(name).map(|old| &old.sources);
            let mut spec = service.spec.clone();
            spec.backends.retain(|backend| {
                known.is_none_or(|known| !known.contains_key(&backend.address.to_canonical()))
            });
            if !spec.backends.is_empty() {
                specs.push(spec);
            }
        }
        if specs.is_empty() {
            Ok(())
        } else {
            Ok(host::check_backends(&specs)?)
        }
    }

    fn unknown_addresses(&self, changed: &Changed) -> BTreeSet<IpAddr> {
        let backends = changed
            .values()
            .flatten()
            .flat_map(|service| &service.spec.backends);
        let addresses = backends.map(|backend| backend.address.to_canonical());
        addresses
            .filter(|address| !self.ledger.resolutions.contains_key(address))
            .collect()
    }

    fn carry_out(
        &mut self,
        proposal: Proposal,
        changed: Changed,
        new: &BTreeSet<IpAddr>,
    ) -> Result<Done, Refusal> {
        self.judge(&changed);
        let config = proposal.config.as_ref().unwrap_or(&self.config);
        let in_force = self.ledger.desired.settings;
        let answers = {
            let known = self.answers.borrow();
            let answer = |address: &IpAddr| (*address, known.get(address).cloned());
            new.iter().map(answer).collect()
        };
        let draft = Draft {
            overlay: proposal.overlay,
            services: changed,
            settings: config.desired_settings(in_force.table_key, in_force.sampling),
            answers,
            trigger: proposal.trigger,
        };
        let entered = self
            .ledger
            .enter(draft, &self.shared.recorder)
            .map_err(|error| self.refuse(error))?;
        self.want_checks();
        self.shared.recorder.change_applied(proposal.since.elapsed());
        if let Some(config) = proposal.config {
            self.take_over(config);
        }
        Ok(self.accept(proposal.trigger, proposal.text, &entered.names, entered.steps))
    }

    /// The change is in the datapath and on disk.
    fn accept(&mut self, trigger: Trigger, text: String, names: &BTreeSet<String>, steps: usize) -> Done {
        self.note_outcome(&Ok(steps), "datapath");
        if trigger != Trigger::Discovery {
            // It was written, whatever was the matter before.
            self.troubles.remove("state");
        }
        self.publish(Some(names));
        let kind = match trigger {
            Trigger::Reload => Kind::Config,
            Trigger::Discovery => Kind::Discovery,
            _ => Kind::Edit,
        };
        // What a source says again is no news.
        if trigger != Trigger::Discovery || !names.is_empty() {
            let written = format!("{text} ({})", steps_written(steps));
            self.shared.events.record(kind, object(names), written);
        }
        Done {
            revision: self.ledger.overlay.revision(),
            steps,
            text,
            notes: self.unresolved_of(names),
        }
    }

    fn refuse(&mut self, error: NotEntered) -> Refusal {
        match error {
            NotEntered::Planless(BringError::Plan(error)) => unplanned(&error),
            NotEntered::Planless(error) => failed(&error),
            NotEntered::Unsaved(error) => Refusal::new(
                RefusalKind::Failed,
                with_sources(&error),
                "nothing was changed: make room there, or set state.directory and restart, then try again",
            ),
            NotEntered::TakenBack(failure) => self.report_failure(*failure),
        }
    }

    /// A change failed half way and was taken back: how far, and whether that went well.
    fn report_failure(&mut self, failure: TakenBack) -> Refusal {
        let mut refusal = failed(&failure.error);
        let text = refusal.to_string();
        let events = &self.shared.events;
        events.record(Kind::ApplyFailed, object(&failure.names), text);
        if let Err(error) = failure.disk {
            let problem = Problem {
                object: "state directory".to_owned(),
                problem: format!(
                    "a refused change could not be taken back: {}",
                    with_sources(&error)
                ),
                next_step: "make any change, such as a weight: it replaces what is on disk".to_owned(),
            };
            let text = problem.problem.clone();
            events.record(Kind::Degraded, problem.object.clone(), text);
            self.troubles.insert("state", problem);
        }
        self.note_outcome(&failure.maps, "rollback");
        self.publish(None);
        let next_step = match failure.maps {
            Ok(_) => "it was taken back whole: look at the daemon's log for the cause, then try again",
            Err(_) => {
                "the datapath stands half way and is brought back every 10 s until that works: see `evenkeel status`"
            }
        };
        refusal.0.next_step = Some(next_step.to_owned());
        refusal
    }

    /// Whether so many backends of a service go that it needs those that come: more than one for every `STAYING` that stay
    /// and can be reached.
    fn replaces_backends(&self, changed: &Changed) -> bool {
        changed.iter().any(|(name, service)| {
            let (Some(after), Some(before)) = (service, self.ledger.effective.services.get(name)) else {
                return false;
            };
            let mut gone = before.sources.keys().collect::<BTreeSet<_>>();
            gone.retain(|address| !after.sources.contains_key(address));
            let stays = |address: &&IpAddr| {
                before.sources.contains_key(address) && self.ledger.next_hops.contains_key(address)
            };
            !gone.is_empty() && after.sources.keys().filter(stays).count() < STAYING * gone.len()
        })
    }

    fn unresolved_of(&self, names: &BTreeSet<String>) -> Vec<String> {
        let view = self.shared.view();
        let services = names.iter().filter_map(|name| view.services.get(name));
        let unresolved = services.flat_map(|service| {
            let backends = service
                .backends
                .iter()
                .filter(|(_, backend)| super::reads::is_unresolved(backend));
            backends.map(|(address, backend)| {
                let reason = backend.unresolved.as_deref().unwrap_or("unknown");
                format!(
                    "backend {}/{address} takes no flows yet: {reason}",
                    service.spec.name
                )
            })
        });
        unresolved.take(10).collect()
    }
}

fn object(names: &BTreeSet<String>) -> String {
    match names.len() {
        0 => "services".to_owned(),
        1..=3 => names.iter().cloned().collect::<Vec<_>>().join(", "),
        count => format!("{count} services"),
    }
}

pub(super) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
