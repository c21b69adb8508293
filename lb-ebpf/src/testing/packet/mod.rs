//! Packets by named calls: correct by default, and as wrong as a test wants them.

mod bytes;
mod fields;
mod lies;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use lb_common::{fingerprint::FingerprintKey, flow_hash::FlowTuple};

use crate::headers::{protocol, tcp_flag};

/// MAC address of the balancer's interface, where packets arrive.
pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// MAC address of the router that packets come from.
pub const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

/// A frame to be; [`bytes`](Self::bytes) makes it.
#[derive(Clone, Debug)]
pub struct Packet {
    macs: [[u8; 6]; 2],
    /// VLAN tags, outermost first: protocol identifier and control information.
    tags: Vec<(u16, u16)>,
    ethertype: Option<u16>,
    network: Network,
    transport: Transport,
    ports: [u16; 2],
    payload: Vec<u8>,
    trailing: usize,
    truncate: Option<usize>,
}

#[derive(Clone, Debug)]
enum Network {
    /// Not IP: what follows the ethertype is the payload.
    None,
    Ip(Ip),
}

#[derive(Clone, Debug)]
struct Ip {
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    hops: u8,
    identification: u16,
    /// Flags and offset (IPv4).
    fragment: u16,
    flow_label: u32,
    options: Vec<u8>,
    /// Kind and all octets after the "next header" one.
    extensions: Vec<(u8, Vec<u8>)>,
    protocol: u8,
    version: Option<u8>,
    header_words: Option<u8>,
    length: Option<u16>,
}

#[derive(Clone, Debug)]
enum Transport {
    /// The payload follows the network header.
    Raw,
    Tcp {
        flags: u8,
        options: Vec<u8>,
        data_offset: Option<u8>,
    },
    Udp {
        length: Option<u16>,
    },
    /// Type, code and the four octets behind the checksum; ICMPv6 where the addresses are IPv6.
    Icmp {
        kind: u8,
        code: u8,
        rest: [u8; 4],
    },
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

impl Packet {
    pub fn tcp_v4() -> Self {
        Self::tcp("192.0.2.1", "198.51.100.10")
    }

    pub fn tcp_v6() -> Self {
        Self::tcp("2001:db8:c::1", "2001:db8:1::10")
    }

    pub fn udp_v4() -> Self {
        Self::udp("192.0.2.1", "198.51.100.10")
    }

    pub fn udp_v6() -> Self {
        Self::udp("2001:db8:c::1", "2001:db8:1::10")
    }

    /// A packet of another protocol than TCP and UDP; [`payload`](Self::payload) follows the IP header.
    pub fn ip_v4(protocol: u8) -> Self {
        Self::ip("192.0.2.1", "198.51.100.10", protocol, Transport::Raw)
    }

    pub fn ip_v6(protocol: u8) -> Self {
        Self::ip("2001:db8:c::1", "2001:db8:1::10", protocol, Transport::Raw)
    }

    /// An ICMP message; [`payload`](Self::payload) is what follows its first eight octets.
    pub fn icmp_v4(kind: u8, code: u8, rest: [u8; 4]) -> Self {
        let transport = Transport::Icmp { kind, code, rest };
        Self::ip("192.0.2.1", "198.51.100.10", protocol::ICMP, transport)
    }

    pub fn icmp_v6(kind: u8, code: u8, rest: [u8; 4]) -> Self {
        let transport = Transport::Icmp { kind, code, rest };
        Self::ip("2001:db8:c::1", "2001:db8:1::10", protocol::ICMPV6, transport)
    }

    /// What the packet's receiver sends back: addresses, ports and MAC addresses the other way round.
    pub fn back(mut self) -> Self {
        self.macs.swap(0, 1);
        self.ports.swap(0, 1);
        let ip = self.ip_mut();
        std::mem::swap(&mut ip.source, &mut ip.destination);
        self
    }

    /// A frame that is not IP.
    pub fn ethernet(ethertype: u16, payload: &[u8]) -> Self {
        let mut packet = Self::ip_v4(0).payload(payload).raw_ethertype(ethertype);
        packet.network = Network::None;
        packet
    }

    /// An outer header around [`carrying`](Self::carrying), as RFC 2003 or RFC 2473 wants it.
    pub fn tunnel(source: IpAddr, destination: IpAddr) -> Self {
        let mut packet = Self::ip_v4(0).identification(0).dont_fragment();
        let ip = packet.ip_mut();
        (ip.source, ip.destination) = (source, destination);
        if destination.is_ipv6() {
            ip.fragment = 0;
        }
        packet
    }

    fn tcp(source: &str, destination: &str) -> Self {
        let transport = Transport::Tcp {
            flags: tcp_flag::ACK,
            options: Vec::new(),
            data_offset: None,
        };
        Self::ip(source, destination, protocol::TCP, transport)
    }

    fn udp(source: &str, destination: &str) -> Self {
        Self::ip(
            source,
            destination,
            protocol::UDP,
            Transport::Udp { length: None },
        )
    }

    fn ip(source: &str, destination: &str, protocol: u8, transport: Transport) -> Self {
        Self {
            macs: [HOST_MAC, ROUTER_MAC],
            tags: Vec::new(),
            ethertype: None,
            network: Network::Ip(Ip {
                source: address(source),
                destination: address(destination),
                traffic_class: 0,
                hops: 64,
                identification: 0x1234,
                fragment: 0,
                flow_label: 0,
                options: Vec::new(),
                extensions: Vec::new(),
                protocol,
                version: None,
                header_words: None,
                length: None,
            }),
            transport,
            ports: [40000, 80],
            payload: Vec::new(),
            trailing: 0,
            truncate: None,
        }
    }

    fn ip_mut(&mut self) -> &mut Ip {
        match &mut self.network {
            Network::Ip(ip) => ip,
            Network::None => panic!("the frame is not IP"),
        }
    }

    pub fn from(mut self, source: &str, port: u16) -> Self {
        self.ip_mut().source = address(source);
        self.ports[0] = port;
        self
    }

    pub fn to(mut self, destination: &str, port: u16) -> Self {
        self.ip_mut().destination = address(destination);
        self.ports[1] = port;
        self
    }

    pub fn from_port(mut self, port: u16) -> Self {
        self.ports[0] = port;
        self
    }

    /// Destination and source MAC addresses.
    pub fn macs(mut self, destination: [u8; 6], source: [u8; 6]) -> Self {
        self.macs = [destination, source];
        self
    }

    /// Puts another packet's IP packet inside this one's.
    pub fn carrying(mut self, inner: &Self) -> Self {
        let v6 = inner.destination().is_ipv6();
        self.ip_mut().protocol = if v6 { protocol::IPV6 } else { protocol::IPV4 };
        self.payload = inner.ip_bytes();
        self.trailing = inner.trailing;
        self
    }

    /// Octets after the end of the IP packet, as Ethernet pads short frames.
    pub fn trailing(mut self, octets: usize) -> Self {
        self.trailing = octets;
        self
    }

    /// Cuts the frame after so many octets.
    pub fn truncate_to(mut self, octets: usize) -> Self {
        self.truncate = Some(octets);
        self
    }

    pub fn destination(&self) -> IpAddr {
        match &self.network {
            Network::Ip(ip) => ip.destination,
            Network::None => panic!("the frame is not IP"),
        }
    }

    pub fn source(&self) -> IpAddr {
        match &self.network {
            Network::Ip(ip) => ip.source,
            Network::None => panic!("the frame is not IP"),
        }
    }

    pub fn source_port(&self) -> u16 {
        self.ports[0]
    }

    /// The 5-tuple; `None` when the frame is not IP.
    pub fn tuple(&self) -> Option<FlowTuple> {
        let Network::Ip(ip) = &self.network else {
            return None;
        };
        let [from, to] = self.ports.map(u16::to_be_bytes);
        let ports = u32::from_ne_bytes([from[0], from[1], to[0], to[1]]);
        match (ip.source, ip.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let [source, destination] = [source, destination].map(|ip| u32::from_ne_bytes(ip.octets()));
                Some(FlowTuple::v4(source, destination, ports, ip.protocol))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let [source, destination] = [source, destination].map(|ip| words(ip.octets()));
                Some(FlowTuple::v6(source, destination, ports, ip.protocol))
            }
            _ => None,
        }
    }

    /// What all fragments of the packet are called in a table with this key.
    pub fn fragments_fingerprint(&self, key: &FingerprintKey) -> Option<u64> {
        let Network::Ip(ip) = &self.network else {
            return None;
        };
        let [high, low] = ip.identification.to_be_bytes();
        let (identification, protocol) = if ip.source.is_ipv6() {
            // As `fragment` has it.
            ([1, 2, 3, 4], protocol::FRAGMENT)
        } else {
            ([high, low, 0, 0], ip.protocol)
        };
        Some(key.of_fragments(&FlowTuple {
            ports: u32::from_ne_bytes(identification),
            protocol,
            ..self.tuple()?
        }))
    }

    /// What the flow is called in a table with this key.
    pub fn fingerprint(&self, key: &FingerprintKey) -> Option<u64> {
        Some(key.of_flow(&self.tuple()?))
    }
}

fn words(octets: [u8; 16]) -> [u64; 2] {
    let (first, second) = octets.split_at(8);
    [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("half of 16")))
}
