//! Checks every backend that is wanted, each at its own times, and tells what changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::AbortHandle};

pub use super::pace::Pace;
use super::{
    HealthSpec, Initial, Standing,
    entry::{Entry, Watch},
    pace::PaceMeter,
    probe::{Prober, Target, Through},
    schedule::{Random, Schedule},
};

/// More new backends than this do not get their first check at once, but spread over `SPREAD` or one interval.
const AT_ONCE: usize = 100;
const SPREAD: Duration = Duration::from_secs(1);

/// Name of the service, and the backend.
pub type Key = (Arc<str>, IpAddr);

/// What is to be checked, and how.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub spec: Arc<HealthSpec>,
    /// What the check connects to.
    pub target: SocketAddr,
    /// To the VIP, for checks that are to take the clients' way.
    pub through: Option<Through>,
    /// It serves already; it is up until checks say otherwise.
    pub starts_up: bool,
}

/// What a check brought about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    /// What the backend is from now on. The first change of a backend may say what it was before: that it was checked.
    pub up: bool,
    /// Why the check failed that led here; `None` when it passed.
    pub reason: Option<String>,
    /// When that check ended.
    pub at: Instant,
}

/// What is known of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub standing: Standing,
    /// When it became what it is, or began to be checked.
    pub since: Instant,
    /// Whether the last check passed, and when it ended; `None` before the first.
    pub last: Option<bool>,
    pub last_at: Option<Instant>,
    /// Why the last check failed or could not be made; `None` when it passed.
    pub reason: Option<String>,
    /// Totals: that passed, that failed, and that could not be made for a reason on this host.
    pub passed: u64,
    pub failed: u64,
    pub unable: u64,
}

impl Health {
    pub(super) const fn new(standing: Standing, since: Instant) -> Self {
        Self {
            standing,
            since,
            last: None,
            last_at: None,
            reason: None,
            passed: 0,
            failed: 0,
            unable: 0,
        }
    }

    /// Whether any check came to an end; a backend may be up without.
    pub const fn checked(&self) -> bool {
        self.last.is_some()
    }
}

/// What became of a service's checks: totals that never fall while the service has backends that are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub passed: u64,
    pub failed: u64,
    /// Checks that could not be made for a reason on this host.
    pub unable: u64,
}

impl Totals {
    fn add(&mut self, health: &Health) {
        self.passed += health.passed;
        self.failed += health.failed;
        self.unable += health.unable;
    }
}

/// All checks of the daemon: one task a backend, which makes one check after another. Dropping it ends them.
pub struct Checker {
    results: mpsc::Sender<Change>,
    pace: Arc<PaceMeter>,
    watched: Mutex<BTreeMap<Key, Watched>>,
    /// By service: checks of backends that are no longer checked, or that began anew. Locked after `watched`.
    ended: Mutex<BTreeMap<Arc<str>, Totals>>,
}

struct Watched {
    wanted: Wanted,
    prober: Arc<Prober>,
    entry: Arc<Entry>,
    task: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.entry.leave();
        self.task.abort();
    }
}

impl Checker {
    /// Checks nothing yet. When `results` is full, a backend with a change waits for room before its next check.
    pub fn start(results: mpsc::Sender<Change>) -> Self {
        Self {
            results,
            pace: Arc::default(),
            watched: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// Replaces the set of what is checked; to be called within a Tokio runtime, whose workers make the checks.
    ///
    /// A backend whose spec and target are as before keeps its history and its times. One that is gone is not checked
    /// any more, and nothing is sent of it once this has returned. One whose spec or target changed begins anew: what
    /// is up stays up unless checks fail, and what is down is unknown and waits for its first check.
    pub fn want(&self, wanted: BTreeMap<Key, Wanted>) {
        let mut watched = self.watched();
        let mut before = std::mem::take(&mut *watched);
        let is_new = |(key, wanted): &(&Key, &Wanted)| !before.get(key).is_some_and(|old| old.serves(wanted));
        let new = wanted.iter().filter(is_new).count();
        let mut start = Start {
            spread: new > AT_ONCE,
            now: Instant::now(),
            random: seed(),
        };
        let mut prober: Option<(Arc<HealthSpec>, Arc<Prober>)> = None;
        for (key, wanted) in wanted {
            let old = before.remove(&key);
            let next = match old {
                Some(old) if old.serves(&wanted) => old,
                old => {
                    if let Some(old) = &old {
                        self.keep_totals(&key, old);
                    }
                    let prober = match &prober {
                        Some((spec, prober)) if same(spec, &wanted.spec) => Arc::clone(prober),
                        _ => Arc::new(Prober::new(&wanted.spec.check)),
                    };
                    self.watch(&key, wanted, prober, old.as_ref(), &mut start)
                }
            };
            // Backends of a service follow one another, and share its spec.
            prober = Some((Arc::clone(&next.wanted.spec), Arc::clone(&next.prober)));
            watched.insert(key, next);
        }
        for (key, old) in &before {
            self.keep_totals(key, old);
        }
        let services: BTreeSet<&Arc<str>> = watched.keys().map(|(service, _)| service).collect();
        self.ended().retain(|service, _| services.contains(service));
    }

    /// What is known of each backend that is checked.
    pub fn snapshot(&self) -> BTreeMap<Key, Health> {
        let watched = self.watched();
        let known = watched
            .iter()
            .map(|(key, watched)| (key.clone(), watched.entry.health()));
        known.collect()
    }

    /// What became of the checks of each service.
    pub fn totals(&self) -> BTreeMap<Arc<str>, Totals> {
        let watched = self.watched();
        let mut totals = self.ended().clone();
        for ((service, _), watched) in watched.iter() {
            totals
                .entry(Arc::clone(service))
                .or_default()
                .add(&watched.entry.health());
        }
        totals
    }

    /// Whether checks keep to their schedule.
    pub fn pace(&self) -> Pace {
        self.pace.read()
    }

    fn watch(
        &self,
        key: &Key,
        wanted: Wanted,
        prober: Arc<Prober>,
        old: Option<&Watched>,
        start: &mut Start,
    ) -> Watched {
        let spec = &wanted.spec;
        let up = match old.map(|old| old.entry.standing()) {
            Some(Standing::Up) => true,
            Some(Standing::Down) => false,
            Some(Standing::Unknown) | None => wanted.starts_up || spec.initial == Initial::Up,
        };
        let entry = Arc::new(Entry::new(key.clone(), spec, up, start.now));
        let watch = Watch {
            entry: Arc::clone(&entry),
            spec: Arc::clone(spec),
            prober: Arc::clone(&prober),
            target: Target::new(wanted.target, wanted.through.clone()),
            schedule: start.schedule(spec),
            pace: Arc::clone(&self.pace),
            results: self.results.clone(),
        };
        let task = tokio::spawn(watch.run()).abort_handle();
        Watched {
            wanted,
            prober,
            entry,
            task,
        }
    }

    /// Counts what ends on with its service, so that totals do not fall.
    fn keep_totals(&self, (service, _): &Key, old: &Watched) {
        self.ended()
            .entry(Arc::clone(service))
            .or_default()
            .add(&old.entry.health());
    }

    fn ended(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Totals>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<Key, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Whether what it does is still what is wanted.
    fn serves(&self, wanted: &Wanted) -> bool {
        self.wanted.target == wanted.target
            && self.wanted.through == wanted.through
            && same(&self.wanted.spec, &wanted.spec)
    }
}

/// How the new ones of a set start.
struct Start {
    spread: bool,
    now: Instant,
    random: Random,
}

impl Start {
    fn schedule(&mut self, spec: &HealthSpec) -> Schedule {
        let interval = spec.interval.duration();
        let mut random = self.random.fork();
        let delay = if self.spread {
            interval.min(SPREAD).mul_f64(random.unit())
        } else {
            Duration::ZERO
        };
        Schedule::new(self.now + delay, interval, spec.jitter, random)
    }
}

fn same(one: &Arc<HealthSpec>, other: &Arc<HealthSpec>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

fn seed() -> Random {
    Random::new(getrandom::u64().unwrap_or_else(|error| {
        tracing::warn!(%error, "checks are spread in a way that can be foreseen");
        0
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> HealthSpec {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn many_first_checks_are_spread() {
        let second = "type = \"tcp\"\ninterval = \"10s\"";
        let short = "type = \"tcp\"\ninterval = \"200ms\"";
        for (text, spread, least, most) in [
            (second, true, 900, 1000),
            (short, true, 180, 200),
            (second, false, 0, 0),
        ] {
            let mut start = Start {
                spread,
                now: Instant::now(),
                random: Random::new(7),
            };
            let spec = spec(text);
            let delays = (0..1000).map(|_| start.schedule(&spec).due() - start.now);
            let longest = delays.max().unwrap();
            assert!((least..=most).contains(&longest.as_millis()), "{longest:?}");
        }
    }

    #[tokio::test]
    async fn backends_of_a_service_share_what_is_prepared() {
        let (results, _changes) = mpsc::channel(8);
        let checker = Checker::start(results);
        let wanted = |number: u8, interval: &str| {
            let text = format!("type = \"tcp\"\ninterval = \"{interval}\"");
            let wanted = Wanted {
                spec: Arc::new(spec(&text)),
                target: ([127, 0, 0, 1], 9).into(),
                through: None,
                starts_up: true,
            };
            ((Arc::from("web"), [192, 0, 2, number].into()), wanted)
        };
        checker.want([wanted(1, "1h"), wanted(2, "1h"), wanted(3, "2h")].into());
        let probers = |checker: &Checker| -> Vec<_> {
            let watched = checker.watched();
            watched.values().map(|one| Arc::as_ptr(&one.prober)).collect()
        };
        let first = probers(&checker);
        assert_eq!(first[0], first[1]);
        assert_ne!(first[1], first[2]);
        checker.want([wanted(1, "1h"), wanted(2, "1h"), wanted(4, "1h")].into());
        assert_eq!(probers(&checker), [first[0]; 3]);
        let standings = checker.snapshot().into_values().map(|health| health.standing);
        assert!(standings.eq([Standing::Up; 3]));
    }

    #[tokio::test]
    async fn totals_of_a_service_do_not_fall_when_a_backend_leaves() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (results, mut changes) = mpsc::channel(8);
        let checker = Checker::start(results);
        let wanted = |number: u8| {
            let wanted = Wanted {
                spec: Arc::new(spec("type = \"tcp\"\ninterval = \"1h\"")),
                target: listener.local_addr().unwrap(),
                through: None,
                starts_up: true,
            };
            ((Arc::from("web"), [192, 0, 2, number].into()), wanted)
        };
        let passed = |checker: &Checker| checker.totals().get("web").map(|totals| totals.passed);
        checker.want([wanted(1), wanted(2)].into());
        for _ in 0..2 {
            changes.recv().await.unwrap();
        }
        assert_eq!(passed(&checker), Some(2));
        checker.want([wanted(1)].into());
        assert_eq!(passed(&checker), Some(2));
        checker.want(BTreeMap::new());
        assert_eq!(passed(&checker), None);
    }
}
