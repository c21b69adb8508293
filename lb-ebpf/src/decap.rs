//! Takes the outer header off IP-in-IP packets, for backends without a tunnel device.

use lb_common::pod::Pod;

use crate::{
    frame::Frame,
    headers::{
        ETHERNET_LENGTH, IPV4_LENGTH, IPV6_LENGTH, Ipv4, Ipv6, VLAN_LENGTH, ethertype, fragment, protocol,
    },
    parse,
};

/// Octets of a link header with one or two VLAN tags.
const ONE_TAG: usize = ETHERNET_LENGTH + VLAN_LENGTH;
const TWO_TAGS: usize = ETHERNET_LENGTH + 2 * VLAN_LENGTH;

/// Strips one outer header if the frame is an unfragmented IP-in-IP packet, and then says so.
///
/// Anything else, options and extension headers in the outer header included, is left as it is. The outer
/// destination is not compared with anything: attach it only where such packets come from the balancer.
#[inline(always)]
pub fn strip(frame: &mut impl Frame) -> bool {
    try_strip(frame).is_some()
}

#[inline(always)]
fn try_strip(frame: &mut impl Frame) -> Option<()> {
    let (kind, network) = parse::network_header(frame)?;
    let (size, inner) = match kind {
        ethertype::IPV4 => (IPV4_LENGTH, inner_of_ipv4(&frame.read(network)?)?),
        ethertype::IPV6 => (IPV6_LENGTH, inner_kind(frame.read::<Ipv6>(network)?.next_header)?),
        _ => return None,
    };
    // The inner header must be there, or the kernel should see the packet as it came.
    frame.read::<[u8; IPV4_LENGTH]>(network + size)?;
    match network {
        ETHERNET_LENGTH => move_link::<[u8; ETHERNET_LENGTH]>(frame, size)?,
        ONE_TAG => move_link::<[u8; ONE_TAG]>(frame, size)?,
        _ => move_link::<[u8; TWO_TAGS]>(frame, size)?,
    }
    frame.move_start(-(size as i32))?;
    frame.write(network - 2, inner)
}

/// Copies the link header, whose size is `T`'s, over the end of the outer header.
#[inline(always)]
fn move_link<T: Pod>(frame: &mut impl Frame, size: usize) -> Option<()> {
    let link = frame.read::<T>(0)?;
    frame.write(size, link)
}

#[inline(always)]
fn inner_of_ipv4(header: &Ipv4) -> Option<u16> {
    let fragmented = u16::from_be(header.fragment) & (fragment::MORE | fragment::OFFSET) != 0;
    if header.version_and_length != 0x45 || fragmented {
        return None;
    }
    inner_kind(header.protocol)
}

#[inline(always)]
fn inner_kind(next: u8) -> Option<u16> {
    match next {
        protocol::IPV4 => Some(ethertype::IPV4),
        protocol::IPV6 => Some(ethertype::IPV6),
        _ => None,
    }
}
