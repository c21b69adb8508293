//! Runs the watch over a record: the same monitor as in the daemon, with recorded counters and recorded time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    format::{Check, Header},
    world::{self, Recorded},
};
use crate::{
    skew::state::Limits,
    watch::{
        monitor::{Monitor, Settings},
        published::Published,
        report::SkewReport,
    },
};

/// A record under replay. Remedies are never applied: what the record shows is what happened with those that were.
pub struct Replay {
    monitor: Monitor,
    published: Arc<Published>,
    cpus: u32,
    /// Of the first check, since 1970 and by the recorded clock.
    started_ms: u64,
    first_ms: Option<u64>,
    last_ms: u64,
    checks: u64,
    events: Vec<Moment>,
    alarm: Option<SkewReport>,
}

/// Something that happened during a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Since the first check.
    pub seconds: f64,
    pub object: String,
    pub text: String,
}

/// What a record shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    pub checks: u64,
    /// From the first check to the last.
    pub seconds: f64,
    /// At the end of the record.
    pub report: SkewReport,
    /// At the last check in which an alarm stood, if one ever did; the same as `report` if it still does.
    pub last_alarm: Option<SkewReport>,
    /// Oldest first.
    pub events: Vec<Moment>,
}

impl Replay {
    pub fn new(header: &Header) -> Self {
        Self {
            monitor: Monitor::new(Settings {
                interval: Duration::from_millis(header.interval_ms),
                false_alarms_per_year: header.false_alarms_per_year,
                auto_heal: false,
                auto_heal_services: BTreeMap::new(),
                limits: Limits::DEFAULT,
            }),
            published: Arc::default(),
            cpus: header.cpus,
            started_ms: header.time_ms,
            first_ms: None,
            last_ms: 0,
            checks: 0,
            events: Vec::new(),
            alarm: None,
        }
    }

    /// Takes the next check.
    pub fn step(&mut self, check: &Check) {
        self.published = world::published(check, &self.published);
        self.monitor
            .sampled
            .recorded(world::audits(check), world::heavy(check));
        self.monitor.sampled.packets.recorded(world::heavy_flows(check));
        let source = Recorded::of(check, self.cpus);
        let found = self.monitor.check(
            Duration::from_millis(check.at_ms),
            Arc::clone(&self.published),
            Some(world::findings(check)),
            &source,
        );
        self.first_ms.get_or_insert(check.at_ms);
        self.last_ms = check.at_ms;
        self.checks += 1;
        let seconds = self.seconds();
        self.events.extend(found.told.into_iter().map(|told| Moment {
            seconds,
            object: told.object,
            text: told.text,
        }));
        if self.is_alarm() {
            self.alarm = Some(self.report());
        }
    }

    /// Whether an alarm has stood at any time.
    pub fn alarmed(&self) -> bool {
        self.alarm.is_some()
    }

    /// Cheaper than a report.
    fn is_alarm(&self) -> bool {
        let mut services = self.monitor.services.values();
        !self.monitor.findings.is_clean()
            || self.monitor.the_box.name().is_alarm()
            || services.any(|service| service.incident.name().is_alarm())
    }

    /// Since the first check.
    pub fn seconds(&self) -> f64 {
        let first = self.first_ms.unwrap_or(self.last_ms);
        Duration::from_millis(self.last_ms - first).as_secs_f64()
    }

    /// As of the last check.
    pub fn report(&self) -> SkewReport {
        let since = self.last_ms - self.first_ms.unwrap_or(self.last_ms);
        let now_ms = self.started_ms.saturating_add(since);
        self.monitor.report(now_ms)
    }

    /// What all of it shows.
    pub fn finish(self) -> Explained {
        Explained {
            checks: self.checks,
            seconds: self.seconds(),
            report: self.report(),
            last_alarm: self.alarm,
            events: self.events,
        }
    }
}
