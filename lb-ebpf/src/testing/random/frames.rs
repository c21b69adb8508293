//! Random frames: good ones to services, odd ones, wrong ones, and noise.

use super::{
    Rng,
    rare::{echo, error, fragment},
};
use crate::{
    headers::protocol,
    testing::{
        packet::Packet,
        world::standard::{
            AFFINITY, AFFINITY6, ALL_PORTS, ALL_PORTS_UDP, DNS, DNS6, ELSEWHERE, EMPTY, EXACT,
            FILTER_MISTAKE, FILTER_MISTAKE6, FLEET, FOREIGN, FOREIGN6, Named, SPREAD, TUNNEL_4IN4,
            TUNNEL_4IN6, TUNNEL_6IN4, TUNNEL_6IN6, TUNNEL_ELSEWHERE, TUNNEL_UDP, UNRESOLVED, WEB, WEB6,
        },
    },
};

const SERVICES: [Named; 21] = [
    WEB,
    DNS,
    WEB6,
    DNS6,
    SPREAD,
    FLEET,
    AFFINITY,
    AFFINITY6,
    EXACT,
    ALL_PORTS,
    ALL_PORTS_UDP,
    TUNNEL_4IN4,
    TUNNEL_UDP,
    TUNNEL_4IN6,
    TUNNEL_6IN4,
    TUNNEL_6IN6,
    TUNNEL_ELSEWHERE,
    ELSEWHERE,
    EMPTY,
    UNRESOLVED,
    SPREAD,
];

/// Fewer than the 3520 octets that a test run of the kernel takes in one buffer.
const LARGEST: usize = 3000;

/// The services and clients of one world: few, so that flows come back.
pub struct Traffic {
    services: Vec<Named>,
    clients: usize,
    ports: usize,
}

impl Traffic {
    pub fn new(rng: &mut Rng) -> Self {
        let services = (0..=rng.below(8)).map(|_| rng.pick(&SERVICES)).collect();
        Self {
            services,
            clients: 1 + rng.below(3),
            ports: 1 + rng.below(8),
        }
    }

    /// A frame of at least 14 and at most 3000 octets.
    pub fn frame(&self, rng: &mut Rng) -> Vec<u8> {
        let mut frame = match rng.below(60) {
            0 => noise(rng),
            1 => neighbour(rng).bytes(),
            _ => self.packet(rng).bytes(),
        };
        if rng.once_in(6) {
            for _ in 0..=rng.below(3) {
                mutate(rng, &mut frame);
            }
        }
        frame.truncate(LARGEST);
        if frame.len() < 14 {
            frame.resize(14, 0);
        }
        frame
    }

    fn packet(&self, rng: &mut Rng) -> Packet {
        let service = rng.pick(&self.services);
        let v6 = service.vip.contains(':');
        let client = if v6 { "2001:db8:c::" } else { "192.0.2." };
        let client = format!("{client}{}", 1 + rng.below(self.clients));
        let mut packet = service
            .packet()
            .from(&client, 40_000 + rng.below(self.ports) as u16);
        if service.protocol == protocol::TCP {
            packet = tcp(rng, packet);
        } else if rng.once_in(20) {
            packet = packet.raw_udp_length(rng.below(40) as u16);
        }
        let payload = if rng.once_in(20) {
            1300 + rng.below(300)
        } else {
            rng.below(40)
        };
        packet = packet.payload(&rng.bytes(payload));
        packet = match rng.below(14) {
            0 => echo(rng, &packet, v6),
            1 | 2 => error(rng, &packet, v6),
            3 | 4 => fragment(rng, packet, v6),
            _ => aim(rng, packet, service, v6),
        };
        packet = network(rng, packet, v6);
        dress(rng, packet)
    }
}

fn tcp(rng: &mut Rng, mut packet: Packet) -> Packet {
    packet = packet.flags(rng.pick(&[
        0x02, 0x02, 0x10, 0x10, 0x18, 0x11, 0x04, 0x14, 0x12, 0x03, 0, 0xff,
    ]));
    if rng.once_in(20) {
        packet = packet.raw_data_offset(rng.below(16) as u8);
    }
    if rng.once_in(8) {
        let options = vec![1; rng.below(11) * 4];
        packet = packet.tcp_options(&options);
    }
    packet
}

/// ICMPv6 of any type to a multicast address, a foreign one or a VIP.
fn neighbour(rng: &mut Rng) -> Packet {
    let to = rng.pick(&["ff02::1", FOREIGN6, FILTER_MISTAKE6, WEB6.vip]);
    let kind = rng.pick(&[128, 129, 130, 133, 135, 136, 137, 138, 143, 1, 2]);
    Packet::ip_v6(protocol::ICMPV6)
        .to(to, 0)
        .payload(&[kind, 0, 0, 0, 0, 0, 0, 0])
}

/// Now and then another port or another address.
fn aim(rng: &mut Rng, packet: Packet, service: Named, v6: bool) -> Packet {
    let foreign = if v6 {
        [FOREIGN6, FILTER_MISTAKE6]
    } else {
        [FOREIGN, FILTER_MISTAKE]
    };
    match rng.below(24) {
        0 => packet.to(service.vip, rng.pick(&[0, 53, 80, 443, 65535])),
        1 => {
            let address = rng.pick(&foreign);
            packet.to(address, 80)
        }
        2 => packet.raw_protocol(rng.word() as u8),
        3 => packet.raw_protocol(rng.pick(&[0, 1, 6, 17, 43, 44, 51, 58, 60, 132])),
        _ => packet,
    }
}

pub(super) fn network(rng: &mut Rng, mut packet: Packet, v6: bool) -> Packet {
    packet = packet
        .traffic_class(rng.pick(&[0, 0, 0xb8, 0xff]))
        .hops(rng.pick(&[64, 1, 255]));
    if v6 && rng.once_in(4) {
        for _ in 0..=rng.below(9) {
            packet = match rng.below(12) {
                0..=2 => packet.hop_by_hop(),
                3..=5 => packet.destination_options(),
                6 => packet.routing(),
                7 => packet.authentication(),
                8 => packet.fragment(0, false),
                9 => {
                    let body = rng.bytes(7);
                    packet.extension(60, &[&[rng.below(3) as u8][..], &body[1..]].concat())
                }
                _ => packet.destination_options(),
            };
        }
    }
    if !v6 && rng.once_in(6) {
        let length = rng.below(11) * 4;
        let options = rng.bytes(length);
        packet = packet.options(&options);
    }
    if !v6 && rng.once_in(3) {
        packet = packet.dont_fragment();
    }
    if rng.once_in(24) {
        packet = packet.fragment(rng.below(200) as u16 * 8, rng.once_in(2));
    }
    match rng.below(60) {
        0 => packet.raw_length(rng.below(100) as u16),
        1 => packet.raw_length(rng.word() as u16),
        2 => packet.raw_version(rng.below(16) as u8),
        3 if !v6 => packet.raw_header_words(rng.below(16) as u8),
        _ => packet,
    }
}

fn dress(rng: &mut Rng, mut packet: Packet) -> Packet {
    if rng.once_in(5) {
        for _ in 0..=rng.below(3) {
            let tag = rng.word() as u16;
            packet = if rng.once_in(2) {
                packet.vlan(tag)
            } else {
                packet.service_vlan(tag)
            };
        }
    }
    if rng.once_in(8) {
        packet = packet.trailing(rng.below(30));
    }
    packet
}

fn mutate(rng: &mut Rng, frame: &mut Vec<u8>) {
    // Headers are where it hurts.
    let reach = frame.len().min(100);
    let at = rng.below(reach.max(1));
    match rng.below(6) {
        0 => frame[at] ^= 1 << rng.below(8),
        1 => frame[at] = rng.word() as u8,
        2 => frame[at] = rng.pick(&[0, 1, 0x45, 0x60, 0x7f, 0x80, 0xff]),
        3 => {
            let length = 14 + rng.below(frame.len().saturating_sub(14).max(1));
            frame.truncate(length);
        }
        4 => {
            let more = rng.below(30);
            let bytes = rng.bytes(more);
            frame.splice(at..at, bytes);
        }
        _ => {
            let end = (at + rng.below(8)).min(frame.len());
            frame.drain(at..end);
        }
    }
    frame.resize(frame.len().max(14), 0);
}

/// Random octets behind an ethertype that leads somewhere.
fn noise(rng: &mut Rng) -> Vec<u8> {
    let length = 14 + rng.below(120);
    let mut frame = rng.bytes(length);
    let kind: u16 = rng.pick(&[0x0800, 0x86dd, 0x8100, 0x88a8, 0x0806, 0x88cc, 0]);
    frame[12..14].copy_from_slice(&kind.to_be_bytes());
    frame
}
