//! IPv4 as it may come: options, padding, odd but valid fields, other protocols.

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS, WEB},
        },
    },
    verdict::Pass,
};

pub fn cases(world: &World) -> Vec<Case> {
    [valid(world), options(world), protocols(world)]
        .into_iter()
        .flatten()
        .collect()
}

fn to_web() -> Expect {
    Expect::dsr(WEB.id).new_flow()
}

fn to_dns() -> Expect {
    Expect::dsr(DNS.id).new_flow()
}

fn valid(world: &World) -> Vec<Case> {
    let syn = WEB.packet().syn();
    vec![
        Case::new("a UDP datagram goes to its service's backend", world)
            .sends(&DNS.packet().payload(b"query"), to_dns()),
        Case::new("a UDP datagram without payload goes on", world).sends(&DNS.packet(), to_dns()),
        Case::new("a UDP datagram shorter than its IP packet goes on", world)
            .sends(&DNS.packet().payload(b"query").raw_udp_length(10), to_dns()),
        Case::new(
            "octets after the end of the IP packet stay and are not looked at",
            world,
        )
        .sends(&syn.clone().trailing(6), to_web()),
        Case::new("TOS and TTL stay as they are in dsr, a TTL of 1 included", world)
            .sends(&syn.clone().traffic_class(0xb8).hops(1), to_web()),
        Case::new("Don't Fragment is no fragment", world).sends(&syn.clone().dont_fragment(), to_web()),
        Case::new("TCP options and payload stay", world).sends(
            &syn.clone()
                .tcp_options(&[2, 4, 5, 0xb4, 1, 3, 3, 7])
                .payload(b"early"),
            to_web(),
        ),
        Case::new("a TCP header of 60 octets is taken", world)
            .sends(&syn.clone().tcp_options(&[1; 40]), to_web()),
        Case::new("ports 0 and 65535 are ports like others", world)
            .sends(&syn.clone().from_port(0), to_web())
            .sends(&syn.from_port(65535), to_web()),
        Case::new("a packet as long as the backend's MTU goes on", world)
            .sends(&WEB.packet().filled_to(1500), to_web()),
    ]
}

fn options(world: &World) -> Vec<Case> {
    let syn = WEB.packet().syn();
    vec![
        Case::new("a router alert option is skipped", world)
            .sends(&syn.clone().options(&[148, 4, 0, 0]), to_web()),
        Case::new("40 octets of IPv4 options are skipped", world)
            .sends(&syn.clone().options(&[1; 40]), to_web()),
        Case::new("a UDP datagram behind a record-route option is found", world).sends(
            &DNS.packet().options(&[7, 7, 4, 0, 0, 0, 0]).payload(b"query"),
            to_dns(),
        ),
        Case::new("a flow is the same with and without options", world)
            .sends(&syn, to_web())
            .sends(&syn.clone().options(&[148, 4, 0, 0]), Expect::dsr(WEB.id)),
    ]
}

fn protocols(world: &World) -> Vec<Case> {
    let other = |protocol| Packet::ip_v4(protocol).payload(&[0x12; 24]);
    let passes = || Expect::pass(Pass::OtherProtocol);
    vec![
        Case::new("SCTP to a VIP passes, for now", world).sends(&other(132), passes()),
        Case::new("GRE to a VIP passes", world).sends(&other(47), passes()),
        Case::new("ESP and AH to a VIP pass", world)
            .sends(&other(50), passes())
            .sends(&other(51), passes()),
        Case::new("IP in IP to a VIP passes", world)
            .sends(&other(4), passes())
            .sends(&other(41), passes()),
        Case::new("protocol 0 to a VIP is no service of all ports", world).sends(&other(0), passes()),
        Case::new("protocol 255 without payload passes", world).sends(&Packet::ip_v4(255), passes()),
        Case::new("ICMPv6's number in IPv4 is left to the kernel, too", world)
            .sends(&other(58), Expect::pass(Pass::Icmp)),
    ]
}
