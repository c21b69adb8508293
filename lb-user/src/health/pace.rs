//! Whether checks keep to their schedule.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::checker::Key;

/// At most one line in the log for checks that could not be made in this time.
const QUIET: Duration = Duration::from_secs(10);

/// Totals since the checker was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Checks that were started and that ended.
    pub started: u64,
    pub ended: u64,
    /// Times passed over because the check before took longer than the interval, or the daemon was held up.
    pub skipped: u64,
    /// Checks that could not be made for a reason on this host.
    pub unable: u64,
    /// Longest time from when a check was due to its start.
    pub latest: Duration,
}

#[derive(Default)]
pub struct PaceMeter {
    started: AtomicU64,
    ended: AtomicU64,
    skipped: AtomicU64,
    unable: AtomicU64,
    latest_nanos: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

impl PaceMeter {
    pub fn started(&self, late: Duration) {
        self.started.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.latest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    pub fn ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub fn skipped(&self, times: u64) {
        self.skipped.fetch_add(times, Ordering::Relaxed);
    }

    /// Counts and logs a check that could not be made.
    pub fn unable(&self, (service, backend): &Key, reason: &str) {
        let total = self.unable.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if logged.is_none_or(|at| now.duration_since(at) >= QUIET) {
            *logged = Some(now);
            tracing::warn!(%service, %backend, total, "a health check counts as not made: {reason}");
        }
    }

    pub fn read(&self) -> Pace {
        Pace {
            started: self.started.load(Ordering::Relaxed),
            ended: self.ended.load(Ordering::Relaxed),
            skipped: self.skipped.load(Ordering::Relaxed),
            unable: self.unable.load(Ordering::Relaxed),
            latest: Duration::from_nanos(self.latest_nanos.load(Ordering::Relaxed)),
        }
    }
}
