//! The known-answer test: the choice that [`pick`] makes for a given flow, handed back instead of acted on.
//!
//! The frame is no packet but a question: a [`ServiceKey`] at [`SERVICE_AT`], then at [`SAMPLE_AT`] a [`Sample`] with the
//! flow's words, ports, protocol and family. The answer stands where the question's sample stood. Flow table, counters,
//! fresh keys and the ring of samples are left alone.

use core::cell::Cell;

use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters, EVENT_SLOTS, Histogram, VERDICT_SLOTS},
    flow::FlowBucket,
    flow_hash::{FlowTuple, Key},
    ids::BackendRef,
    sample::Sample,
    seed::{self, Seed},
    service::{Service, ServiceKey, flag},
    settings::Settings,
    shared::Word,
    slot_table::HISTOGRAM_BUCKETS,
};

use crate::{
    frame::Frame,
    parse::Packet,
    pick,
    tables::{Tables, Tally, Warning, configured},
};

/// Offset of the service's key.
pub const SERVICE_AT: usize = 0;
/// Offset of the question's flow, and of the answer.
pub const SAMPLE_AT: usize = size_of::<ServiceKey>();
/// Octets of a question.
pub const LENGTH: usize = SAMPLE_AT + size_of::<Sample>();

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A backend was picked; the sample says how.
    Picked,
    /// The datapath would have dropped the packet.
    Dropped,
    /// No settings, no such service, or no question.
    Nothing,
}

/// Answers the question in the frame.
#[inline(always)]
pub fn answer(frame: &mut impl Frame, tables: &impl Tables) -> Answer {
    // One after the other: checked together, the verifier sees a way past the first that leaves the key unread.
    let Some(key) = frame.read::<ServiceKey>(SERVICE_AT) else {
        return Answer::Nothing;
    };
    let Some(flow) = frame.read::<Sample>(SAMPLE_AT) else {
        return Answer::Nothing;
    };
    let Some(settings) = configured(tables) else {
        return Answer::Nothing;
    };
    let Some(service) = tables.service(&key, settings) else {
        return Answer::Nothing;
    };
    let packet = Packet {
        network: 0,
        length: 0,
        tuple: FlowTuple {
            v6: flow.family == 6,
            words: flow.words,
            ports: flow.ports,
            protocol: flow.protocol,
        },
        tcp_flags: 0,
        traffic_class: 0,
    };
    let aside = Aside {
        tables,
        seed: Cell::new(seed::SHARED),
        slot: Cell::new(UNSEEN),
        backend: Cell::new(0),
    };
    let Some(tally) = Tally::of(&aside) else {
        return Answer::Nothing;
    };
    if pick::pick(&packet, 0, service, settings, 0, &aside, tally).is_err() {
        return Answer::Dropped;
    }
    let (seed_index, slot) = (aside.seed.get(), aside.slot.get());
    let Some(seed) = tables.seed(seed_index) else {
        return Answer::Dropped;
    };
    let key = Key {
        k0: seed.k0,
        k1: seed.k1,
    };
    let hash = match service.flags & flag::CLIENT_AFFINITY {
        0 => packet.tuple.hash(key),
        _ => packet.tuple.hash_client(key),
    };
    let sample = Sample {
        hash,
        service: service.id,
        slot: slot.wrapping_sub(service.slots_offset),
        table_generation: service.table_generation,
        seed_generation: seed.generation,
        backend: BackendRef::from_bits(aside.backend.get()),
        seed_index,
        cpu: tables.cpu(),
        ..flow
    };
    match frame.write(SAMPLE_AT, sample) {
        Some(()) => Answer::Picked,
        None => Answer::Nothing,
    }
}

/// The maps that a choice is made from. Remembers what was looked up; what a choice leaves behind goes nowhere.
struct Aside<'a, T> {
    tables: &'a T,
    /// Index of the seed looked up last: the one that picked.
    seed: Cell<u32>,
    /// Index of the slot looked up first: the one that the hash named.
    slot: Cell<u32>,
    /// What stood in the slot looked up last: the backend that was picked.
    backend: Cell<u32>,
}

/// No slot has this index. No `Option`: the verifier refuses to read the half of one that is nothing.
const UNSEEN: u32 = u32::MAX;

/// Counts what nobody reads.
static NOWHERE: CpuCounters = CpuCounters {
    verdicts: [const { Word::new(0) }; VERDICT_SLOTS],
    events: [const { Word::new(0) }; EVENT_SLOTS],
    warned: [const { Word::new(0) }; EVENT_SLOTS - 1],
    answered: Word::new(0),
    histogram: Histogram {
        picks: [const { Word::new(0) }; HISTOGRAM_BUCKETS as usize],
        fresh: [const { Word::new(0) }; HISTOGRAM_BUCKETS as usize],
    },
};

/// Stands for every word of the bitmaps of fresh keys.
static NO_KEYS: Word = Word::new(0);

impl<T: Tables> Tables for Aside<'_, T> {
    #[inline(always)]
    fn cpu(&self) -> u32 {
        self.tables.cpu()
    }

    #[inline(always)]
    fn jiffies(&self) -> u64 {
        self.tables.jiffies()
    }

    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        self.tables.settings()
    }

    #[inline(always)]
    fn vip_bit(&self, bit: u32) -> bool {
        self.tables.vip_bit(bit)
    }

    #[inline(always)]
    fn service(&self, key: &ServiceKey, settings: &Settings) -> Option<&Service> {
        self.tables.service(key, settings)
    }

    #[inline(always)]
    fn backend(&self, id: u32) -> Option<&Backend> {
        self.tables.backend(id)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<BackendRef> {
        if self.slot.get() == UNSEEN {
            self.slot.set(index);
        }
        let reference = self.tables.slot(index)?;
        self.backend.set(reference.bits());
        Some(reference)
    }

    #[inline(always)]
    fn seed(&self, index: u32) -> Option<&Seed> {
        self.seed.set(index);
        self.tables.seed(index)
    }

    #[inline(always)]
    fn flow_bucket(&self, _: u32) -> Option<&FlowBucket> {
        None
    }

    #[inline(always)]
    fn fragment_bucket(&self, _: u32) -> Option<&FlowBucket> {
        None
    }

    #[inline(always)]
    fn fresh_word(&self, _: u32) -> Option<&Word> {
        Some(&NO_KEYS)
    }

    #[inline(always)]
    fn backend_counters(&self, _: u32) -> Option<&BackendCounters> {
        None
    }

    #[inline(always)]
    fn cpu_counters(&self) -> Option<&CpuCounters> {
        Some(&NOWHERE)
    }

    #[inline(always)]
    fn sample(&self, _: &Sample) -> bool {
        true
    }

    #[inline(always)]
    fn warn(&self, _: Warning, _: u32) {}
}

#[cfg(test)]
mod tests {
    use lb_common::{
        backend::state,
        slot_table::{bucket_scale, slot_of},
    };

    use super::*;
    use crate::testing::{
        frame::BufferFrame,
        tables::{MemoryTables, Sizes},
    };

    const CPU: u32 = 2;
    const COUNT: u32 = 1021;

    /// One service of four backends; its table begins at slot 7.
    fn tables(flags: u32) -> (MemoryTables, ServiceKey) {
        let mut tables = MemoryTables::new(Sizes {
            cpus: 4,
            backends: 8,
            slots: 2048,
            flow_buckets: 4,
            fragment_buckets: 4,
            fresh_words: 4,
        });
        tables.cpu = CPU;
        tables.settings.layout_version = lb_common::settings::LAYOUT_VERSION;
        tables.settings.sample_mask = 0;
        tables.settings.packet_sample_mask = 0;
        let key = ServiceKey {
            port: [0, 80],
            protocol: 6,
            family: 4,
            ..ServiceKey::default()
        };
        let service = Service {
            id: 3,
            slots_offset: 7,
            slots_count: COUNT,
            table_generation: 9,
            flags,
            bucket_scale: bucket_scale(COUNT),
            ..Service::default()
        };
        tables.services.insert(key, service);
        for id in 1..5 {
            tables.backends[id] = Backend {
                service: 3,
                generation: 1,
                state: state::SERVING,
                ..Backend::default()
            };
        }
        for slot in 0..COUNT {
            tables.slots[7 + slot as usize] = BackendRef::new(1 + slot % 4, 1);
        }
        for (index, seed) in tables.seeds.iter_mut().enumerate() {
            (seed.k0, seed.k1, seed.generation) = (10 + index as u64, 5, 4 + index as u32);
        }
        (tables, key)
    }

    fn ask(tables: &MemoryTables, key: ServiceKey, flow: Sample) -> (Answer, Sample) {
        let mut frame = BufferFrame::new(&[0; LENGTH], 1);
        frame.write(SERVICE_AT, key).unwrap();
        frame.write(SAMPLE_AT, flow).unwrap();
        (answer(&mut frame, tables), frame.read(SAMPLE_AT).unwrap())
    }

    fn flow() -> Sample {
        Sample {
            words: [0x0a00_0001 | 0xc000_020a << 32, 0, 0, 0],
            ports: 0x01bb_c350,
            protocol: 6,
            family: 4,
            ..Sample::default()
        }
    }

    #[test]
    fn the_choice_is_told_and_nothing_else_is_left_behind() {
        for (flags, index) in [
            (0, seed::of_cpu(CPU)),
            (flag::FLEET, seed::SHARED),
            (flag::CLIENT_AFFINITY, seed::SHARED),
        ] {
            let (tables, key) = tables(flags);
            let (answer, sample) = ask(&tables, key, flow());
            assert_eq!(answer, Answer::Picked);
            let tuple = FlowTuple::v4(0x0a00_0001, 0xc000_020a, 0x01bb_c350, 6);
            let seed = Key {
                k0: 10 + u64::from(index),
                k1: 5,
            };
            let hash = match flags {
                flag::CLIENT_AFFINITY => tuple.hash_client(seed),
                _ => tuple.hash(seed),
            };
            let slot = slot_of(hash, COUNT);
            let wanted = Sample {
                hash,
                service: 3,
                slot,
                table_generation: 9,
                seed_generation: 4 + index,
                backend: BackendRef::new(1 + slot % 4, 1),
                seed_index: index,
                cpu: CPU,
                ..flow()
            };
            assert_eq!(sample, wanted, "flags {flags}");
            assert!(tables.samples.borrow().is_empty() && tables.warnings.borrow().is_empty());
            assert!(tables.fresh.iter().all(|word| word.load() == 0));
            let events = tables.cpu_counters.iter().flat_map(|counters| &counters.events);
            assert!(events.into_iter().all(|word| word.load() == 0));
            let flows = tables
                .backend_counters
                .iter()
                .map(|counters| counters.flows.load());
            assert_eq!(flows.sum::<u64>(), 0);
        }
    }

    #[test]
    fn what_cannot_be_picked_is_told_apart() {
        let (mut tables, key) = tables(0);
        tables.seeds.fill(Seed::default());
        assert_eq!(ask(&tables, key, flow()).0, Answer::Dropped);
        let other = ServiceKey { port: [0, 81], ..key };
        assert_eq!(ask(&tables, other, flow()).0, Answer::Nothing);
        tables.settings.layout_version = 0;
        assert_eq!(ask(&tables, key, flow()).0, Answer::Nothing);
        let mut short = BufferFrame::new(&[0; LENGTH - 1], 1);
        assert_eq!(answer(&mut short, &tables), Answer::Nothing);
    }
}
