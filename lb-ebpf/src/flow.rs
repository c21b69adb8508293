//! The flow table: a set-associative cache of which backend a flow has.
//!
//! A flow may live in two buckets of four entries. States and what moves between them (anything else stays put):
//!
//! ```text
//!              SYN                non-SYN               FIN, RST
//!   (none) ──────────► new ──────────────► established ──────────► closing ── 10 s ──► (expired)
//!     │                 └──────────────── FIN, RST ───────────────────▲ │
//!     ├── non-SYN ───────────────────────► established                │ └─ SYN: a new flow
//!     ├── FIN, RST ───────────────────────────────────────────────────┘
//!     └── UDP ───► datagram
//! ```

use lb_common::{
    backend::Backend,
    counters::Event,
    flow::{FlowBucket, FlowEntry, FlowValue, WAYS, candidate_buckets, state},
    ids::BackendRef,
    settings::Settings,
};

use crate::{
    opaque::{is_less, is_zero, opaque, select},
    parse::Packet,
    tables::{Tables, Tally},
};

/// Looks the fingerprint up; the second bucket is touched only when the first does not have it.
#[inline(always)]
pub fn find<'a>(fingerprint: u64, settings: &Settings, tables: &'a impl Tables) -> Option<&'a FlowEntry> {
    let (first, second) = candidate_buckets(fingerprint);
    if let Some(found) = search(tables.flow_bucket(first & settings.flow_mask)?, fingerprint) {
        return Some(found);
    }
    search(tables.flow_bucket(second & settings.flow_mask)?, fingerprint)
}

#[inline(always)]
fn search(bucket: &FlowBucket, fingerprint: u64) -> Option<&FlowEntry> {
    bucket
        .entries
        .iter()
        .find(|entry| entry.fingerprint.load() == fingerprint)
}

/// The state a packet's flow has after this packet, from the state before ([`state::UNSET`] for a new flow).
#[inline(always)]
pub fn next_state(before: u8, packet: &Packet) -> u8 {
    if packet.is_datagram() {
        state::DATAGRAM
    } else if packet.is_closing() || before == state::CLOSING {
        state::CLOSING
    } else if packet.is_opening() {
        if before == state::ESTABLISHED {
            state::ESTABLISHED
        } else {
            state::NEW
        }
    } else {
        state::ESTABLISHED
    }
}

/// Seconds since the flow's last packet; 0 when another CPU saw a packet a moment later.
#[inline(always)]
fn age(value: &FlowValue, now: u32) -> u32 {
    let age = now.wrapping_sub(value.last_seen);
    if age > u32::MAX / 2 { 0 } else { age }
}

/// The backend of a live flow, or `None` when the packet must be picked anew.
///
/// A SYN on a live flow is a retransmission and keeps the backend, unless the flow is closing or its backend takes
/// no new flows.
#[inline(always)]
pub fn keeps<'a, T: Tables>(
    value: &FlowValue,
    packet: &Packet,
    settings: &Settings,
    now: u32,
    tables: &'a T,
    tally: Tally<'_>,
) -> Option<&'a Backend> {
    let backend = tables.backend(value.backend.id())?;
    if !backend.is_named_by(value.backend) || !backend.keeps_flows() {
        tally.event(Event::FlowRepicked);
        return None;
    }
    let timeout = match value.state {
        state::DATAGRAM => backend.udp_idle as u32,
        other => settings.timeouts[(other & 7) as usize],
    };
    if age(value, now) > timeout {
        return None;
    }
    if packet.is_opening()
        && (value.state == state::CLOSING || backend.state != lb_common::backend::state::SERVING)
    {
        return None;
    }
    Some(backend)
}

/// Notes that the flow was seen; writes only when something changed, so that a hot line stays shared.
#[inline(always)]
pub fn refresh(entry: &FlowEntry, before: FlowValue, packet: &Packet, now: u32) {
    let after = FlowValue {
        state: next_state(before.state, packet),
        last_seen: now,
        ..before
    };
    if after != before {
        entry.value.store(after.pack());
    }
}

/// Takes a flow that may not stay where it is out of the table; its packet is about to be picked anew.
#[inline(always)]
pub fn forget(entry: &FlowEntry) {
    entry.fingerprint.store(0);
}

/// Puts a picked flow into the emptier of its two buckets, or over an entry that has to give way.
///
/// A new flow (SYN) or a datagram flow never displaces an established one, so a flood of either cannot: the flow is
/// then not stored, and its next packet picks the same slot again. Returns what happened.
#[inline(always)]
pub fn store(
    fingerprint: u64,
    backend: BackendRef,
    packet: &Packet,
    settings: &Settings,
    now: u32,
    tables: &impl Tables,
) -> Event {
    // Looked up again: pointers kept through the pick would double the states that the verifier walks there.
    let (first, second) = candidate_buckets(fingerprint);
    let first = tables.flow_bucket(first & settings.flow_mask);
    let second = tables.flow_bucket(second & settings.flow_mask);
    let (Some(first), Some(second)) = (first, second) else {
        return Event::MapInconsistent;
    };
    let value = FlowValue {
        backend,
        state: next_state(state::UNSET, packet),
        last_seen: now,
    };
    let (free_first, free_second) = (free_entries(first), free_entries(second));
    if free_first + free_second > 0 {
        let bucket = if free_first >= free_second { first } else { second };
        put(&bucket.entries[first_free(bucket)], fingerprint, value);
        Event::FlowStored
    } else {
        displace([first, second], fingerprint, value, settings, now)
    }
}

#[inline(always)]
fn free_entries(bucket: &FlowBucket) -> u64 {
    let free = |way: usize| is_zero(bucket.entries[way].fingerprint.load());
    free(0) + free(1) + free(2) + free(3)
}

/// The lowest free way of a bucket that has one.
#[inline(always)]
fn first_free(bucket: &FlowBucket) -> usize {
    let taken = |way: usize| is_zero(bucket.entries[way].fingerprint.load()) ^ 1;
    let (a, b, c) = (taken(0), taken(0) & taken(1), taken(0) & taken(1) & taken(2));
    (opaque(a + b + c) & 3) as usize
}

#[inline(always)]
fn put(entry: &FlowEntry, fingerprint: u64, value: FlowValue) {
    // A reader that meets the old fingerprint with the new value sends one packet of a displaced flow to a living
    // backend; the other order would let it read the displaced flow's backend for the new flow.
    entry.value.store(value.pack());
    entry.fingerprint.store(fingerprint);
}

/// How readily an entry gives way, a hexadecimal digit a state (unset, new, established, closing, datagram); lower
/// goes first and [`EXPIRED`] before all.
const RANKS: u64 = 0x4_2_5_3_0;
const EXPIRED: u64 = 1;
const RANK_NEW: u64 = 3;

/// Stores over the entry that gives way most readily, the longest idle among equals.
#[inline(always)]
fn displace(
    buckets: [&FlowBucket; 2],
    fingerprint: u64,
    value: FlowValue,
    settings: &Settings,
    now: u32,
) -> Event {
    let mut lowest = u64::MAX >> 1;
    for way in 0..2 * WAYS {
        let bucket = if way < WAYS { buckets[0] } else { buckets[1] };
        let key = eviction_key(bucket.entries[way % WAYS].value.load(), settings, now) << 3 | way as u64;
        lowest = select(is_less(key, lowest), key, lowest);
    }
    let (way, rank) = ((lowest & 7) as usize, lowest >> 35);
    let limit = match value.state {
        state::NEW | state::CLOSING => RANK_NEW,
        own => rank_of(own as u64),
    };
    if rank > limit {
        return Event::FlowNotStored;
    }
    let bucket = if way < WAYS { buckets[0] } else { buckets[1] };
    put(&bucket.entries[way % WAYS], fingerprint, value);
    match rank {
        0 => Event::FlowStored,
        EXPIRED => Event::EvictedExpired,
        2 => Event::EvictedClosing,
        RANK_NEW => Event::EvictedNew,
        4 => Event::EvictedDatagram,
        _ => Event::EvictedEstablished,
    }
}

#[inline(always)]
fn rank_of(flow_state: u64) -> u64 {
    RANKS >> (flow_state * 4) & 0xf
}

/// Rank in bits 32 up, then what is left of the longest possible idle time: the lowest gives way.
#[inline(always)]
fn eviction_key(bits: u64, settings: &Settings, now: u32) -> u64 {
    let flow_state = bits >> 28 & 7;
    // Signed: another CPU may have seen a packet a moment after `now` was read.
    let idle = (now as u64).wrapping_sub(bits >> 32);
    let idle = select(opaque(idle) >> 63, 0, idle);
    let expired = is_less(settings.timeouts[flow_state as usize] as u64, idle);
    let rank = select(expired, EXPIRED, rank_of(flow_state));
    rank << 32 | (u32::MAX as u64 - idle)
}
