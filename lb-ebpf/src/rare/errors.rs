//! ICMP errors about packets that a VIP sent: to the backend that the quoted packet's flow has, since it sent them.

use lb_common::{counters::Event, flow_hash::FlowTuple};

use super::{
    Context, Onward, echo,
    owner::owner,
    packet::{Parts, of_ipv4, walk},
};
use crate::{
    frame::Frame,
    headers::{ICMP_LENGTH, IPV4_LENGTH, IPV6_LENGTH, Icmp, Ipv4, Ipv6, icmp, icmpv6, protocol},
    parse::Packet,
    service,
    tables::Tables,
    verdict::{Drop, Pass, Verdict},
};

/// Octets of its payload that every quote has (RFC 792); the ports are among them.
const QUOTED: usize = 8;

/// Where an ICMP message to a VIP is to go: with the flow that its quote is of; or what became of it.
#[inline(always)]
pub(super) fn onward<'a, T: Tables>(
    frame: &mut impl Frame,
    parts: &Parts,
    context: &Context<'a, T>,
) -> Result<Onward<'a>, Verdict> {
    if parts.tuple.protocol != parts.icmp_number() || parts.is_fragment() {
        // Each family's ICMP in the other one is none.
        return Err(Verdict::Pass(Pass::Icmp));
    }
    let Context { tables, settings, .. } = *context;
    let packet = quoted(frame, parts, context)?;
    let fingerprint = settings.table_key.of_flow(&packet.tuple);
    match owner(fingerprint, settings, context.now, tables) {
        Some((backend, id)) => Ok(Onward {
            backend,
            id,
            packet,
            fingerprint,
            event: Some(Event::IcmpErrorForwarded),
        }),
        // What no service has, the kernel has sent.
        None if service::find(&packet, settings, tables).is_none() => Err(Verdict::Pass(Pass::Icmp)),
        None => Err(Verdict::Drop(Drop::IcmpNoFlow)),
    }
}

/// The message as a packet of the flow that it is about; or what became of it.
#[inline(always)]
fn quoted<T: Tables>(
    frame: &mut impl Frame,
    parts: &Parts,
    context: &Context<'_, T>,
) -> Result<Packet, Verdict> {
    if parts.length() < ICMP_LENGTH {
        return Err(Verdict::Drop(Drop::Malformed));
    }
    let Some(message) = frame.read::<Icmp>(parts.transport) else {
        return Err(Verdict::Drop(Drop::Malformed));
    };
    let tuple = match (parts.tuple.v6, message.kind) {
        (false, icmp::ECHO_REQUEST) | (true, icmpv6::ECHO_REQUEST) => {
            return Err(echo::answer(frame, parts, message, context));
        }
        (false, icmp::UNREACHABLE | icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM) => {
            quoted_ipv4(frame, parts)?
        }
        (
            true,
            icmpv6::UNREACHABLE | icmpv6::PACKET_TOO_BIG | icmpv6::TIME_EXCEEDED | icmpv6::PARAMETER_PROBLEM,
        ) => quoted_ipv6(frame, parts)?,
        _ => return Err(Verdict::Pass(Pass::Icmp)),
    };
    Ok(Packet {
        tuple,
        ..parts.packet(0, 0)
    })
}

/// The flow that a packet of the VIP belongs to, as its client's packets name it.
#[inline(always)]
fn quoted_ipv4(frame: &impl Frame, parts: &Parts) -> Result<FlowTuple, Verdict> {
    let malformed = Verdict::Drop(Drop::Malformed);
    let start = parts.transport + ICMP_LENGTH;
    if start + IPV4_LENGTH > parts.end {
        return Err(malformed);
    }
    let header = frame.read::<Ipv4>(start).ok_or(malformed)?;
    let header_length = (header.version_and_length & 0x0f) as usize * 4;
    if header.version_and_length >> 4 != 4
        || header_length < IPV4_LENGTH
        || start + header_length + QUOTED > parts.end
    {
        return Err(malformed);
    }
    let vip = (parts.tuple.words[0] >> 32) as u32;
    if header.source != vip || of_ipv4(&header).offset() != 0 {
        return Err(Verdict::Drop(Drop::IcmpNoFlow));
    }
    if !has_ports(header.protocol) {
        return Err(Verdict::Pass(Pass::Icmp));
    }
    let ports = frame.read::<u32>(start + header_length).ok_or(malformed)?;
    Ok(FlowTuple::v4(
        header.destination,
        vip,
        ports.rotate_left(16),
        header.protocol,
    ))
}

/// The same of IPv6. A quote ends where the message would be longer than 1280 octets, which may be inside any header.
#[inline(always)]
fn quoted_ipv6(frame: &impl Frame, parts: &Parts) -> Result<FlowTuple, Verdict> {
    let malformed = Verdict::Drop(Drop::Malformed);
    let no_flow = Verdict::Drop(Drop::IcmpNoFlow);
    let start = parts.transport + ICMP_LENGTH;
    if start + IPV6_LENGTH + QUOTED > parts.end {
        return Err(malformed);
    }
    let header = frame.read::<Ipv6>(start).ok_or(malformed)?;
    if u32::from_be(header.version_class_label) >> 28 != 6 {
        return Err(malformed);
    }
    let vip = [parts.tuple.words[2], parts.tuple.words[3]];
    if header.source[0] != vip[0] || header.source[1] != vip[1] {
        return Err(no_flow);
    }
    let Ok(chain) = walk(frame, header.next_header, start + IPV6_LENGTH, parts.end) else {
        return Err(no_flow);
    };
    if chain.fragment.offset() != 0 {
        return Err(no_flow);
    }
    if !has_ports(chain.protocol) {
        return Err(Verdict::Pass(Pass::Icmp));
    }
    if chain.offset + size_of::<u32>() > parts.end {
        return Err(no_flow);
    }
    let ports = frame.read::<u32>(chain.offset).ok_or(malformed)?;
    Ok(FlowTuple::v6(
        header.destination,
        vip,
        ports.rotate_left(16),
        chain.protocol,
    ))
}

#[inline(always)]
fn has_ports(number: u8) -> bool {
    number == protocol::TCP || number == protocol::UDP
}
