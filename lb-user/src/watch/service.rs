//! One service under watch: counts, stream, state.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{incident::Incident, published::Table, report, source::Source, trail::Trail};
use crate::{
    counters::BackendTotals,
    skew::{
        Category, Outcome, Shares, Skip, Stream, StreamSpec,
        effect::{Effect, Severity, Watched, severity},
        intake::{self, Intake, Taken},
        tilt::Tolerance,
    },
    state::desired::BackendState,
};

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
        if shares == *self.stream.shares() {
            return;
        }
        self.trail = Trail::new(KINDS * shares.len());
        self.stream.set_shares(shares);
        self.cpus.clear();
        if !same_members {
            self.intake.forget();
        }
    }

    /// Reads the counters; `pick` hears of each CPU's fresh picks so far.
    pub fn check(
        &mut self,
        at: Duration,
        interval: Duration,
        source: &impl Source,
        mut pick: impl FnMut(u32, u64),
    ) -> Found {
        let members = self.table.members.len();
        let cpus = source.cpus();
        let mut sums = vec![0u64; KINDS * members];
        let closer = self.stream.level() >= CLOSER || self.stream.alarm().is_some();
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
            }
            pick(cpu, picked);
            if closer {
                self.check_cpu(at, interval, cpu, &fresh_of_cpu);
            }
        }
        if !closer {
            self.cpus.clear();
        }
        let origin = intake::source(source.origin(), 0..cpus);
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
    pub fn flows_in_check(&self) -> u64 {
        let members = self.table.members.len();
        let flows = self.counts.get(members..2 * members).unwrap_or_default();
        flows.iter().fold(0u64, |sum, count| sum.saturating_add(*count))
    }

    /// After a remedy.
    pub fn restart(&mut self) {
        self.stream.restart();
        self.cpus.clear();
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

fn ids(table: &Table) -> impl Iterator<Item = u32> {
    table.members.iter().map(|member| member.reference.bits())
}

/// Shares by owned slots, as published.
fn shares(table: &Table) -> Shares {
    let owned: Vec<(u32, u32)> = table
        .members
        .iter()
        .map(|member| (member.reference.bits(), member.owned))
        .collect();
    Shares::of_slots(&owned, table.slots.len() as u32, Tolerance::DEFAULT)
}
