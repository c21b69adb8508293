//! Echo requests to a VIP, answered in place (RFC 792; RFC 4443, section 4.2).

use super::{Context, packet::Parts};
use crate::{
    checksum,
    frame::Frame,
    headers::{Icmp, Ipv4, Ipv6, icmp, icmpv6},
    link,
    tables::Tables,
    verdict::{Answer, Drop, Pass, Verdict},
};
use lb_common::settings::flag;

/// TTL and hop limit of what the datapath sends of its own.
pub(super) const HOPS: u8 = 64;

/// Makes the request its reply. What this program does not answer itself is left to the kernel: options have a meaning
/// in replies (RFC 1122, section 3.2.2.6), and a sender that is not one host gets none.
#[inline(always)]
pub(super) fn answer<T: Tables>(
    frame: &mut impl Frame,
    parts: &Parts,
    request: Icmp,
    context: &Context<'_, T>,
) -> Verdict {
    let settings = context.settings;
    let left = settings.flags & flag::PING_KERNEL != 0 || request.code != 0 || !parts.plain;
    if left || !is_answerable(frame, parts) {
        return Verdict::Pass(Pass::Icmp);
    }
    if !context.tally.may_answer(settings.icmp_rate, context.now) {
        return Verdict::Drop(Drop::IcmpRate);
    }
    match reply(frame, parts, request) {
        Some(()) => Verdict::Answer(Answer::EchoReply),
        None => Verdict::Drop(Drop::Inconsistent),
    }
}

/// Whether an answer would go to one host: RFC 1122, section 3.2.2, and RFC 4443, section 2.4 (e). A VIP does not ask
/// itself either.
#[inline(always)]
pub(super) fn is_answerable(frame: &impl Frame, parts: &Parts) -> bool {
    let [first, second, third, fourth] = parts.tuple.words;
    let one_host = if parts.tuple.v6 {
        let unset_or_loopback = first == 0 && u64::from_be(second) <= 1;
        first as u8 != 0xff && !unset_or_loopback && (first != third || second != fourth)
    } else {
        let network = first as u8;
        network != 0 && network != 127 && network < 224 && first as u32 != (first >> 32) as u32
    };
    one_host && link::is_between_two(frame)
}

#[inline(always)]
fn reply(frame: &mut impl Frame, parts: &Parts, request: Icmp) -> Option<()> {
    // Both ends are in the sums that cover them, whichever is first.
    let kind = if parts.tuple.v6 {
        let header = frame.read::<Ipv6>(parts.network)?;
        let turned = Ipv6 {
            hop_limit: HOPS,
            source: header.destination,
            destination: header.source,
            ..header
        };
        frame.write(parts.network, turned)?;
        icmpv6::ECHO_REPLY
    } else {
        let header = frame.read::<Ipv4>(parts.network)?;
        let hops = |ttl| u16::from_ne_bytes([ttl, header.protocol]);
        let turned = Ipv4 {
            ttl: HOPS,
            checksum: checksum::update(header.checksum, hops(header.ttl), hops(HOPS)),
            source: header.destination,
            destination: header.source,
            ..header
        };
        frame.write(parts.network, turned)?;
        icmp::ECHO_REPLY
    };
    // A wrong checksum stays wrong, so that a request damaged on its way has no good reply.
    let start = |kind| u16::from_ne_bytes([kind, 0]);
    let checksum = match checksum::update(request.checksum, start(request.kind), start(kind)) {
        // A reply may be nothing but zeros, to which only the other representation of zero is right; it always is.
        0 => 0xffff,
        other => other,
    };
    let reply = Icmp {
        kind,
        checksum,
        ..request
    };
    frame.write(parts.transport, reply)?;
    link::turn_round(frame)
}
