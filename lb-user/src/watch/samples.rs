//! Sampled picks: computed again, and counted by key.

use std::collections::BTreeMap;

use lb_common::{
    ids::BackendRef,
    sample::{Sample, kind},
};

use super::{
    filters::Filters,
    heavy::Heavy,
    packets::FlowPackets,
    published::{Published, Table},
    source::Source,
};
use crate::{
    skew::attribution::{
        Audit,
        audit::{Audits, Choice, Intended, recompute},
    },
    state::desired::Sampling,
};

/// Keys in view over all services.
const KEYS: usize = 64;
/// Checks after which counts of audits start anew; those of the time before stay in view once more.
const AUDIT_CHECKS: u32 = 10;
/// Checks after which counts of keys are halved.
const FADE_CHECKS: u32 = 60;
/// Checks after a remedy in which samples may still be of the time before.
const MUTE: u32 = 2;
/// Samples a second that are aimed at.
pub const RATE: f64 = 100.0;
/// Fewer than one in 2^this are never sampled.
const MOST_BITS: u32 = 20;

/// A key as a service picks by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct KeyOf {
    service: u32,
    words: [u64; 4],
    ports: u32,
    protocol: u8,
    backend: BackendRef,
}

/// What samples have shown lately.
#[derive(Debug)]
pub struct Sampled {
    /// By service id: the last step and the one before.
    audits: [BTreeMap<u32, Audits>; 2],
    keys: Heavy<KeyOf>,
    pub(super) packets: FlowPackets,
    /// Of fresh keys, and the keys that were seen beside them.
    pub(super) filters: Filters,
    checks: u32,
    /// Samples and known-answer tests taken, and those that were wrong, since the start.
    pub seen: u64,
    pub wrong: u64,
    /// Flows that one sample stands for.
    weight: u64,
    /// Checks in which choices are not counted: they may have been made before a remedy.
    mute: u32,
}

impl Default for Sampled {
    fn default() -> Self {
        Self {
            audits: Default::default(),
            keys: Heavy::new(KEYS),
            packets: FlowPackets::default(),
            filters: Filters::default(),
            checks: 0,
            seen: 0,
            wrong: 0,
            weight: 1,
            mute: 0,
        }
    }
}

impl Sampled {
    /// A sample of traffic; answers what became of a pick when it was computed again.
    pub fn take(&mut self, sample: &Sample, published: &Published, source: &impl Source) -> Option<Choice> {
        if sample.kind == kind::PACKET {
            self.packets.take(sample);
            return None;
        }
        let table = table_of(sample.service, published)?;
        let key = key_of(sample, table);
        self.keys.count(key, self.weight);
        // The witness of a client knows no service and no protocol.
        let protocol = if table.by_client() { 0 } else { key.protocol };
        self.filters
            .count(sample, &(key.words, key.ports, protocol), self.weight);
        self.audit(sample, table, published, source)
    }

    /// Computes a choice again; `None` when nothing is published to compare it with.
    pub fn audit(
        &mut self,
        sample: &Sample,
        table: &Table,
        published: &Published,
        source: &impl Source,
    ) -> Option<Choice> {
        let seed = *published.seeds.get(&sample.seed_index)?;
        let intended = Intended {
            seed,
            shared: table.uses_shared_seed(),
            by_client: table.by_client(),
            slots: &table.slots,
            table_generation: table.service.table_generation,
        };
        let choice = recompute(sample, &intended, |backend| source.is_serving(backend));
        if self.mute > 0 {
            return Some(choice);
        }
        self.seen += u64::from(choice != Choice::Incomparable);
        self.wrong += u64::from(matches!(choice, Choice::WrongSlot | Choice::WrongBackend));
        self.audits[0]
            .entry(sample.service)
            .or_default()
            .count(sample.cpu, choice);
        Some(choice)
    }

    /// Takes what a record says in place of samples: choices and heaviest keys, each by service id.
    pub(super) fn recorded(
        &mut self,
        audits: impl Iterator<Item = (u32, Audit)>,
        keys: impl Iterator<Item = (u32, u64, BackendRef)>,
    ) {
        self.audits = Default::default();
        for (service, audit) in audits {
            self.audits[0].entry(service).or_default().add(audit);
        }
        self.keys = Heavy::new(usize::MAX);
        for (place, (service, count, backend)) in (0u64..).zip(keys) {
            // The key itself is not recorded; its place keeps it apart from the others.
            let key = KeyOf {
                service,
                words: [place, 0, 0, 0],
                ports: 0,
                protocol: 0,
                backend,
            };
            self.keys.count(key, count);
        }
    }

    /// A check has passed.
    pub fn tick(&mut self) {
        self.checks = self.checks.wrapping_add(1);
        self.mute = self.mute.saturating_sub(1);
        if self.checks.is_multiple_of(AUDIT_CHECKS) {
            self.audits[1] = std::mem::take(&mut self.audits[0]);
        }
        if self.checks.is_multiple_of(FADE_CHECKS) {
            self.keys.fade();
            self.packets.fade();
        }
    }

    /// After a remedy: what was wrong before says nothing about what is now.
    pub fn restart(&mut self) {
        self.audits = Default::default();
        self.filters.restart();
        self.mute = MUTE;
    }

    /// Of all services, by CPU.
    pub fn audits(&self) -> Vec<Audit> {
        sum(self.audits.iter().flat_map(BTreeMap::values))
    }

    /// Of one service, by CPU.
    pub fn audits_of(&self, service: u32) -> Vec<Audit> {
        sum(self.audits.iter().filter_map(|step| step.get(&service)))
    }

    /// The keys of a service with the most flows, and their backends.
    pub fn heaviest(&self, service: u32, most: usize) -> Vec<(u64, BackendRef)> {
        let keys = self.keys.heaviest().into_iter();
        keys.filter(|(key, _)| key.service == service)
            .take(most)
            .map(|(key, count)| (count, key.backend))
            .collect()
    }

    /// One in 2^bits gives about [`RATE`] samples a second out of `per_second`.
    pub fn bits_for(per_second: f64) -> u32 {
        if per_second <= RATE {
            0
        } else {
            ((per_second / RATE).log2().ceil() as u32).min(MOST_BITS)
        }
    }

    pub fn set_sampling(&mut self, sampling: Sampling) {
        self.weight = 1 << sampling.flow_bits.min(MOST_BITS);
        self.packets.set_bits(sampling.packet_bits);
    }
}

fn sum<'a>(audits: impl Iterator<Item = &'a Audits>) -> Vec<Audit> {
    let mut by_cpu: BTreeMap<u32, Audit> = BTreeMap::new();
    for audit in audits.flat_map(Audits::to_vec) {
        let sum = by_cpu.entry(audit.cpu).or_insert(Audit {
            cpu: audit.cpu,
            ..Audit::default()
        });
        sum.checked += audit.checked;
        sum.wrong_slot += audit.wrong_slot;
        sum.wrong_backend += audit.wrong_backend;
    }
    by_cpu.into_values().collect()
}

fn key_of(sample: &Sample, table: &Table) -> KeyOf {
    let words = sample.words;
    let client = match sample.family {
        6 => [words[0], words[1], 0, 0],
        _ => [words[0] & 0xffff_ffff, 0, 0, 0],
    };
    let by_client = table.by_client();
    KeyOf {
        service: sample.service,
        words: if by_client { client } else { words },
        ports: if by_client { 0 } else { sample.ports },
        protocol: sample.protocol,
        backend: sample.backend,
    }
}

fn table_of(service: u32, published: &Published) -> Option<&Table> {
    let mut tables = published.services.values();
    tables
        .find(|table| table.service.id == service)
        .map(AsRef::as_ref)
}
