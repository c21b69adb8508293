//! What checks find, brought into the datapath.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use tokio::{sync::mpsc, task::block_in_place};

use super::{bring::Changed, controller::Controller, start::Forwarding};
use crate::{
    config::ServiceSpec,
    events::Kind,
    health::{
        Change, Checker, Counts, HealthSpec, Initial, Mode, OnPanic, PanicGauge, Standing, Via, Wanted,
        probe::Through, ramp,
    },
    maps::Scope,
    metrics::Trigger,
    program::CheckPath,
    state::fitness::ServiceFitness,
};

/// Results that are brought into the datapath together.
const BATCH: usize = 4096;

/// The checks of all services, and what was made of them.
pub(super) struct Checks {
    checker: Arc<Checker>,
    /// The way of those that go through the VIP.
    pub(super) path: Arc<CheckPath>,
    services: BTreeMap<String, Judged>,
}

/// One service's backends as its checks find them.
struct Judged {
    spec: Arc<HealthSpec>,
    backends: BTreeMap<IpAddr, Verdict>,
    gauge: PanicGauge,
    mode: Mode,
}

/// One backend as its checks find it.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    /// What it counted as before it was checked.
    starts_up: bool,
    /// `None` before the first check.
    up: Option<bool>,
    /// Since when its weight grows.
    rises_since: Option<Instant>,
    /// Why it is down.
    pub reason: Option<String>,
}

impl Verdict {
    fn takes_flows(&self) -> bool {
        self.up.unwrap_or(self.starts_up)
    }

    /// `None` before the first check.
    pub fn passes(&self) -> Option<bool> {
        self.up
    }
}

impl Checks {
    pub fn start(results: mpsc::Sender<Change>) -> Self {
        Self {
            checker: Arc::new(Checker::start(results)),
            path: Arc::default(),
            services: BTreeMap::new(),
        }
    }

    /// For metrics, which count checks.
    pub fn checker(&self) -> Arc<Checker> {
        Arc::clone(&self.checker)
    }

    pub fn verdict(&self, service: &str, address: IpAddr) -> Option<&Verdict> {
        self.services.get(service)?.backends.get(&address)
    }

    /// Services whose checks are not believed, and what that means.
    pub fn panics(&self) -> BTreeMap<String, OnPanic> {
        let panics = self
            .services
            .iter()
            .filter_map(|(name, judged)| match judged.mode {
                Mode::Panic(what) => Some((name.clone(), what)),
                Mode::Normal => None,
            });
        panics.collect()
    }

    /// Takes a service over as it will be. `serves` tells which backends take flows already.
    fn adopt(&mut self, name: &str, spec: Option<&ServiceSpec>, serves: impl Fn(IpAddr) -> bool) {
        let Some((spec, health)) = spec.and_then(|spec| Some((spec, spec.health.as_ref()?))) else {
            self.services.remove(name);
            return;
        };
        let judged = self.services.entry(name.to_owned()).or_insert_with(|| Judged {
            spec: Arc::new(health.clone()),
            backends: BTreeMap::new(),
            gauge: PanicGauge::default(),
            mode: Mode::Normal,
        });
        if *judged.spec != *health {
            judged.spec = Arc::new(health.clone());
        }
        let mut before = std::mem::take(&mut judged.backends);
        for backend in &spec.backends {
            let address = backend.address.to_canonical();
            let verdict = before.remove(&address).unwrap_or_else(|| Verdict {
                starts_up: health.initial == Initial::Up || serves(address),
                up: None,
                rises_since: None,
                reason: None,
            });
            judged.backends.insert(address, verdict);
        }
    }

    /// What follows from the checks of a service, now.
    fn fitness(&mut self, name: &str, spec: Option<&ServiceSpec>, now: Instant) -> ServiceFitness {
        let (Some(judged), Some(spec)) = (self.services.get_mut(name), spec) else {
            return ServiceFitness::default();
        };
        let mut counts = Counts::default();
        for verdict in judged.backends.values() {
            let standing = match verdict.takes_flows() {
                true => Standing::Up,
                false if verdict.up.is_some() => Standing::Down,
                false => Standing::Unknown,
            };
            counts.add(standing, verdict.up.is_some());
        }
        let health = &judged.spec;
        judged.mode = judged
            .gauge
            .update(counts, health.panic_threshold, health.on_panic, now);
        let is = |wanted: fn(&Verdict) -> bool| {
            let found = judged.backends.iter().filter(|(_, verdict)| wanted(verdict));
            found.map(|(address, _)| *address).collect::<BTreeSet<IpAddr>>()
        };
        let dead = is(|verdict| verdict.up == Some(false));
        let down = match judged.mode {
            Mode::Panic(OnPanic::Serve) => BTreeSet::new(),
            Mode::Normal | Mode::Panic(OnPanic::Withdraw) => is(|verdict| !verdict.takes_flows()),
        };
        let mut rising = BTreeMap::new();
        if let Some(over) = health.slow_start {
            for backend in &spec.backends {
                let verdict = judged.backends.get_mut(&backend.address.to_canonical());
                let Some((verdict, since)) = verdict.and_then(|verdict| {
                    let since = verdict.rises_since?;
                    Some((verdict, since))
                }) else {
                    continue;
                };
                let age = now.saturating_duration_since(since);
                match ramp::next_step(age, over.duration()) {
                    Some(_) => {
                        let weight = ramp::weight(backend.weight, age, over.duration());
                        rising.insert(backend.address.to_canonical(), weight);
                    }
                    None => verdict.rises_since = None,
                }
            }
        }
        ServiceFitness { down, rising, dead }
    }

    /// Checks all backends of all services that want it, and nothing else.
    fn want(&self, specs: &BTreeMap<String, crate::state::overlay::EffectiveService>) {
        let mut wanted = BTreeMap::new();
        for (name, judged) in &self.services {
            let Some(service) = specs.get(name) else { continue };
            let name: Arc<str> = name.as_str().into();
            for backend in &service.spec.backends {
                let address = backend.address.to_canonical();
                let named = backend.discovered.as_ref().and_then(|by| by.port);
                let own = service.spec.port.number();
                let through = (judged.spec.via == Via::Vip).then(|| Through {
                    vip: service.spec.vip.to_canonical(),
                    mode: backend.mode.unwrap_or(service.spec.mode),
                    path: Arc::clone(&self.path),
                });
                // Clients' packets go to the service's port, whatever a source says.
                let usual = if through.is_some() {
                    own.or(named)
                } else {
                    named.or(own)
                };
                let Some(port) = judged.spec.port.or(usual) else {
                    continue;
                };
                let starts_up = judged
                    .backends
                    .get(&address)
                    .is_some_and(|verdict| verdict.takes_flows());
                let target = Wanted {
                    spec: Arc::clone(&judged.spec),
                    target: SocketAddr::new(address, port),
                    through,
                    starts_up,
                };
                wanted.insert((Arc::clone(&name), address), target);
            }
        }
        self.checker.want(wanted);
    }
}

impl Controller {
    /// Judges services as they will be, so that a backend that is to be checked first takes no flow before that.
    pub(super) fn judge(&mut self, changed: &Changed) {
        let now = Instant::now();
        for (name, service) in changed {
            let spec = service.as_ref().map(|service| &service.spec);
            let before = self.ledger.effective.services.get(name);
            let serves = |address: IpAddr| {
                before.is_some_and(|before| {
                    before.sources.contains_key(&address)
                        && !self.ledger.fitness.of(name).down.contains(&address)
                })
            };
            self.checks.adopt(name, spec, serves);
            let fitness = self.checks.fitness(name, spec, now);
            self.ledger.fitness.set(name, fitness);
        }
    }

    /// Judges all services at the start; what the maps forward to already is up until checks say otherwise.
    pub(super) fn judge_at_start(&mut self, forwarding: &Forwarding) {
        let now = Instant::now();
        let names: Vec<String> = self.ledger.effective.services.keys().cloned().collect();
        for name in &names {
            let spec = self
                .ledger
                .effective
                .services
                .get(name)
                .map(|service| &service.spec);
            let serving = spec.and_then(|spec| forwarding.get(&spec.key()));
            self.checks.adopt(name, spec, |address| {
                serving.is_some_and(|backends| backends.contains_key(&address))
            });
            let fitness = self.checks.fitness(name, spec, now);
            self.ledger.fitness.set(name, fitness);
        }
        self.ledger.refresh_desired(&names.into_iter().collect());
        self.want_checks();
    }

    pub(super) fn want_checks(&mut self) {
        self.follow_check_path();
        self.checks.want(&self.ledger.effective.services);
    }

    /// Takes note of what checks brought about, as much as there is by now.
    pub(super) fn hear_checks(&mut self, first: Change) {
        let since = first.at;
        let mut names = BTreeSet::new();
        let mut next = Some(first);
        for _ in 0..BATCH {
            let Some(change) = next.take().or_else(|| self.changes.try_recv().ok()) else {
                break;
            };
            names.extend(self.note_check(change));
        }
        self.follow_checks(&names, since, true);
    }

    fn note_check(&mut self, change: Change) -> Option<String> {
        let (service, address) = change.key;
        let judged = self.checks.services.get_mut(&*service)?;
        let verdict = judged.backends.get_mut(&address)?;
        let before = verdict.up;
        verdict.up = Some(change.up);
        verdict.reason.clone_from(&change.reason);
        // What served already does not start slowly.
        let rises = change.up && before.map_or(!verdict.starts_up, |up| !up);
        verdict.rises_since = rises.then_some(change.at);
        let text = match (change.up, before) {
            (true, Some(false)) => Some("passes its checks again".to_owned()),
            (true, _) => None,
            (false, _) => Some(format!(
                "fails its checks: {}",
                change.reason.as_deref().unwrap_or("no reason is known")
            )),
        };
        if let Some(text) = text {
            self.shared
                .events
                .record(Kind::Health, format!("{service}/{address}"), text);
        }
        Some(service.to_string())
    }

    /// Steps of slow starts, and panics that end with time; and routes that have changed.
    pub(super) fn review_checks(&mut self) {
        if block_in_place(|| self.follow_check_path()) {
            block_in_place(|| self.publish(Some(&BTreeSet::new())));
        }
        let due = self.checks.services.iter().filter(|(_, judged)| {
            judged.gauge.due().is_some()
                || judged
                    .backends
                    .values()
                    .any(|verdict| verdict.rises_since.is_some())
        });
        let names: BTreeSet<String> = due.map(|(name, _)| name.clone()).collect();
        if !names.is_empty() {
            self.follow_checks(&names, Instant::now(), false);
        }
    }

    /// Brings what follows from the checks of these services into the datapath.
    fn follow_checks(&mut self, names: &BTreeSet<String>, since: Instant, news: bool) {
        let panics = self.checks.panics();
        let now = Instant::now();
        let mut changed = BTreeSet::new();
        for name in names {
            let spec = self
                .ledger
                .effective
                .services
                .get(name)
                .map(|service| &service.spec);
            let fitness = self.checks.fitness(name, spec, now);
            if self.ledger.fitness.set(name, fitness) {
                changed.insert(name.clone());
            }
        }
        let told = self.tell_panics(&panics);
        if !changed.is_empty() {
            self.ledger.refresh_desired(&changed);
            let services = &self.ledger.effective.services;
            let keys = changed
                .iter()
                .filter_map(|name| Some(services.get(name)?.spec.key()));
            let scope = Scope::Services(keys.collect());
            let result = block_in_place(|| self.bring_about(&scope, Trigger::Health));
            if self.note_outcome(&result, "health") {
                self.shared.recorder.change_applied(since.elapsed());
            }
        }
        if news || told || !changed.is_empty() {
            block_in_place(|| self.publish(Some(names)));
        }
    }

    /// Records panics that begin and end; whether any did.
    fn tell_panics(&mut self, before: &BTreeMap<String, OnPanic>) -> bool {
        let panics = self.checks.panics();
        for (name, what) in panics.iter().filter(|(name, _)| !before.contains_key(*name)) {
            self.shared
                .events
                .record(Kind::Health, name.clone(), what.words());
        }
        for name in before.keys().filter(|name| !panics.contains_key(*name)) {
            let text = "enough backends pass their checks again";
            self.shared.events.record(Kind::Health, name.clone(), text);
        }
        panics != *before
    }

    /// Why traffic may not come yet: services none of whose backends has passed a check, and not all were checked.
    pub(super) fn services_without_check(&self) -> Vec<String> {
        let waiting = self.checks.services.iter().filter(|(_, judged)| {
            let mut backends = judged.backends.values();
            !judged.backends.is_empty()
                && !backends.clone().any(Verdict::takes_flows)
                && backends.any(|verdict| verdict.up.is_none())
        });
        waiting
            .map(|(name, _)| format!("no backend of service {name} has passed a check yet"))
            .collect()
    }
}
