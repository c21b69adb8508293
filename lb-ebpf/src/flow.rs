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
    flow::{FlowBucket, FlowEntry, FlowValue, TAKEN, WAYS, candidate_buckets, state},
    ids::BackendRef,
    settings::Settings,
};

use crate::{
    opaque::opaque,
    parse::Packet,
    tables::{Tables, Tally},
};

/// Where a flow lies or may come to lie.
pub struct Place<'a> {
    /// The flow's first bucket; `None` when the table is smaller than the settings say.
    first: Option<&'a FlowBucket>,
    /// The flow.
    pub entry: Option<&'a FlowEntry>,
}

/// Looks the fingerprint up; the second bucket is touched only when the first does not have it.
#[inline(always)]
pub fn find<'a>(fingerprint: u64, settings: &Settings, tables: &'a impl Tables) -> Place<'a> {
    let (first, second) = candidate_buckets(fingerprint);
    let first = tables.flow_bucket(first & settings.flow_mask);
    let mut entry = first.and_then(|bucket| search(bucket, fingerprint));
    if entry.is_none() {
        let second = tables.flow_bucket(second & settings.flow_mask);
        entry = second.and_then(|bucket| search(bucket, fingerprint));
    }
    Place { first, entry }
}

/// The entry of a bucket with this fingerprint.
#[inline(always)]
pub(crate) fn search(bucket: &FlowBucket, fingerprint: u64) -> Option<&FlowEntry> {
    // Which way it is cannot be foretold: a branch guessed wrongly would wait for the bucket's memory, and the next packet
    // with it. So a top bit says that all ways up to one differ. Two CPUs may have stored a flow twice; the first counts.
    let differs = |way: usize| (bucket.entries[way].fingerprint.load() ^ fingerprint).wrapping_neg();
    let zero = differs(0);
    let to_one = zero & differs(1);
    let to_two = to_one & differs(2);
    let all = to_two & differs(3);
    if all >> 63 != 0 {
        return None;
    }
    // Hidden, so that the verifier sees the bound.
    let way = opaque((zero >> 63) + (to_one >> 63) + (to_two >> 63));
    Some(&bucket.entries[way as usize % WAYS])
}

/// The state a packet's flow has after this packet, from the state before ([`state::UNSET`] for a new flow).
#[inline(always)]
pub fn next_state(before: u8, packet: &Packet) -> u8 {
    // Opening first: most packets that are stored are. One on a closing flow is a new flow, see `keeps`.
    if packet.is_opening() {
        if before == state::ESTABLISHED {
            state::ESTABLISHED
        } else {
            state::NEW
        }
    } else if packet.is_datagram() {
        state::DATAGRAM
    } else if packet.is_closing() || before == state::CLOSING {
        state::CLOSING
    } else {
        state::ESTABLISHED
    }
}

/// Seconds without a packet after which a flow is gone.
#[inline(always)]
pub(crate) fn timeout(value: &FlowValue, backend: &Backend, settings: &Settings) -> u32 {
    match value.state {
        state::DATAGRAM => backend.udp_idle as u32,
        other => settings.timeouts[(other & 7) as usize],
    }
}

/// Seconds since the flow's last packet; 0 when another CPU saw a packet a moment later.
#[inline(always)]
pub(crate) fn age(value: &FlowValue, now: u32) -> u32 {
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
    if age(value, now) > timeout(value, backend, settings) {
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
    place: Place<'_>,
    fingerprint: u64,
    backend: BackendRef,
    packet: &Packet,
    settings: &Settings,
    now: u32,
    tables: &impl Tables,
) -> Event {
    let (_, second) = candidate_buckets(fingerprint);
    let Some(first) = place.first else {
        return Event::MapInconsistent;
    };
    let value = FlowValue {
        backend,
        state: next_state(state::UNSET, packet),
        last_seen: now,
    };
    // Buckets fill from the front, so the first free way is the load too. Up to PREFERRED flows the first bucket is
    // taken whatever the second holds: a look-up then needs one cache line more often.
    let free_first = first_free(first);
    if free_first < PREFERRED {
        put(first, free_first, fingerprint, value);
        return Event::FlowStored;
    }
    let Some(second) = tables.flow_bucket(second & settings.flow_mask) else {
        return Event::MapInconsistent;
    };
    let free_second = first_free(second);
    if free_first < WAYS && free_first <= free_second {
        put(first, free_first, fingerprint, value);
        return Event::FlowStored;
    }
    if free_second < WAYS {
        put(second, free_second, fingerprint, value);
        return Event::FlowStored;
    }
    displace(first, second, fingerprint, value, settings, now)
}

/// Flows that a first bucket takes without a look at the second. Simulated at 50 % load, flows that find no room and
/// flows in their second bucket: 0 → 0.0015 % and 28 %; 2 → 0.0046 % and 19 %; 3 → 0.038 % and 10 %.
const PREFERRED: usize = 3;

/// The first free way of a bucket, or [`WAYS`].
#[inline(always)]
pub(crate) fn first_free(bucket: &FlowBucket) -> usize {
    // Which way it is cannot be foretold: a branch for each would cost more than the sum.
    let mut taken = TAKEN;
    let mut count = 0;
    for entry in &bucket.entries {
        taken &= entry.fingerprint.load();
        count += taken / TAKEN;
    }
    count as usize
}

#[inline(always)]
pub(crate) fn put(bucket: &FlowBucket, way: usize, fingerprint: u64, value: FlowValue) {
    // Callers know that the way is below WAYS, and the optimiser would leave the remainder out; the verifiers of Linux
    // 5.10 and 6.1 do not follow how they know.
    let entry = &bucket.entries[opaque(way as u64) as usize % WAYS];
    // A reader that meets the old fingerprint with the new value sends one packet of a displaced flow to a living
    // backend; the other order would let it read the displaced flow's backend for the new flow.
    entry.value.store(value.pack());
    entry.fingerprint.store(fingerprint);
}

/// Stores over an entry that gives way: one of the first bucket if it has anything that any flow may push out, else
/// the one of both that gives way most readily.
#[inline(always)]
fn displace(
    first: &FlowBucket,
    second: &FlowBucket,
    fingerprint: u64,
    value: FlowValue,
    settings: &Settings,
    now: u32,
) -> Event {
    let mut victim = weakest(first, settings, now);
    let mut bucket = first;
    if victim.rank() > state::NEW as u64 {
        let other = weakest(second, settings, now);
        if other.0 < victim.0 {
            (victim, bucket) = (other, second);
        }
    }
    // Closing flows are worth no more than new ones.
    if victim.rank() > value.state.max(state::NEW) as u64 {
        return Event::FlowNotStored;
    }
    put(bucket, victim.way(), fingerprint, value);
    match victim.rank() as u8 {
        EXPIRED => Event::EvictedExpired,
        state::CLOSING => Event::EvictedClosing,
        state::NEW => Event::EvictedNew,
        state::DATAGRAM => Event::EvictedDatagram,
        _ => Event::EvictedEstablished,
    }
}

/// Rank of a flow whose time is over, and of an entry in no state: before all states.
const EXPIRED: u8 = state::UNSET;

/// An entry as a number that is the lower the more readily the entry gives way: rank, then last packet, then way.
#[derive(Clone, Copy)]
pub(crate) struct Weakness(u64);

impl Weakness {
    #[inline(always)]
    fn of(bits: u64, way: usize, settings: &Settings, now: u32) -> Self {
        let (flow_state, last_seen) = (bits >> 28 & 7, bits >> 32);
        // Below zero when another CPU saw a packet a moment after `now` was read: then not expired either.
        let idle = (now as u64).wrapping_sub(last_seen);
        let expired = opaque((settings.timeouts[flow_state as usize] as u64).wrapping_sub(idle)) >> 63;
        let rank = flow_state & expired.wrapping_sub(1);
        Self(rank << 34 | last_seen << 2 | way as u64)
    }

    #[inline(always)]
    fn rank(self) -> u64 {
        self.0 >> 34
    }

    /// Second of the last packet.
    #[inline(always)]
    pub fn seen(self) -> u32 {
        (self.0 >> 2) as u32
    }

    #[inline(always)]
    pub fn way(self) -> usize {
        (self.0 & 3) as usize
    }

    /// The weaker of both, without a branch.
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        let other_is_weaker = (opaque(other.0.wrapping_sub(self.0)) as i64 >> 63) as u64;
        Self(self.0 ^ (self.0 ^ other.0) & other_is_weaker)
    }
}

/// The entry of a full bucket that gives way most readily, the longest idle among equals.
#[inline(always)]
pub(crate) fn weakest(bucket: &FlowBucket, settings: &Settings, now: u32) -> Weakness {
    let of = |way: usize| Weakness::of(bucket.entries[way].value.load(), way, settings, now);
    of(0).or(of(1)).or(of(2).or(of(3)))
}
