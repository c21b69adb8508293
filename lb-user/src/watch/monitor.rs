//! The core of the watch: takes a check, keeps every stream and state, says what is to be done. Reads through [`Source`], so
//! that it runs without a kernel.

mod steps;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use lb_common::service::ServiceKey;

use super::{
    evidence::BoxEvidence,
    histograms::Histograms,
    incident::{Incident, Told},
    published::Published,
    readback::Findings,
    report::{RemedyDone, SkewReport, remedy_done},
    samples::Sampled,
    service::ServiceWatch,
    show,
    source::Source,
};
use crate::skew::{
    state::{Budget, Limits, Remedy},
    threshold,
};

/// What the box is called in events, beside services.
pub const BOX: &str = "datapath";
/// Remedies that are remembered.
const REMEDIES: usize = 16;
/// Seconds of a year.
const YEAR: f64 = 365.25 * 86_400.0;

/// How to watch.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub interval: Duration,
    pub false_alarms_per_year: f64,
    pub auto_heal: bool,
    /// Services that differ from it.
    pub auto_heal_services: BTreeMap<String, bool>,
    pub limits: Limits,
}

/// Whose remedy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Box,
    Service(ServiceKey),
}

/// Something to be done; [`Monitor::carried_out`] wants to hear of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    pub owner: Owner,
    pub remedy: Remedy,
}

/// What the last known-answer test came to.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownAnswers {
    pub at: Option<Duration>,
    pub cpus: usize,
    pub checked: u64,
    pub wrong: u64,
    pub error: Option<String>,
}

/// What a check came to.
#[derive(Debug, Default)]
pub struct Outcome {
    pub asks: Vec<Ask>,
    pub told: Vec<Told>,
}

/// Everything that is watched.
pub struct Monitor {
    pub(super) settings: Settings,
    pub(super) ln_arl: f64,
    pub(super) streams: u64,
    pub(super) published: Arc<Published>,
    pub(super) services: BTreeMap<ServiceKey, ServiceWatch>,
    pub(super) histograms: Histograms,
    pub(super) the_box: Incident,
    pub(super) sampled: Sampled,
    pub(super) at: Duration,
    pub(super) checks: u32,
    pub(super) remedies: VecDeque<RemedyDone>,
    pub(super) granted: VecDeque<Duration>,
    pub(super) findings: Findings,
    /// When seeds and slots were looked at last.
    pub(super) looked: Option<Duration>,
    pub(super) known_answers: KnownAnswers,
    /// Age of the oldest CPU's seed and how old it may become, when it is older.
    pub(super) old_seed: Option<[Duration; 2]>,
    rotations: Budget,
    rewrites: Budget,
    seeds_were_wrong: bool,
    in_flight: BTreeSet<Owner>,
    /// Services whose remedy is the box's.
    joined: BTreeSet<ServiceKey>,
}

/// Rewrites of what differs from what was written take nothing from the budget of rotations: they change nothing that
/// should be.
const REWRITES: Limits = Limits {
    most: u32::MAX,
    window: Duration::from_secs(1),
    cooldown: Duration::ZERO,
};

impl Monitor {
    pub fn new(settings: Settings) -> Self {
        let ln_arl = ln_arl(1, &settings);
        Self {
            histograms: Histograms::new(settings.interval, ln_arl),
            the_box: Incident::new(BOX.into()),
            rotations: Budget::new(settings.limits),
            rewrites: Budget::new(REWRITES),
            settings,
            ln_arl,
            streams: 1,
            published: Arc::default(),
            services: BTreeMap::new(),
            sampled: Sampled::default(),
            at: Duration::ZERO,
            checks: 0,
            remedies: VecDeque::new(),
            granted: VecDeque::new(),
            findings: Findings::default(),
            looked: None,
            known_answers: KnownAnswers::default(),
            old_seed: None,
            seeds_were_wrong: false,
            in_flight: BTreeSet::new(),
            joined: BTreeSet::new(),
        }
    }

    /// Other settings from now on. A budget that changes starts anew.
    pub fn configure(&mut self, settings: Settings) {
        if settings.limits != self.settings.limits {
            self.rotations = Budget::new(settings.limits);
        }
        if settings.interval != self.settings.interval {
            // Gaps are judged by the interval: every reading starts anew.
            let streams = self.streams;
            self.services.clear();
            self.histograms = Histograms::new(settings.interval, ln_arl(streams, &settings));
        }
        self.settings = settings;
        self.share_out(self.streams);
    }

    /// Takes one check. `looked`: what a look at seeds and slots found; `None` while they were being written.
    pub fn check(
        &mut self,
        at: Duration,
        published: Arc<Published>,
        looked: Option<Findings>,
        source: &impl Source,
    ) -> Outcome {
        self.at = at;
        self.checks = self.checks.saturating_add(1);
        self.follow(published, source);
        if let Some(findings) = looked {
            self.findings = findings;
            self.looked = Some(at);
        } else {
            self.findings = Findings::default();
        }
        let found = self.read(source);
        let evidence = BoxEvidence::gather(self.ln_arl, &self.findings, &self.sampled, &self.histograms);
        let mut outcome = Outcome::default();
        self.step_box(&evidence, &mut outcome);
        for (key, found) in found {
            self.step_service(&key, found, &evidence, &mut outcome);
        }
        self.rewrite_what_differs(&mut outcome);
        outcome.asks.retain(|ask| self.in_flight.insert(ask.owner));
        self.sampled.tick();
        outcome
    }

    /// Whether an alarm stands, of the box or of a service.
    pub fn is_alarm(&self) -> bool {
        let services = self.services.values().map(|service| &service.incident);
        std::iter::once(&self.the_box)
            .chain(services)
            .any(|incident| incident.name().is_alarm())
    }

    /// Self-checks by name, and whether they failed.
    pub(super) fn self_checks(&self) -> Vec<(String, bool)> {
        let checks = show::self_checks(self).into_iter();
        checks.map(|check| (check.name, !check.ok)).collect()
    }

    /// Everything that is known; `now_ms` is since 1970.
    pub fn report(&self, now_ms: u64) -> SkewReport {
        show::report(self, None, now_ms)
    }

    /// Like [`Monitor::report`], of one service; `None` when there is none of that name.
    pub fn report_of(&self, service: Option<&str>, now_ms: u64) -> Option<SkewReport> {
        let report = show::report(self, service, now_ms);
        (service.is_none() || !report.services.is_empty()).then_some(report)
    }

    /// What became of a remedy that was asked for.
    pub fn carried_out(&mut self, ask: &Ask, result: &Result<usize, String>, at_ms: u64) {
        self.in_flight.remove(&ask.owner);
        if result.is_ok() {
            // Choices made before say nothing about what is now.
            self.sampled.restart();
        }
        let service = match ask.owner {
            Owner::Box => {
                self.the_box.carried_out(&ask.remedy, result);
                for key in std::mem::take(&mut self.joined) {
                    if let Some(service) = self.services.get_mut(&key) {
                        service.incident.carried_out(&ask.remedy, result);
                    }
                }
                BOX.to_owned()
            }
            Owner::Service(key) => {
                let Some(service) = self.services.get_mut(&key) else {
                    return;
                };
                service.incident.carried_out(&ask.remedy, result);
                service.table.name.to_string()
            }
        };
        let name = RemedyDone::name_of(&ask.remedy);
        if self.remedies.len() == REMEDIES {
            self.remedies.pop_front();
        }
        self.remedies.push_back(RemedyDone {
            at: at_ms,
            remedy: name.to_owned(),
            service,
            ok: result.is_ok(),
            text: match result {
                Ok(_) => remedy_done(&ask.remedy),
                Err(error) => error.clone(),
            },
        });
    }

    /// Takes over what was published since the last check.
    fn follow(&mut self, published: Arc<Published>, source: &impl Source) {
        if !Arc::ptr_eq(&published, &self.published) {
            let (interval, ln_arl) = (self.settings.interval, self.ln_arl);
            self.services
                .retain(|key, _| published.services.contains_key(key));
            for (key, table) in &published.services {
                self.services
                    .entry(*key)
                    .or_insert_with(|| ServiceWatch::new(Arc::clone(table), interval, ln_arl))
                    .follow(table);
            }
            let sizes = published.services.values().map(|table| table.slots.len() as u32);
            self.histograms
                .set_sizes(&sizes.filter(|size| *size > 0).collect());
            self.published = published;
        }
        let streams = self.services.len() as u64 + u64::from(source.cpus()) + 1;
        if streams != self.streams {
            self.share_out(streams);
        }
    }

    /// Shares the budget of false alarms out over the streams.
    fn share_out(&mut self, streams: u64) {
        self.streams = streams;
        self.ln_arl = ln_arl(streams, &self.settings);
        self.histograms.set_ln_arl(self.ln_arl);
        for service in self.services.values_mut() {
            service.stream.set_ln_arl(self.ln_arl);
        }
    }

    /// Reads every counter once.
    fn read(&mut self, source: &impl Source) -> Vec<(ServiceKey, super::service::Found)> {
        let (at, interval) = (self.at, self.settings.interval);
        let mut picked: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
        let mut found = Vec::with_capacity(self.services.len());
        for (key, service) in &mut self.services {
            let size = service.table.slots.len() as u32;
            let of_service = service.check(at, interval, source, |cpu, count| {
                let sum = picked.entry(cpu).or_default().entry(size).or_default();
                *sum = sum.wrapping_add(count);
            });
            found.push((*key, of_service));
        }
        self.histograms.check(at, source, picked);
        found
    }

    /// New flows of the last check, of all services.
    pub(super) fn flows_in_check(&self) -> u64 {
        self.services.values().map(ServiceWatch::flows_in_check).sum()
    }
}

fn ln_arl(streams: u64, settings: &Settings) -> f64 {
    let checks = YEAR / settings.interval.as_secs_f64() / settings.false_alarms_per_year;
    threshold::ln_arl(streams, checks)
}
