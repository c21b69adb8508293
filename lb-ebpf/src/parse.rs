//! From bytes to a flow: Ethernet, up to two VLAN tags, IPv4 or IPv6, TCP or UDP.
//!
//! Lengths come from the IP header, never from the end of the buffer. Nothing is dropped here unless its
//! destination is a VIP: everything else is left to the kernel.

use lb_common::{flow_hash::FlowTuple, service::ServiceKey, vip_filter};

use crate::{
    frame::Frame,
    headers::{
        ETHERNET_LENGTH, IPV4_LENGTH, IPV6_LENGTH, Ipv4, Ipv6, TCP_LENGTH, TcpStart, UDP_LENGTH, Udp,
        VLAN_LENGTH, VlanTag, ethertype, fragment, protocol, tcp_flag,
    },
    service::{vip_mark_v4, vip_mark_v6},
    tables::{Tables, configured},
    verdict::{Drop, Exit, Pass},
};

/// A TCP or UDP packet to an address that may be a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Offset of the IP header.
    pub network: usize,
    /// Octets of the IP packet, from its header to its end.
    pub length: u32,
    pub tuple: FlowTuple,
    /// TCP flags; 0 for UDP.
    pub tcp_flags: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
}

impl Packet {
    #[inline(always)]
    pub fn is_datagram(&self) -> bool {
        self.tuple.protocol == protocol::UDP
    }

    /// Opens a connection: SYN without ACK, FIN and RST.
    #[inline(always)]
    pub fn is_opening(&self) -> bool {
        let flags = tcp_flag::SYN | tcp_flag::ACK | tcp_flag::FIN | tcp_flag::RST;
        self.tcp_flags & flags == tcp_flag::SYN
    }

    /// Closes a connection from the client's side.
    #[inline(always)]
    pub fn is_closing(&self) -> bool {
        self.tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0
    }
}

/// IPv6 extension headers that are walked before the packet is given up.
pub const MAX_EXTENSION_HEADERS: usize = 8;

/// Reads a frame up to its transport header. `Err` is the frame's way out.
#[inline(always)]
pub fn parse(frame: &impl Frame, tables: &impl Tables) -> Result<Packet, Exit> {
    let Some((kind, network)) = network_header(frame) else {
        return Err(Exit::Pass(Pass::NotIp));
    };
    match kind {
        ethertype::IPV4 => parse_ipv4(frame, tables, network),
        ethertype::IPV6 => parse_ipv6(frame, tables, network),
        ethertype::ARP => Err(Exit::Pass(Pass::Arp)),
        _ => Err(Exit::Pass(Pass::NotIp)),
    }
}

#[inline(always)]
fn is_vlan(kind: u16) -> bool {
    kind == ethertype::VLAN || kind == ethertype::SERVICE_VLAN
}

/// The ethertype behind at most two VLAN tags, and where the network header starts.
#[inline(always)]
pub fn network_header(frame: &impl Frame) -> Option<(u16, usize)> {
    let kind = frame.read::<u16>(ETHERNET_LENGTH - 2)?;
    if !is_vlan(kind) {
        return Some((kind, ETHERNET_LENGTH));
    }
    let outer = frame.read::<VlanTag>(ETHERNET_LENGTH)?;
    if !is_vlan(outer.ethertype) {
        return Some((outer.ethertype, ETHERNET_LENGTH + VLAN_LENGTH));
    }
    let inner = frame.read::<VlanTag>(ETHERNET_LENGTH + VLAN_LENGTH)?;
    Some((inner.ethertype, ETHERNET_LENGTH + 2 * VLAN_LENGTH))
}

#[inline(always)]
fn parse_ipv4(frame: &impl Frame, tables: &impl Tables, network: usize) -> Result<Packet, Exit> {
    let Some(header) = frame.read::<Ipv4>(network) else {
        return Err(Exit::Pass(Pass::MalformedForeign));
    };
    if !tables.vip_bit(vip_filter::bit_v4(header.destination)) {
        return Err(Exit::Pass(Pass::NotVip));
    }
    let refuse = |drop| refuse(tables, &vip_mark_v4(header.destination), drop);
    let header_length = (header.version_and_length & 0x0f) as usize * 4;
    let length = u16::from_be(header.total_length) as usize;
    if header.version_and_length >> 4 != 4
        || header_length < IPV4_LENGTH
        || length < header_length
        || network + length > frame.length()
    {
        return Err(refuse(Drop::Malformed));
    }
    if u16::from_be(header.fragment) & (fragment::MORE | fragment::OFFSET) != 0 {
        return Err(refuse(Drop::Fragment));
    }
    let transport = Transport {
        offset: network + header_length,
        length: length - header_length,
        protocol: header.protocol,
    };
    let (ports, tcp_flags) = match transport.read(frame) {
        Ok(read) => read,
        Err(Unread::Malformed) => return Err(refuse(Drop::Malformed)),
        Err(Unread::Other(reason)) => return Err(leave(tables, &vip_mark_v4(header.destination), reason)),
    };
    Ok(Packet {
        network,
        length: length as u32,
        tuple: FlowTuple::v4(header.source, header.destination, ports, header.protocol),
        tcp_flags,
        traffic_class: header.tos,
    })
}

#[inline(always)]
fn parse_ipv6(frame: &impl Frame, tables: &impl Tables, network: usize) -> Result<Packet, Exit> {
    let Some(header) = frame.read::<Ipv6>(network) else {
        return Err(Exit::Pass(Pass::MalformedForeign));
    };
    if !tables.vip_bit(vip_filter::bit_v6(header.destination)) {
        return Err(Exit::Pass(pass_ipv6(frame, &header, network)));
    }
    let refuse = |drop| refuse(tables, &vip_mark_v6(header.destination), drop);
    let first_word = u32::from_be(header.version_class_label);
    let length = IPV6_LENGTH + u16::from_be(header.payload_length) as usize;
    if first_word >> 28 != 6 || network + length > frame.length() {
        return Err(refuse(Drop::Malformed));
    }
    let end = network + length;
    let mut transport = Transport {
        offset: network + IPV6_LENGTH,
        length: length - IPV6_LENGTH,
        protocol: header.next_header,
    };
    if is_extension(transport.protocol) {
        transport = match skip_extensions(frame, transport, end) {
            Ok(transport) => transport,
            Err(reason) => return Err(refuse(reason)),
        };
    }
    let (ports, tcp_flags) = match transport.read(frame) {
        Ok(read) => read,
        Err(Unread::Malformed) => return Err(refuse(Drop::Malformed)),
        Err(Unread::Other(reason)) => return Err(leave(tables, &vip_mark_v6(header.destination), reason)),
    };
    Ok(Packet {
        network,
        length: length as u32,
        tuple: FlowTuple::v6(header.source, header.destination, ports, transport.protocol),
        tcp_flags,
        traffic_class: (first_word >> 20) as u8,
    })
}

/// Tells neighbour discovery (RFC 4861) and the like from other traffic that is not for a VIP.
#[inline(always)]
fn pass_ipv6(frame: &impl Frame, header: &Ipv6, network: usize) -> Pass {
    if header.next_header != protocol::ICMPV6 {
        return Pass::NotVip;
    }
    match frame.read::<u8>(network + IPV6_LENGTH) {
        // Multicast listener (130–132, 143), router, neighbour and redirect messages (133–137).
        Some(130..=137 | 143) => Pass::NeighbourDiscovery,
        _ => Pass::NotVip,
    }
}

/// Where the transport header is and how much of it the IP header promises.
#[derive(Clone, Copy)]
pub(crate) struct Transport {
    pub offset: usize,
    pub length: usize,
    pub protocol: u8,
}

/// Why there is no TCP or UDP header to read.
enum Unread {
    Malformed,
    Other(Pass),
}

impl Transport {
    /// The ports and, for TCP, the flags.
    #[inline(always)]
    fn read(self, frame: &impl Frame) -> Result<(u32, u8), Unread> {
        match self.protocol {
            protocol::TCP => self.read_tcp(frame).ok_or(Unread::Malformed),
            protocol::UDP => {
                if self.length < UDP_LENGTH {
                    return Err(Unread::Malformed);
                }
                let header = frame.read::<Udp>(self.offset).ok_or(Unread::Malformed)?;
                let datagram = u16::from_be(header.length) as usize;
                if datagram < UDP_LENGTH || datagram > self.length {
                    return Err(Unread::Malformed);
                }
                Ok((header.ports, 0))
            }
            protocol::ICMP | protocol::ICMPV6 => Err(Unread::Other(Pass::Icmp)),
            _ => Err(Unread::Other(Pass::OtherProtocol)),
        }
    }

    /// Ports and flags of a TCP header that is there as a whole.
    #[inline(always)]
    pub fn read_tcp(self, frame: &impl Frame) -> Option<(u32, u8)> {
        if self.length < TCP_LENGTH {
            return None;
        }
        let header = frame.read::<TcpStart>(self.offset)?;
        let header_length = (header.data_offset >> 4) as usize * 4;
        if header_length < TCP_LENGTH || header_length > self.length {
            return None;
        }
        Some((header.ports, header.flags))
    }
}

/// Headers that are walked. An unknown next header is not: it could be a transport of its own (RFC 7045, section 2.1).
#[inline(always)]
pub(crate) fn is_extension(next_header: u8) -> bool {
    matches!(
        next_header,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION_OPTIONS
    )
}

/// Walks extension headers to the transport header; every one must lie before `end`, the packet's own end.
#[inline(always)]
fn skip_extensions(frame: &impl Frame, mut transport: Transport, end: usize) -> Result<Transport, Drop> {
    for _ in 0..MAX_EXTENSION_HEADERS {
        if transport.offset + 8 > end {
            return Err(Drop::Malformed);
        }
        let Some([next_header, extra]) = frame.read::<[u8; 2]>(transport.offset) else {
            return Err(Drop::Malformed);
        };
        let size = match transport.protocol {
            // RFC 4302, section 2.2: in 4-octet units, minus 2.
            protocol::AUTHENTICATION => (extra as usize + 2) * 4,
            protocol::FRAGMENT => {
                let Some(field) = frame.read::<u16>(transport.offset + 2) else {
                    return Err(Drop::Malformed);
                };
                // An atomic fragment (RFC 6946) has neither offset nor successor and is a whole packet.
                if u16::from_be(field) & !0x0006 != 0 {
                    return Err(Drop::Fragment);
                }
                8
            }
            _ => (extra as usize + 1) * 8,
        };
        transport = Transport {
            offset: transport.offset + size,
            length: transport.length.wrapping_sub(size),
            protocol: next_header,
        };
        if transport.offset > end {
            return Err(Drop::Malformed);
        }
        if !is_extension(next_header) {
            return Ok(transport);
        }
    }
    Err(Drop::TooManyHeaders)
}

/// Drops what is addressed to a VIP; the filter may have been wrong, and then the kernel decides. Nothing is dropped
/// before the maps are whole.
#[inline(always)]
fn refuse(tables: &impl Tables, vip_mark: &ServiceKey, reason: Drop) -> Exit {
    let Some(settings) = configured(tables) else {
        return Exit::Pass(Pass::NotConfigured);
    };
    match tables.service(vip_mark, settings) {
        Some(_) => Exit::Drop(reason),
        None if matches!(reason, Drop::Malformed) => Exit::Pass(Pass::MalformedForeign),
        None => Exit::Pass(Pass::NotVip),
    }
}

/// Passes what services do not handle, with the reason if the address is a VIP.
#[inline(always)]
fn leave(tables: &impl Tables, vip_mark: &ServiceKey, reason: Pass) -> Exit {
    let Some(settings) = configured(tables) else {
        return Exit::Pass(Pass::NotConfigured);
    };
    match tables.service(vip_mark, settings) {
        Some(_) => Exit::Pass(reason),
        None => Exit::Pass(Pass::NotVip),
    }
}
