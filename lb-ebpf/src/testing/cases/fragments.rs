//! Fragments: dropped to a VIP (they have no ports), left to the kernel otherwise.

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS, DNS6, FILTER_MISTAKE, FILTER_MISTAKE6, FOREIGN, FOREIGN6, WEB},
        },
    },
    verdict::{Drop, Pass},
};

pub fn cases(world: &World) -> Vec<Case> {
    let fragment = || Expect::drop(Drop::Fragment);
    let not_vip = || Expect::pass(Pass::NotVip);
    let datagram = DNS.packet().payload(&[1; 64]);
    let datagram6 = DNS6.packet().payload(&[1; 64]);
    vec![
        Case::new("the first IPv4 fragment to a VIP is dropped", world)
            .sends(&datagram.clone().fragment(0, true), fragment()),
        Case::new("a middle and the last IPv4 fragment to a VIP are dropped", world)
            .sends(&datagram.clone().fragment(64, true), fragment())
            .sends(&datagram.fragment(64, false), fragment()),
        Case::new("a TCP fragment to a VIP is dropped", world)
            .sends(&WEB.packet().payload(&[1; 64]).fragment(0, true), fragment()),
        Case::new("a fragment with the largest offset is dropped", world)
            .sends(&DNS.packet().fragment(8191 * 8, false), fragment()),
        Case::new("the first IPv6 fragment to a VIP is dropped", world)
            .sends(&datagram6.clone().fragment(0, true), fragment()),
        Case::new("the last IPv6 fragment to a VIP is dropped", world)
            .sends(&datagram6.clone().fragment(64, false), fragment()),
        Case::new("an IPv6 fragment header behind others is seen", world)
            .sends(&datagram6.hop_by_hop().routing().fragment(0, true), fragment()),
        Case::new("an ICMP fragment to a VIP is dropped like any other", world)
            .sends(&Packet::ip_v4(1).payload(&[8; 64]).fragment(0, true), fragment()),
        Case::new("fragments to addresses that are no VIPs pass", world)
            .sends(&Packet::udp_v4().to(FOREIGN, 53).fragment(0, true), not_vip())
            .sends(&Packet::udp_v6().to(FOREIGN6, 53).fragment(64, false), not_vip()),
        Case::new(
            "fragments to an address that the filter mistakes for a VIP pass",
            world,
        )
        .sends(
            &Packet::udp_v4().to(FILTER_MISTAKE, 53).fragment(64, false),
            not_vip(),
        )
        .sends(
            &Packet::udp_v6().to(FILTER_MISTAKE6, 53).fragment(0, true),
            not_vip(),
        ),
    ]
}
