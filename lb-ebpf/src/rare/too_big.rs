//! Packets too big for the way to their backend: the sender is told what would fit, so that it finds the path's MTU
//! (RFC 1191; RFC 8201).

use lb_common::backend::Backend;

use super::{
    Context,
    echo::{HOPS, is_answerable},
    fragments,
    owner::owner,
    packet::Parts,
};
use crate::{
    checksum::{self, Sum},
    forward,
    frame::Frame,
    headers::{ICMP_LENGTH, IPV4_LENGTH, IPV6_LENGTH, Icmp, Ipv4, Ipv6, fragment, icmp, icmpv6, protocol},
    link,
    opaque::{anew, opaque},
    tables::Tables,
    verdict::{Answer, Drop, Verdict},
};

/// Octets of a whole answer: IPv4 (RFC 1812, section 4.3.2.3) and IPv6 (RFC 4443, section 2.4 (c)).
const LARGEST_V4: usize = 576;
const LARGEST_V6: usize = 1280;
/// Octets that every link carries: RFC 791, section 3.2, and RFC 8200, section 5. A sender does not go below.
const SMALLEST_MTU_V4: u32 = 68;
const SMALLEST_MTU_V6: u32 = 1280;
/// Octets that are summed up at once.
const BLOCK: usize = 64;
/// TOS of an answer: precedence "internetwork control" (RFC 1812, section 4.3.2.5).
const CONTROL: u8 = 0xc0;

/// Makes the frame an answer to its sender, or drops it: without DF, as a later fragment, from nobody, with a flow that found
/// no room in the table, or when there have been too many answers in this second.
#[inline(always)]
pub(super) fn tell<T: Tables>(frame: &mut impl Frame, parts: &Parts, context: &Context<'_, T>) -> Verdict {
    let Some(backend) = backend_of(frame, parts, context) else {
        return Verdict::Drop(Drop::TooBig);
    };
    let room = forward::room(backend);
    let smallest = if parts.tuple.v6 {
        SMALLEST_MTU_V6
    } else {
        SMALLEST_MTU_V4
    };
    let silent = !parts.whole_only
        || parts.fragment.offset() != 0
        || room < smallest
        // The way has become wider meanwhile.
        || parts.end - parts.network <= room as usize
        || !is_answerable(frame, parts);
    if silent {
        return Verdict::Drop(Drop::TooBig);
    }
    if !context.tally.may_answer(context.settings.icmp_rate, context.now) {
        return Verdict::Drop(Drop::IcmpRate);
    }
    let made = if parts.tuple.v6 {
        answer_v6(frame, parts, room)
    } else {
        answer_v4(frame, parts, room)
    };
    match made {
        Ok(()) => Verdict::Answer(Answer::PacketTooBig),
        Err(reason) => Verdict::Drop(reason),
    }
}

/// The backend that the packet was meant for.
#[inline(always)]
fn backend_of<'a, T: Tables>(
    frame: &impl Frame,
    parts: &Parts,
    context: &Context<'a, T>,
) -> Option<&'a Backend> {
    if parts.is_fragment() {
        return fragments::remembered(parts, context).ok();
    }
    if parts.tuple.protocol != protocol::TCP && parts.tuple.protocol != protocol::UDP {
        return None;
    }
    let packet = parts.packet(frame.read::<u32>(parts.transport)?, 0);
    let fingerprint = context.settings.table_key.of_flow(&packet.tuple);
    Some(owner(fingerprint, context.settings, context.now, context.tables)?.0)
}

#[inline(always)]
fn answer_v4(frame: &mut impl Frame, parts: &Parts, room: u32) -> Result<(), Drop> {
    const HEADERS: usize = IPV4_LENGTH + ICMP_LENGTH;
    let quoted = open(frame, parts, HEADERS, LARGEST_V4)?;
    // RFC 1191, section 4: the MTU is in the lower half of the second word.
    let message = Icmp {
        kind: icmp::UNREACHABLE,
        code: icmp::FRAGMENTATION_NEEDED,
        checksum: 0,
        rest: room.to_be(),
    };
    let ends = parts.tuple.words[0];
    let mut header = Ipv4 {
        version_and_length: 0x45,
        tos: CONTROL,
        total_length: ((HEADERS + quoted) as u16).to_be(),
        // With DF set the identification means nothing (RFC 6864, section 4.1).
        identification: 0,
        fragment: fragment::DONT.to_be(),
        ttl: HOPS,
        protocol: protocol::ICMP,
        checksum: 0,
        source: (ends >> 32) as u32,
        destination: ends as u32,
    };
    header.checksum = checksum::ipv4(&header);
    let written = write(frame, parts, HEADERS, quoted, message, Sum::default());
    written
        .and_then(|()| frame.write(parts.network, header))
        .ok_or(Drop::Inconsistent)
}

#[inline(always)]
fn answer_v6(frame: &mut impl Frame, parts: &Parts, room: u32) -> Result<(), Drop> {
    const HEADERS: usize = IPV6_LENGTH + ICMP_LENGTH;
    let quoted = open(frame, parts, HEADERS, LARGEST_V6)?;
    let message = Icmp {
        kind: icmpv6::PACKET_TOO_BIG,
        code: 0,
        checksum: 0,
        rest: room.to_be(),
    };
    let [a, b, c, d] = parts.tuple.words;
    let payload = (ICMP_LENGTH + quoted) as u16;
    let header = Ipv6 {
        version_class_label: (6u32 << 28).to_be(),
        payload_length: payload.to_be(),
        next_header: protocol::ICMPV6,
        hop_limit: HOPS,
        source: [c, d],
        destination: [a, b],
    };
    // The pseudo-header (RFC 8200, section 8.1).
    let sum = Sum::default()
        .add_long(a)
        .add_long(b)
        .add_long(c)
        .add_long(d)
        .add((payload as u32).to_be())
        .add((protocol::ICMPV6 as u32).to_be());
    let written = write(frame, parts, HEADERS, quoted, message, sum);
    written
        .and_then(|()| frame.write(parts.network, header))
        .ok_or(Drop::Inconsistent)
}

/// Makes room for the answer's headers behind the link header, and cuts what the answer has no room for. Answers how
/// many octets of the packet are left to be quoted: all that fit, in whole words.
#[inline(always)]
fn open(frame: &mut impl Frame, parts: &Parts, headers: usize, largest: usize) -> Result<usize, Drop> {
    let whole = (parts.end - parts.network) & !3;
    let quoted = if whole > largest - headers {
        largest - headers
    } else {
        whole
    };
    frame.move_start(headers as i32).ok_or(Drop::NoHeadroom)?;
    link::move_round(frame, parts.network, headers).ok_or(Drop::Inconsistent)?;
    let end = parts.network + headers + quoted;
    if end < frame.length() {
        frame.cut_to(end).ok_or(Drop::Inconsistent)?;
    }
    Ok(quoted)
}

/// Writes the message in front of the quote, its checksum over both.
#[inline(always)]
fn write(
    frame: &mut impl Frame,
    parts: &Parts,
    headers: usize,
    quoted: usize,
    message: Icmp,
    sum: Sum,
) -> Option<()> {
    let quote = parts.network + headers;
    let mut sum = sum
        .add(u16::from_ne_bytes([message.kind, message.code]) as u32)
        .add(message.rest);
    // Most of it in blocks: the verifier walks every round.
    let mut at = quote;
    let end = quote + quoted;
    // Hidden, or the compiler leaves the count out, and old verifiers do not know where the quote ends.
    let mut left = opaque(((LARGEST_V6 - IPV6_LENGTH - ICMP_LENGTH) / BLOCK) as u64);
    while left != 0 && at + BLOCK <= end {
        left -= 1;
        let words = frame.read::<[u64; BLOCK / 8]>(anew(at as u64) as usize)?;
        for word in words {
            sum = sum.add_long(word);
        }
        at += BLOCK;
    }
    left = opaque((BLOCK / 4 - 1) as u64);
    while left != 0 && at < end {
        left -= 1;
        sum = sum.add(frame.read::<u32>(anew(at as u64) as usize)?);
        at += 4;
    }
    let checksum = sum.fold();
    frame.write(quote - ICMP_LENGTH, Icmp { checksum, ..message })
}
