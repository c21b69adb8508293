//! Random frames of the kinds that the balancer leaves to other programs: pings, ICMP errors, fragments.

use super::{Rng, frames::network};
use crate::testing::packet::Packet;

/// An echo request to a packet's VIP, mostly.
pub(super) fn echo(rng: &mut Rng, packet: &Packet, v6: bool) -> Packet {
    let [kind, code] = [rng.pick(&[8, 8, 8, 0, 13]), rng.pick(&[0, 0, 0, 1])];
    let rest = [0, 7, 0, rng.below(4) as u8];
    let message = if v6 {
        Packet::icmp_v6(if kind == 8 { 128 } else { kind }, code, rest)
    } else {
        Packet::icmp_v4(kind, code, rest)
    };
    let from = if rng.once_in(12) {
        rng.pick(if v6 {
            &["::", "::1", "ff02::1", "2001:db8:1::10"]
        } else {
            &["0.0.0.0", "127.0.0.1", "224.0.0.9", "198.51.100.10"]
        })
        .to_owned()
    } else {
        packet.source().to_string()
    };
    let octets = rng.below(40);
    let vip = packet.destination().to_string();
    message.from(&from, 0).to(&vip, 0).payload(&rng.bytes(octets))
}

/// An ICMP error about an answer to a packet, mostly.
pub(super) fn error(rng: &mut Rng, packet: &Packet, v6: bool) -> Packet {
    let vip = packet.destination().to_string();
    let mut about = if rng.once_in(12) {
        packet.clone()
    } else {
        packet.clone().back()
    };
    if rng.once_in(4) {
        about = network(rng, about, v6);
    }
    let rest = [0, 0, 5, rng.word() as u8];
    let code = rng.below(6) as u8;
    let message = if v6 {
        Packet::icmp_v6(rng.pick(&[1, 2, 3, 4, 5]), code, rest).from("2001:db8:77::1", 0)
    } else {
        Packet::icmp_v4(rng.pick(&[3, 3, 11, 12, 5]), code, rest).from("203.0.113.77", 0)
    };
    let mut quote = about.ip_bytes();
    quote.truncate(rng.pick(&[20, 27, 28, 48, 100, 548, 1232]));
    if rng.once_in(8) && !quote.is_empty() {
        let at = rng.below(quote.len().min(60));
        quote[at] = rng.word() as u8;
    }
    message.to(&vip, 0).payload(&quote)
}

/// One of the fragments of a packet; few packets, so that their fragments meet.
pub(super) fn fragment(rng: &mut Rng, packet: Packet, v6: bool) -> Packet {
    let mut whole = packet.identification(rng.below(3) as u16);
    if whole.clone().payload(&[]).ip_bytes().len() + 24 > whole.ip_bytes().len() {
        whole = whole.payload(&[0x66; 60]);
    }
    if v6 && rng.once_in(4) {
        whole = whole.hop_by_hop();
    }
    let fragments = whole.fragments(rng.pick(&[8, 16, 24, 24, 32, 32, 1400, 1480]));
    let number = if rng.once_in(2) {
        0
    } else {
        rng.below(fragments.len())
    };
    fragments[number].clone()
}
