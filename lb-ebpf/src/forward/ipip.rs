//! IP in IP: 4in4 (RFC 2003), 6in4 (RFC 4213), 4in6 and 6in6 (RFC 2473), whichever the backend's address asks.

use lb_common::backend::Backend;

use crate::{
    checksum,
    forward::write_macs,
    frame::Frame,
    headers::{ETHERNET_LENGTH, IPV4_LENGTH, IPV6_LENGTH, Ipv4, Ipv6, ethertype, fragment, protocol},
    link,
    parse::Packet,
    verdict::Drop,
};

/// Hop limit of outer headers.
const TTL: u8 = 64;

#[inline(always)]
pub(super) fn encapsulate(
    frame: &mut impl Frame,
    packet: &Packet,
    fingerprint: u64,
    backend: &Backend,
) -> Result<(), Drop> {
    let inner = if packet.tuple.v6 {
        protocol::IPV6
    } else {
        protocol::IPV4
    };
    if backend.family == 6 {
        open(frame, packet, backend, IPV6_LENGTH, ethertype::IPV6)?;
        frame
            .write(packet.network, outer_ipv6(packet, inner, fingerprint, backend))
            .ok_or(Drop::Inconsistent)
    } else {
        open(frame, packet, backend, IPV4_LENGTH, ethertype::IPV4)?;
        frame
            .write(packet.network, outer_ipv4(packet, inner, backend))
            .ok_or(Drop::Inconsistent)
    }
}

/// Makes room for an outer header behind the link header, whose tags are kept.
#[inline(always)]
fn open(
    frame: &mut impl Frame,
    packet: &Packet,
    backend: &Backend,
    size: usize,
    kind: u16,
) -> Result<(), Drop> {
    if packet.length + size as u32 > backend.mtu as u32 {
        return Err(Drop::TooBig);
    }
    frame.move_start(size as i32).ok_or(Drop::NoHeadroom)?;
    if packet.network > ETHERNET_LENGTH {
        link::move_tags(frame, packet.network, size).ok_or(Drop::Inconsistent)?;
    }
    frame.write(packet.network - 2, kind).ok_or(Drop::Inconsistent)?;
    write_macs(frame, backend).ok_or(Drop::Inconsistent)
}

#[inline(always)]
pub(crate) fn outer_ipv4(packet: &Packet, inner: u8, backend: &Backend) -> Ipv4 {
    let mut header = Ipv4 {
        version_and_length: 0x45,
        tos: packet.traffic_class,
        total_length: ((packet.length as u16).wrapping_add(IPV4_LENGTH as u16)).to_be(),
        // With DF set the identification means nothing (RFC 6864, section 4.1).
        identification: 0,
        fragment: fragment::DONT.to_be(),
        ttl: TTL,
        protocol: inner,
        checksum: 0,
        source: first_word(&backend.outer_source),
        destination: first_word(&backend.address),
    };
    header.checksum = checksum::ipv4(&header);
    header
}

#[inline(always)]
pub(crate) fn outer_ipv6(packet: &Packet, inner: u8, fingerprint: u64, backend: &Backend) -> Ipv6 {
    // A flow label spreads flows over equal paths (RFC 6438).
    let label = (fingerprint >> 40) as u32 & 0xf_ffff;
    Ipv6 {
        version_class_label: (6 << 28 | (packet.traffic_class as u32) << 20 | label).to_be(),
        payload_length: (packet.length as u16).to_be(),
        next_header: inner,
        hop_limit: TTL,
        source: words_of(&backend.outer_source),
        destination: words_of(&backend.address),
    }
}

#[inline(always)]
fn first_word(bytes: &[u8; 16]) -> u32 {
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[inline(always)]
fn words_of(bytes: &[u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
    [
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
    ]
}
