//! A change of services or configuration: checked, planned, applied, kept on disk – or taken back whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lb_common::service::ServiceKey;
use tokio::task::block_in_place;

use super::{
    controller::{BringError, Controller, failed},
    edits, host, next_hops,
    start::attach_options,
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{ApplyFile, Change, Done, Problem, steps_written},
    },
    config::{self, Config, ConfigError, validate},
    events::Kind,
    maps::Scope,
    metrics::{RotationCause, Trigger},
    net::settle,
    state::{
        desired::{DesiredService, NextHop, desired_service},
        overlay::{Effective, EffectiveService, Overlay},
    },
};

/// How long a change waits for the next hops of new backends before it goes on without them.
const SETTLE: Duration = Duration::from_millis(300);

/// What should become true.
struct Proposal {
    /// Another configuration than the one in force.
    config: Option<Config>,
    overlay: Overlay,
    trigger: Trigger,
    /// What to say when it is.
    text: String,
    /// Services that may differ; `None`: any.
    names: Option<BTreeSet<String>>,
}

/// Services that a proposal changes, as they will be; `None`: removed.
type Changed = BTreeMap<String, Option<EffectiveService>>;

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
    /// Edits through the interface.
    pub(super) async fn change(&mut self, change: &Change) -> Result<Done, Refusal> {
        self.overlay.check_revision(change.if_revision)?;
        let overlay = edits::edited(&self.overlay, &self.config.services, &change.edits)?;
        self.bring(Proposal {
            config: None,
            overlay,
            trigger: Trigger::Edit,
            text: edits::describe(&change.edits),
            names: Some(edits::services_of(&change.edits)),
        })
        .await
    }

    /// Services and backends of a file, kept like edits.
    pub(super) async fn apply_file(&mut self, file: &ApplyFile) -> Result<Done, Refusal> {
        self.overlay.check_revision(file.if_revision)?;
        let specs = config::parse_services(&file.toml, &file.file).map_err(|problems| invalid(&problems))?;
        let text = format!("{}: {} services applied", file.file, specs.len());
        let mut overlay = self.overlay.clone();
        overlay.apply_file(&self.config.services, specs)?;
        self.bring(Proposal { config: None, overlay, trigger: Trigger::Edit, text, names: None }).await
    }

    /// Reads the configuration file again. A file that does not fit changes nothing.
    pub(super) async fn reload(&mut self) -> Result<Done, Refusal> {
        let result = self.reload_file().await;
        self.shared.recorder.reloaded(result.is_ok());
        let file = self.shared.config_file.display().to_string();
        match &result {
            Ok(_) => {
                self.troubles.remove("config");
            }
            Err(refusal) => {
                let text = format!("not reloaded, nothing changed: {refusal}");
                self.shared.events.record(Kind::Config, file.clone(), text.clone());
                let problem = Problem {
                    object: file,
                    problem: text,
                    next_step: "correct the file (see `evenkeel check`), then `evenkeel reload`".to_owned(),
                };
                self.troubles.insert("config", problem);
            }
        }
        self.publish(Some(&BTreeSet::new()));
        result
    }

    async fn reload_file(&mut self) -> Result<Done, Refusal> {
        let config = Config::load(&self.shared.config_file).map_err(|error| match error {
            ConfigError::Problems(problems) => invalid(&problems),
            error @ ConfigError::Read { .. } => {
                let next_step = Some("make the file readable, then `evenkeel reload`".to_owned());
                Refusal::new(RefusalKind::Invalid, edits::with_sources(&error), next_step)
            }
        })?;
        let secret = Self::secret(&config)?;
        let mut overlay = self.overlay.clone();
        let mut notes = overlay.settle(&config.services);
        notes.extend(waiting_for_restart(&self.config, &config));
        let old = self.config.clone();
        self.attach_again(&config)?;
        let text = format!("{} reloaded", config.file);
        let proposal = Proposal { config: Some(config), overlay, trigger: Trigger::Reload, text, names: None };
        let mut done = match self.bring(proposal).await {
            Ok(done) => done,
            Err(refusal) => {
                if let Err(error) = self.attach_again(&old) {
                    tracing::error!("cannot go back to the interfaces of before: {error}");
                }
                return Err(refusal);
            }
        };
        let rhythm = &self.config.seeds;
        let random = || crate::seeds::random().unwrap_or(u64::MAX / 2);
        if (rhythm.interval, rhythm.jitter) != (old.seeds.interval, old.seeds.jitter) {
            self.seed_clock.set_rhythm(rhythm.interval.duration(), rhythm.jitter, Instant::now(), random);
        }
        if let Some(secret) = secret {
            done.steps += block_in_place(|| self.fill_seeds(Some(&secret), RotationCause::Command))?;
        }
        done.notes.extend(notes);
        Ok(done)
    }

    fn attach_again(&mut self, config: &Config) -> Result<(), Refusal> {
        let (before, after) = (&self.config.datapath, &config.datapath);
        let attached: BTreeSet<&str> = self.datapath.attached().iter().map(|interface| interface.name.as_str()).collect();
        let wanted: BTreeSet<&str> = after.interfaces.iter().map(String::as_str).collect();
        if attached == wanted && before.xdp_mode == after.xdp_mode {
            return Ok(());
        }
        let options = attach_options(config, &self.options);
        block_in_place(|| self.datapath.attach(&options)).map_err(|error| {
            let next_step = Some("look at `interfaces` and `xdp_mode` under [datapath]".to_owned());
            Refusal::new(RefusalKind::Invalid, edits::with_sources(&error), next_step)
        })?;
        Ok(())
    }

    /// Brings a proposal about, or refuses it and leaves everything as it was.
    async fn bring(&mut self, proposal: Proposal) -> Result<Done, Refusal> {
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
    fn differences(&self, proposal: &Proposal) -> Result<Changed, Refusal> {
        let config = proposal.config.as_ref().unwrap_or(&self.config);
        let file = &config.services;
        let new: Changed = match &proposal.names {
            Some(names) => {
                names.iter().map(|name| (name.clone(), proposal.overlay.effective_service(file, name))).collect()
            }
            None => {
                let Effective { services } = proposal.overlay.effective(file);
                let mut all: Changed = self.effective.services.keys().map(|name| (name.clone(), None)).collect();
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
            host::check(&Config { services: specs, ..config.clone() })?;
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
        if specs.is_empty() { Ok(()) } else { Ok(host::check_backends(&specs)?) }
    }

    fn unknown_addresses(&self, changed: &Changed) -> BTreeSet<IpAddr> {
        let backends = changed.values().flatten().flat_map(|service| &service.spec.backends);
        let addresses = backends.map(|backend| backend.address.to_canonical());
        addresses.filter(|address| !self.resolutions.contains_key(address)).collect()
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
        let kind = if proposal.trigger == Trigger::Reload { Kind::Config } else { Kind::Edit };
        self.shared.events.record(kind, object(names), format!("{} ({})", proposal.text, steps_written(steps)));
        let notes = self.unresolved_of(names);
        Done { revision: self.overlay.revision(), steps, text: proposal.text, notes }
    }

    fn removes_backends(&self, changed: &Changed) -> bool {
        changed.iter().any(|(name, service)| {
            let after = service.as_ref().map(|service| &service.sources);
            let before = self.effective.services.get(name).into_iter().flat_map(|old| old.sources.keys());
            before.into_iter().any(|address| after.is_none_or(|after| !after.contains_key(address)))
        })
    }

    /// Puts the changed services into the wanted state; answers how to take that back.
    fn replace(&mut self, changed: Changed, new: &BTreeSet<IpAddr>) -> Undo {
        let mut undo = Undo { names: changed.keys().cloned().collect(), ..Undo::default() };
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
                let old = self.desired.services.insert(key, desired_service(service, &self.next_hops));
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
            undo.next_hops.push((address, self.next_hops.insert(address, hop)));
        }
        let known = new.iter().filter_map(|address| Some((*address, answers.get(address)?.clone())));
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
                self.shared.events.record(Kind::ApplyFailed, object(&undo.names), refusal.to_string());
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
            let backends = service.backends.iter().filter(|(_, backend)| super::reads::is_unresolved(backend));
            backends.map(|(address, backend)| {
                let reason = backend.unresolved.as_deref().unwrap_or("unknown");
                format!("backend {}/{address} takes no flows yet: {reason}", service.spec.name)
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

fn invalid(problems: &config::Problems) -> Refusal {
    Refusal::new(RefusalKind::Invalid, problems.to_string(), None)
}

impl From<host::HostError> for Refusal {
    fn from(error: host::HostError) -> Self {
        match error {
            host::HostError::Unfit(problems) => invalid(&problems),
            host::HostError::Look(_) => failed(&error),
        }
    }
}

fn object(names: &BTreeSet<String>) -> String {
    match names.len() {
        0 => "services".to_owned(),
        1..=3 => names.iter().cloned().collect::<Vec<_>>().join(", "),
        count => format!("{count} services"),
    }
}

/// Settings that the running daemon does not take over.
fn waiting_for_restart(before: &Config, after: &Config) -> Vec<String> {
    let (old, new) = (&before.datapath, &after.datapath);
    let capacity = |of: &config::Datapath| (of.max_flows, of.max_services, of.max_backends, of.max_slots);
    let rows = [
        (old.pin_directory != new.pin_directory, "datapath.pin_directory", "a restart"),
        (capacity(old) != capacity(new), "max_flows, max_services, max_backends or max_slots", "`evenkeel detach` and a start"),
        (before.api != after.api, "[api]", "a restart"),
        (before.metrics != after.metrics, "[metrics]", "a restart"),
        (before.state != after.state, "[state]", "a restart"),
    ];
    let changed = rows.into_iter().filter(|(changed, ..)| *changed);
    changed.map(|(_, what, when)| format!("{what} takes effect after {when}")).collect()
}

pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
