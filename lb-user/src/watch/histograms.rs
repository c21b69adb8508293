//! The hash histograms of the CPUs, and of all of them together.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lb_common::slot_table::MIN_SLOTS;

use super::{
    report,
    source::{BUCKETS, Source},
    trail::Trail,
};
use crate::skew::{
    Outcome, Shares, Stream, StreamSpec,
    effect::{Effect, Severity, Watched, severity},
    intake::{self, Intake, Taken},
    tilt::Tolerance,
};

/// A histogram under watch.
pub(super) struct Histogram {
    pub stream: Stream,
    pub trail: Trail,
    intake: Intake,
    counts: Vec<u64>,
    crossed: bool,
}

/// All of them. A CPU has one from its first pick on.
pub(super) struct Histograms {
    pub cpus: BTreeMap<u32, Histogram>,
    pub pooled: Histogram,
    interval: Duration,
    ln_arl: f64,
    /// Shares by size of table.
    shares: BTreeMap<u32, Shares>,
    /// Fresh picks so far, by CPU and size of table.
    picked: BTreeMap<u32, BTreeMap<u32, u64>>,
}

/// What a check of the histograms came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub level: f64,
    pub alarm: bool,
    pub crossed: bool,
    pub severity: Option<Severity>,
}

impl Histogram {
    fn new(interval: Duration, ln_arl: f64, shares: Shares) -> Self {
        Self {
            stream: Stream::new(StreamSpec::new(ln_arl), shares),
            trail: Trail::new(BUCKETS),
            intake: Intake::new(interval),
            counts: Vec::new(),
            crossed: false,
        }
    }

    fn check(&mut self, at: Duration, source: u64, counters: &[u64], parts: &[(f64, &Shares)]) {
        self.crossed = false;
        let reading = intake::Reading { at, source, counters };
        if let Taken::Baseline(_) = self.intake.take(reading, &mut self.counts) {
            return;
        }
        self.trail.push(&self.counts);
        if let Outcome::Measured(measure) = self.stream.check_mixed(&self.counts, parts) {
            self.crossed = measure.crossed;
        }
        if self.stream.alarm().is_some() && !self.crossed {
            let effect = self.effect();
            self.stream.clear(&effect);
        }
    }

    fn effect(&self) -> Effect {
        let shares = self.stream.shares().to_vec();
        Effect::measure(&self.trail.totals(), &shares, report::alpha())
    }
}

impl Histograms {
    pub fn new(interval: Duration, ln_arl: f64) -> Self {
        let shares = Shares::of_histogram(MIN_SLOTS, Tolerance::DEFAULT);
        Self {
            cpus: BTreeMap::new(),
            pooled: Histogram::new(interval, ln_arl, shares),
            interval,
            ln_arl,
            shares: BTreeMap::new(),
            picked: BTreeMap::new(),
        }
    }

    /// Every histogram, the pooled one first.
    fn all(&mut self) -> impl Iterator<Item = &mut Histogram> {
        std::iter::once(&mut self.pooled).chain(self.cpus.values_mut())
    }

    pub fn set_ln_arl(&mut self, ln_arl: f64) {
        self.ln_arl = ln_arl;
        self.all()
            .for_each(|histogram| histogram.stream.set_ln_arl(ln_arl));
    }

    /// After a remedy.
    pub fn restart(&mut self) {
        self.all().for_each(|histogram| histogram.stream.restart());
    }

    /// Sizes of the tables that picks are made from.
    pub fn set_sizes(&mut self, sizes: &BTreeSet<u32>) {
        if self.shares.keys().eq(sizes.iter()) {
            return;
        }
        let of = |size: &u32| (*size, Shares::of_histogram(*size, Tolerance::DEFAULT));
        self.shares = sizes.iter().map(of).collect();
        if let Some(first) = self.shares.values().next().cloned() {
            self.all()
                .for_each(|histogram| histogram.stream.set_shares(first.clone()));
        }
    }

    /// Takes a check. `picked` has the fresh picks so far by CPU and size of table, where there are several sizes.
    pub fn check(&mut self, at: Duration, source: &impl Source, picked: BTreeMap<u32, BTreeMap<u32, u64>>) {
        let before = std::mem::replace(&mut self.picked, picked);
        let origin = intake::source(source.origin(), 0..source.cpus());
        let mut sum = vec![0u64; BUCKETS];
        let mut all: BTreeMap<u32, u64> = BTreeMap::new();
        for cpu in 0..source.cpus() {
            let counters = source.histogram(cpu);
            if counters.iter().all(|count| *count == 0) && !self.cpus.contains_key(&cpu) {
                continue;
            }
            let since = since(before.get(&cpu), self.picked.get(&cpu));
            for (size, count) in &since {
                *all.entry(*size).or_default() += count;
            }
            let (interval, ln_arl) = (self.interval, self.ln_arl);
            let own = self.pooled.stream.shares();
            let histogram = self
                .cpus
                .entry(cpu)
                .or_insert_with(|| Histogram::new(interval, ln_arl, own.clone()));
            histogram.check(at, origin, &counters, &parts(&self.shares, &since));
            for (sum, count) in sum.iter_mut().zip(counters) {
                *sum = sum.wrapping_add(count);
            }
        }
        self.pooled.check(at, origin, &sum, &parts(&self.shares, &all));
    }

    pub fn found(&self) -> Found {
        let pooled = (Watched::Histogram, &self.pooled);
        let cpus = self.cpus.values().map(|cpu| (Watched::CpuHistogram, cpu));
        let mut found = Found::default();
        for (watched, histogram) in std::iter::once(pooled).chain(cpus) {
            found.level = found.level.max(histogram.stream.level());
            found.crossed |= histogram.crossed;
            if histogram.stream.alarm().is_some() {
                found.alarm = true;
                found.severity = found.severity.max(Some(severity(&histogram.effect(), watched)));
            }
        }
        found
    }
}

/// Picks between two readings; empty where they cannot be compared.
fn since(before: Option<&BTreeMap<u32, u64>>, now: Option<&BTreeMap<u32, u64>>) -> BTreeMap<u32, u64> {
    let (Some(before), Some(now)) = (before, now) else {
        return BTreeMap::new();
    };
    let counts: Option<BTreeMap<u32, u64>> = now
        .iter()
        .map(|(size, now)| Some((*size, now.checked_sub(*before.get(size)?)?)))
        .collect();
    counts.unwrap_or_default()
}

fn parts<'a>(shares: &'a BTreeMap<u32, Shares>, picked: &BTreeMap<u32, u64>) -> Vec<(f64, &'a Shares)> {
    let part = |(size, picked): (&u32, &u64)| Some((*picked as f64, shares.get(size)?));
    picked.iter().filter_map(part).collect()
}
