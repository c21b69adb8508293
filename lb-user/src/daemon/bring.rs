//! Bringing a proposal about: checked, planned, applied, kept on disk – or taken back whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lb_common::service::ServiceKey;
use tokio::task::block_in_place;

use super::{
    change::invalid,
    controller::{BringError, Controller, failed},
    edits, host, next_hops,
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{Done, steps_written},
    },
    config::{self, Config, validate},
    events::Kind,
    maps::Scope,
    metrics::Trigger,
    net::settle,
    state::{
        desired::{DesiredService, NextHop, desired_service},
        overlay::{Effective, EffectiveService, Overlay},
    },
};

/// How long a change waits for the next hops of new backends before it goes on without them.
const SETTLE: Duration = Duration::from_millis(300);

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
}

/// Services that a proposal changes, as they will be; `None`: removed.
pub(super) type Changed = BTreeMap<String, Option<EffectiveService>>;

/// How to take back what a proposal did to the wanted state.
#[derive(Default)]
struct Undo {
    effective: Vec<(String, Option<EffectiveService>)>,
    desired: Vec<(ServiceKey, Option<DesiredService>)>,
    next_hops: Vec<(IpAddr, Option<NextHop>)>,
    keys: BTreeSet<ServiceKey>,
    names: BTreeSet<String>,
}

impl Controller {
    /// Brings a proposal about, or refuses it and leaves everything as it was.
    pub(super) async fn bring(&mut self, proposal: Proposal) -> Result<Done, Refusal> {
        let start = Instant::now();
        let changed = block_in_place(|| self.differences(&proposal))?;
        let new = self.unknown_addresses(&changed);
        if !new.is_empty() {
            let mut wanted = self.addresses();
            wanted.extend(&new);
            self.resolver.want(wanted);
            // A receiver of its own: answers about others stay unseen here, and are followed afterwards.
            settle(&mut self.answers.clone(), &new, SETTLE).await;
        }
        block_in_place(|| {
            let result = self.carry_out(proposal, changed, &new, start);
            if result.is_err() && !new.is_empty() {
                self.resolver.want(self.addresses());
            }
            result
        })
    }

    /// The services that a proposal changes, checked against each other and this host.
    pub(super) fn differences(&self, proposal: &Proposal) -> Result<Changed, Refusal> {
        let config = proposal.config.as_ref().unwrap_or(&self.config);
        let file = &config.services;
        let new: Changed = match &proposal.names {
            Some(names) => names
                .iter()
                .map(|name| (name.clone(), proposal.overlay.effective_service(file, name)))
                .collect(),
            None => {
                let Effective { services } = proposal.overlay.effective(file);
                let mut all: Changed = self
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
            self.effective.services.get(name) != service.as_ref()
        };
        let changed: Changed = new.into_iter().filter(differs).collect();
        if let Some(config) = &proposal.config {
            let specs = proposal.overlay.effective(file).specs();
            validate(&specs).map_err(|problems| invalid(&config::Problems(problems)))?;
            host::check(&Config {
                services: specs,
                ..config.clone()
            })?;
        } else {
            self.check_new_backends(&changed)?;
        }
        Ok(changed)
    }

    /// Only new backends are compared with the host: an address that it got later must not block other edits.
    fn check_new_backends(&self, changed: &Changed) -> Result<(), Refusal> {
        let mut specs = Vec::new();
        for (name, service) in changed {
            let Some(service) = service else { continue };
            let known = self.effective.services.get(name).map(|old| &old.sources);
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
            .filter(|address| !self.resolutions.contains_key(address))
            .collect()
    }

    fn carry_out(
        &mut self,
        proposal: Proposal,
        changed: Changed,
        new: &BTreeSet<IpAddr>,
        start: Instant,
    ) -> Result<Done, Refusal> {
        let removes = self.removes_backends(&changed);
        let settings = self.desired.settings;
        if let Some(config) = &proposal.config {
            self.desired.settings = config.desired_settings(settings.table_key, settings.sample_bits);
        }
        let undo = self.replace(changed, new);
        let scope = Scope::Services(undo.keys.clone());
        let steps = match self.bring_about(&scope, proposal.trigger) {
            Ok(steps) => steps,
            Err(error) => {
                self.desired.settings = settings;
                return Err(self.take_back(undo, error));
            }
        };
        self.shared.recorder.change_applied(start.elapsed());
        if let Err(error) = self.store.save(&proposal.overlay, unix_now()) {
            self.desired.settings = settings;
            self.roll_back(undo);
            return Err(failed(&error));
        }
        if removes {
            self.resolver.want(self.addresses());
        }
        Ok(self.accept(proposal, &undo.names, steps))
    }

    /// The change is in the datapath and on disk.
    fn accept(&mut self, proposal: Proposal, names: &BTreeSet<String>, steps: usize) -> Done {
        self.overlay = proposal.overlay;
        if let Some(config) = proposal.config {
            self.config = config;
        }
        self.note_outcome(&Ok(steps), "datapath");
        self.publish(Some(names));
        let kind = if proposal.trigger == Trigger::Reload {
            Kind::Config
        } else {
            Kind::Edit
        };
        self.shared.events.record(
            kind,
            object(names),
            format!("{} ({})", proposal.text, steps_written(steps)),
        );
        let notes = self.unresolved_of(names);
        Done {
            revision: self.overlay.revision(),
            steps,
            text: proposal.text,
            notes,
        }
    }

    fn removes_backends(&self, changed: &Changed) -> bool {
        changed.iter().any(|(name, service)| {
            let after = service.as_ref().map(|service| &service.sources);
            let before = self
                .effective
                .services
                .get(name)
                .into_iter()
                .flat_map(|old| old.sources.keys());
            before
                .into_iter()
                .any(|address| after.is_none_or(|after| !after.contains_key(address)))
        })
    }

    /// Puts the changed services into the wanted state; answers how to take that back.
    fn replace(&mut self, changed: Changed, new: &BTreeSet<IpAddr>) -> Undo {
        let mut undo = Undo {
            names: changed.keys().cloned().collect(),
            ..Undo::default()
        };
        // Keys that are given up go first: another service may take one over.
        for name in changed.keys() {
            if let Some(old) = self.effective.services.get(name) {
                let key = old.spec.key();
                undo.desired.push((key, self.desired.services.remove(&key)));
                undo.keys.insert(key);
            }
        }
        for (name, service) in changed {
            let old = match service {
                Some(service) => self.effective.services.insert(name.clone(), service),
                None => self.effective.services.remove(&name),
            };
            undo.effective.push((name, old));
        }
        self.take_answers(new, &mut undo);
        for name in &undo.names {
            if let Some(service) = self.effective.services.get(name) {
                let key = service.spec.key();
                let old = self
                    .desired
                    .services
                    .insert(key, desired_service(service, &self.next_hops));
                undo.desired.push((key, old));
                undo.keys.insert(key);
            }
        }
        undo
    }

    /// Takes over what the resolver says of new addresses, for every service that has them.
    fn take_answers(&mut self, new: &BTreeSet<IpAddr>, undo: &mut Undo) {
        if new.is_empty() {
            return;
        }
        let answers = self.answers.borrow().clone();
        for (address, hop) in next_hops::updated(&self.next_hops, &answers, new) {
            undo.next_hops
                .push((address, self.next_hops.insert(address, hop)));
        }
        let known = new
            .iter()
            .filter_map(|address| Some((*address, answers.get(address)?.clone())));
        self.resolutions.extend(known);
        let others = self.services_with(new);
        undo.names.extend(others);
    }

    /// After a failure: the wanted state of before, and the datapath too if it was touched.
    fn take_back(&mut self, undo: Undo, error: BringError) -> Refusal {
        match error {
            BringError::Plan(error) => {
                self.restore(undo);
                Refusal::new(RefusalKind::Invalid, edits::with_sources(&error), None)
            }
            BringError::Observe(_) => {
                self.restore(undo);
                failed(&error)
            }
            BringError::Apply(_) => {
                let refusal = failed(&error);
                self.shared
                    .events
                    .record(Kind::ApplyFailed, object(&undo.names), refusal.to_string());
                self.roll_back(undo);
                refusal
            }
        }
    }

    fn roll_back(&mut self, undo: Undo) {
        let scope = Scope::Services(undo.keys.clone());
        let names = undo.names.clone();
        self.restore(undo);
        let result = self.bring_about(&scope, Trigger::Rollback);
        self.note_outcome(&result, "rollback");
        self.publish(Some(&names));
    }

    fn restore(&mut self, undo: Undo) {
        // In reverse: a key may stand twice, and its oldest value counts.
        for (key, old) in undo.desired.into_iter().rev() {
            put_back(&mut self.desired.services, key, old);
        }
        for (name, old) in undo.effective.into_iter().rev() {
            put_back(&mut self.effective.services, name, old);
        }
        for (address, old) in undo.next_hops.into_iter().rev() {
            put_back(&mut self.next_hops, address, old);
        }
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

fn put_back<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, old: Option<V>) {
    match old {
        Some(old) => map.insert(key, old),
        None => map.remove(&key),
    };
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
