//! Every source of every service: what each says, what is believed of it, and how it does.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{
    Endpoint, Refused, Report, Seen, SourceError, SourceSpec, Update,
    driver::{self, Follower},
    guard::Guard,
};
use crate::config::ServiceSpec;

/// Refused entries that are kept to be shown.
const SHOWN_REFUSED: usize = 8;

/// The sources of all services.
pub struct Registry {
    services: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Followed>>,
    reports: mpsc::Sender<Report>,
}

/// One source of one service.
pub struct Followed {
    pub spec: SourceSpec,
    pub guard: Guard,
    pub health: SourceHealth,
    follower: Follower,
}

/// How a source does.
#[derive(Clone, Debug)]
pub struct SourceHealth {
    /// What it follows, for people.
    pub describes: String,
    pub followed_since: Instant,
    /// When it last said something, if only that all is as it was.
    pub heard: Option<Instant>,
    /// When the state from disk was saved, Unix seconds; until the source says something.
    pub from_disk: Option<u64>,
    /// The server's name for the state.
    pub revision: Option<String>,
    /// Since when it fails, and how last.
    pub failing: Option<(Instant, SourceError)>,
    pub updates: u64,
    pub failures: u64,
    /// Entries that were no endpoints, ever.
    pub refused: u64,
    /// Some of those of the last update.
    pub last_refused: Vec<Refused>,
}

/// What of a service's sources is kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSources {
    pub sources: BTreeMap<String, SavedSource>,
}

/// What of a source is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSource {
    pub revision: Option<String>,
    pub endpoints: Vec<Endpoint>,
}

/// What came of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing else is believed than before.
    Same,
    /// Other backends.
    Changed,
    /// It begins to fail.
    Fails(SourceError),
    /// It no longer fails; whether other backends are believed.
    Recovered { changed: bool },
}

impl Registry {
    pub fn new(reports: mpsc::Sender<Report>) -> Self {
        Self {
            services: BTreeMap::new(),
            reports,
        }
    }

    pub fn follows(&self, service: &str) -> bool {
        self.services.contains_key(service)
    }

    /// Follows the sources of these services and no others. Sources that are configured as before go on; one that looks
    /// elsewhere now keeps what is believed until it has answered. What a source believed that is no longer configured
    /// goes to the service's first source that knows nothing yet, and stays until that has answered.
    pub fn configure(&mut self, specs: &[ServiceSpec], mut saved: BTreeMap<String, (u64, SavedSources)>) {
        let mut before = std::mem::take(&mut self.services);
        for spec in specs.iter().filter(|spec| !spec.sources.is_empty()) {
            let mut known = before.remove(spec.name.as_str()).unwrap_or_default();
            let (saved_at, mut on_disk) = saved.remove(&spec.name).unwrap_or_default();
            let kept = |known: &BTreeMap<Arc<str>, Followed>| {
                let orphans = known
                    .iter()
                    .filter(|(name, _)| !spec.sources.iter().any(|source| source.name() == &***name));
                let endpoints = orphans.flat_map(|(_, followed)| followed.guard.believed().values().cloned());
                endpoints.collect::<Vec<_>>()
            };
            let mut orphans = kept(&known);
            let followed = spec.sources.iter().map(|source| {
                let on_disk = on_disk
                    .sources
                    .remove(source.name())
                    .map(|saved| (saved_at, saved));
                let followed = match known.remove(source.name()) {
                    Some(known) if known.spec == *source => known,
                    Some(known) => self.follow_otherwise(spec, source, known),
                    None => {
                        let mut followed = self.follow(spec, source, on_disk);
                        if !followed.guard.is_loaded() && !orphans.is_empty() {
                            followed.guard = Guard::from_disk(source.guard, std::mem::take(&mut orphans));
                        }
                        followed
                    }
                };
                (Arc::from(source.name()), followed)
            });
            let followed = followed.collect();
            self.services.insert(spec.name.as_str().into(), followed);
        }
    }

    fn follow(
        &self,
        service: &ServiceSpec,
        spec: &SourceSpec,
        on_disk: Option<(u64, SavedSource)>,
    ) -> Followed {
        let mut health = SourceHealth::new(driver::describe(&spec.kind));
        let guard = match on_disk {
            Some((saved_at, saved)) => {
                health.from_disk = Some(saved_at);
                health.revision = saved.revision;
                Guard::from_disk(spec.guard, saved.endpoints)
            }
            None => Guard::new(spec.guard),
        };
        Followed {
            spec: spec.clone(),
            guard,
            health,
            follower: driver::follow(&service.name, spec, self.reports.clone()),
        }
    }

    fn follow_otherwise(&self, service: &ServiceSpec, spec: &SourceSpec, mut known: Followed) -> Followed {
        known.guard.set_spec(spec.guard);
        if known.spec.kind != spec.kind || known.spec.max_endpoints != spec.max_endpoints {
            known.guard.forget_said();
            known.health.describes = driver::describe(&spec.kind);
            known.health.failing = None;
            known.health.followed_since = Instant::now();
            known.follower = driver::follow(&service.name, spec, self.reports.clone());
        }
        known.spec = spec.clone();
        known
    }

    /// Takes note of a report. Reports of sources that are no longer followed are nothing.
    pub fn hear(&mut self, report: Report, is_dead: impl Fn(IpAddr) -> bool) -> Heard {
        let followed = self.services.get_mut(&report.service);
        let Some(followed) = followed.and_then(|sources| sources.get_mut(&report.source)) else {
            return Heard::Same;
        };
        match report.seen {
            Seen::Failed(error) => followed.fails(error, report.at),
            Seen::Update(update) => {
                followed.health.note(&update, report.at);
                let heard = followed.guard.hear(update).map_err(|error| error.to_string());
                let too_many = followed
                    .guard
                    .said()
                    .filter(|found| *found > followed.spec.max_endpoints as usize);
                let error = match (heard, too_many) {
                    (Err(reason), _) => SourceError::Unreadable(reason),
                    (_, Some(found)) => SourceError::TooMany {
                        found,
                        most: followed.spec.max_endpoints,
                    },
                    (Ok(()), None) => {
                        let changed = followed.guard.decide(report.at, is_dead);
                        return match (followed.health.failing.take(), changed) {
                            (Some(_), changed) => Heard::Recovered { changed },
                            (None, true) => Heard::Changed,
                            (None, false) => Heard::Same,
                        };
                    }
                };
                // From the start again: what it says next has to be the whole.
                followed.guard.forget_said();
                followed.follower = driver::follow(&report.service, &followed.spec, self.reports.clone());
                followed.fails(error, report.at)
            }
        }
    }

    /// Lets go what was held long enough, or is dead by now; the services whose backends that changes.
    pub fn decide(&mut self, now: Instant, is_dead: impl Fn(&str, IpAddr) -> bool) -> BTreeSet<Arc<str>> {
        let mut changed = BTreeSet::new();
        for (service, sources) in &mut self.services {
            for followed in sources
                .values_mut()
                .filter(|followed| followed.guard.held().is_some())
            {
                if followed.guard.decide(now, |address| is_dead(service, address)) {
                    changed.insert(Arc::clone(service));
                }
            }
        }
        changed
    }

    /// Whether anything is held that time or a check may let go.
    pub fn holds_anything(&self) -> bool {
        self.all().any(|(.., followed)| followed.guard.held().is_some())
    }

    /// Sources of a service, or one of them; `None`: there is none of that name.
    pub fn select(&mut self, service: &str, source: Option<&str>) -> Option<Vec<&mut Followed>> {
        let sources = self.services.get_mut(service)?;
        match source {
            None => Some(sources.values_mut().collect()),
            Some(name) => Some(vec![sources.get_mut(name)?]),
        }
    }

    /// Service, source and what is known of it, in order.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &Followed)> {
        self.services.iter().flat_map(|(service, sources)| {
            sources
                .iter()
                .map(move |(name, followed)| (service, name, followed))
        })
    }

    /// Endpoints that are believed of a service's sources, with the names of those; the first source in the order of the
    /// configuration has the word where several name one.
    pub fn believed(&self, spec: &ServiceSpec) -> BTreeMap<IpAddr, (&Endpoint, BTreeSet<String>)> {
        let mut believed: BTreeMap<IpAddr, (&Endpoint, BTreeSet<String>)> = BTreeMap::new();
        let Some(sources) = self.services.get(spec.name.as_str()) else {
            return believed;
        };
        let in_order = spec
            .sources
            .iter()
            .filter_map(|source| sources.get_key_value(source.name()));
        for (name, followed) in in_order {
            for (address, endpoint) in followed.guard.believed() {
                let entry = believed
                    .entry(*address)
                    .or_insert_with(|| (endpoint, BTreeSet::new()));
                entry.1.insert(name.to_string());
            }
        }
        believed
    }

    /// Sources of a service that have no state, from anywhere, when none of them has.
    pub fn never_loaded(&self, service: &str) -> Option<Vec<(&str, &Followed)>> {
        let sources = self.services.get(service)?;
        if sources.values().any(|followed| followed.guard.is_loaded()) {
            return None;
        }
        Some(
            sources
                .iter()
                .map(|(name, followed)| (name.as_ref(), followed))
                .collect(),
        )
    }

    /// Endpoints to go on with for a service that has no state from anywhere, until its sources speak; whether it had none.
    pub fn recover(&mut self, service: &str, endpoints: Vec<Endpoint>) -> bool {
        let Some(sources) = self.services.get_mut(service) else {
            return false;
        };
        if sources.values().any(|followed| followed.guard.is_loaded()) {
            return false;
        }
        if let Some(first) = sources.values_mut().next() {
            first.guard = Guard::from_disk(first.spec.guard, endpoints);
        }
        true
    }

    /// What is to be kept of a service.
    pub fn to_save(&self, service: &str) -> SavedSources {
        let sources = self.services.get(service).into_iter().flatten();
        let loaded = sources.filter(|(_, followed)| followed.guard.is_loaded());
        let saved = loaded.map(|(name, followed)| {
            let saved = SavedSource {
                revision: followed.health.revision.clone(),
                endpoints: followed.guard.believed().values().cloned().collect(),
            };
            (name.to_string(), saved)
        });
        SavedSources {
            sources: saved.collect(),
        }
    }
}

impl Followed {
    fn fails(&mut self, error: SourceError, at: Instant) -> Heard {
        self.health.failures += 1;
        match &mut self.health.failing {
            Some((_, last)) => {
                *last = error;
                Heard::Same
            }
            None => {
                self.health.failing = Some((at, error.clone()));
                Heard::Fails(error)
            }
        }
    }
}

impl SourceHealth {
    /// How long ago what is believed was last confirmed; zero while the source does well.
    pub fn stale_for(&self, now: Instant) -> Duration {
        match (&self.failing, self.heard) {
            (None, Some(_)) => Duration::ZERO,
            (_, Some(heard)) => now.saturating_duration_since(heard),
            (_, None) => now.saturating_duration_since(self.followed_since),
        }
    }

    fn new(describes: String) -> Self {
        Self {
            describes,
            followed_since: Instant::now(),
            heard: None,
            from_disk: None,
            revision: None,
            failing: None,
            updates: 0,
            failures: 0,
            refused: 0,
            last_refused: Vec::new(),
        }
    }

    fn note(&mut self, update: &Update, at: Instant) {
        self.heard = Some(at);
        self.from_disk = None;
        let (Update::Snapshot {
            refused, revision, ..
        }
        | Update::Delta {
            refused, revision, ..
        }) = update
        else {
            return;
        };
        self.updates += 1;
        self.revision.clone_from(revision);
        self.refused += refused.len() as u64;
        if matches!(update, Update::Snapshot { .. }) || !refused.is_empty() {
            self.last_refused = refused.iter().take(SHOWN_REFUSED).cloned().collect();
        }
    }
}
