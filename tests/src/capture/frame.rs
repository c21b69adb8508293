//! Checks a frame as strictly as a receiver might: every length, every checksum, outer and inner.

use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};
use etherparse::{IpNumber, IpSlice};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// A frame that passed inspection.
#[derive(Clone, Debug)]
pub struct Seen {
    pub destination_mac: [u8; 6],
    pub source_mac: [u8; 6],
    /// TCI of each tag, outermost first.
    pub vlan_tags: Vec<u16>,
    /// Outermost first: one, or two when tunnelled. Empty for anything but IP.
    pub packets: Vec<Packet>,
}

/// One IP header and what it carries.
#[derive(Clone, Debug)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    /// ToS or traffic class.
    pub traffic_class: u8,
    /// IPv6 counts as "do not fragment".
    pub dont_fragment: bool,
    /// The upper protocol, after extension headers.
    pub protocol: u8,
    pub transport: Option<Transport>,
    /// Octets, by the IP header.
    pub length: usize,
}

/// Ports of TCP or UDP, and TCP's flag octet.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    pub source: u16,
    pub destination: u16,
    pub tcp_flags: Option<u8>,
}

impl Seen {
    /// The packet as the client sent it.
    pub fn inner(&self) -> Option<&Packet> {
        self.packets.last()
    }

    /// The tunnel's header, if there is one.
    pub fn outer(&self) -> Option<&Packet> {
        (self.packets.len() > 1).then(|| &self.packets[0])
    }
}

/// Parses the frame and verifies lengths and checksums on the way down.
pub fn inspect(frame: &[u8]) -> Result<Seen> {
    ensure!(frame.len() >= 14, "{} octets are no Ethernet frame", frame.len());
    let mut at = 12;
    let mut kind = word(frame, at)?;
    let mut vlan_tags = Vec::new();
    while kind == 0x8100 || kind == 0x88a8 {
        vlan_tags.push(word(frame, at + 2)?);
        at += 4;
        kind = word(frame, at)?;
    }
    let mut seen = Seen {
        destination_mac: frame[0..6].try_into()?,
        source_mac: frame[6..12].try_into()?,
        vlan_tags,
        packets: Vec::new(),
    };
    if kind == 0x0800 || kind == 0x86dd {
        descend(&frame[at + 2..], &mut seen.packets)?;
        // Ethernet pads to 60 octets; nothing else may follow the packet.
        let end = at + 2 + seen.packets[0].length;
        ensure!(
            end == frame.len() || frame.len() <= 60,
            "{} octets after the end of the IP packet",
            frame.len() - end
        );
    }
    Ok(seen)
}

fn descend(bytes: &[u8], packets: &mut Vec<Packet>) -> Result<()> {
    ensure!(packets.len() < 2, "more than one tunnel header");
    let slice = IpSlice::from_slice(bytes).context("IP header")?;
    let payload = slice.payload();
    let (packet, total) = match &slice {
        IpSlice::Ipv4(v4) => {
            let header = v4.header();
            ensure!(sum(&[header.slice()]) == 0xffff, "wrong IPv4 header checksum");
            let facts = Packet {
                source: header.source_addr().into(),
                destination: header.destination_addr().into(),
                ttl: header.ttl(),
                traffic_class: bytes[1],
                dont_fragment: header.dont_fragment(),
                protocol: payload.ip_number.0,
                transport: None,
                length: usize::from(header.total_len()),
            };
            (facts, header.total_len())
        }
        IpSlice::Ipv6(v6) => {
            let header = v6.header();
            let facts = Packet {
                source: header.source_addr().into(),
                destination: header.destination_addr().into(),
                ttl: header.hop_limit(),
                traffic_class: header.traffic_class(),
                dont_fragment: true,
                protocol: payload.ip_number.0,
                transport: None,
                length: usize::from(header.payload_length()) + 40,
            };
            (facts, header.payload_length())
        }
    };
    ensure!(total != 0, "an IP length of 0");
    let fragmented = payload.fragmented;
    packets.push(packet);
    match payload.ip_number {
        IpNumber::IPV4 | IpNumber::IPV6 => descend(payload.payload, packets),
        _ if fragmented => Ok(()),
        _ => {
            let last = packets.len() - 1;
            packets[last].transport = transport(&packets[last], payload.payload)?;
            Ok(())
        }
    }
}

/// Verifies the checksum above IP and reads the ports.
fn transport(packet: &Packet, bytes: &[u8]) -> Result<Option<Transport>> {
    let pseudo = pseudo_header(packet, bytes.len());
    let over_pseudo = sum(&[&pseudo, bytes]) == 0xffff;
    match packet.protocol {
        TCP => {
            ensure!(bytes.len() >= 20, "{} octets are no TCP header", bytes.len());
            ensure!(over_pseudo, "wrong TCP checksum");
        }
        UDP => {
            ensure!(bytes.len() >= 8, "{} octets are no UDP header", bytes.len());
            let length = usize::from(word(bytes, 4)?);
            ensure!(
                length == bytes.len(),
                "UDP length {length} in {} octets",
                bytes.len()
            );
            let without = packet.source.is_ipv4() && word(bytes, 6)? == 0;
            ensure!(without || over_pseudo, "wrong UDP checksum");
        }
        ICMP => ensure!(sum(&[bytes]) == 0xffff, "wrong ICMP checksum"),
        ICMP6 => ensure!(over_pseudo, "wrong ICMPv6 checksum"),
        _ => return Ok(None),
    }
    if packet.protocol == ICMP || packet.protocol == ICMP6 {
        return Ok(None);
    }
    Ok(Some(Transport {
        source: word(bytes, 0)?,
        destination: word(bytes, 2)?,
        tcp_flags: (packet.protocol == TCP).then(|| bytes[13]),
    }))
}

fn pseudo_header(packet: &Packet, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40);
    for address in [packet.source, packet.destination] {
        match address {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend([0, 0, 0, packet.protocol]);
    bytes
}

/// The ones' complement sum of RFC 1071, not inverted: 0xffff over data with a right checksum. All parts but the last
/// have even length.
pub fn sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            total += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn word(bytes: &[u8], at: usize) -> Result<u16> {
    match bytes.get(at..at + 2) {
        Some(pair) => Ok(u16::from_be_bytes([pair[0], pair[1]])),
        None => bail!("cut off at octet {}", bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn frame() -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9)
            .tcp(1000, 80, 7, 100);
        let mut frame = Vec::new();
        builder
            .write(&mut frame, b"some payload, odd")
            .expect("a vector takes all");
        frame
    }

    #[test]
    fn a_right_frame_passes_and_its_facts_are_read() {
        let seen = inspect(&frame()).expect("a right frame");
        let packet = seen.inner().expect("one packet");
        assert_eq!((packet.ttl, packet.protocol), (9, TCP));
        assert_eq!(packet.transport.expect("ports").destination, 80);
        assert!(seen.outer().is_none());
    }

    #[test]
    fn every_flipped_bit_after_the_mac_addresses_is_noticed() {
        for bit in 14 * 8..frame().len() * 8 {
            let mut frame = frame();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(inspect(&frame).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn trailing_octets_are_noticed() {
        let mut frame = frame();
        frame.extend([0; 3]);
        assert!(inspect(&frame).is_err());
    }
}
