//! What sources say, brought into the datapath.

mod disk;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use tokio::task::{JoinHandle, block_in_place};

use super::{
    bring::Proposal, controller::Controller, edits::with_sources, start::Forwarding, view::SourceView,
};
use crate::{
    api::{
        requests::{SourceAction, SourceRequest},
        server::{Refusal, RefusalKind},
        types::{Done, Problem},
    },
    config::{Config, ServiceSpec},
    discovery::{
        Endpoint, Report,
        admission::{Admission, backend, fit_weights},
        endpoint::MAX_WEIGHT,
        guard::Why,
        registry::{Followed, Heard, Registry},
    },
    events::Kind,
    metrics::Trigger,
    net,
    state::last_known_good::StoreError,
};

/// Reports that are brought into the datapath together.
const BATCH: usize = 1024;
/// Endpoints of a service that are shown with the reason why they cannot be backends.
const SHOWN: usize = 8;

/// Sources, and what became of what they say.
pub(super) struct Sources {
    pub registry: Registry,
    /// The file's services with the backends that sources name.
    pub base: Vec<ServiceSpec>,
    admission: Admission,
    directory: PathBuf,
    /// Endpoints that cannot be backends, and why, by service.
    pub not_admitted: BTreeMap<String, BTreeMap<IpAddr, String>>,
    /// Services whose backends are believed and not in the datapath.
    owed: BTreeSet<String>,
    /// Services whose state is not on disk yet.
    unsaved: BTreeSet<String>,
    /// Services whose state is on disk, and not on the medium yet.
    unflushed: BTreeSet<String>,
    /// Puts some there.
    flushing: Option<JoinHandle<Result<(), StoreError>>>,
    /// Something was heard that is not shown yet.
    unshown: bool,
    /// Held endpoints that somebody was told of.
    told: BTreeMap<(Arc<str>, Arc<str>), BTreeSet<IpAddr>>,
}

impl Sources {
    /// Starts to follow the sources of a configuration, from what is on disk; with what was to be said about that.
    pub fn start(config: &Config, registry: Registry) -> (Self, Vec<String>) {
        let mut sources = Self {
            registry,
            base: Vec::new(),
            admission: Admission::default(),
            directory: config.state.directory.join("discovered"),
            not_admitted: BTreeMap::new(),
            owed: BTreeSet::new(),
            unsaved: BTreeSet::new(),
            unflushed: BTreeSet::new(),
            flushing: None,
            unshown: false,
            told: BTreeMap::new(),
        };
        let notes = sources.configure(&config.services);
        sources.base = sources.inject(&config.services);
        (sources, notes)
    }

    /// Follows the sources of these services and no others; what was to be said about the state on disk.
    pub fn configure(&mut self, services: &[ServiceSpec]) -> Vec<String> {
        let mut notes = Vec::new();
        let new = services
            .iter()
            .filter(|spec| !spec.sources.is_empty() && !self.registry.follows(&spec.name));
        let saved = disk::load(&self.directory, new, &mut notes);
        self.registry.configure(services, saved);
        self.look_around(services);
        notes
    }

    /// Looks at this host's addresses, and at the VIPs.
    pub fn look_around(&mut self, services: &[ServiceSpec]) {
        self.admission.vips = services.iter().map(|spec| spec.vip.to_canonical()).collect();
        match net::HostFacts::gather() {
            Ok(facts) => self.admission.own = facts.addresses,
            Err(error) => tracing::warn!("cannot look at this host's addresses: {}", with_sources(&error)),
        }
    }

    /// Services with the backends that their sources name.
    pub fn inject(&mut self, services: &[ServiceSpec]) -> Vec<ServiceSpec> {
        services.iter().map(|spec| self.with_backends(spec)).collect()
    }

    /// A service of the file with the backends that its sources name and that can be. What the file names itself is as it
    /// says there.
    fn with_backends(&mut self, in_file: &ServiceSpec) -> ServiceSpec {
        let mut spec = in_file.clone();
        let known: BTreeSet<IpAddr> = spec
            .backends
            .iter()
            .map(|backend| backend.address.to_canonical())
            .collect();
        let mut refused = BTreeMap::new();
        for (address, (endpoint, sources)) in self.registry.believed(in_file) {
            if known.contains(&address) {
                continue;
            }
            match self.admission.refuses(in_file, endpoint) {
                Some(reason) => drop(refused.insert(address, reason)),
                None => spec.backends.push(backend(endpoint, sources)),
            }
        }
        if !in_file.sources.is_empty() && fit_weights(&mut spec) {
            tracing::debug!(service = spec.name, "light weights were raised to fit the slots");
        }
        if refused.is_empty() {
            self.not_admitted.remove(&in_file.name);
        } else {
            self.not_admitted.insert(in_file.name.clone(), refused);
        }
        spec
    }

    /// What the maps forward to stands in for a state that is nowhere: a lost disk must not take traffic along.
    pub fn recover(&mut self, services: &[ServiceSpec], found: &Forwarding) -> Vec<String> {
        let mut notes = Vec::new();
        for spec in services {
            let Some(backends) = found.get(&spec.key()) else {
                continue;
            };
            let is_in_file = |address: &IpAddr| {
                let mut backends = spec.backends.iter();
                backends.any(|backend| backend.address.to_canonical() == *address)
            };
            let endpoints = backends.iter().filter(|(address, _)| !is_in_file(address));
            let endpoints: Vec<Endpoint> = endpoints
                .map(|(address, slots)| Endpoint {
                    weight: (*slots).clamp(1, MAX_WEIGHT),
                    ..Endpoint::new(*address)
                })
                .collect();
            if !endpoints.is_empty() && self.registry.recover(&spec.name, endpoints) {
                notes.push(format!(
                    "service {}: no state is on disk, so it goes on with the backends that the datapath has",
                    spec.name
                ));
            }
        }
        self.base = self.inject(services);
        notes
    }

    /// Takes the believed backends of these services over into the base.
    fn rebase(&mut self, services: &[ServiceSpec], names: &BTreeSet<String>) {
        for index in 0..self.base.len() {
            if names.contains(&self.base[index].name)
                && let Some(in_file) = services.iter().find(|spec| spec.name == self.base[index].name)
            {
                self.base[index] = self.with_backends(in_file);
            }
        }
    }

    pub fn views(&self) -> Vec<SourceView> {
        let view = |(service, name, followed): (&Arc<str>, &Arc<str>, &Followed)| {
            let not_admitted = self.not_admitted.get(&**service).into_iter().flatten();
            SourceView {
                service: Arc::clone(service),
                name: Arc::clone(name),
                kind: followed.spec.kind.name(),
                health: followed.health.clone(),
                loaded: followed.guard.is_loaded(),
                endpoints: followed.guard.believed().len(),
                named: followed.guard.said(),
                held: followed.guard.held().cloned(),
                held_by_hand: followed.guard.is_held_by_hand(),
                not_admitted: not_admitted
                    .take(SHOWN)
                    .map(|(address, reason)| format!("{address}: {reason}"))
                    .collect(),
            }
        };
        self.registry.all().map(view).collect()
    }
}

impl Controller {
    /// Another configuration is in force.
    pub(super) fn take_over(&mut self, config: Config) {
        self.config = config;
        self.sources.base = self.sources.inject(&self.config.services);
    }

    /// Takes note of what sources say, as much as there is by now, and brings what changed about.
    pub(super) async fn hear(&mut self, first: Report) {
        let since = first.at;
        let mut changed = BTreeSet::new();
        let mut next = Some(first);
        let mut news = false;
        for _ in 0..BATCH {
            let Some(report) = next.take().or_else(|| self.reports.try_recv().ok()) else {
                break;
            };
            let (service, source) = (Arc::clone(&report.service), Arc::clone(&report.source));
            let fitness = &self.ledger.fitness;
            let heard = self
                .sources
                .registry
                .hear(report, |address| fitness.is_dead(&service, address));
            let text = match &heard {
                Heard::Same | Heard::Changed => None,
                Heard::Fails(error) => Some(format!("fails: {error}; what was known goes on")),
                Heard::Recovered { .. } => Some("answers again".to_owned()),
            };
            if let Some(text) = text {
                news = true;
                let object = format!("{service}/{source}");
                self.shared.events.record(Kind::Discovery, object, text);
            }
            if matches!(heard, Heard::Changed | Heard::Recovered { changed: true }) {
                changed.insert(service.to_string());
            }
        }
        if !changed.is_empty() {
            self.follow_sources(changed, since).await;
        }
        self.sources.unshown = true;
        if self.tell_holds() || news {
            self.show_sources();
        }
    }

    fn show_sources(&mut self) {
        self.sources.unshown = false;
        self.publish(Some(&BTreeSet::new()));
    }

    /// What time or checks let go by now, and what could not be brought about before.
    pub(super) async fn review_sources(&mut self) {
        let fitness = &self.ledger.fitness;
        let let_go = self.sources.registry.decide(Instant::now(), |service, address| {
            fitness.is_dead(service, address)
        });
        let mut names: BTreeSet<String> = let_go.iter().map(|name| name.to_string()).collect();
        names.extend(self.sources.owed.iter().cloned());
        if !names.is_empty() {
            self.follow_sources(names, Instant::now()).await;
        }
        self.save_again();
        if self.tell_holds() || self.sources.unshown {
            self.show_sources();
        }
        self.flush_sources();
    }

    /// Brings what is believed of these services into the datapath.
    async fn follow_sources(&mut self, names: BTreeSet<String>, since: Instant) {
        block_in_place(|| self.sources.rebase(&self.config.services, &names));
        let saved = block_in_place(|| self.sources.save(&names));
        self.note_disk(saved);
        let text = self.describe_sources(&names);
        let proposal = Proposal {
            config: None,
            overlay: self.ledger.overlay.clone(),
            trigger: Trigger::Discovery,
            text,
            names: Some(names.clone()),
            since,
        };
        match self.bring(proposal).await {
            Ok(_) => {
                self.sources.owed.retain(|name| !names.contains(name));
                if self.sources.owed.is_empty() {
                    self.troubles.remove("discovery");
                }
            }
            Err(refusal) => {
                let problem = Problem {
                    object: names.iter().take(3).cloned().collect::<Vec<_>>().join(", "),
                    problem: format!("what the sources say is not in the datapath: {refusal}"),
                    next_step: refusal
                        .0
                        .next_step
                        .clone()
                        .unwrap_or_else(|| "it is tried again each second".to_owned()),
                };
                self.sources.owed.extend(names);
                if self.troubles.insert("discovery", problem.clone()).as_ref() != Some(&problem) {
                    self.shared
                        .events
                        .record(Kind::ApplyFailed, problem.object, problem.problem);
                }
            }
        }
        self.flush_sources();
    }

    fn describe_sources(&self, names: &BTreeSet<String>) -> String {
        let (mut added, mut removed) = (0, 0);
        for spec in self.sources.base.iter().filter(|spec| names.contains(&spec.name)) {
            let after: BTreeSet<IpAddr> = spec
                .backends
                .iter()
                .map(|backend| backend.address.to_canonical())
                .collect();
            let before = self.ledger.effective.services.get(&spec.name);
            let before: BTreeSet<IpAddr> = before
                .into_iter()
                .flat_map(|old| old.sources.keys().copied())
                .collect();
            added += after.difference(&before).count();
            removed += before.difference(&after).count();
        }
        format!("backends from sources: {added} added, {removed} removed")
    }

    /// Records what begins to be held or ends; whether anything did.
    fn tell_holds(&mut self) -> bool {
        if self.sources.told.is_empty() && !self.sources.registry.holds_anything() {
            return false;
        }
        let mut held = BTreeMap::new();
        for (service, source, followed) in self.sources.registry.all() {
            let Some(now) = followed.guard.held() else {
                continue;
            };
            let key = (Arc::clone(service), Arc::clone(source));
            if self.sources.told.get(&key) != Some(&now.endpoints) {
                let text = format!(
                    "{}; they stay: `evenkeel discovery accept {service}` lets them go",
                    why_held(&now.why, now.endpoints.len())
                );
                self.shared
                    .events
                    .record(Kind::Discovery, format!("{service}/{source}"), text);
            }
            held.insert(key, now.endpoints.clone());
        }
        let changed = held != self.sources.told;
        self.sources.told = held;
        changed
    }

    /// `discovery accept` and `discovery hold`.
    pub(super) async fn order_sources(&mut self, request: SourceRequest) -> Result<Done, Refusal> {
        let name = request.source.as_deref();
        let Some(selected) = self.sources.registry.select(&request.service, name) else {
            let object = match name {
                None => format!("service {} has no sources", request.service),
                Some(name) => format!("service {} has no source {name}", request.service),
            };
            return Err(Refusal::new(
                RefusalKind::NotFound,
                object,
                "`evenkeel discovery` lists them",
            ));
        };
        let text = match request.action {
            SourceAction::Accept => {
                let let_go: usize = selected.into_iter().map(|followed| followed.guard.accept()).sum();
                format!("service {}: {let_go} held endpoints let go", request.service)
            }
            SourceAction::Hold => {
                selected.into_iter().for_each(|followed| followed.guard.hold());
                format!("service {}: nothing goes until it is accepted", request.service)
            }
        };
        self.shared
            .events
            .record(Kind::Edit, request.service.clone(), text.clone());
        let before = self.shared.recorder.steps();
        self.follow_sources([request.service].into(), Instant::now())
            .await;
        self.tell_holds();
        self.publish(Some(&BTreeSet::new()));
        if let Some(problem) = self.troubles.get("discovery") {
            return Err(Refusal::new(
                RefusalKind::Failed,
                problem.problem.clone(),
                problem.next_step.clone(),
            ));
        }
        Ok(Done {
            revision: self.ledger.overlay.revision(),
            steps: (self.shared.recorder.steps() - before) as usize,
            text,
            notes: Vec::new(),
        })
    }

    /// Why traffic may not come yet: services whose sources have never said anything.
    pub(super) fn services_without_state(&self) -> Vec<String> {
        let specs = self.sources.base.iter();
        let waiting = specs.filter(|spec| spec.backends.is_empty()).filter_map(|spec| {
            let effective = self.ledger.effective.services.get(&spec.name)?;
            if !effective.spec.backends.is_empty() {
                return None;
            }
            let sources = self.sources.registry.never_loaded(&spec.name)?;
            let reasons = sources
                .into_iter()
                .map(|(name, followed)| match &followed.health.failing {
                    Some((_, error)) => format!("{name} fails: {error}"),
                    None if followed.health.heard.is_some() => format!("{name} names no endpoint"),
                    None => format!("{name} has not answered yet"),
                });
            Some(format!(
                "service {} has never had a state: {}",
                spec.name,
                reasons.collect::<Vec<_>>().join(", ")
            ))
        });
        waiting.collect()
    }
}

/// In words.
pub(super) fn why_held(why: &Why, count: usize) -> String {
    match why {
        Why::Empty => format!("the source names no endpoint at all, and {count} were known"),
        Why::TooMany { gone, of } => format!("the source took {gone} of {of} endpoints away"),
        Why::ByHand => format!("{count} endpoints should go and are held by hand"),
    }
}
