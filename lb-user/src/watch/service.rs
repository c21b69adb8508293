//! One service under watch: counts, stream, state.

mod expected;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lb_common::seed::{SHARED, Seed, of_cpu};

use super::{epochs::Epochs, incident::Incident, published::Table, report, source::Source, trail::Trail};
use crate::{
    counters::BackendTotals,
    skew::{
        Category, Outcome, Skip, Stream, StreamSpec,
        effect::{Effect, Severity, Watched, severity},
        intake::{self, Intake, Taken},
        shares::SlotMismatch,
    },
    state::desired::BackendState,
};

use expected::{ids, mismatches, shares};

/// Level from which on a service's counts are kept by CPU too.
const CLOSER: f64 = 0.5;
/// Fresh flows, all new flows and packets, one after the other, by backend.
const KINDS: usize = 3;

/// A service and what is known about its spread.
pub(super) struct ServiceWatch {
    pub table: Arc<Table>,
    pub stream: Stream,
    pub trail: Trail,
    pub incident: Incident,
    /// While something is suspected: fresh flows by CPU.
    pub cpus: BTreeMap<u32, CpuCounts>,
    /// Whether the last look at its slots found them wrong.
    pub was_wrong: bool,
    /// Bets from seed to seed; `None` where there is no room for their counts, or nobody knows them by CPU.
    pub epochs: Option<Epochs>,
    /// Backends whose slots do not stand for their weights.
    pub mismatches: Vec<SlotMismatch>,
    /// What was read last; see [`intake::source`].
    origin: u64,
    intake: Intake,
    counts: Vec<u64>,
    crossed: bool,
}

/// One CPU's fresh flows of a service.
pub(super) struct CpuCounts {
    pub trail: Trail,
    pub stream: Stream,
    intake: Intake,
}

/// What a check of the stream came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub level: f64,
    pub alarm: bool,
    pub crossed: bool,
}

impl ServiceWatch {
    pub fn new(table: Arc<Table>, interval: Duration, ln_arl: f64) -> Self {
        Self {
            stream: Stream::new(StreamSpec::new(ln_arl), shares(&table)),
            trail: Trail::new(KINDS * table.members.len()),
            incident: Incident::new(Arc::clone(&table.name)),
            cpus: BTreeMap::new(),
            was_wrong: false,
            epochs: None,
            mismatches: mismatches(&table),
            origin: 0,
            intake: Intake::new(interval),
            counts: Vec::new(),
            crossed: false,
            table,
        }
    }

    /// Takes another table than before.
    pub fn follow(&mut self, table: &Arc<Table>) {
        if Arc::ptr_eq(&self.table, table) {
            return;
        }
        let same_members = self.stream.shares().ids().iter().copied().eq(ids(table));
        let shares = shares(table);
        self.table = Arc::clone(table);
        self.mismatches = mismatches(table);
        if shares == *self.stream.shares() {
            return;
        }
        self.trail = Trail::new(KINDS * shares.len());
        if let Some(epochs) = &mut self.epochs {
            epochs.set_shares(&shares);
        }
        self.stream.set_shares(shares);
        self.cpus.clear();
        if !same_members {
            self.intake.forget();
        }
    }

    pub fn set_ln_arl(&mut self, ln_arl: f64) {
        self.stream.set_ln_arl(ln_arl);
        if let Some(epochs) = &mut self.epochs {
            epochs.set_ln_arl(ln_arl);
        }
    }

    /// Bets from seed to seed from now on, or no longer.
    pub fn bet_on_epochs(&mut self, bet: bool, ln_arl: f64) {
        match bet {
            true if self.epochs.is_none() => self.epochs = Some(Epochs::new(self.stream.shares(), ln_arl)),
            true => {}
            false => self.epochs = None,
        }
    }

    /// Seeds that are in use were not ended by chance.
    pub fn forget_epochs(&mut self) {
        if let Some(epochs) = &mut self.epochs {
            epochs.forget();
        }
    }

    /// Reads the counters under these seeds; `pick` hears of each CPU's fresh picks so far.
    pub fn check(
        &mut self,
        at: Duration,
        interval: Duration,
        source: &impl Source,
        seeds: &BTreeMap<u32, Seed>,
        mut pick: impl FnMut(u32, u64),
    ) -> Found {
        let members = self.table.members.len();
        let cpus = source.cpus();
        let mut sums = vec![0u64; KINDS * members];
        let closer = self.stream.level() >= CLOSER || self.stream.alarm().is_some();
        let origin = intake::source(source.origin(), 0..cpus);
        if std::mem::replace(&mut self.origin, origin) != origin {
            self.forget_epochs();
        }
        let mut ended: Vec<Vec<u64>> = Vec::new();
        let mut flows = vec![0; members];
        for cpu in 0..cpus {
            let mut fresh_of_cpu = vec![0; if closer { members } else { 0 }];
            let mut picked = 0u64;
            for (place, member) in self.table.members.iter().enumerate() {
                let counted: BackendTotals = source.backend(cpu, member.reference.id());
                picked = picked.wrapping_add(counted.fresh_flows);
                for (kind, count) in [counted.fresh_flows, counted.flows, counted.packets]
                    .into_iter()
                    .enumerate()
                {
                    let sum = &mut sums[kind * members + place];
                    *sum = sum.wrapping_add(count);
                }
                if closer {
                    fresh_of_cpu[place] = counted.fresh_flows;
                }
                flows[place] = counted.flows;
            }
            if !self.table.uses_shared_seed() {
                ended.extend(self.read_epoch(of_cpu(cpu), seeds, &flows));
            }
            pick(cpu, picked);
            if closer {
                self.check_cpu(at, interval, cpu, &fresh_of_cpu);
            }
        }
        if !closer {
            self.cpus.clear();
        }
        if self.table.uses_shared_seed() {
            ended.extend(self.read_epoch(SHARED, seeds, &sums[members..2 * members]));
        }
        if let Some(epochs) = &mut self.epochs {
            epochs.close(&ended);
        }
        let reading = intake::Reading {
            at,
            source: origin,
            counters: &sums,
        };
        self.crossed = false;
        if let Taken::Counts { .. } = self.intake.take(reading, &mut self.counts) {
            let outcome = self.stream.check(&self.counts[..members]);
            if let Outcome::Measured(measure) = outcome {
                self.crossed = measure.crossed;
            }
            // Counts from both sides of a new table belong to neither.
            if outcome != Outcome::Skipped(Skip::Blanked) {
                self.trail.push(&self.counts);
            }
        }
        if self.stream.alarm().is_some() && !self.crossed {
            let effect = self.effect();
            self.stream.clear(&effect);
        }
        Found {
            level: self.stream.level(),
            alarm: self.stream.alarm().is_some(),
            crossed: self.crossed,
        }
    }

    /// Takes the new flows so far under a seed; answers those of the seed before, if it has ended.
    fn read_epoch(&mut self, index: u32, seeds: &BTreeMap<u32, Seed>, flows: &[u64]) -> Option<Vec<u64>> {
        let generation = seeds.get(&index)?.generation;
        self.epochs.as_mut()?.read(index, generation, flows)
    }

    fn check_cpu(&mut self, at: Duration, interval: Duration, cpu: u32, counters: &[u64]) {
        let stream = &self.stream;
        let own = self.cpus.entry(cpu).or_insert_with(|| CpuCounts {
            trail: Trail::new(counters.len()),
            stream: Stream::new(
                StreamSpec::sparse_only(stream.dense_threshold() - std::f64::consts::LN_2),
                stream.shares().clone(),
            ),
            intake: Intake::new(interval),
        });
        let mut counts = Vec::new();
        let reading = intake::Reading {
            at,
            source: 0,
            counters,
        };
        if let Taken::Counts { .. } = own.intake.take(reading, &mut counts) {
            own.trail.push(&counts);
            own.stream.check(&counts);
        }
    }

    /// New flows of the last check.
    pub fn traffic_in_check(&self) -> [u64; 2] {
        let members = self.table.members.len();
        [1, 2].map(|kind| {
            let part = self.counts.get(kind * members..(kind + 1) * members);
            let counts = part.unwrap_or_default().iter();
            counts.fold(0u64, |sum, count| sum.saturating_add(*count))
        })
    }

    /// After a remedy: what was counted before says nothing about now.
    pub fn restart(&mut self) {
        self.stream.restart();
        self.trail = Trail::new(KINDS * self.table.members.len());
        self.cpus.clear();
    }

    /// Forgets what was counted, and the alarm that rests on it; what is remembered of alarms stays.
    pub fn start_anew(&mut self, interval: Duration, ln_arl: f64) {
        self.stream = Stream::new(StreamSpec::new(ln_arl), self.stream.shares().clone());
        self.trail = Trail::new(KINDS * self.table.members.len());
        self.cpus.clear();
        self.intake = Intake::new(interval);
        self.crossed = false;
        self.forget_epochs();
    }

    /// Sums of the trail: fresh flows, new flows, packets.
    pub fn totals(&self) -> [Vec<u64>; KINDS] {
        let totals = self.trail.totals();
        let members = self.table.members.len();
        std::array::from_fn(|kind| {
            let part = totals.get(kind * members..(kind + 1) * members);
            part.map_or_else(|| vec![0; members], <[u64]>::to_vec)
        })
    }

    pub fn effect(&self) -> Effect {
        let [fresh, ..] = self.totals();
        Effect::measure(&fresh, &self.stream.shares().to_vec(), report::alpha())
    }

    pub fn severity(&self) -> Severity {
        severity(&self.effect(), Watched::Backends)
    }

    /// Index of the worst backend of the standing alarm.
    pub fn worst(&self) -> Option<usize> {
        worst(&self.stream)
    }

    /// Indices of backends that drain.
    pub fn leaving(&self) -> Vec<usize> {
        let members = self.table.members.iter().enumerate();
        members
            .filter(|(_, member)| member.state == BackendState::Draining)
            .map(|(place, _)| place)
            .collect()
    }
}

/// Index of the worst backend of a stream's alarm.
pub(super) fn worst(stream: &Stream) -> Option<usize> {
    match stream.alarm()?.category {
        Category::Member(id) => stream.shares().ids().iter().position(|known| *known == id),
        Category::Bit(_) => None,
    }
}
