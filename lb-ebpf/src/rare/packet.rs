//! The parts of an IP packet to a VIP: fragments, options and extension headers are told apart here, unlike in
//! [`crate::parse`], which gives them up.

use lb_common::{flow_hash::FlowTuple, settings::Settings};

use crate::{
    frame::Frame,
    headers::{IPV4_LENGTH, IPV6_LENGTH, Ipv4, Ipv6, Ipv6Fragment, ethertype, fragment, protocol},
    opaque::opaque,
    parse::{self, MAX_EXTENSION_HEADERS, Packet, is_extension},
    service::{vip_mark_v4, vip_mark_v6},
    tables::Tables,
    verdict::{Drop, Exit, Pass},
};

/// An IP packet to a VIP.
pub(super) struct Parts {
    /// Offset of the IP header.
    pub network: usize,
    /// Offset of what follows IP header, options and extension headers.
    pub transport: usize,
    /// Offset of the packet's end.
    pub end: usize,
    /// Addresses, and the protocol of what is at `transport`; no ports.
    pub tuple: FlowTuple,
    pub traffic_class: u8,
    /// DF, or IPv6.
    pub whole_only: bool,
    /// Neither options nor extension headers.
    pub plain: bool,
    pub fragment: Fragment,
}

/// Which part of a packet a fragment is.
#[derive(Clone, Copy, Default)]
pub(super) struct Fragment {
    /// Offset in units of eight octets, shifted left by three, and in bit 0 whether more follow. 0 is a whole packet, an
    /// atomic fragment (RFC 6946) included.
    pub field: u32,
    /// As loaded from the packet.
    pub identification: u32,
}

impl Fragment {
    /// Octets of the packet before this part.
    pub fn offset(self) -> usize {
        (self.field & !7) as usize
    }

    pub fn more(self) -> bool {
        self.field & 1 != 0
    }
}

impl Parts {
    pub fn is_fragment(&self) -> bool {
        self.fragment.field != 0
    }

    /// Octets from `transport` to the packet's end.
    pub fn length(&self) -> usize {
        self.end - self.transport
    }

    /// The protocol number of ICMP in this family.
    pub fn icmp_number(&self) -> u8 {
        if self.tuple.v6 {
            protocol::ICMPV6
        } else {
            protocol::ICMP
        }
    }

    /// As the stages of a flow know it.
    pub fn packet(&self, ports: u32, tcp_flags: u8) -> Packet {
        Packet {
            network: self.network,
            length: (self.end - self.network) as u32,
            tuple: FlowTuple { ports, ..self.tuple },
            tcp_flags,
            traffic_class: self.traffic_class,
        }
    }
}

/// Reads a frame up to its transport header, or to the part of it that a fragment has. `Err` is the frame's way out.
#[inline(always)]
pub(super) fn read(frame: &impl Frame, settings: &Settings, tables: &impl Tables) -> Result<Parts, Exit> {
    match parse::network_header(frame) {
        Some((ethertype::IPV4, network)) => read_ipv4(frame, settings, tables, network),
        Some((ethertype::IPV6, network)) => read_ipv6(frame, settings, tables, network),
        _ => Err(Exit::Pass(Pass::NotIp)),
    }
}

#[inline(always)]
fn read_ipv4(
    frame: &impl Frame,
    settings: &Settings,
    tables: &impl Tables,
    network: usize,
) -> Result<Parts, Exit> {
    let Some(header) = frame.read::<Ipv4>(network) else {
        return Err(Exit::Pass(Pass::MalformedForeign));
    };
    if tables
        .service(&vip_mark_v4(header.destination), settings)
        .is_none()
    {
        return Err(Exit::Pass(Pass::NotVip));
    }
    let header_length = (header.version_and_length & 0x0f) as usize * 4;
    let length = u16::from_be(header.total_length) as usize;
    if header.version_and_length >> 4 != 4
        || header_length < IPV4_LENGTH
        || length < header_length
        || network + length > frame.length()
    {
        return Err(Exit::Drop(Drop::Malformed));
    }
    let field = u16::from_be(header.fragment);
    Ok(Parts {
        network,
        transport: network + header_length,
        end: network + length,
        tuple: FlowTuple::v4(header.source, header.destination, 0, header.protocol),
        traffic_class: header.tos,
        whole_only: field & fragment::DONT != 0,
        plain: header_length == IPV4_LENGTH,
        fragment: of_ipv4(&header),
    })
}

/// Both families in one form.
#[inline(always)]
pub(super) fn of_ipv4(header: &Ipv4) -> Fragment {
    let field = u16::from_be(header.fragment);
    Fragment {
        field: ((field & fragment::OFFSET) as u32) << 3 | (field & fragment::MORE != 0) as u32,
        identification: header.identification as u32,
    }
}

#[inline(always)]
fn read_ipv6(
    frame: &impl Frame,
    settings: &Settings,
    tables: &impl Tables,
    network: usize,
) -> Result<Parts, Exit> {
    let Some(header) = frame.read::<Ipv6>(network) else {
        return Err(Exit::Pass(Pass::MalformedForeign));
    };
    if tables
        .service(&vip_mark_v6(header.destination), settings)
        .is_none()
    {
        return Err(Exit::Pass(Pass::NotVip));
    }
    let first_word = u32::from_be(header.version_class_label);
    let length = IPV6_LENGTH + u16::from_be(header.payload_length) as usize;
    let end = network + length;
    if first_word >> 28 != 6 || end > frame.length() {
        return Err(Exit::Drop(Drop::Malformed));
    }
    let chain = match walk(frame, header.next_header, network + IPV6_LENGTH, end) {
        Ok(chain) => chain,
        Err(reason) => return Err(Exit::Drop(reason)),
    };
    Ok(Parts {
        network,
        transport: chain.offset,
        end,
        tuple: FlowTuple::v6(header.source, header.destination, 0, chain.protocol),
        traffic_class: (first_word >> 20) as u8,
        whole_only: true,
        plain: chain.offset == network + IPV6_LENGTH,
        fragment: chain.fragment,
    })
}

/// No header begins further into a frame: twice eight extension headers of 2048 octets are shorter. The verifier of Linux
/// 5.10 must be told; it lets a program read the first 65535 octets only (`MAX_PACKET_OFF`).
const REACH: usize = 0xff00;

/// Where a chain of IPv6 headers ends.
pub(super) struct Chain {
    pub protocol: u8,
    pub offset: usize,
    pub fragment: Fragment,
}

/// Walks extension headers up to the transport header or, in a fragment that is not the first, up to its part of the
/// packet. Every header must lie before `end`.
#[inline(always)]
pub(super) fn walk(frame: &impl Frame, first: u8, start: usize, end: usize) -> Result<Chain, Drop> {
    let mut chain = Chain {
        protocol: first,
        offset: start,
        fragment: Fragment::default(),
    };
    let mut fragmented = false;
    // Hidden, or the loop is unrolled.
    let mut left = opaque(MAX_EXTENSION_HEADERS as u64);
    while is_extension(chain.protocol) {
        if left == 0 {
            return Err(Drop::TooManyHeaders);
        }
        left -= 1;
        if chain.offset + 8 > end {
            return Err(Drop::Malformed);
        }
        let Some(header) = frame.read::<Ipv6Fragment>(chain.offset) else {
            return Err(Drop::Malformed);
        };
        let extra = header.reserved as usize;
        chain.offset += match chain.protocol {
            // RFC 4302, section 2.2: in 4-octet units, minus 2.
            protocol::AUTHENTICATION => (extra + 2) * 4,
            protocol::FRAGMENT => {
                if fragmented {
                    return Err(Drop::Malformed);
                }
                fragmented = true;
                chain.fragment = Fragment {
                    // Two bits are reserved and mean nothing (RFC 8200, section 4.5).
                    field: (u16::from_be(header.field) & !6) as u32,
                    identification: header.identification,
                };
                8
            }
            _ => (extra + 1) * 8,
        };
        if chain.offset > end || chain.offset > REACH {
            return Err(Drop::Malformed);
        }
        chain.protocol = header.next_header;
        if chain.fragment.offset() != 0 {
            break;
        }
    }
    Ok(chain)
}
