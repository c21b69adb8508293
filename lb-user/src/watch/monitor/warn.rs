//! What a check warns of: slots that do not stand for weights, filters of fresh keys, seeds that prefer a backend.

use std::{collections::BTreeMap, net::IpAddr};

use lb_common::seed::SHARED;

use super::{Monitor, Outcome};
use crate::{
    skew::fresh::{Advice, FULL},
    watch::{
        report::WarningName,
        service::ServiceWatch,
        source::Source,
        warnings::{self, About, Said},
    },
};

impl Monitor {
    pub(super) fn warn(&mut self, source: &impl Source, outcome: &mut Outcome) {
        let mut now: BTreeMap<About, Said> = BTreeMap::new();
        for (key, service) in &self.services {
            let said = of_service(service);
            now.extend(said.map(|(name, said)| ((name, Some(*key), 0), said)));
        }
        let shared = self
            .services
            .values()
            .any(|service| service.table.uses_shared_seed());
        for found in self.sampled.filters.look(&self.published.seeds, source) {
            let about = |name| (name, None, found.index);
            match found.advice {
                // The controller renews the seeds of CPUs early, and the shared one never by itself.
                _ if found.index == SHARED && shared && found.filter.fill() > FULL => {
                    now.insert(about(WarningName::FreshKeysFull), warnings::full(&found));
                }
                Advice::Starved => {
                    now.insert(about(WarningName::FreshKeysStarved), warnings::starved(&found));
                }
                Advice::RotateEarly | Advice::Fine => {}
            }
        }
        outcome.told.extend(self.warnings.follow(self.at, now));
    }
}

fn of_service(service: &ServiceWatch) -> impl Iterator<Item = (WarningName, Said)> {
    let name = &*service.table.name;
    let alarm = service.epochs.as_ref().and_then(|epochs| epochs.alarm());
    let endpoints: Vec<IpAddr> = match alarm.is_some() || !service.mismatches.is_empty() {
        true => service
            .table
            .members
            .iter()
            .map(|member| member.endpoint)
            .collect(),
        false => Vec::new(),
    };
    let weights = warnings::weights(name, &service.mismatches, service.table.slots.len(), &endpoints);
    let epochs = alarm.and_then(|alarm| warnings::epochs(name, alarm, &endpoints));
    let weights = weights.map(|said| (WarningName::Weights, said));
    let epochs = epochs.map(|said| (WarningName::Seeds, said));
    weights.into_iter().chain(epochs)
}
