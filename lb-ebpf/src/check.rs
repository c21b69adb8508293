//! Health checks through the VIP: what becomes of their packets where the kernel sends and receives them.
//!
//! A check's socket is connected to the backend's own address, so that the kernel itself finds route and neighbour. What
//! it sends is addressed to the VIP instead and put into the outer header of the backend's mode, as the datapath would
//! do it; what comes back is from the VIP and is given the backend's address again, so that the socket knows it, and so
//! that the kernel does not take it for a packet that claims to be from this host when it holds the VIP itself.
//!
//! Everything else is left as it is: packets of no check, with VLAN tags in the frame, IP options or extension headers,
//! and fragments, none of which a check has.

use lb_common::{
    backend::mode,
    check::{CheckEntry, CheckKey, address_words},
    flow_hash::FlowTuple,
    pod::Pod,
};

use crate::{
    forward::ipip,
    headers::{ETHERNET_LENGTH, IPV4_LENGTH, IPV6_LENGTH, Ipv4, Ipv6, ethertype, fragment, protocol},
    parse::Packet,
};

/// A packet of the kernel's own, with its link header.
pub trait Buffer {
    /// Copies a `T` from `offset`; `None` when it does not lie wholly in the packet.
    fn read<T: Pod>(&self, offset: usize) -> Option<T>;

    /// Writes a `T` at `offset`; `None`, and no change, when it does not lie wholly in the packet.
    fn write<T: Pod>(&mut self, offset: usize, value: T) -> Option<()>;

    /// Whether it will be cut into packets that fit.
    fn is_segmented(&self) -> bool;

    /// Puts one address in the place of another, and corrects the checksums over it, those that are still open included.
    fn readdress(&mut self, change: &Readdress) -> Option<()>;

    /// Makes room for an outer header of the packet's family behind the link header.
    fn open(&mut self, v6: bool) -> Option<()>;
}

/// One address put in the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readdress {
    pub v6: bool,
    /// Offset of the address.
    pub at: usize,
    /// Laid out like [`CheckKey::address`].
    pub from: [u64; 2],
    pub to: [u64; 2],
    /// Offset of the IPv4 header's checksum; nothing for IPv6.
    pub header_sum: usize,
    /// Offset of the transport header's checksum.
    pub sum: usize,
    /// A checksum of zero then means that there is none (RFC 768).
    pub is_datagram: bool,
}

/// Checks that are under way.
pub trait Checks {
    fn entry(&self, key: &CheckKey) -> Option<&CheckEntry>;
    /// Takes note that a packet of the check was handed over.
    fn handed(&self, key: &CheckKey);
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not of a check, and as it was.
    Untouched,
    Handed,
    /// A check's, and must not go on: it may be half rewritten, or does not fit the way that clients' packets take.
    Lost,
}

/// A packet that this host sends.
#[inline(always)]
pub fn egress(buffer: &mut impl Buffer, checks: &impl Checks) -> Outcome {
    let Some(segment) = parse(buffer) else {
        return Outcome::Untouched;
    };
    let key = segment.key(segment.source, segment.ports[0]);
    let Some(entry) = checks.entry(&key) else {
        return Outcome::Untouched;
    };
    let backend = address_words(&entry.backend.address);
    if !equal(segment.destination, backend) {
        return Outcome::Untouched;
    }
    let destination = segment.network + if segment.v6 { 24 } else { 16 };
    let change = segment.readdress(destination, backend, entry.vip);
    let fits = buffer.is_segmented() || segment.length + outer(entry) <= entry.backend.mtu as u32;
    if !fits || buffer.readdress(&change).is_none() {
        return Outcome::Lost;
    }
    if entry.backend.mode == mode::IPIP && encapsulate(buffer, &segment, entry).is_none() {
        return Outcome::Lost;
    }
    checks.handed(&key);
    Outcome::Handed
}

/// A packet that this host receives.
#[inline(always)]
pub fn ingress(buffer: &mut impl Buffer, checks: &impl Checks) -> Outcome {
    let Some(segment) = parse(buffer) else {
        return Outcome::Untouched;
    };
    let key = segment.key(segment.destination, segment.ports[1]);
    let Some(entry) = checks.entry(&key) else {
        return Outcome::Untouched;
    };
    if !equal(segment.source, entry.vip) {
        return Outcome::Untouched;
    }
    let source = segment.network + if segment.v6 { 8 } else { 12 };
    let change = segment.readdress(source, entry.vip, address_words(&entry.backend.address));
    match buffer.readdress(&change) {
        Some(()) => Outcome::Handed,
        None => Outcome::Lost,
    }
}

/// What of a packet the stages need; addresses are laid out like [`CheckKey::address`].
struct Segment {
    v6: bool,
    network: usize,
    transport: usize,
    protocol: u8,
    source: [u64; 2],
    destination: [u64; 2],
    /// Source and destination, in network byte order.
    ports: [u16; 2],
    /// Octets of the IP packet.
    length: u32,
    traffic_class: u8,
}

#[inline(always)]
fn parse(buffer: &impl Buffer) -> Option<Segment> {
    let network = ETHERNET_LENGTH;
    let mut segment = match buffer.read::<u16>(ETHERNET_LENGTH - 2)? {
        ethertype::IPV4 => of_ipv4(&buffer.read(network)?, network)?,
        ethertype::IPV6 => of_ipv6(&buffer.read(network)?, network),
        _ => return None,
    };
    if segment.protocol != protocol::TCP && segment.protocol != protocol::UDP {
        return None;
    }
    segment.ports = buffer.read(segment.transport)?;
    Some(segment)
}

#[inline(always)]
fn of_ipv4(header: &Ipv4, network: usize) -> Option<Segment> {
    let fragmented = u16::from_be(header.fragment) & (fragment::MORE | fragment::OFFSET) != 0;
    if header.version_and_length != 0x45 || fragmented {
        return None;
    }
    Some(Segment {
        v6: false,
        network,
        transport: network + IPV4_LENGTH,
        protocol: header.protocol,
        source: words_of_ipv4(header.source),
        destination: words_of_ipv4(header.destination),
        ports: [0; 2],
        length: u16::from_be(header.total_length) as u32,
        traffic_class: header.tos,
    })
}

#[inline(always)]
fn of_ipv6(header: &Ipv6, network: usize) -> Segment {
    Segment {
        v6: true,
        network,
        transport: network + IPV6_LENGTH,
        protocol: header.next_header,
        source: header.source,
        destination: header.destination,
        ports: [0; 2],
        length: IPV6_LENGTH as u32 + u16::from_be(header.payload_length) as u32,
        traffic_class: (u32::from_be(header.version_class_label) >> 20) as u8,
    }
}

#[inline(always)]
fn words_of_ipv4(address: u32) -> [u64; 2] {
    let [a, b, c, d] = address.to_ne_bytes();
    [u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0]
}

/// Word by word: a comparison of the arrays would be a call of `memcmp`.
#[inline(always)]
fn equal(one: [u64; 2], other: [u64; 2]) -> bool {
    one[0] == other[0] && one[1] == other[1]
}

impl Segment {
    #[inline(always)]
    fn key(&self, address: [u64; 2], port: u16) -> CheckKey {
        CheckKey {
            address,
            port,
            protocol: self.protocol,
            family: if self.v6 { 6 } else { 4 },
            reserved: 0,
        }
    }

    #[inline(always)]
    fn readdress(&self, at: usize, from: [u64; 2], to: [u64; 2]) -> Readdress {
        let is_datagram = self.protocol == protocol::UDP;
        Readdress {
            v6: self.v6,
            at,
            from,
            to,
            header_sum: self.network + 10,
            sum: self.transport + if is_datagram { 6 } else { 16 },
            is_datagram,
        }
    }
}

/// Octets that the backend's mode puts in front.
#[inline(always)]
fn outer(entry: &CheckEntry) -> u32 {
    match entry.backend.mode {
        mode::IPIP if entry.backend.family == 6 => IPV6_LENGTH as u32,
        mode::IPIP => IPV4_LENGTH as u32,
        _ => 0,
    }
}

/// The datapath's own outer header. A check's packets are of the backend's family, and so is the header.
#[inline(always)]
fn encapsulate(buffer: &mut impl Buffer, segment: &Segment, entry: &CheckEntry) -> Option<()> {
    let packet = Packet {
        network: segment.network,
        length: segment.length,
        tuple: FlowTuple::v6(segment.source, entry.vip, 0, segment.protocol),
        tcp_flags: 0,
        traffic_class: segment.traffic_class,
    };
    buffer.open(segment.v6)?;
    if segment.v6 {
        // The flow label is of the fingerprint's upper bits: each check may take another of equal paths.
        let fingerprint = (segment.ports[0] as u64) << 40;
        let header = ipip::outer_ipv6(&packet, protocol::IPV6, fingerprint, &entry.backend);
        buffer.write(segment.network, header)
    } else {
        buffer.write(
            segment.network,
            ipip::outer_ipv4(&packet, protocol::IPV4, &entry.backend),
        )
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
