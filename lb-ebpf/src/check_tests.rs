//! Packets of checks, built and read again by a library that is not ours.

use std::{cell::Cell, collections::BTreeMap, net::IpAddr};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use lb_common::backend::Backend;

use super::*;
use crate::checksum::fold;

const LOCAL: [&str; 2] = ["10.0.0.1", "2001:db8::1"];
const BACKEND: [&str; 2] = ["10.0.0.2", "2001:db8::2"];
const VIP: [&str; 2] = ["192.0.2.10", "2001:db8:ff::10"];
const PORT: u16 = 40_000;
const SERVICE: u16 = 443;

/// A packet with all its checksums, and so much room as there is memory.
struct Octets {
    bytes: Vec<u8>,
    segmented: bool,
}

impl Buffer for Octets {
    fn read<T: Pod>(&self, offset: usize) -> Option<T> {
        let bytes = self.bytes.get(offset..offset + size_of::<T>())?;
        // SAFETY: there are as many octets, and any of them make a plain-data value.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    fn write<T: Pod>(&mut self, offset: usize, value: T) -> Option<()> {
        let bytes = self.bytes.get_mut(offset..offset + size_of::<T>())?;
        // SAFETY: there is room for a `T`.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
        Some(())
    }

    fn is_segmented(&self) -> bool {
        self.segmented
    }

    fn readdress(&mut self, change: &Readdress) -> Option<()> {
        if change.v6 {
            assert_eq!(self.read(change.at), Some(change.from));
            self.write(change.at, change.to)?;
        } else {
            assert_eq!(self.read(change.at), Some(change.from[0] as u32));
            self.write(change.at, change.to[0] as u32)?;
            self.correct(change.header_sum, change)?;
        }
        let without = change.is_datagram && self.read(change.sum) == Some(0u16);
        if without {
            Some(())
        } else {
            self.correct(change.sum, change)
        }
    }

    fn open(&mut self, v6: bool) -> Option<()> {
        let size = if v6 { IPV6_LENGTH } else { IPV4_LENGTH };
        self.bytes.splice(ETHERNET_LENGTH..ETHERNET_LENGTH, vec![0; size]);
        Some(())
    }
}

impl Octets {
    /// RFC 1624, section 3, equation 3.
    fn correct(&mut self, at: usize, change: &Readdress) -> Option<()> {
        let halves = |words: [u64; 2]| -> u32 {
            let bytes = words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<_>>();
            let pairs = bytes.chunks_exact(2);
            pairs
                .map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair[1]])))
                .sum()
        };
        let from = u32::from(fold(halves(change.from)));
        let sum: u16 = self.read(at)?;
        self.write(at, fold(u32::from(!sum) + from + halves(change.to)))
    }
}

/// The checks that are under way.
#[derive(Default)]
struct Known {
    entries: BTreeMap<CheckKey, CheckEntry>,
    handed: Cell<u32>,
}

impl Checks for Known {
    fn entry(&self, key: &CheckKey) -> Option<&CheckEntry> {
        self.entries.get(key)
    }

    fn handed(&self, key: &CheckKey) {
        assert!(self.entries.contains_key(key));
        self.handed.set(self.handed.get() + 1);
    }
}

fn octets(address: &str) -> [u8; 16] {
    let mut octets = [0; 16];
    match address.parse().unwrap() {
        IpAddr::V4(v4) => octets[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => octets = v6.octets(),
    }
    octets
}

fn known(v6: bool, protocol: u8, mode: u8) -> Known {
    let at = usize::from(v6);
    let family = if v6 { 6 } else { 4 };
    let key = CheckKey {
        address: address_words(&octets(LOCAL[at])),
        port: PORT.to_be(),
        protocol,
        family,
        reserved: 0,
    };
    let entry = CheckEntry {
        backend: Backend {
            address: octets(BACKEND[at]),
            outer_source: octets(LOCAL[at]),
            mode,
            family,
            mtu: 1500,
            ..Backend::default()
        },
        vip: address_words(&octets(VIP[at])),
        ..CheckEntry::default()
    };
    Known {
        entries: [(key, entry)].into(),
        ..Known::default()
    }
}

/// From one address and port to another.
fn packet(protocol: u8, from: (&str, u16), to: (&str, u16), payload: &[u8]) -> Octets {
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = match (from.0.parse().unwrap(), to.0.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from.octets(), to.octets(), 61),
        (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from.octets(), to.octets(), 61),
        _ => panic!("of two families"),
    };
    let mut bytes = Vec::new();
    match protocol {
        protocol::TCP => ip.tcp(from.1, to.1, 7, 1024).syn().write(&mut bytes, payload),
        _ => ip.udp(from.1, to.1).write(&mut bytes, payload),
    }
    .unwrap();
    Octets {
        bytes,
        segmented: false,
    }
}

/// What a TCP or UDP packet says, once its checksums are found right.
fn read(bytes: &[u8]) -> (String, String, u16, u16) {
    let sliced = SlicedPacket::from_ethernet(bytes).unwrap();
    let (from, to): (IpAddr, IpAddr) = match sliced.net.unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!(
                header.to_header().calc_header_checksum(),
                header.header_checksum()
            );
            (header.source_addr().into(), header.destination_addr().into())
        }
        etherparse::NetSlice::Ipv6(ip) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        etherparse::NetSlice::Arp(_) => panic!("ARP"),
    };
    let sums = |v4: &dyn Fn([u8; 4], [u8; 4]) -> u16, v6: &dyn Fn([u8; 16], [u8; 16]) -> u16| match (from, to)
    {
        (IpAddr::V4(from), IpAddr::V4(to)) => v4(from.octets(), to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => v6(from.octets(), to.octets()),
        _ => panic!("of two families"),
    };
    let (source, destination, told, right) = match sliced.transport.unwrap() {
        TransportSlice::Tcp(tcp) => {
            let (header, payload) = (tcp.to_header(), tcp.payload());
            let right = sums(
                &|from, to| header.calc_checksum_ipv4_raw(from, to, payload).unwrap(),
                &|from, to| header.calc_checksum_ipv6_raw(from, to, payload).unwrap(),
            );
            (tcp.source_port(), tcp.destination_port(), tcp.checksum(), right)
        }
        TransportSlice::Udp(udp) => {
            let (header, payload) = (udp.to_header(), udp.payload());
            let right = sums(
                &|from, to| header.calc_checksum_ipv4_raw(from, to, payload).unwrap(),
                &|from, to| header.calc_checksum_ipv6_raw(from, to, payload).unwrap(),
            );
            (udp.source_port(), udp.destination_port(), udp.checksum(), right)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(told, right, "checksum");
    (from.to_string(), to.to_string(), source, destination)
}

fn each(mut body: impl FnMut(bool, u8)) {
    for v6 in [false, true] {
        for protocol in [protocol::TCP, protocol::UDP] {
            body(v6, protocol);
        }
    }
}

#[test]
fn dsr_changes_the_destination_and_nothing_else() {
    each(|v6, protocol| {
        let at = usize::from(v6);
        let checks = known(v6, protocol, mode::DSR);
        let mut out = packet(protocol, (LOCAL[at], PORT), (BACKEND[at], SERVICE), b"ask");
        assert_eq!(egress(&mut out, &checks), Outcome::Handed);
        assert_eq!(
            read(&out.bytes),
            (LOCAL[at].into(), VIP[at].into(), PORT, SERVICE)
        );
        let direct = packet(protocol, (LOCAL[at], PORT), (VIP[at], SERVICE), b"ask");
        assert_eq!(out.bytes, direct.bytes);
        assert_eq!(checks.handed.get(), 1);
    });
}

#[test]
fn ipip_puts_the_outer_header_of_the_datapath_in_front() {
    each(|v6, protocol| {
        let at = usize::from(v6);
        let checks = known(v6, protocol, mode::IPIP);
        let mut out = packet(protocol, (LOCAL[at], PORT), (BACKEND[at], SERVICE), b"ask");
        assert_eq!(egress(&mut out, &checks), Outcome::Handed);
        let direct = packet(protocol, (LOCAL[at], PORT), (VIP[at], SERVICE), b"ask");
        let size = if v6 { 40 } else { 20 };
        assert_eq!(out.bytes[..14], direct.bytes[..14]);
        assert_eq!(out.bytes[14 + size..], direct.bytes[14..]);
        let inner = (direct.bytes.len() - 14) as u16;
        if v6 {
            let outer: Ipv6 = out.read(14).unwrap();
            assert_eq!(
                (outer.next_header, u16::from_be(outer.payload_length)),
                (41, inner)
            );
            assert_eq!(outer.source, address_words(&octets(LOCAL[at])));
            assert_eq!(outer.destination, address_words(&octets(BACKEND[at])));
        } else {
            let outer: Ipv4 = out.read(14).unwrap();
            assert_eq!(
                (outer.protocol, u16::from_be(outer.total_length)),
                (4, inner + 20)
            );
            assert_eq!(outer.source.to_ne_bytes(), octets(LOCAL[at])[..4]);
            assert_eq!(outer.destination.to_ne_bytes(), octets(BACKEND[at])[..4]);
            assert_eq!(
                crate::checksum::ipv4(&Ipv4 { checksum: 0, ..outer }),
                outer.checksum
            );
        }
    });
}

#[test]
fn an_answer_of_the_vip_is_the_backends() {
    each(|v6, protocol| {
        let at = usize::from(v6);
        let checks = known(v6, protocol, mode::IPIP);
        let mut answer = packet(protocol, (VIP[at], SERVICE), (LOCAL[at], PORT), b"answer");
        assert_eq!(ingress(&mut answer, &checks), Outcome::Handed);
        let own = packet(protocol, (BACKEND[at], SERVICE), (LOCAL[at], PORT), b"answer");
        assert_eq!(answer.bytes, own.bytes);
        assert_eq!(
            checks.handed.get(),
            0,
            "an answer proves nothing of the way there"
        );
    });
}

#[test]
fn packets_of_others_stay_as_they_are() {
    each(|v6, protocol| {
        let at = usize::from(v6);
        let other = ["10.0.0.3", "2001:db8::3"][at];
        let checks = known(v6, protocol, mode::DSR);
        let twin = if protocol == protocol::TCP {
            protocol::UDP
        } else {
            protocol::TCP
        };
        let out = [
            packet(protocol, (LOCAL[at], PORT + 1), (BACKEND[at], SERVICE), b""),
            packet(protocol, (other, PORT), (BACKEND[at], SERVICE), b""),
            packet(protocol, (LOCAL[at], PORT), (other, SERVICE), b""),
            packet(protocol, (LOCAL[at], PORT), (VIP[at], SERVICE), b""),
            packet(twin, (LOCAL[at], PORT), (BACKEND[at], SERVICE), b""),
        ];
        for mut packet in out {
            let before = packet.bytes.clone();
            assert_eq!(egress(&mut packet, &checks), Outcome::Untouched);
            assert_eq!(packet.bytes, before);
        }
        let come = [
            packet(protocol, (VIP[at], SERVICE), (LOCAL[at], PORT + 1), b""),
            packet(protocol, (VIP[at], SERVICE), (other, PORT), b""),
            packet(protocol, (other, SERVICE), (LOCAL[at], PORT), b""),
            packet(protocol, (BACKEND[at], SERVICE), (LOCAL[at], PORT), b""),
            packet(twin, (VIP[at], SERVICE), (LOCAL[at], PORT), b""),
        ];
        for mut packet in come {
            let before = packet.bytes.clone();
            assert_eq!(ingress(&mut packet, &checks), Outcome::Untouched);
            assert_eq!(packet.bytes, before);
        }
        assert_eq!(checks.handed.get(), 0);
    });
}

#[test]
fn what_clients_could_not_send_is_lost_here_too() {
    each(|v6, protocol| {
        let at = usize::from(v6);
        let (headers, outer) = if v6 { (40, 40) } else { (20, 20) };
        let transport = if protocol == protocol::TCP { 20 } else { 8 };
        for (mode, outer) in [(mode::DSR, 0), (mode::IPIP, outer)] {
            let most = 1500 - headers - transport - outer;
            let checks = known(v6, protocol, mode);
            for (payload, segmented, outcome) in [
                (most, false, Outcome::Handed),
                (most + 1, false, Outcome::Lost),
                (most + 1, true, Outcome::Handed),
            ] {
                let mut out = packet(
                    protocol,
                    (LOCAL[at], PORT),
                    (BACKEND[at], SERVICE),
                    &vec![1; payload],
                );
                out.segmented = segmented;
                assert_eq!(egress(&mut out, &checks), outcome, "{mode} {payload} {segmented}");
            }
        }
    });
}

#[test]
fn what_cannot_be_read_is_left_alone() {
    each(|v6, protocol| {
        let at = usize::from(v6);
        let checks = known(v6, protocol, mode::IPIP);
        let whole = packet(protocol, (LOCAL[at], PORT), (BACKEND[at], SERVICE), b"");
        let transport = if v6 { 54 } else { 34 };
        for length in 0..transport + 4 {
            let mut short = Octets {
                bytes: whole.bytes[..length].to_vec(),
                segmented: false,
            };
            assert_eq!(egress(&mut short, &checks), Outcome::Untouched, "{length}");
            assert_eq!(ingress(&mut short, &checks), Outcome::Untouched, "{length}");
        }
        if !v6 {
            // Options, and a fragment.
            for (at, value) in [(14, 0x46), (20, 0x20)] {
                let mut other = Octets {
                    bytes: whole.bytes.clone(),
                    segmented: false,
                };
                other.bytes[at] = value;
                assert_eq!(egress(&mut other, &checks), Outcome::Untouched);
            }
        }
    });
}

#[test]
fn a_datagram_without_a_checksum_stays_without() {
    let checks = known(false, protocol::UDP, mode::DSR);
    let mut out = packet(protocol::UDP, (LOCAL[0], PORT), (BACKEND[0], SERVICE), b"ask");
    out.bytes[40..42].fill(0);
    assert_eq!(egress(&mut out, &checks), Outcome::Handed);
    assert_eq!(out.bytes[40..42], [0, 0]);
}
