//! Which service a packet belongs to: exact port first, then all ports of the address.

use lb_common::service::{Service, ServiceKey};

use crate::{headers::protocol, parse::Packet, tables::Tables};

/// Two packet words as the 16 bytes they were loaded from.
#[inline(always)]
pub fn bytes_of(words: [u64; 2]) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h] = words[0].to_ne_bytes();
    let [i, j, k, l, m, n, o, p] = words[1].to_ne_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// The key of the packet's destination.
#[inline(always)]
pub fn key_of(packet: &Packet) -> ServiceKey {
    let address = if packet.tuple.v6 {
        [packet.tuple.words[2], packet.tuple.words[3]]
    } else {
        [packet.tuple.words[0] >> 32, 0]
    };
    let [_, _, high, low] = packet.tuple.ports.to_ne_bytes();
    ServiceKey {
        address: bytes_of(address),
        port: [high, low],
        protocol: packet.tuple.protocol,
        family: if packet.tuple.v6 { 6 } else { 4 },
        align: [],
    }
}

/// The service of a TCP or UDP packet, if any.
#[inline(always)]
pub fn find<'a, T: Tables>(packet: &Packet, tables: &'a T) -> Option<&'a Service> {
    debug_assert!(packet.tuple.protocol == protocol::TCP || packet.tuple.protocol == protocol::UDP);
    let key = key_of(packet);
    match tables.service(&key) {
        Some(service) => Some(service),
        None => tables.service(&key.all_ports()),
    }
}
