//! From a packet's description to its bytes, every checksum right unless the description lies.

use std::net::IpAddr;

use super::{Ip, Network, Packet, Transport};
use crate::headers::protocol;

impl Packet {
    /// The whole frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = self.macs.concat();
        for (identifier, control) in &self.tags {
            frame.extend(identifier.to_be_bytes());
            frame.extend(control.to_be_bytes());
        }
        frame.extend(self.own_ethertype().to_be_bytes());
        frame.extend(self.ip_bytes());
        frame.extend((0..self.trailing).map(|index| 0xa0 | (index & 0xf) as u8));
        if let Some(octets) = self.truncate {
            assert!(octets <= frame.len(), "the frame has only {} octets", frame.len());
            frame.truncate(octets);
        }
        frame
    }

    fn own_ethertype(&self) -> u16 {
        match (&self.network, self.ethertype) {
            (_, Some(raw)) => raw,
            (Network::Ip(ip), None) if ip.destination.is_ipv6() => 0x86dd,
            _ => 0x0800,
        }
    }

    /// From the network header to the end of the IP packet.
    pub fn ip_bytes(&self) -> Vec<u8> {
        match &self.network {
            Network::None => self.payload.clone(),
            Network::Ip(ip) => {
                let transport = self.transport_bytes(ip);
                if ip.destination.is_ipv6() {
                    ip.v6(&transport)
                } else {
                    ip.v4(&transport)
                }
            }
        }
    }

    /// What follows IP header and extension headers.
    pub(super) fn transport_octets(&self) -> Vec<u8> {
        match &self.network {
            Network::None => Vec::new(),
            Network::Ip(ip) => self.transport_bytes(ip),
        }
    }

    fn transport_bytes(&self, ip: &Ip) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        let checksum_at = match &self.transport {
            Transport::Raw => return self.payload.clone(),
            Transport::Icmp { kind, code, rest } => return self.icmp_bytes(ip, *kind, *code, *rest),
            Transport::Tcp {
                flags,
                options,
                data_offset,
            } => {
                let words = data_offset.unwrap_or(5 + options.len().div_ceil(4) as u8);
                bytes.extend([0, 0, 0, 1, 0, 0, 0, 2]);
                bytes.extend([words << 4, *flags, 0x20, 0, 0, 0, 0, 0]);
                bytes.extend(options);
                bytes.resize(20 + options.len().next_multiple_of(4), 0);
                16
            }
            Transport::Udp { length } => {
                let length = length.unwrap_or((8 + self.payload.len()) as u16);
                bytes.extend(length.to_be_bytes());
                bytes.extend([0, 0]);
                6
            }
        };
        bytes.extend(&self.payload);
        let number = if checksum_at == 16 {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let sum = match internet_checksum(&[&ip.pseudo_header(number, bytes.len()), &bytes]) {
            // RFC 768: a UDP checksum of zero means none.
            0 if checksum_at == 6 => 0xffff,
            sum => sum,
        };
        bytes[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn icmp_bytes(&self, ip: &Ip, kind: u8, code: u8, rest: [u8; 4]) -> Vec<u8> {
        let mut bytes = vec![kind, code, 0, 0];
        bytes.extend(rest);
        bytes.extend(&self.payload);
        // RFC 792; RFC 4443, section 2.3.
        let pseudo_header = if ip.destination.is_ipv6() {
            ip.pseudo_header(protocol::ICMPV6, bytes.len())
        } else {
            Vec::new()
        };
        let sum = internet_checksum(&[&pseudo_header, &bytes]);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

impl Ip {
    fn v4(&self, transport: &[u8]) -> Vec<u8> {
        let header = 20 + self.options.len();
        let words = self.header_words.unwrap_or((header / 4) as u8);
        let mut bytes = vec![self.version.unwrap_or(4) << 4 | words, self.traffic_class];
        bytes.extend(
            self.length
                .unwrap_or((header + transport.len()) as u16)
                .to_be_bytes(),
        );
        bytes.extend(self.identification.to_be_bytes());
        bytes.extend(self.fragment.to_be_bytes());
        bytes.extend([self.hops, self.protocol, 0, 0]);
        bytes.extend(octets(self.source));
        bytes.extend(octets(self.destination));
        bytes.extend(&self.options);
        let sum = internet_checksum(&[&bytes]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(transport);
        bytes
    }

    fn v6(&self, transport: &[u8]) -> Vec<u8> {
        let kinds = self
            .extensions
            .iter()
            .map(|(kind, _)| *kind)
            .chain([self.protocol]);
        let mut kinds = kinds.collect::<Vec<_>>().into_iter();
        let first = kinds.next().expect("at least the protocol");
        let mut chain = Vec::new();
        for (next, (_, body)) in kinds.zip(&self.extensions) {
            chain.push(next);
            chain.extend(body);
        }
        let word = u32::from(self.version.unwrap_or(6)) << 28
            | u32::from(self.traffic_class) << 20
            | self.flow_label;
        let mut bytes = word.to_be_bytes().to_vec();
        bytes.extend(
            self.length
                .unwrap_or((chain.len() + transport.len()) as u16)
                .to_be_bytes(),
        );
        bytes.extend([first, self.hops]);
        bytes.extend(octets(self.source));
        bytes.extend(octets(self.destination));
        bytes.extend(chain);
        bytes.extend(transport);
        bytes
    }

    /// What TCP and UDP checksums cover besides themselves (RFC 9293, section 3.1; RFC 8200, section 8.1).
    fn pseudo_header(&self, protocol: u8, length: usize) -> Vec<u8> {
        let mut bytes = octets(self.source);
        bytes.extend(octets(self.destination));
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
        bytes
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// RFC 1071, over parts of which all but the last have an even length.
fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
