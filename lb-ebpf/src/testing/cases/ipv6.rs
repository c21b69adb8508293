//! IPv6: extension headers that are walked, and those that are not.

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS6, WEB6},
        },
    },
    verdict::{Drop, Pass},
};

pub fn cases(world: &World) -> Vec<Case> {
    [valid(world), walked(world), refused(world), protocols(world)]
        .into_iter()
        .flatten()
        .collect()
}

fn to_web() -> Expect {
    Expect::dsr(WEB6.id).new_flow()
}

fn to_dns() -> Expect {
    Expect::dsr(DNS6.id).new_flow()
}

fn with_headers(mut packet: Packet, count: usize) -> Packet {
    for _ in 0..count {
        packet = packet.destination_options();
    }
    packet
}

fn valid(world: &World) -> Vec<Case> {
    vec![
        Case::new("a SYN over IPv6 goes to its service's backend", world)
            .sends(&WEB6.packet().syn(), to_web()),
        Case::new("a datagram over IPv6 goes to its service's backend", world)
            .sends(&DNS6.packet().payload(b"query"), to_dns()),
        Case::new(
            "traffic class, flow label and hop limit stay as they are in dsr",
            world,
        )
        .sends(
            &WEB6
                .packet()
                .syn()
                .traffic_class(0xb8)
                .flow_label(0xabcde)
                .hops(1),
            to_web(),
        ),
        Case::new(
            "octets after the end of the IPv6 packet stay and are not looked at",
            world,
        )
        .sends(&DNS6.packet().trailing(5), to_dns()),
        Case::new("an IPv6 packet as long as the backend's MTU goes on", world)
            .sends(&WEB6.packet().filled_to(1500), to_web()),
    ]
}

fn walked(world: &World) -> Vec<Case> {
    let syn = WEB6.packet().syn();
    vec![
        Case::new("a hop-by-hop header is skipped", world).sends(&syn.clone().hop_by_hop(), to_web()),
        Case::new("a router alert in a hop-by-hop header is skipped", world)
            .sends(&syn.clone().extension(0, &[0, 5, 2, 0, 0, 1, 0]), to_web()),
        Case::new("destination options are skipped", world)
            .sends(&syn.clone().destination_options(), to_web()),
        Case::new("a routing header is skipped", world).sends(&syn.clone().routing(), to_web()),
        Case::new(
            "an authentication header, whose length counts words, is skipped",
            world,
        )
        .sends(&syn.clone().authentication(), to_web()),
        Case::new("an atomic fragment (RFC 6946) is a whole packet", world)
            .sends(&syn.clone().fragment(0, false), to_web()),
        Case::new("an extension header of 2048 octets is skipped", world)
            .with(|world| world.backends[WEB6.id as usize].mtu = 3000)
            .sends(
                &syn.clone().extension(60, &[&[255][..], &[0; 2046]].concat()),
                to_web(),
            ),
        Case::new("one of each extension header before UDP is skipped", world).sends(
            &DNS6
                .packet()
                .hop_by_hop()
                .destination_options()
                .routing()
                .fragment(0, false)
                .authentication(),
            to_dns(),
        ),
        Case::new("eight extension headers are skipped", world)
            .sends(&with_headers(syn.clone(), 8), to_web()),
        Case::new("a flow is the same with and without extension headers", world)
            .sends(&syn, to_web())
            .sends(&syn.clone().hop_by_hop().routing(), Expect::dsr(WEB6.id)),
    ]
}

fn refused(world: &World) -> Vec<Case> {
    let syn = WEB6.packet().syn();
    let malformed = || Expect::drop(Drop::Malformed);
    vec![
        Case::new("nine extension headers to a VIP are dropped", world)
            .sends(&with_headers(syn.clone(), 9), Expect::drop(Drop::TooManyHeaders)),
        Case::new(
            "an extension header that claims to reach beyond the packet is dropped",
            world,
        )
        .sends(&syn.clone().extension(0, &[40, 1, 4, 0, 0, 0, 0]), malformed()),
        Case::new(
            "an extension header cut off by the packet's end is dropped",
            world,
        )
        .sends(&WEB6.packet().raw_protocol(60).raw_length(4), malformed()),
        Case::new(
            "a packet that ends with its extension header and promises TCP is dropped",
            world,
        )
        .sends(&Packet::ip_v6(6).to(WEB6.vip, 0).hop_by_hop(), malformed()),
        Case::new(
            "an extension header that reaches exactly to the end and promises nothing passes",
            world,
        )
        .sends(
            &Packet::ip_v6(59).to(WEB6.vip, 0).hop_by_hop(),
            Expect::pass(Pass::OtherProtocol),
        ),
        Case::new("a jumbogram (payload length 0, RFC 2675) is dropped", world).sends(
            &syn.extension(0, &[0, 0xc2, 4, 0, 1, 0, 0]).raw_length(0),
            malformed(),
        ),
    ]
}

fn protocols(world: &World) -> Vec<Case> {
    let other = |protocol| Packet::ip_v6(protocol).payload(&[0x12; 24]);
    let passes = || Expect::pass(Pass::OtherProtocol);
    vec![
        Case::new(
            "an unknown next header is not walked as an extension header",
            world,
        )
        .sends(
            &WEB6.packet().syn().extension(253, &[0, 1, 4, 0, 0, 0, 0]),
            passes(),
        ),
        Case::new("a mobility header (135) and HIP (139) are not walked", world)
            .sends(&other(135), passes())
            .sends(&other(139), passes()),
        Case::new("ESP over IPv6 passes", world).sends(&other(50), passes()),
        Case::new("no next header (59) passes", world).sends(&other(59), passes()),
        Case::new(
            "an unknown protocol behind a known extension header passes",
            world,
        )
        .sends(&other(253).hop_by_hop(), passes()),
    ]
}
