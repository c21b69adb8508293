//! Fragments: where those of a packet go, and which are dropped.

use lb_common::{counters::Event, flow::state, settings::flag};

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{
                DNS, DNS6, EMPTY, FILTER_MISTAKE, FILTER_MISTAKE6, FOREIGN, FOREIGN6, Named, SPREAD,
                TUNNEL_6IN6, TUNNEL_UDP, WEB, WEB6,
            },
        },
    },
    verdict::{Drop, Pass},
};

use super::outer_spread_by;

pub fn cases(world: &World) -> Vec<Case> {
    [
        together(world),
        tunnels(world),
        crafted(world),
        malformed(world),
        not_ours(world),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A first fragment of a new flow.
fn first(id: u32) -> Expect {
    Expect::dsr(id).new_flow().event(Event::FragmentStored, 1)
}

fn unknown() -> Expect {
    Expect::drop(Drop::FragmentUnknown)
}

/// A datagram of 72 octets in three fragments.
fn datagram(service: Named) -> Vec<Packet> {
    service.packet().payload(&[1; 64]).fragments(32)
}

fn together(world: &World) -> Vec<Case> {
    let v4 = datagram(DNS);
    let v6 = datagram(DNS6);
    let tcp = SPREAD.packet().payload(&[1; 64]).fragments(24);
    let picked = world.pick(&SPREAD.packet(), &SPREAD.key());
    let extended = DNS6
        .packet()
        .hop_by_hop()
        .routing()
        .payload(&[1; 64])
        .fragments(32);
    let behind = DNS6
        .packet()
        .payload(&[1; 64])
        .fragment(0, true)
        .destination_options();
    let small = DNS.packet().payload(&[1; 64]).fragments(8);
    vec![
        Case::new("the fragments of a datagram go to its service's backend", world)
            .sends(&v4[0], first(DNS.id))
            .sends(&v4[1], Expect::dsr(DNS.id))
            .sends(&v4[2], Expect::dsr(DNS.id)),
        Case::new(
            "the fragments of an IPv6 datagram go to its service's backend",
            world,
        )
        .sends(&v6[0], first(DNS6.id))
        .sends(&v6[1], Expect::dsr(DNS6.id))
        .sends(&v6[2], Expect::dsr(DNS6.id)),
        Case::new("the fragments of a segment go to the backend of its flow", world)
            .sends(&SPREAD.packet().syn(), Expect::dsr(picked).new_flow())
            .sends(&tcp[0], Expect::dsr(picked).event(Event::FragmentStored, 1))
            .sends(&tcp[1], Expect::dsr(picked))
            .sends(&tcp[2], Expect::dsr(picked))
            .sends(
                &SPREAD.packet(),
                Expect::dsr(picked).flow(state::ESTABLISHED, picked),
            ),
        Case::new("a first fragment begins a flow like any packet", world)
            .sends(&tcp[0], first(picked))
            .sends(
                &SPREAD.packet(),
                Expect::dsr(picked).flow(state::ESTABLISHED, picked),
            ),
        Case::new("fragments behind the first come in any order, and twice", world)
            .sends(&v4[0], first(DNS.id))
            .sends(&v4[2], Expect::dsr(DNS.id))
            .sends(&v4[1], Expect::dsr(DNS.id))
            .sends(&v4[2], Expect::dsr(DNS.id)),
        Case::new("a first fragment that comes twice is remembered once", world)
            .sends(&v4[0], first(DNS.id))
            .sends(&v4[0], Expect::dsr(DNS.id).event(Event::FragmentStored, 1))
            .sends(&v4[1], Expect::dsr(DNS.id)),
        Case::new("a fragment that overtakes the first one is dropped", world)
            .sends(&v4[1], unknown())
            .sends(&v6[2], unknown())
            .sends(&v4[0], first(DNS.id))
            .sends(&v4[1], Expect::dsr(DNS.id)),
        Case::new("a UDP header of its own in the first fragment will do", world)
            .sends(&small[0], first(DNS.id))
            .sends(&small[1], Expect::dsr(DNS.id)),
        Case::new("fragments with options and tags stay together", world)
            .sends(&v4[0].clone().options(&[148, 4, 0, 0]).vlan(5), first(DNS.id))
            .sends(&v4[1].clone().vlan(5), Expect::dsr(DNS.id)),
        Case::new(
            "extension headers in front of the fragment header are skipped",
            world,
        )
        .sends(&extended[0], first(DNS6.id))
        .sends(&extended[1], Expect::dsr(DNS6.id)),
        Case::new(
            "extension headers behind the fragment header are skipped in the first fragment",
            world,
        )
        .sends(&behind, first(DNS6.id)),
        Case::new(
            "what a later IPv6 fragment says of the next header does not matter",
            world,
        )
        .sends(&v6[0], first(DNS6.id))
        .sends(&v6[1].clone().raw_protocol(60), Expect::dsr(DNS6.id))
        .sends(&v6[2].clone().raw_protocol(132), Expect::dsr(DNS6.id)),
        Case::new("an atomic fragment is no fragment", world)
            .sends(&DNS6.packet().fragment(0, false), Expect::dsr(DNS6.id).new_flow()),
        Case::new("the reserved bits of a fragment header mean nothing", world).sends(
            &DNS6
                .packet()
                .payload(&[1; 64])
                .extension(44, &[0xff, 0, 7, 1, 2, 3, 4]),
            first(DNS6.id),
        ),
    ]
}

/// Fragments of a packet have one outer path, whatever their flow.
fn tunnels(world: &World) -> Vec<Case> {
    let through = |service: Named, packet: &Packet| {
        let path = packet.fragments_fingerprint(&world.settings.table_key);
        Expect::ipip(service.id, outer_spread_by(world, service.id, packet, 0, path))
    };
    let datagram = TUNNEL_UDP.packet().filled_to(1500).fragments(1400);
    let segment = TUNNEL_6IN6.packet().filled_to(1500).fragments(1400);
    vec![
        Case::new("fragments go through a tunnel", world)
            .sends(
                &datagram[0],
                through(TUNNEL_UDP, &datagram[0])
                    .new_flow()
                    .event(Event::FragmentStored, 1),
            )
            .sends(&datagram[1], through(TUNNEL_UDP, &datagram[1])),
        Case::new("IPv6 fragments go through a tunnel with one flow label", world)
            .sends(
                &segment[0],
                through(TUNNEL_6IN6, &segment[0])
                    .new_flow()
                    .event(Event::FragmentStored, 1),
            )
            .sends(&segment[1], through(TUNNEL_6IN6, &segment[1])),
    ]
}

/// RFC 1858, RFC 3128, RFC 7112.
fn crafted(world: &World) -> Vec<Case> {
    let malformed = || Expect::drop(Drop::Malformed);
    let tcp = |octets: usize| {
        let whole = WEB.packet().payload(&[1; 64]).ip_bytes()[20..].to_vec();
        Packet::ip_v4(6).payload(&whole[..octets])
    };
    let tcp6 = |octets: usize| {
        let whole = WEB6.packet().payload(&[1; 64]).ip_bytes()[40..].to_vec();
        Packet::ip_v6(6).payload(&whole[..octets])
    };
    let later = |offset| Packet::ip_v4(6).payload(&[0xff; 24]).fragment(offset, true);
    let later6 = |offset| Packet::ip_v6(6).payload(&[0xff; 24]).fragment(offset, true);
    let cut = Packet::ip_v6(60).payload(&[17, 1, 1, 4, 0, 0, 0, 0]);
    let begun = |sentence: &str| {
        Case::new(sentence, world)
            .sends(&tcp(40).fragment(0, true), first(WEB.id))
            .sends(&tcp6(40).fragment(0, true), first(WEB6.id))
    };
    vec![
        Case::new("a first TCP fragment of eight octets is dropped", world)
            .sends(&tcp(8).fragment(0, true), malformed())
            .sends(&tcp6(8).fragment(0, true), malformed()),
        Case::new("a first TCP fragment of sixteen octets is dropped", world)
            .sends(&tcp(16).fragment(0, true), malformed())
            .sends(&tcp6(16).fragment(0, true), malformed()),
        Case::new(
            "a first TCP fragment without all of its options is dropped",
            world,
        )
        .sends(&WEB.packet().tcp_options(&[1; 12]).fragments(24)[0], malformed()),
        begun("a TCP fragment that begins inside the header is dropped, whatever came before")
            .sends(&later(8), malformed())
            .sends(&later(16), malformed())
            .sends(&later6(8), malformed())
            .sends(&later6(16), malformed()),
        begun("a TCP fragment that begins behind the smallest header goes on")
            .sends(&later(24), Expect::dsr(WEB.id))
            .sends(&later6(24), Expect::dsr(WEB6.id)),
        begun("fragments that overlap go to one backend, which knows what to make of them")
            .sends(&later(40), Expect::dsr(WEB.id))
            .sends(&later(32), Expect::dsr(WEB.id))
            .sends(&later(48), Expect::dsr(WEB.id)),
        Case::new(
            "a first IPv6 fragment without its transport header is dropped",
            world,
        )
        .sends(&cut.clone().fragment(0, true), malformed()),
        Case::new(
            "a first IPv6 fragment that ends inside an extension header is dropped",
            world,
        )
        .sends(
            &cut.payload(&[17, 2, 1, 4, 0, 0, 0, 0]).fragment(0, true),
            malformed(),
        ),
        Case::new(
            "a first IPv6 fragment with nine extension headers is dropped",
            world,
        )
        .sends(
            &(0..9).fold(DNS6.packet().payload(&[1; 64]).fragment(0, true), |packet, _| {
                packet.destination_options()
            }),
            Expect::drop(Drop::TooManyHeaders),
        ),
        Case::new("a fragment in a fragment is dropped", world).sends(
            &DNS6
                .packet()
                .payload(&[1; 64])
                .fragment(0, true)
                .fragment(0, true),
            malformed(),
        ),
        Case::new("a later fragment of UDP may begin right behind the header", world)
            .sends(&DNS.packet().payload(&[1; 64]).fragments(8)[0], first(DNS.id))
            .sends(
                &Packet::ip_v4(17).payload(&[2; 16]).fragment(8, true),
                Expect::dsr(DNS.id),
            ),
    ]
}

fn malformed(world: &World) -> Vec<Case> {
    let case = |sentence: &str, packet: Packet| {
        Case::new(sentence, world).sends(&packet, Expect::drop(Drop::Malformed))
    };
    let part = |octets: usize| Packet::ip_v4(17).payload(&vec![1; octets]);
    let part6 = |octets: usize| Packet::ip_v6(17).payload(&vec![1; octets]);
    vec![
        case("an empty IPv4 fragment is dropped", part(0).fragment(64, false)),
        case("an empty IPv6 fragment is dropped", part6(0).fragment(64, false)),
        case("an empty first fragment is dropped", part(0).fragment(0, true)),
        case(
            "an IPv4 fragment of 20 octets with more to follow is dropped",
            part(20).fragment(64, true),
        ),
        case(
            "an IPv6 fragment of 20 octets with more to follow is dropped",
            part6(20).fragment(64, true),
        ),
        case(
            "an IPv4 fragment of a packet longer than 65535 octets is dropped",
            part(8).fragment(8191 * 8, false),
        ),
        case(
            "an IPv6 fragment of a packet longer than 65535 octets is dropped",
            part6(8).fragment(8191 * 8, false),
        ),
        case(
            "the fragment that ends an IPv4 packet of 65536 octets is dropped",
            part(36).fragment(8185 * 8, false),
        ),
        case(
            "a first fragment whose UDP length is below eight is dropped",
            DNS.packet().payload(&[1; 8]).raw_udp_length(7).fragment(0, true),
        ),
        Case::new(
            "the fragments that end the longest packets are not malformed",
            world,
        )
        .sends(&part(35).fragment(8185 * 8, false), unknown())
        .sends(&part6(7).fragment(8191 * 8, false), unknown()),
        case(
            "a fragment that the frame cuts is dropped",
            part(64).fragment(64, false).truncate_to(14 + 20 + 63),
        ),
    ]
}

fn not_ours(world: &World) -> Vec<Case> {
    let not_vip = || Expect::pass(Pass::NotVip);
    let dropped = || Expect::drop(Drop::Fragment);
    let kernel = || Expect::pass(Pass::NoService);
    let ping = |offset| Packet::ip_v4(1).payload(&[8; 64]).fragment(offset, true);
    let ping6 = |offset| Packet::ip_v6(58).payload(&[128; 64]).fragment(offset, true);
    let other = DNS.packet().to(DNS.vip, 5353).payload(&[1; 64]).fragments(32);
    let empty = EMPTY.packet().payload(&[1; 64]).fragments(32);
    let warning = Expect::drop(Drop::NoBackend);
    vec![
        Case::new(
            "fragments of a ping to a VIP are dropped: only whole ones are answered",
            world,
        )
        .sends(&ping(0), dropped())
        .sends(&ping(64), dropped())
        .sends(&ping6(0), dropped())
        .sends(&ping6(64), dropped()),
        Case::new(
            "fragments of pings are left to the kernel if it is to answer them",
            world,
        )
        .with(|world| world.settings.flags = flag::PING_KERNEL)
        .sends(&ping(0), Expect::pass(Pass::Icmp))
        .sends(&ping6(64), Expect::pass(Pass::Icmp)),
        Case::new(
            "a fragment of a protocol that services do not have is dropped",
            world,
        )
        .sends(&Packet::ip_v4(132).payload(&[1; 64]).fragment(0, true), dropped())
        .sends(
            &Packet::ip_v4(47).payload(&[1; 64]).fragment(64, false),
            dropped(),
        )
        .sends(&Packet::ip_v6(132).payload(&[1; 64]).fragment(0, true), dropped()),
        Case::new("all fragments of what no service has go to the kernel", world)
            .sends(&other[0], kernel().event(Event::FragmentStored, 1))
            .sends(&other[1], kernel())
            .sends(&other[2], kernel()),
        Case::new(
            "where no backend takes the first fragment, nothing is remembered",
            world,
        )
        .sends(&empty[0], warning)
        .sends(&empty[1], unknown()),
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
