//! ICMP errors about packets of a VIP: to the backend of the flow that the quoted packet belongs to.

use lb_common::{
    backend::{self, mode},
    counters::Event,
    flow::state,
};

use super::outer_spread_by;
use crate::testing::{
    case::{Case, Expect},
    packet::Packet,
    world::{
        World,
        standard::{
            AFFINITY, DNS, DNS6, ELSEWHERE, Named, SPREAD, TUNNEL_4IN4, TUNNEL_4IN6, TUNNEL_6IN4,
            TUNNEL_6IN6, WEB, WEB6,
        },
    },
};

pub fn cases(world: &World) -> Vec<Case> {
    [
        kinds(world),
        quotes(world),
        outside(world),
        backends(world),
        times(world),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// An error of a router somewhere, about what the VIP sent: type, code, the rest of the first eight octets, and the
/// quote.
pub(super) fn error(kind: u8, code: u8, rest: [u8; 4], about: &Packet, octets: usize) -> Packet {
    let v6 = about.source().is_ipv6();
    let message = if v6 {
        Packet::icmp_v6(kind, code, rest).from("2001:db8:77::1", 0)
    } else {
        Packet::icmp_v4(kind, code, rest).from("203.0.113.77", 0)
    };
    let mut quote = about.ip_bytes();
    quote.truncate(octets);
    message.to(&about.source().to_string(), 0).payload(&quote)
}

/// *Fragmentation needed* (RFC 1191) or *packet too big*, the MTU 1400, with eight octets of the quoted transport
/// header.
pub(super) fn too_big(about: &Packet) -> Packet {
    if about.source().is_ipv6() {
        error(2, 0, [0, 0, 5, 0x78], about, 48)
    } else {
        error(3, 4, [0, 0, 5, 0x78], about, 28)
    }
}

/// What the VIP sent to the client of this packet.
pub(super) fn sent(packet: &Packet) -> Packet {
    packet.clone().back().payload(&[0x55; 64])
}

fn routed(id: u32) -> Expect {
    Expect::dsr(id).event(Event::IcmpErrorForwarded, 1)
}

/// A packet of a new flow of the service, then an error about an answer to it.
fn flow_and(world: &World, service: Named, sentence: &str, message: &Packet) -> Case {
    Case::new(sentence, world)
        .sends(&service.packet(), Expect::dsr(service.id).new_flow())
        .sends(message, routed(service.id))
}

fn kinds(world: &World) -> Vec<Case> {
    let v4 = sent(&WEB.packet());
    let v6 = sent(&WEB6.packet());
    let kinds = [
        ("fragmentation needed", 3, 4),
        ("a network unreachable", 3, 0),
        ("a host unreachable", 3, 1),
        ("a port unreachable", 3, 3),
        ("a prohibition", 3, 13),
        ("a time to live exceeded", 11, 0),
        ("a time of fragments exceeded", 11, 1),
        ("a parameter problem", 12, 0),
    ];
    let kinds6 = [
        ("no route", 1, 0),
        ("an address unreachable", 1, 3),
        ("a port unreachable", 1, 4),
        ("packet too big", 2, 0),
        ("a hop limit exceeded", 3, 0),
        ("a parameter problem", 4, 1),
    ];
    let of_v4 = kinds.map(|(name, kind, code)| {
        let sentence = format!("{name} (ICMP type {kind}, code {code}) reaches the flow's backend");
        flow_and(
            world,
            WEB,
            &sentence,
            &error(kind, code, [0, 0, 5, 0x78], &v4, 28),
        )
    });
    let of_v6 = kinds6.map(|(name, kind, code)| {
        let sentence = format!("{name} (ICMPv6 type {kind}, code {code}) reaches the flow's backend");
        flow_and(
            world,
            WEB6,
            &sentence,
            &error(kind, code, [0, 0, 5, 0x78], &v6, 48),
        )
    });
    of_v4.into_iter().chain(of_v6).collect()
}

fn quotes(world: &World) -> Vec<Case> {
    let web = sent(&WEB.packet());
    let web6 = sent(&WEB6.packet());
    let whole = |about: &Packet| error(3, 1, [0; 4], about, usize::MAX);
    let whole6 = |about: &Packet| error(1, 0, [0; 4], about, usize::MAX);
    let case = |service, sentence: &str, message: &Packet| flow_and(world, service, sentence, message);
    vec![
        case(WEB, "a quote of the whole packet will do", &whole(&web)),
        case(WEB6, "a quote of the whole IPv6 packet will do", &whole6(&web6)),
        case(
            WEB,
            "a quote as long as RFC 1812 lets it be will do",
            &error(3, 1, [0; 4], &web.clone().filled_to(1500), 548),
        ),
        case(
            WEB6,
            "an IPv6 quote as long as RFC 4443 lets it be will do",
            &error(1, 0, [0; 4], &web6.clone().filled_to(1500), 1232),
        ),
        case(
            WEB,
            "options of the quoted packet are skipped",
            &error(3, 4, [0; 4], &web.clone().options(&[148, 4, 0, 0]), 32),
        ),
        case(
            WEB,
            "40 octets of options of the quoted packet are skipped",
            &error(11, 0, [0; 4], &web.clone().options(&[1; 40]), 68),
        ),
        case(
            WEB6,
            "extension headers of the quoted packet are skipped",
            &whole6(
                &web6
                    .clone()
                    .hop_by_hop()
                    .destination_options()
                    .routing()
                    .authentication(),
            ),
        ),
        case(
            WEB6,
            "eight extension headers of the quoted packet are skipped",
            &whole6(&(0..8).fold(web6.clone(), |packet, _| packet.destination_options())),
        ),
        case(
            WEB6,
            "an IPv6 quote that ends right behind the ports will do",
            &error(2, 0, [0; 4], &web6.clone().hop_by_hop(), 52),
        ),
        case(
            WEB,
            "the first fragment of a packet may be quoted",
            &whole(&web.clone().fragment(0, true)),
        ),
        case(
            WEB6,
            "the first fragment of an IPv6 packet may be quoted",
            &whole6(&web6.clone().fragment(0, true)),
        ),
        case(
            WEB,
            "the quoted packet's length may say anything: the quote is cut, and some stacks turn it round",
            &error(3, 3, [0; 4], &web.clone().raw_length(0), 28),
        ),
        case(DNS, "a datagram may be quoted", &whole(&sent(&DNS.packet()))),
        case(
            DNS6,
            "an IPv6 datagram may be quoted",
            &whole6(&sent(&DNS6.packet())),
        ),
        case(
            DNS,
            "a datagram of which a router quotes but the UDP header may be quoted",
            &error(3, 3, [0; 4], &sent(&DNS.packet()), 28),
        ),
    ]
}

/// What is around the quote.
fn outside(world: &World) -> Vec<Case> {
    let message = too_big(&sent(&WEB.packet()));
    let message6 = too_big(&sent(&WEB6.packet()));
    let client = "192.0.2.1";
    let case = |service, sentence: &str, message: &Packet| flow_and(world, service, sentence, message);
    vec![
        case(
            WEB,
            "an error with IPv4 options is routed",
            &message.clone().options(&[148, 4, 0, 0]),
        ),
        case(
            WEB6,
            "an error with extension headers is routed",
            &message6.clone().destination_options(),
        ),
        case(
            WEB,
            "an error with a VLAN tag is routed, tag and all",
            &message.clone().vlan(5),
        ),
        case(
            WEB6,
            "an error with two tags is routed, tags and all",
            &message6.service_vlan(7).vlan(5),
        ),
        case(
            WEB,
            "an error padded by Ethernet is routed",
            &message.clone().trailing(4),
        ),
        case(
            WEB,
            "an error of the client itself is routed",
            &message.clone().from(client, 0),
        ),
        case(
            WEB,
            "an error from an odd address is routed: only the quote counts",
            &message.from("10.0.0.254", 0),
        ),
    ]
}

fn backends(world: &World) -> Vec<Case> {
    let spread = SPREAD.packet().syn();
    let picked = world.pick(&spread, &SPREAD.key());
    let affine = AFFINITY.packet().syn();
    let of_client = world.pick(&affine, &AFFINITY.key());
    let tunnels = [
        ("4in4", TUNNEL_4IN4),
        ("4in6", TUNNEL_4IN6),
        ("6in4", TUNNEL_6IN4),
        ("6in6", TUNNEL_6IN6),
    ];
    let mut cases: Vec<Case> = tunnels
        .into_iter()
        .map(|(shape, service)| {
            let packet = service.packet();
            let flow = packet.fingerprint(&world.settings.table_key);
            let message = too_big(&sent(&packet)).traffic_class(0xc0);
            let through = |inner: &Packet, class| {
                Expect::ipip(service.id, outer_spread_by(world, service.id, inner, class, flow))
            };
            Case::new(format!("{shape}: an error goes through its flow's tunnel"), world)
                .sends(&packet, through(&packet, 0).new_flow())
                .sends(
                    &message,
                    through(&message, 0xc0).event(Event::IcmpErrorForwarded, 1),
                )
        })
        .collect();
    cases.extend([
        Case::new(
            "an error goes to that of several backends which has the flow",
            world,
        )
        .sends(&spread, Expect::dsr(picked).new_flow())
        .sends(&too_big(&sent(&spread)), routed(picked)),
        Case::new(
            "an error about a flow with affinity goes where its client's flows go",
            world,
        )
        .sends(&affine, Expect::dsr(of_client).new_flow())
        .sends(&too_big(&sent(&affine)), routed(of_client)),
        flow_and(
            world,
            ELSEWHERE,
            "an error to a backend behind another interface is redirected",
            &too_big(&sent(&ELSEWHERE.packet())),
        ),
        Case::new("a draining backend has the errors of its flows", world)
            .with(|world| world.put_flow(&WEB.packet(), WEB.id, state::ESTABLISHED, 5))
            .then(|world| world.drain(WEB.id))
            .sends(&too_big(&sent(&WEB.packet())), routed(WEB.id)),
        Case::new("the backend decides the mode, also for an error", world)
            .with(|world| {
                world.put_flow(&WEB.packet(), WEB.id, state::ESTABLISHED, 5);
                world.backends[WEB.id as usize].mode = mode::IPIP;
            })
            .sends(
                &too_big(&sent(&WEB.packet())),
                Expect::ipip(
                    WEB.id,
                    outer_spread_by(world, WEB.id, &too_big(&sent(&WEB.packet())), 0, None),
                )
                .event(Event::IcmpErrorForwarded, 1),
            ),
        Case::new("an error keeps its way when the seeds rotate", world)
            .sends(&spread, Expect::dsr(picked).new_flow())
            .then(|world| world.rotate(0x0bad_5eed))
            .sends(&too_big(&sent(&spread)), routed(picked)),
        Case::new(
            "errors of a flow count as packets of its backend, and as no flow",
            world,
        )
        .with(|world| world.settings.packet_sample_mask = 0)
        .with(|world| world.put_flow(&WEB.packet(), WEB.id, state::ESTABLISHED, 5))
        .sends(&too_big(&sent(&WEB.packet())), routed(WEB.id))
        .sends(&too_big(&sent(&WEB.packet())), routed(WEB.id)),
        Case::new("a backend in an unknown state has no errors forwarded", world)
            .with(|world| {
                world.put_flow(&WEB.packet(), WEB.id, state::ESTABLISHED, 5);
                world.backends[WEB.id as usize].state = backend::state::DOWN;
            })
            .sends(
                &too_big(&sent(&WEB.packet())),
                Expect::drop(crate::verdict::Drop::IcmpNoFlow),
            ),
    ]);
    cases
}

/// An error is no sign of life of a flow.
fn times(world: &World) -> Vec<Case> {
    let no_flow = || Expect::drop(crate::verdict::Drop::IcmpNoFlow);
    let message = too_big(&sent(&WEB.packet()));
    let datagram = too_big(&sent(&DNS.packet()));
    vec![
        Case::new(
            "an error about a connection being opened is routed and does not keep it",
            world,
        )
        .sends(&WEB.packet().syn(), Expect::dsr(WEB.id).new_flow())
        .waits(30)
        .sends(&message, routed(WEB.id))
        .waits(1)
        .sends(&message, no_flow()),
        Case::new(
            "an error about a datagram flow is routed as long as that lives",
            world,
        )
        .sends(&DNS.packet(), Expect::dsr(DNS.id).new_flow())
        .waits(60)
        .sends(&datagram, routed(DNS.id))
        .waits(1)
        .sends(&datagram, no_flow()),
        Case::new("an error about a closing connection is routed", world)
            .with(|world| world.put_flow(&WEB.packet(), WEB.id, state::CLOSING, 10))
            .sends(&message, routed(WEB.id)),
    ]
}
