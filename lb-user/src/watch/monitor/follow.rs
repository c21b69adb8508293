//! What a check rests on: settings, what was published, and the counters.

use std::{collections::BTreeMap, sync::Arc};

use lb_common::service::ServiceKey;

use super::{Monitor, Settings};
use crate::{
    skew::{state::Budget, threshold},
    watch::{
        histograms::Histograms,
        published::Published,
        service::{Found, ServiceWatch},
        source::Source,
    },
};

/// Pairs of seed and backend whose flows are counted for the bets from seed to seed, of all services: 16 MiB.
const PAIRS: usize = 1 << 20;
/// Seconds of a year.
const YEAR: f64 = 365.25 * 86_400.0;

impl Monitor {
    /// Other settings from now on. A budget that changes starts anew.
    pub fn configure(&mut self, settings: Settings) {
        if settings.limits != self.settings.limits {
            self.rotations = Budget::new(settings.limits);
        }
        if settings.interval != self.settings.interval {
            // Gaps are judged by the interval: every reading starts anew.
            let streams = self.streams;
            self.services.clear();
            // The services are made anew from what is published, which the next check takes for new.
            self.published = Arc::default();
            self.histograms = Histograms::new(settings.interval, ln_arl(streams, &settings));
        }
        self.settings = settings;
        self.share_out(self.streams);
    }

    pub(super) fn start_histograms_anew(&mut self) {
        self.histograms = Histograms::new(self.settings.interval, self.ln_arl);
        self.follow_sizes();
    }

    /// Takes over what was published since the last check.
    pub(super) fn follow(&mut self, published: Arc<Published>, source: &impl Source) {
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
            self.spread_bets(source.cpus(), source.counts_by_cpu());
            self.published = published;
            self.follow_sizes();
        }
        let streams = self.services.len() as u64 + self.bets + u64::from(source.cpus()) + 1;
        if streams != self.streams {
            self.share_out(streams);
        }
    }

    fn follow_sizes(&mut self) {
        let tables = self.published.services.values();
        let sizes = tables.map(|table| table.slots.len() as u32);
        self.histograms
            .set_sizes(&sizes.filter(|size| *size > 0).collect());
    }

    /// Shares the budget of false alarms out over the streams.
    fn share_out(&mut self, streams: u64) {
        self.streams = streams;
        self.ln_arl = ln_arl(streams, &self.settings);
        self.histograms.set_ln_arl(self.ln_arl);
        for service in self.services.values_mut() {
            service.set_ln_arl(self.ln_arl);
        }
    }

    /// Gives services the bets from seed to seed, as far as there is room for counts by CPU and backend.
    fn spread_bets(&mut self, cpus: u32, by_cpu: bool) {
        let mut left = PAIRS;
        self.bets = 0;
        for service in self.services.values_mut() {
            let seeds = if service.table.uses_shared_seed() {
                1
            } else {
                cpus as usize
            };
            let pairs = service.table.members.len().saturating_mul(seeds);
            let fits = pairs <= left;
            left -= if fits { pairs } else { 0 };
            self.bets += u64::from(fits);
            // A record has no flows by CPU. It shares out the budget of the daemon that wrote it all the same.
            service.bet_on_epochs(fits && by_cpu, self.ln_arl);
        }
    }

    /// Reads every counter once.
    pub(super) fn read(&mut self, source: &impl Source) -> Vec<(ServiceKey, Found)> {
        let (at, interval) = (self.at, self.settings.interval);
        let seeds = &self.published.seeds;
        let mut picked: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
        let mut found = Vec::with_capacity(self.services.len());
        for (key, service) in &mut self.services {
            let size = service.table.slots.len() as u32;
            let of_service = service.check(at, interval, source, seeds, |cpu, count| {
                let sum = picked.entry(cpu).or_default().entry(size).or_default();
                *sum = sum.wrapping_add(count);
            });
            found.push((*key, of_service));
        }
        self.histograms.check(at, source, picked);
        found
    }

    /// New flows of the last check, of all services.
    pub(in crate::watch) fn traffic_in_check(&self) -> [u64; 2] {
        self.services.values().fold([0, 0], |[flows, packets], service| {
            let [more_flows, more_packets] = service.traffic_in_check();
            [
                flows.saturating_add(more_flows),
                packets.saturating_add(more_packets),
            ]
        })
    }
}

pub(super) fn ln_arl(streams: u64, settings: &Settings) -> f64 {
    let checks = YEAR / settings.interval.as_secs_f64() / settings.false_alarms_per_year;
    threshold::ln_arl(streams, checks)
}
