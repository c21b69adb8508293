//! One backend that is checked: its history, and the task that checks it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    HealthSpec, Standing,
    checker::{Change, Health, Key},
    pace::PaceMeter,
    probe::{Failure, Prober, Target},
    schedule::Schedule,
    tracker::{Tracker, Transition},
};

/// What its task and the checker share.
pub struct Entry {
    key: Key,
    history: Mutex<History>,
}

struct History {
    tracker: Tracker,
    health: Health,
    /// It is not wanted any more; nothing is told of it.
    gone: bool,
}

/// What the task needs.
pub struct Watch {
    pub entry: Arc<Entry>,
    pub spec: Arc<HealthSpec>,
    pub prober: Arc<Prober>,
    pub target: Target,
    pub schedule: Schedule,
    pub pace: Arc<PaceMeter>,
    pub results: mpsc::Sender<Change>,
}

impl Entry {
    pub fn new(key: Key, spec: &HealthSpec, up: bool, now: Instant) -> Self {
        let tracker = Tracker::new(spec.rise, spec.fall, up);
        let health = Health::new(tracker.standing(), now);
        Self {
            key,
            history: Mutex::new(History {
                tracker,
                health,
                gone: false,
            }),
        }
    }

    pub fn health(&self) -> Health {
        self.history().health.clone()
    }

    pub fn standing(&self) -> Standing {
        self.history().health.standing
    }

    /// From now on no change of it is sent.
    pub fn leave(&self) {
        self.history().gone = true;
    }

    /// Takes in a result, and says what is to be sent.
    fn take(&self, result: Result<(), Failure>, at: Instant) -> Option<Change> {
        let mut history = self.history();
        let History { tracker, health, .. } = &mut *history;
        let result = match result {
            Err(Failure::Ours(reason)) => {
                health.unable += 1;
                health.reason = Some(reason);
                return None;
            }
            Err(Failure::Backend(reason)) => Err(reason),
            Ok(()) => Ok(()),
        };
        health.last = Some(result.is_ok());
        health.last_at = Some(at);
        health.passed += u64::from(result.is_ok());
        health.failed += u64::from(result.is_err());
        health.reason = result.as_ref().err().cloned();
        let Transition { up, reason } = tracker.take(result)?;
        if health.standing != tracker.standing() {
            health.standing = tracker.standing();
            health.since = at;
        }
        Some(Change {
            key: self.key.clone(),
            up,
            reason,
            at,
        })
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Checks at the times of the schedule until it is dropped, or nobody receives results.
    pub async fn run(mut self) {
        loop {
            let due = self.schedule.due();
            tokio::time::sleep_until(due.into()).await;
            let begin = Instant::now();
            self.pace.started(begin.saturating_duration_since(due));
            let result = self.prober.probe(&self.target, self.spec.timeout).await;
            self.pace.ended();
            if let Err(Failure::Ours(reason)) = &result {
                self.pace.unable(&self.entry.key, reason);
            }
            let end = Instant::now();
            if let Some(change) = self.entry.take(result, end)
                && !self.send(change).await
            {
                return;
            }
            self.move_on(end - begin);
        }
    }

    /// To the next check, after one that took so long.
    fn move_on(&mut self, took: Duration) {
        let now = Instant::now();
        match self.entry.history().tracker.hastens(took) {
            Some(sooner) => self.schedule.hasten(now, sooner),
            None => self.pace.skipped(self.schedule.advance(now)),
        }
    }

    /// `false` when nobody receives.
    async fn send(&self, change: Change) -> bool {
        let Ok(permit) = self.results.reserve().await else {
            return false;
        };
        // Under the lock, so that nothing comes once `leave` has returned.
        let history = self.entry.history();
        if !history.gone {
            permit.send(change);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> HealthSpec {
        toml::from_str("type = \"tcp\"").unwrap()
    }

    fn entry(up: bool) -> Entry {
        Entry::new(
            (Arc::from("web"), [192, 0, 2, 1].into()),
            &spec(),
            up,
            Instant::now(),
        )
    }

    #[test]
    fn results_are_counted_and_changes_told() {
        let entry = entry(true);
        let mut told = Vec::new();
        for reason in [None, Some("late"), Some("late"), Some("refused"), Some("refused")] {
            let result = reason.map_or(Ok(()), |reason| Err(Failure::backend(reason)));
            told.extend(entry.take(result, Instant::now()).map(|c| (c.up, c.reason)));
        }
        assert_eq!(told, [(true, None), (false, Some("refused".to_owned()))]);
        let health = entry.health();
        assert_eq!((health.passed, health.failed, health.unable), (1, 4, 0));
        assert_eq!((health.standing, health.last), (Standing::Down, Some(false)));
        assert_eq!(health.reason.as_deref(), Some("refused"));
    }

    #[test]
    fn checks_that_could_not_be_made_change_nothing() {
        let entry = entry(true);
        for _ in 0..10 {
            let failure = Failure::Ours("no descriptors left".to_owned());
            assert!(entry.take(Err(failure), Instant::now()).is_none());
        }
        let health = entry.health();
        assert_eq!(
            (health.standing, health.unable, health.failed),
            (Standing::Up, 10, 0)
        );
        assert!(!health.checked());
        assert_eq!(health.reason.as_deref(), Some("no descriptors left"));
    }

    #[test]
    fn since_is_when_the_standing_changed() {
        let start = Instant::now();
        let entry = Entry::new((Arc::from("web"), [192, 0, 2, 1].into()), &spec(), true, start);
        let later = start + std::time::Duration::from_secs(9);
        entry.take(Ok(()), later);
        assert_eq!(entry.health().since, start);
        for _ in 0..3 {
            entry.take(Err(Failure::backend("late")), later);
        }
        assert_eq!(entry.health().since, later);
    }
}
