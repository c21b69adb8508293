//! What a check means for the box and for each service: alarms, causes, and remedies.

use std::{collections::BTreeSet, sync::Arc};

use lb_common::service::ServiceKey;

use super::{Ask, BOX, Monitor, Outcome, Owner};
use crate::{
    skew::{
        attribution::{Cause, Place},
        effect::Severity,
        state::{Policy, Remedy},
    },
    watch::{
        evidence::BoxEvidence,
        incident::{Now, Sign, Terms},
        readback::WrongTable,
        report::Names,
        service::{Found, ServiceWatch},
    },
};

/// Part of a table's slots from which on a wrong table is worth waking someone.
const PAGE_SLOTS: f64 = 0.1;

impl Monitor {
    pub(super) fn step_box(&mut self, evidence: &BoxEvidence, outcome: &mut Outcome) {
        let histograms = self.histograms.found();
        let seeds = !self.findings.seeds.is_empty();
        let wrong_slot = self.sampled.audits().iter().any(|audit| audit.wrong_slot > 0);
        let seeds_were_wrong = std::mem::replace(&mut self.seeds_were_wrong, seeds);
        let again = seeds && seeds_were_wrong;
        let proven = seeds || wrong_slot;
        let sign = Sign {
            level: if proven {
                histograms.level.max(1.0)
            } else {
                histograms.level
            },
            alarm: histograms.alarm || proven,
            crossed: histograms.crossed || again || wrong_slot,
            relapsed: seeds && !seeds_were_wrong,
            proven,
            severity: if proven {
                Severity::Page
            } else {
                histograms.severity.unwrap_or(Severity::Info)
            },
        };
        if self.the_box.asks(&sign, self.checks) {
            self.the_box.verdict = Some(evidence.explain());
        }
        let known = self.the_box.verdict.as_ref();
        let rewrite = known.is_some_and(|verdict| matches!(verdict.cause, Cause::Seed { .. }));
        let now = self.now();
        let terms = Terms {
            policy: policy(self.settings.auto_heal),
            budget: if rewrite {
                &mut self.rewrites
            } else {
                &mut self.rotations
            },
            names: Names {
                service: BOX,
                backends: &[],
            },
        };
        let output = self.the_box.step(now, sign, terms, &mut outcome.told);
        if output.restart {
            self.histograms.restart();
            self.sampled.restart();
        }
        if let Some(remedy) = output.remedy {
            if matches!(remedy, Remedy::RotateSeeds { .. }) {
                self.note_rotation();
            }
            outcome.asks.push(Ask {
                owner: Owner::Box,
                remedy,
            });
        }
    }

    fn now(&self) -> Now {
        Now {
            at: self.at,
            check: self.checks,
        }
    }

    /// Remembers that a rotation was granted, to show what is left of the budget.
    fn note_rotation(&mut self) {
        let (at, window) = (self.at, self.settings.limits.window);
        self.granted.retain(|then| at.saturating_sub(*then) < window);
        self.granted.push_back(at);
    }

    pub(super) fn step_service(
        &mut self,
        key: &ServiceKey,
        found: Found,
        evidence: &BoxEvidence,
        outcome: &mut Outcome,
    ) {
        let (heals, now) = (self.heals(key), self.now());
        let Some(service) = self.services.get_mut(key) else {
            return;
        };
        let table = self.findings.tables.get(key).copied();
        let was_wrong = std::mem::replace(&mut service.was_wrong, table.is_some());
        let again = table.is_some() && was_wrong;
        let audits = self.sampled.audits_of(service.table.service.id);
        let wrong_backend = audits.iter().any(|audit| audit.wrong_backend > 0);
        let proven = table.is_some() || wrong_backend;
        let mut severity = table.map_or(Severity::Info, wrong_table_severity);
        if found.alarm || wrong_backend {
            severity = severity.max(service.severity());
        }
        let sign = Sign {
            level: if proven { found.level.max(1.0) } else { found.level },
            alarm: found.alarm || proven,
            crossed: found.crossed || again || wrong_backend,
            relapsed: table.is_some() && !was_wrong,
            proven,
            severity,
        };
        if service.incident.asks(&sign, self.checks) {
            let read = table.map(|table| table.read);
            service.incident.verdict = Some(evidence.explain_service(service, read, &self.sampled));
        }
        let endpoints: Vec<_> = match sign.level > 0.2 || service.incident.name().is_alarm() {
            true => service
                .table
                .members
                .iter()
                .map(|member| member.endpoint)
                .collect(),
            false => Vec::new(),
        };
        let name = Arc::clone(&service.table.name);
        let terms = Terms {
            policy: policy(heals),
            budget: &mut self.rewrites,
            names: Names {
                service: &name,
                backends: &endpoints,
            },
        };
        let output = service.incident.step(now, sign, terms, &mut outcome.told);
        if output.restart {
            service.restart();
            self.sampled.restart();
        }
        match output.remedy {
            // Seeds and hash are the box's: its remedy is this one's too.
            Some(Remedy::RotateSeeds { .. } | Remedy::RewriteSeeds) => {
                self.joined.insert(*key);
            }
            Some(remedy) => outcome.asks.push(Ask {
                owner: Owner::Service(*key),
                remedy,
            }),
            None => {}
        }
    }

    /// What was found to differ from what was written is always written again, whatever state an alarm is in.
    pub(super) fn rewrite_what_differs(&self, outcome: &mut Outcome) {
        let asked: BTreeSet<Owner> = outcome.asks.iter().map(|ask| ask.owner).collect();
        if !self.findings.seeds.is_empty() && self.settings.auto_heal && !asked.contains(&Owner::Box) {
            outcome.asks.push(Ask {
                owner: Owner::Box,
                remedy: Remedy::RewriteSeeds,
            });
        }
        for key in self.findings.tables.keys() {
            let owner = Owner::Service(*key);
            if let Some(service) = self.services.get(key)
                && self.heals(key)
                && !asked.contains(&owner)
            {
                let remedy = Remedy::RewriteSlots {
                    service: Arc::clone(&service.table.name),
                };
                outcome.asks.push(Ask { owner, remedy });
            }
        }
    }

    /// Whether a service's tables are put right without being asked.
    fn heals(&self, key: &ServiceKey) -> bool {
        let name = self.services.get(key).map(|service| &*service.table.name);
        let own = name.and_then(|name| self.settings.auto_heal_services.get(name));
        own.copied().unwrap_or(self.settings.auto_heal)
    }

    /// Whether a fault of the box is one of this service.
    pub(in crate::watch) fn concerns(&self, service: &ServiceWatch) -> bool {
        let shared = service.table.uses_shared_seed();
        match self.the_box.shown().map(|verdict| &verdict.cause) {
            Some(Cause::Seed { findings }) => findings
                .iter()
                .any(|finding| (finding.place == Place::Shared) == shared),
            Some(Cause::Hash(_)) => true,
            _ => false,
        }
    }
}

fn policy(auto_heal: bool) -> Policy {
    Policy {
        auto_heal,
        ..Policy::DEFAULT
    }
}

fn wrong_table_severity(table: WrongTable) -> Severity {
    match f64::from(table.wrong) >= PAGE_SLOTS * f64::from(table.slots) {
        true => Severity::Page,
        false => Severity::Warn,
    }
}
