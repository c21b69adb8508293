//! What every part of the daemon sees: the view of the state, events, counters, the last count of the flow table.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::view::View;
use crate::{
    counters::{Counters, FlowTableUse},
    events::Events,
    health::Checker,
    maps,
    metrics::Recorder,
    watch::Desk,
};

/// Shared by the controller, the interface and the metrics.
pub struct Shared {
    pub events: Events,
    pub recorder: Recorder,
    /// Mappings of the datapath's counters.
    pub counters: Counters,
    pub started: Instant,
    pub config_file: PathBuf,
    pub pin_directory: PathBuf,
    /// What watches the spread of new flows, from the first state on.
    pub skew: OnceLock<Arc<Desk>>,
    /// What checks backends, from the start of the controller on.
    pub checker: OnceLock<Arc<Checker>>,
    view: RwLock<Arc<View>>,
    census: RwLock<Arc<Census>>,
    /// Seconds.
    seed_age_limit: AtomicU64,
}

/// A count of the flow table.
#[derive(Clone, Debug)]
pub struct Census {
    pub usage: FlowTableUse,
    pub at: Instant,
}

impl Shared {
    pub fn new(config_file: PathBuf, pin_directory: PathBuf, counters: Counters, view: View) -> Self {
        let census = Census {
            usage: FlowTableUse::default(),
            at: Instant::now(),
        };
        Self {
            events: Events::default(),
            recorder: Recorder::default(),
            counters,
            started: Instant::now(),
            config_file,
            pin_directory,
            skew: OnceLock::new(),
            checker: OnceLock::new(),
            view: RwLock::new(Arc::new(view)),
            census: RwLock::new(Arc::new(census)),
            seed_age_limit: AtomicU64::new(u64::MAX),
        }
    }

    /// The state as of the last change.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn publish(&self, view: View) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    /// How old a CPU's seed may become before that is a failure.
    pub fn seed_age_limit(&self) -> Duration {
        Duration::from_secs(self.seed_age_limit.load(Ordering::Relaxed))
    }

    pub fn set_seed_age_limit(&self, limit: Duration) {
        self.seed_age_limit.store(limit.as_secs(), Ordering::Relaxed);
    }

    /// The last count of the flow table.
    pub fn census(&self) -> Arc<Census> {
        Arc::clone(&self.census.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts the flow table now: reads every entry, so some milliseconds for millions of them.
    pub fn count_flows(&self) -> Arc<Census> {
        let usage = self.counters.flow_table(maps::datapath_seconds());
        let census = Arc::new(Census {
            usage,
            at: Instant::now(),
        });
        *self.census.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&census);
        census
    }
}
