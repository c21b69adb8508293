//! Fragments: all go where the first one of their packet went, which alone has ports.
//!
//! Nothing is put together here and nothing waits: a fragment that overtakes the first one of its packet is dropped.
//! What the backend puts together may be crafted, so nothing is forwarded that could lay another transport header over
//! the one that was looked at: a first fragment has the whole of it (RFC 1858; RFC 7112, section 5), and no other
//! fragment begins inside it (RFC 3128).

use lb_common::{
    backend::Backend,
    counters::Event,
    flow::{FlowBucket, FlowEntry, FlowValue, WAYS, candidate_buckets, state},
    flow_hash::FlowTuple,
    ids::BackendRef,
    settings::flag,
};

use super::{Context, Onward, owner::living, packet::Parts};
use crate::{
    datapath, flow,
    frame::Frame,
    headers::{IPV6_LENGTH, UDP_LENGTH, Udp, protocol},
    parse::Transport,
    tables::Tables,
    verdict::{Drop, Exit, Pass, Verdict},
};

/// Seconds for which the fragments of a packet find their way after its first one: as long as Linux waits for them
/// (`net.ipv4.ipfrag_time`).
const LIFETIME: u32 = 30;

/// A TCP header's end at the earliest, in whole units of eight octets.
const TCP_COVERED: usize = 24;

/// Where a fragment is to go, or what became of it.
#[inline(always)]
pub(super) fn onward<'a, T: Tables>(
    frame: &impl Frame,
    parts: &Parts,
    context: &Context<'a, T>,
) -> Result<Onward<'a>, Verdict> {
    if !parts.is_fragment() {
        // The balancer does not mistake one for the other.
        return Err(Verdict::Drop(Drop::Inconsistent));
    }
    let number = parts.tuple.protocol;
    let first = parts.fragment.offset() == 0;
    if number == protocol::ICMP || number == protocol::ICMPV6 {
        // Whoever answers pings puts their fragments together.
        let kernel = context.settings.flags & flag::PING_KERNEL != 0;
        return Err(if kernel {
            Verdict::Pass(Pass::Icmp)
        } else {
            Verdict::Drop(Drop::Fragment)
        });
    }
    // Which extension header a later IPv6 fragment begins in says nothing.
    let unknown = !parts.tuple.v6 || first;
    if unknown && number != protocol::TCP && number != protocol::UDP {
        return Err(Verdict::Drop(Drop::Fragment));
    }
    if !is_sound(parts) {
        return Err(Verdict::Drop(Drop::Malformed));
    }
    let fingerprint = context.settings.table_key.of_fragments(&name(parts));
    if first {
        of_first(frame, parts, fingerprint, context)
    } else {
        of_name(parts, fingerprint, context)
    }
}

/// Whether a packet may have this part (RFC 791, section 3.2; RFC 8200, section 4.5).
#[inline(always)]
fn is_sound(parts: &Parts) -> bool {
    let (offset, length) = (parts.fragment.offset(), parts.length());
    let into_tcp = parts.tuple.protocol == protocol::TCP && offset != 0 && offset < TCP_COVERED;
    let header = if parts.tuple.v6 {
        // The fragment header is not part of the whole.
        IPV6_LENGTH + 8
    } else {
        0
    };
    let whole = parts.end - parts.network - header + offset;
    length != 0 && !(parts.fragment.more() && length & 7 != 0) && whole <= 65_535 && !into_tcp
}

/// What all fragments of a packet have in common: in IPv6 not the protocol (RFC 8200, section 4.5).
#[inline(always)]
fn name(parts: &Parts) -> FlowTuple {
    FlowTuple {
        ports: parts.fragment.identification,
        protocol: if parts.tuple.v6 {
            protocol::FRAGMENT
        } else {
            parts.tuple.protocol
        },
        ..parts.tuple
    }
}

/// Like a whole packet, and remembered.
#[inline(always)]
fn of_first<'a, T: Tables>(
    frame: &impl Frame,
    parts: &Parts,
    fingerprint: u64,
    context: &Context<'a, T>,
) -> Result<Onward<'a>, Verdict> {
    let Context {
        tables,
        tally,
        settings,
        now,
    } = *context;
    let Some((ports, tcp_flags)) = transport(frame, parts) else {
        return Err(Verdict::Drop(Drop::Malformed));
    };
    let packet = parts.packet(ports, tcp_flags);
    let flow = settings.table_key.of_flow(&packet.tuple);
    match datapath::choose(flow, &packet, settings, now, tables, tally) {
        Ok(chosen) => {
            tally.event(store(fingerprint, chosen.reference, context));
            Ok(Onward {
                backend: chosen.backend,
                id: chosen.reference.id(),
                packet,
                fingerprint,
                event: None,
            })
        }
        // The kernel is to get the rest of what it gets the start of.
        Err(Exit::Pass(reason)) => {
            tally.event(store(fingerprint, BackendRef::UNSET, context));
            Err(Verdict::Pass(reason))
        }
        Err(Exit::Drop(reason)) => Err(Verdict::Drop(reason)),
    }
}

/// Ports and TCP flags, if the first fragment has its whole transport header. A UDP datagram may be longer than it.
#[inline(always)]
fn transport(frame: &impl Frame, parts: &Parts) -> Option<(u32, u8)> {
    let length = parts.length();
    if parts.tuple.protocol == protocol::TCP {
        let transport = Transport {
            offset: parts.transport,
            length,
            protocol: protocol::TCP,
        };
        return transport.read_tcp(frame);
    }
    let header = frame.read::<Udp>(parts.transport)?;
    (length >= UDP_LENGTH && u16::from_be(header.length) as usize >= UDP_LENGTH).then_some((header.ports, 0))
}

/// The backend that the fragments of a packet go to.
#[inline(always)]
pub(super) fn remembered<'a, T: Tables>(
    parts: &Parts,
    context: &Context<'a, T>,
) -> Result<&'a Backend, Verdict> {
    let fingerprint = context.settings.table_key.of_fragments(&name(parts));
    Ok(of_name(parts, fingerprint, context)?.backend)
}

#[inline(always)]
fn of_name<'a, T: Tables>(
    parts: &Parts,
    fingerprint: u64,
    context: &Context<'a, T>,
) -> Result<Onward<'a>, Verdict> {
    let unknown = Verdict::Drop(Drop::FragmentUnknown);
    let entry = find(fingerprint, context).ok_or(unknown)?;
    let value = FlowValue::unpack(entry.value.load());
    if flow::age(&value, context.now) > LIFETIME {
        return Err(unknown);
    }
    if value.backend.is_unset() {
        return Err(Verdict::Pass(Pass::NoService));
    }
    let backend = living(value.backend, context.tables).ok_or(unknown)?;
    Ok(Onward {
        backend,
        id: value.backend.id(),
        packet: parts.packet(0, 0),
        fingerprint,
        event: None,
    })
}

/// The two buckets that a packet's fragments may be remembered in.
#[inline(always)]
fn buckets<'a, T: Tables>(fingerprint: u64, context: &Context<'a, T>) -> [Option<&'a FlowBucket>; 2] {
    let mask = context.settings.fragment_mask;
    let (first, second) = candidate_buckets(fingerprint);
    [
        context.tables.fragment_bucket(first & mask),
        context.tables.fragment_bucket(second & mask),
    ]
}

#[inline(always)]
fn find<'a, T: Tables>(fingerprint: u64, context: &Context<'a, T>) -> Option<&'a FlowEntry> {
    let [first, second] = buckets(fingerprint, context);
    first
        .and_then(|bucket| flow::search(bucket, fingerprint))
        .or_else(|| second.and_then(|bucket| flow::search(bucket, fingerprint)))
}

/// Remembers a packet's backend in place of what the same name stood for before, in a free entry, or over the oldest.
#[inline(always)]
fn store<T: Tables>(fingerprint: u64, backend: BackendRef, context: &Context<'_, T>) -> Event {
    // In no state, entries give way by age alone.
    let value = FlowValue {
        backend,
        state: state::UNSET,
        last_seen: context.now,
    };
    if let Some(entry) = find(fingerprint, context) {
        entry.value.store(value.pack());
        return Event::FragmentStored;
    }
    let [Some(first), Some(second)] = buckets(fingerprint, context) else {
        return Event::MapInconsistent;
    };
    for bucket in [first, second] {
        let free = flow::first_free(bucket);
        if free < WAYS {
            flow::put(bucket, free, fingerprint, value);
            return Event::FragmentStored;
        }
    }
    let (one, two) = (
        flow::weakest(first, context.settings, context.now),
        flow::weakest(second, context.settings, context.now),
    );
    let (bucket, victim) = if two.seen() < one.seen() {
        (second, two)
    } else {
        (first, one)
    };
    let expired = context.now.wrapping_sub(victim.seen()) > LIFETIME;
    flow::put(bucket, victim.way(), fingerprint, value);
    if expired {
        Event::FragmentStored
    } else {
        Event::FragmentEvicted
    }
}
