//! The core of the watch: takes a check, keeps every stream and state, says what is to be done. Reads through [`Source`], so
//! that it runs without a kernel.

mod follow;
mod steps;
mod warn;
mod words;

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
    incident::Incident,
    published::Published,
    readback::Findings,
    report::{RemedyDone, SkewReport, remedy_done},
    samples::Sampled,
    service::ServiceWatch,
    show,
    source::Source,
    warnings::Warnings,
};
use crate::skew::state::{Budget, Limits};
use follow::ln_arl;
pub(super) use words::KnownAnswers;
pub use words::{Ask, Outcome, Owner, Settings};

/// What the box is called in events, beside services.
pub const BOX: &str = "datapath";
/// Remedies that are remembered.
const REMEDIES: usize = 16;

/// Everything that is watched.
pub struct Monitor {
    pub(super) settings: Settings,
    pub(super) ln_arl: f64,
    pub(super) streams: u64,
    /// Services that are bet on from seed to seed.
    bets: u64,
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
    pub(super) warnings: Warnings,
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
            bets: 0,
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
            warnings: Warnings::default(),
            seeds_were_wrong: false,
            in_flight: BTreeSet::new(),
            joined: BTreeSet::new(),
        }
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
        self.warn(source, &mut outcome);
        self.rewrite_what_differs(&mut outcome);
        outcome.asks.retain(|ask| self.in_flight.insert(ask.owner));
        self.sampled.tick();
        outcome
    }

    /// Whether an alarm stands, of the box, of a service, or of the slow bets.
    pub fn is_alarm(&self) -> bool {
        let services = self.services.values().map(|service| &service.incident);
        std::iter::once(&self.the_box)
            .chain(services)
            .any(|incident| incident.name().is_alarm())
            || self.warnings.is_alarm()
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

    /// Someone had written what differed from what was published: what was seen before says nothing about what is now,
    /// and an alarm that is not over is raised again.
    pub fn put_right(&mut self) {
        self.sampled.restart();
        self.start_histograms_anew();
        for service in self.services.values_mut() {
            service.start_anew(self.settings.interval, self.ln_arl);
        }
    }

    /// Someone rotated seeds: a standing alarm holds on what comes.
    pub fn rotated(&mut self) {
        self.sampled.restart();
        self.histograms.restart();
        for service in self.services.values_mut() {
            service.restart();
        }
    }

    /// What became of a remedy that was asked for.
    pub fn carried_out(&mut self, ask: &Ask, result: &Result<usize, String>, at_ms: u64) {
        self.in_flight.remove(&ask.owner);
        if result.is_ok() {
            // Choices made before say nothing about what is now.
            self.sampled.restart();
            for service in self.services.values_mut() {
                service.forget_epochs();
            }
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
}
