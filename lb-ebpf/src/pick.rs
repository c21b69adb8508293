//! The choice of a backend for a new flow, and the evidence about it.

use lb_common::{
    backend::{Backend, state},
    counters::{BackendCounters, Event},
    flow_hash::Key,
    ids::BackendRef,
    sample::{Sample, kind},
    seed::{self, Seed},
    service::{Service, flag},
    settings::Settings,
    slot_table::{bucket_of, slot_of},
};

use crate::{
    opaque::opaque,
    parse::Packet,
    tables::{Tables, Tally, Warning},
    verdict::Drop,
};

/// The backend of a packet.
pub struct Chosen<'a> {
    pub backend: &'a Backend,
    pub reference: BackendRef,
    /// What this CPU counts for it.
    pub counters: Option<&'a BackendCounters>,
}

/// Slots that are tried when the first one names a backend that cannot take the flow.
const ATTEMPTS: u32 = 8;

/// Picks a backend of the service for the packet's flow and counts the choice.
#[inline(always)]
pub fn pick<'a, T: Tables>(
    packet: &Packet,
    fingerprint: u64,
    service: &Service,
    settings: &Settings,
    now: u32,
    tables: &'a T,
    tally: Tally<'_>,
) -> Result<Chosen<'a>, Drop> {
    if service.slots_count == 0 {
        tally.warn(tables, Warning::NoBackend, service.id, now);
        return Err(Drop::NoBackend);
    }
    let (seed_index, seed) = choose_seed(service, now, tables, tally)?;
    let key = Key {
        k0: seed.k0,
        k1: seed.k1,
    };
    let client = service.flags & flag::CLIENT_AFFINITY != 0;
    let hash = if client {
        packet.tuple.hash_client(key)
    } else {
        packet.tuple.hash(key)
    };
    let first_slot = slot_of(hash, service.slots_count);
    let (backend, reference) = backend_at(first_slot, service, now, tables, tally)?;

    let witness = if client {
        settings.table_key.of_client(&packet.tuple)
    } else {
        fingerprint
    };
    let choice = Choice {
        hash,
        slot: first_slot,
        seed_index,
        seed_generation: seed.generation,
        reference,
        fresh: mark_fresh(witness, seed_index, settings, tables, tally),
    };
    let counters = tables.backend_counters(counter_index(reference.id(), settings, tables));
    if choice.count(service, settings, counters, tally) {
        choice.send_sample(packet, service, tables, tally);
    }
    Ok(Chosen {
        backend,
        reference,
        counters,
    })
}

/// The seed that picks for this service on this CPU; never one that is unset.
#[inline(always)]
fn choose_seed<'a, T: Tables>(
    service: &Service,
    now: u32,
    tables: &'a T,
    tally: Tally<'_>,
) -> Result<(u32, &'a Seed), Drop> {
    if service.flags & (flag::FLEET | flag::CLIENT_AFFINITY) == 0 {
        let index = seed::of_cpu(tables.cpu());
        match tables.seed(index) {
            Some(seed) if seed.generation != 0 => return Ok((index, seed)),
            _ => {
                tally.event(Event::SeedMissing);
                tally.warn(tables, Warning::SeedMissing, service.id, now);
            }
        }
    }
    match tables.seed(seed::SHARED) {
        Some(seed) if seed.generation != 0 => Ok((seed::SHARED, seed)),
        _ => {
            tally.warn(tables, Warning::NoSeed, service.id, now);
            Err(Drop::NoSeed)
        }
    }
}

/// The backend of a slot. A slot whose backend cannot take flows is counted, and the next ones are tried.
#[inline(always)]
fn backend_at<'a, T: Tables>(
    first: u32,
    service: &Service,
    now: u32,
    tables: &'a T,
    tally: Tally<'_>,
) -> Result<(&'a Backend, BackendRef), Drop> {
    let mut slot = first;
    for _ in 0..ATTEMPTS {
        let Some(reference) = tables.slot(service.slots_offset.wrapping_add(slot)) else {
            tally.event(Event::MapInconsistent);
            tally.warn(tables, Warning::Inconsistent, service.id, now);
            return Err(Drop::Inconsistent);
        };
        if let Some(backend) = tables.backend(reference.id())
            && backend.is_named_by(reference)
            && backend.state == state::SERVING
            && backend.service == service.id
        {
            return Ok((backend, reference));
        }
        tally.event(Event::SlotNotServing);
        slot += 1;
        if slot >= service.slots_count {
            slot = 0;
        }
    }
    tally.warn(tables, Warning::SlotNotServing, service.id, now);
    Err(Drop::NoBackend)
}

/// Sets the key's bit in the bitmap of the seed it was hashed with; 1 when it was clear, else 0.
#[inline(always)]
fn mark_fresh(
    witness: u64,
    seed_index: u32,
    settings: &Settings,
    tables: &impl Tables,
    tally: Tally<'_>,
) -> u64 {
    let region = seed_index.wrapping_mul(settings.fresh_mask.wrapping_add(1));
    let index = region.wrapping_add((witness >> 6) as u32 & settings.fresh_mask);
    let Some(word) = tables.fresh_word(index) else {
        tally.event(Event::MapInconsistent);
        return 0;
    };
    let before = word.load();
    word.store(before | 1 << (witness & 63));
    opaque(before >> (witness & 63) & 1) ^ 1
}

/// What was chosen and how, for counters and samples.
struct Choice {
    hash: u64,
    slot: u32,
    seed_index: u32,
    seed_generation: u32,
    reference: BackendRef,
    /// 1 for a key never seen before in the seed's life, else 0: added, not branched on.
    fresh: u64,
}

impl Choice {
    /// Counts the choice; true when it is the turn of this one to be sampled.
    ///
    /// Turns go by the count of picks in the bucket and not by anything of the flow, so that a key that comes again
    /// and again is sampled as often as its share. The buckets' turns are spread: together they would come at once.
    #[inline(always)]
    fn count(
        &self,
        service: &Service,
        settings: &Settings,
        counters: Option<&BackendCounters>,
        tally: Tally<'_>,
    ) -> bool {
        if let Some(counters) = counters {
            counters.flows.add(1);
            counters.fresh_flows.add(self.fresh);
        }
        let histogram = tally.histogram();
        let bucket = bucket_of(self.slot, service.bucket_scale) as usize;
        histogram.fresh[bucket].add(self.fresh);
        let turn = histogram.picks[bucket].add(1).wrapping_add(37 * bucket as u64);
        turn & settings.sample_mask == 0
    }

    #[inline(always)]
    fn send_sample(&self, packet: &Packet, service: &Service, tables: &impl Tables, tally: Tally<'_>) {
        let sample = Sample {
            hash: self.hash,
            slot: self.slot,
            table_generation: service.table_generation,
            seed_generation: self.seed_generation,
            seed_index: self.seed_index,
            kind: kind::NEW_FLOW,
            ..sample_of(packet, service.id, self.reference, tables)
        };
        send(&sample, tables, tally);
    }
}

/// Hands one packet of a flow, whichever, to the daemon.
#[inline(always)]
pub fn send_packet_sample(packet: &Packet, chosen: &Chosen<'_>, tables: &impl Tables, tally: Tally<'_>) {
    let sample = sample_of(packet, chosen.backend.service, chosen.reference, tables);
    send(&sample, tables, tally);
}

/// What every sample says of its packet.
#[inline(always)]
fn sample_of(packet: &Packet, service: u32, backend: BackendRef, tables: &impl Tables) -> Sample {
    Sample {
        words: packet.tuple.words,
        hash: 0,
        ports: packet.tuple.ports,
        service,
        slot: 0,
        table_generation: 0,
        seed_generation: 0,
        backend,
        seed_index: 0,
        cpu: tables.cpu(),
        protocol: packet.tuple.protocol,
        family: if packet.tuple.v6 { 6 } else { 4 },
        kind: kind::PACKET,
        reserved: 0,
        octets: packet.length,
    }
}

#[inline(always)]
fn send(sample: &Sample, tables: &impl Tables, tally: Tally<'_>) {
    if !tables.sample(sample) {
        tally.event(Event::SampleLost);
    }
}

/// Index of this CPU's counters of a backend.
#[inline(always)]
pub fn counter_index(id: u32, settings: &Settings, tables: &impl Tables) -> u32 {
    tables
        .cpu()
        .wrapping_mul(settings.backend_stride)
        .wrapping_add(id)
}
