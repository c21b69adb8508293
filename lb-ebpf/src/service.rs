//! Which service a packet belongs to: exact port first, then all ports of the address.

use lb_common::{
    service::{Service, ServiceKey},
    service_index::{MAX_CHAIN, ServiceEntry, head_of},
    settings::Settings,
};

use crate::{headers::protocol, opaque::opaque, parse::Packet, tables::Tables};

/// The key of the packet's destination.
#[inline(always)]
pub fn key_of(packet: &Packet) -> ServiceKey {
    let tuple = &packet.tuple;
    // A branch would be made three, one for each word. Words 2 and 3 are 0 for IPv4.
    let v6 = opaque(tuple.v6 as u64);
    let destination_v4 = (tuple.words[0] >> 32) & v6.wrapping_sub(1);
    let family = 4 + 2 * v6 as u32;
    let last = tuple.ports >> 16 | (tuple.protocol as u32) << 16 | family << 24;
    ServiceKey::from_words([tuple.words[2] | destination_v4, tuple.words[3], last as u64])
}

/// The mark of an IPv4 VIP.
#[inline(always)]
pub fn vip_mark_v4(destination: u32) -> ServiceKey {
    ServiceKey::from_words([destination as u64, 0, 4 << 24])
}

/// The mark of an IPv6 VIP.
#[inline(always)]
pub fn vip_mark_v6(destination: [u64; 2]) -> ServiceKey {
    ServiceKey::from_words([destination[0], destination[1], 6 << 24])
}

/// Walks the chain of a key in the index of services ([`lb_common::service_index`]). `head` and `entry` answer `None`
/// beyond their arrays.
#[inline(always)]
pub fn walk<'a>(
    key: &ServiceKey,
    settings: &Settings,
    head: impl FnOnce(u32) -> Option<u64>,
    entry: impl Fn(u32) -> Option<&'a ServiceEntry>,
) -> Option<&'a Service> {
    let words = key.words();
    let mut index = head(head_of(key, settings.service_shift))?;
    // Hidden, or the loop is unrolled and what follows it copied as often.
    let mut left = opaque(MAX_CHAIN as u64);
    while index != 0 && left != 0 {
        let found = entry(index as u32)?;
        if found.key[0] == words[0] && found.key[2] == words[2] && found.key[1] == words[1] {
            return Some(&found.service);
        }
        index = found.next.load();
        left -= 1;
    }
    None
}

/// The service of a TCP or UDP packet, if any.
#[inline(always)]
pub fn find<'a, T: Tables>(packet: &Packet, settings: &Settings, tables: &'a T) -> Option<&'a Service> {
    debug_assert!(packet.tuple.protocol == protocol::TCP || packet.tuple.protocol == protocol::UDP);
    let key = key_of(packet);
    match tables.service(&key, settings) {
        Some(service) => Some(service),
        None => tables.service(&key.all_ports(), settings),
    }
}

#[cfg(test)]
mod tests {
    use lb_common::flow_hash::FlowTuple;

    use super::*;

    #[test]
    fn keys_are_what_the_daemon_writes() {
        let packet = |tuple| Packet {
            network: 14,
            length: 40,
            tuple,
            tcp_flags: 0,
            traffic_class: 0,
        };
        let ports = u32::from_le_bytes([0x9c, 0x40, 0x01, 0xbb]);
        let v4 = FlowTuple::v4(1, u32::from_le_bytes([198, 51, 100, 7]), ports, 6);
        let mut address = [0; 16];
        address[..4].copy_from_slice(&[198, 51, 100, 7]);
        let mark = ServiceKey::vip_mark(address, 4);
        assert_eq!(
            key_of(&packet(v4)),
            ServiceKey {
                port: [0x01, 0xbb],
                protocol: 6,
                ..mark
            }
        );
        assert_eq!(vip_mark_v4(u32::from_le_bytes([198, 51, 100, 7])), mark);

        let address: [u8; 16] = core::array::from_fn(|at| at as u8);
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let mark = ServiceKey::vip_mark(address, 6);
        let key = key_of(&packet(FlowTuple::v6([1, 2], words, ports, 17)));
        assert_eq!(
            key,
            ServiceKey {
                port: [0x01, 0xbb],
                protocol: 17,
                ..mark
            }
        );
        assert_eq!(vip_mark_v6(words), mark);
    }
}
