//! ICMP errors that reach no backend: about no known flow, about nothing of a service, or not to be read.

use lb_common::flow::state;

use super::icmp::{error, sent, too_big};
use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS, FILTER_MISTAKE, TUNNEL_4IN4, UNRESOLVED, WEB, WEB6},
        },
    },
    verdict::{Drop, Pass},
};

pub fn cases(world: &World) -> Vec<Case> {
    [
        no_flow(world),
        not_ours(world),
        malformed(world),
        on_the_way(world),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A world in which the usual flows of `WEB` and `WEB6` are established.
fn with_flows(sentence: &str, world: &World) -> Case {
    Case::new(sentence, world).with(|world| {
        world.put_flow(&WEB.packet(), WEB.id, state::ESTABLISHED, 5);
        world.put_flow(&WEB6.packet(), WEB6.id, state::ESTABLISHED, 5);
    })
}

fn no_flow(world: &World) -> Vec<Case> {
    let case = |sentence: &str, messages: &[Packet]| {
        messages
            .iter()
            .fold(with_flows(sentence, world), |case, message| {
                case.sends(message, Expect::drop(Drop::IcmpNoFlow))
            })
    };
    let web = sent(&WEB.packet());
    let web6 = sent(&WEB6.packet());
    let whole6 = |about: &Packet| error(1, 0, [0; 4], about, usize::MAX);
    vec![
        case(
            "an error about a port without a flow is dropped",
            &[
                too_big(&sent(&WEB.packet().from_port(40001))),
                too_big(&sent(&WEB6.packet().from_port(40001))),
            ],
        ),
        case(
            "an error about a client without a flow is dropped",
            &[
                too_big(&sent(&WEB.packet().from("192.0.2.2", 40000))),
                too_big(&sent(&WEB6.packet().from("2001:db8:c::2", 40000))),
            ],
        ),
        case(
            "an error about a datagram with the ports of a connection is dropped",
            &[too_big(&sent(&DNS.packet()))],
        ),
        case(
            "an error that quotes a packet to the VIP instead of one from it is dropped",
            &[
                error(3, 4, [0; 4], &WEB.packet(), 28).to(WEB.vip, 0),
                error(2, 0, [0; 4], &WEB6.packet(), 48).to(WEB6.vip, 0),
            ],
        ),
        case(
            "an error to one VIP about another is dropped",
            &[too_big(&web).to(TUNNEL_4IN4.vip, 0)],
        ),
        case(
            "an error about a fragment without ports is dropped",
            &[
                too_big(&web.clone().fragment(64, true)),
                too_big(&web.fragment(64, false)),
                whole6(&web6.clone().fragment(64, false)),
            ],
        ),
        case(
            "an IPv6 quote that ends inside an extension header is dropped",
            &[error(1, 0, [0; 4], &web6.clone().routing(), 60)],
        ),
        case(
            "an IPv6 quote that ends inside the ports is dropped",
            &[error(1, 0, [0; 4], &web6.clone().hop_by_hop(), 51)],
        ),
        case(
            "nine extension headers of the quoted packet are too many",
            &[whole6(
                &(0..9).fold(web6.clone(), |packet, _| packet.hop_by_hop()),
            )],
        ),
        case(
            "a quote with two fragment headers is dropped",
            &[whole6(&web6.clone().fragment(0, false).fragment(0, false))],
        ),
        case(
            "a quoted extension header longer than the quote leads nowhere",
            &[whole6(&web6.extension(60, &[255, 1, 4, 0, 0, 0, 0]))],
        ),
        Case::new("an error to a backend that is gone is dropped", world)
            .with(|world| {
                world.put_flow(&WEB.packet(), WEB.id, state::ESTABLISHED, 5);
                world.replace(WEB.id);
            })
            .sends(&too_big(&sent(&WEB.packet())), Expect::drop(Drop::IcmpNoFlow)),
        Case::new(
            "an error about a flow that never was is dropped in any mode",
            world,
        )
        .sends(
            &too_big(&sent(&TUNNEL_4IN4.packet())),
            Expect::drop(Drop::IcmpNoFlow),
        ),
    ]
}

fn not_ours(world: &World) -> Vec<Case> {
    let case = |sentence: &str, messages: &[Packet]| {
        messages
            .iter()
            .fold(with_flows(sentence, world), |case, message| {
                case.sends(message, Expect::pass(Pass::Icmp))
            })
    };
    let other = |number| Packet::ip_v4(number).payload(&[0x12; 24]).back();
    let other6 = |number| Packet::ip_v6(number).payload(&[0x12; 24]).back();
    vec![
        case(
            "an error about a connection of the kernel's own goes to the kernel",
            &[
                too_big(&sent(&WEB.packet().to(WEB.vip, 22))),
                too_big(&sent(&WEB6.packet().to(WEB6.vip, 22))),
            ],
        ),
        case(
            "an error about an echo reply goes to the kernel",
            &[
                too_big(&Packet::icmp_v4(0, 0, [0; 4]).payload(&[0; 8]).back()),
                too_big(&Packet::icmp_v6(129, 0, [0; 4]).payload(&[0; 8]).back()),
            ],
        ),
        case(
            "an error about a protocol that no service has goes to the kernel",
            &[
                too_big(&other(47)),
                too_big(&other(50)),
                too_big(&other6(50)),
                too_big(&other6(59)),
            ],
        ),
        Case::new("an error to an address that is no VIP passes", world).sends(
            &too_big(&sent(&WEB.packet().to(FILTER_MISTAKE, 80))),
            Expect::pass(Pass::NotVip),
        ),
    ]
}

fn malformed(world: &World) -> Vec<Case> {
    let case = |sentence: &str, messages: &[Packet]| {
        messages
            .iter()
            .fold(with_flows(sentence, world), |case, message| {
                case.sends(message, Expect::drop(Drop::Malformed))
            })
    };
    let web = sent(&WEB.packet());
    let web6 = sent(&WEB6.packet());
    let short = |octets| error(3, 4, [0; 4], &web, octets);
    let short6 = |octets| error(2, 0, [0; 4], &web6, octets);
    vec![
        case("an error without a quote is dropped", &[short(0), short6(0)]),
        case(
            "an error that ends inside the quoted IP header is dropped",
            &[short(19), short6(39)],
        ),
        case(
            "an error with seven octets of the quoted transport header is dropped",
            &[short(27), short6(47)],
        ),
        case(
            "a quote behind the packet's end is none, whatever the frame has",
            &[short(20).trailing(8), short6(40).trailing(8)],
        ),
        case(
            "a quote of the wrong version is dropped",
            &[
                error(3, 4, [0; 4], &web.clone().raw_version(6), 28),
                error(3, 4, [0; 4], &web.clone().raw_version(0), 28),
                error(2, 0, [0; 4], &web6.clone().raw_version(4), 48),
            ],
        ),
        case(
            "a quoted header of four words is dropped",
            &[error(3, 4, [0; 4], &web.clone().raw_header_words(4), 28)],
        ),
        case(
            "a quoted header longer than the quote is dropped",
            &[
                error(3, 4, [0; 4], &web.clone().raw_header_words(15), 28),
                error(3, 4, [0; 4], &web.clone().raw_header_words(6), 28),
            ],
        ),
        case(
            "an error that the frame cuts is dropped",
            &[
                short(28).truncate_to(14 + 20 + 8 + 27),
                short6(48).truncate_to(14 + 40 + 8 + 47),
            ],
        ),
    ]
}

/// Drops after the flow was found.
fn on_the_way(world: &World) -> Vec<Case> {
    let established = |world: &mut World| {
        world.put_flow(&TUNNEL_4IN4.packet(), TUNNEL_4IN4.id, state::ESTABLISHED, 5);
    };
    let about = sent(&TUNNEL_4IN4.packet()).filled_to(1500);
    vec![
        Case::new(
            "an error too big for its tunnel is dropped: an error is never answered",
            world,
        )
        .with(established)
        .sends(
            &error(3, 4, [0; 4], &about, 1453).dont_fragment(),
            Expect::drop_for(TUNNEL_4IN4.id, Drop::TooBig),
        ),
        Case::new("an error to a backend without next hop is dropped", world)
            .with(|world| world.put_flow(&UNRESOLVED.packet(), UNRESOLVED.id, state::ESTABLISHED, 5))
            .sends(
                &too_big(&sent(&UNRESOLVED.packet())),
                Expect::drop_for(UNRESOLVED.id, Drop::NoNextHop),
            ),
    ]
}
