//! Adds up the fresh flows of successive readings by service and judges their spread.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use crate::{
    skew::effect::Effect,
    watch::{
        record::{
            Check, Replay,
            format::{Header, ServiceRecord},
        },
        report::{self, EffectSkew},
    },
};

/// The gate under way: the watch's own detector over the readings, and sums of all of them.
pub(super) struct Judge {
    replay: Replay,
    only: Option<String>,
    services: BTreeMap<String, Sum>,
    /// Readings taken.
    checks: u64,
}

/// Fresh flows of a service under one table.
struct Sum {
    /// What must stay the same for counts to be added up.
    table: (u32, Vec<(u32, u8, u32)>),
    endpoints: Vec<IpAddr>,
    shares: Vec<f64>,
    last: Vec<u64>,
    counts: Vec<u64>,
    source: u64,
    /// Tables that came in between: counts began anew with each.
    restarts: u64,
}

/// What the gate says about a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Finding {
    /// Shown to be even: few flows misplaced, every backend near its share.
    Even,
    /// No unevenness is shown, but so few flows do not rule a small one out.
    NotShown,
    /// Shown to be uneven, or the detector raised an alarm.
    Uneven,
}

/// A service as judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Judged {
    pub service: String,
    pub finding: Finding,
    /// Since its table last changed.
    pub fresh_flows: u64,
    /// Tables that came in between.
    pub table_changes: u64,
    /// Of these flows.
    pub effect: EffectSkew,
    /// The detector raised an alarm at some time; in words.
    pub alarm: Option<String>,
}

/// What the gate came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub passed: bool,
    pub flows_wanted: u64,
    pub fresh_flows: u64,
    pub seconds: f64,
    pub checks: u64,
    pub services: Vec<Judged>,
    /// Self-checks that failed and what was found.
    pub failed_checks: Vec<String>,
}

impl Judge {
    /// `only`: the one service that counts.
    pub(super) fn new(header: &Header, only: Option<String>) -> Self {
        Self {
            replay: Replay::new(header),
            only,
            services: BTreeMap::new(),
            checks: 0,
        }
    }

    pub(super) fn take(&mut self, check: &Check) {
        self.replay.step(check);
        self.checks += 1;
        let is_wanted =
            |service: &&ServiceRecord| self.only.as_ref().is_none_or(|only| *only == service.name);
        for service in check.services.iter().filter(is_wanted) {
            match self.services.get_mut(&service.name) {
                Some(sum) => sum.take(service, check.source),
                None => {
                    self.services
                        .insert(service.name.clone(), Sum::new(service, check.source));
                }
            }
        }
    }

    /// Whether the service that was asked for, or any, is there.
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    pub(super) fn fresh_flows(&self) -> u64 {
        self.services.values().map(Sum::flows).sum()
    }

    pub(super) fn seconds(&self) -> f64 {
        self.replay.seconds()
    }

    /// Whether the detector has an alarm now: no need to wait for more.
    pub(super) fn is_alarm(&self) -> bool {
        self.replay.alarmed()
    }

    pub(super) fn verdict(self, flows_wanted: u64) -> Verdict {
        let fresh_flows = self.fresh_flows();
        let explained = self.replay.finish();
        let alarm = explained.last_alarm;
        let said = |name: &str| {
            let mut firing = alarm.iter().flat_map(|report| report.firing());
            firing
                .find(|service| service.service == name)
                .map(|service| service.explanation.clone())
        };
        let services: Vec<Judged> = self
            .services
            .into_iter()
            .map(|(name, sum)| sum.judge(said(&name), name))
            .collect();
        let failed = alarm.iter().flat_map(|report| report.failed_checks());
        let failed_checks: Vec<String> = failed
            .map(|check| format!("{}: {}", check.name, check.detail))
            .collect();
        let uneven = services.iter().any(|service| service.finding == Finding::Uneven);
        Verdict {
            passed: !uneven && failed_checks.is_empty(),
            flows_wanted,
            fresh_flows,
            seconds: explained.seconds,
            checks: self.checks,
            services,
            failed_checks,
        }
    }
}

impl Sum {
    fn new(service: &ServiceRecord, source: u64) -> Self {
        let owned = |owned: u32| f64::from(owned) / f64::from(service.slots.max(1));
        Self {
            table: table_of(service),
            endpoints: service.backends.iter().map(|backend| backend.endpoint).collect(),
            shares: service
                .backends
                .iter()
                .map(|backend| owned(backend.owned))
                .collect(),
            last: fresh(service),
            counts: vec![0; service.backends.len()],
            source,
            restarts: 0,
        }
    }

    fn take(&mut self, service: &ServiceRecord, source: u64) {
        let now = fresh(service);
        let same = self.source == source && self.table == table_of(service);
        let since: Option<Vec<u64>> = now
            .iter()
            .zip(&self.last)
            .map(|(now, last)| now.checked_sub(*last))
            .collect();
        match since.filter(|_| same) {
            Some(since) => {
                for (sum, count) in self.counts.iter_mut().zip(since) {
                    *sum += count;
                }
                self.last = now;
            }
            None => {
                *self = Self {
                    restarts: self.restarts + 1,
                    ..Self::new(service, source)
                }
            }
        }
    }

    fn flows(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn judge(self, alarm: Option<String>, service: String) -> Judged {
        let effect = Effect::measure(&self.counts, &self.shares, report::alpha());
        let finding = if alarm.is_some() || effect.exceeds_tolerance() {
            Finding::Uneven
        } else if effect.is_small() {
            Finding::Even
        } else {
            Finding::NotShown
        };
        Judged {
            service,
            finding,
            fresh_flows: self.flows(),
            table_changes: self.restarts,
            effect: EffectSkew::of(&effect, &self.endpoints),
            alarm,
        }
    }
}

fn table_of(service: &ServiceRecord) -> (u32, Vec<(u32, u8, u32)>) {
    let backends = service.backends.iter();
    let members = backends.map(|backend| (backend.id, backend.generation, backend.owned));
    (service.table_generation, members.collect())
}

fn fresh(service: &ServiceRecord) -> Vec<u64> {
    let sums = service.backends.iter().map(|backend| {
        backend
            .fresh
            .iter()
            .fold(0, |sum: u64, count| sum.wrapping_add(*count))
    });
    sums.collect()
}
