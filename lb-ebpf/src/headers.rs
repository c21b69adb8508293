//! The headers' layouts and numbers, as they stand in a packet.

use lb_common::pod::Pod;

/// Ethertypes (IEEE 802 numbers), as 16-bit words in packet order.
pub mod ethertype {
    pub const IPV4: u16 = 0x0800u16.to_be();
    pub const IPV6: u16 = 0x86ddu16.to_be();
    pub const ARP: u16 = 0x0806u16.to_be();
    pub const VLAN: u16 = 0x8100u16.to_be();
    pub const SERVICE_VLAN: u16 = 0x88a8u16.to_be();
}

/// IP protocol numbers and IPv6 extension headers (IANA).
pub mod protocol {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IPV4: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const AUTHENTICATION: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// TCP flags (RFC 9293, section 3.1).
pub mod tcp_flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const ACK: u8 = 0x10;
}

pub const ETHERNET_LENGTH: usize = 14;
pub const VLAN_LENGTH: usize = 4;
pub const IPV4_LENGTH: usize = 20;
pub const IPV6_LENGTH: usize = 40;
pub const TCP_LENGTH: usize = 20;
pub const UDP_LENGTH: usize = 8;
/// ICMP and ICMPv6, up to the quote or the echoed data.
pub const ICMP_LENGTH: usize = 8;

/// RFC 791, section 3.1; multi-byte fields in packet order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    pub version_and_length: u8,
    pub tos: u8,
    pub total_length: u16,
    pub identification: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: u16,
    pub source: u32,
    pub destination: u32,
}

/// RFC 8200, section 3; multi-byte fields in packet order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    pub version_class_label: u32,
    pub payload_length: u16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: [u64; 2],
    pub destination: [u64; 2],
}

/// The first 16 octets of a TCP header (RFC 9293, section 3.1).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpStart {
    pub ports: u32,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// Data offset in the high four bits.
    pub data_offset: u8,
    pub flags: u8,
    pub window: u16,
}

/// RFC 768.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    pub ports: u32,
    pub length: u16,
    pub checksum: u16,
}

/// The first eight octets of every ICMP (RFC 792) and ICMPv6 (RFC 4443, section 2.1) message this program knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    pub kind: u8,
    pub code: u8,
    pub checksum: u16,
    pub rest: u32,
}

/// The IPv6 fragment header (RFC 8200, section 4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Fragment {
    pub next_header: u8,
    pub reserved: u8,
    /// Offset in octets, of which the low three bits are not part; bit 0 says that more fragments follow.
    pub field: u16,
    pub identification: u32,
}

/// A VLAN tag behind its ethertype: control information and the next ethertype (IEEE 802.1Q).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    pub control: u16,
    pub ethertype: u16,
}

const _: () = assert!(
    size_of::<Ipv4>() == 20
        && size_of::<Ipv6>() == 40
        && size_of::<TcpStart>() == 16
        && size_of::<Udp>() == 8
        && size_of::<Icmp>() == 8
        && size_of::<Ipv6Fragment>() == 8
        && size_of::<VlanTag>() == 4
);

// SAFETY: `repr(C)` structs of integers; the sizes asserted above leave no padding.
unsafe impl Pod for Ipv4 {}
// SAFETY: as above.
unsafe impl Pod for Ipv6 {}
// SAFETY: as above.
unsafe impl Pod for TcpStart {}
// SAFETY: as above.
unsafe impl Pod for Udp {}
// SAFETY: as above.
unsafe impl Pod for Icmp {}
// SAFETY: as above.
unsafe impl Pod for Ipv6Fragment {}
// SAFETY: as above.
unsafe impl Pod for VlanTag {}

/// ICMP types and codes (RFC 792; RFC 1191 for the last code).
pub mod icmp {
    pub const ECHO_REPLY: u8 = 0;
    pub const UNREACHABLE: u8 = 3;
    pub const ECHO_REQUEST: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
    /// Code of [`UNREACHABLE`]: fragmentation needed and DF set.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}

/// ICMPv6 types (RFC 4443, section 2.1).
pub mod icmpv6 {
    pub const UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO_REQUEST: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
}

/// Bits of [`Ipv4::fragment`], in host order.
pub mod fragment {
    pub const DONT: u16 = 0x4000;
    pub const MORE: u16 = 0x2000;
    pub const OFFSET: u16 = 0x1fff;
}
