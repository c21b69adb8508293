//! IP in IP: the outer header, to the last bit, and the room it needs.

use lb_common::flow::state;

use super::outer;
use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{
                Named, TUNNEL_4IN4, TUNNEL_4IN6, TUNNEL_6IN4, TUNNEL_6IN6, TUNNEL_ELSEWHERE, TUNNEL_UDP,
            },
        },
    },
    verdict::Drop,
};

const SHAPES: [(&str, Named); 4] = [
    ("4in4", TUNNEL_4IN4),
    ("4in6", TUNNEL_4IN6),
    ("6in4", TUNNEL_6IN4),
    ("6in6", TUNNEL_6IN6),
];

pub fn cases(world: &World) -> Vec<Case> {
    let mut cases: Vec<Case> = SHAPES
        .into_iter()
        .flat_map(|(shape, service)| of_shape(world, shape, service))
        .collect();
    cases.extend(others(world));
    cases
}

fn into(world: &World, service: Named, inner: &Packet, class: u8) -> Expect {
    Expect::ipip(service.id, outer(world, service.id, inner, class))
}

/// What every combination of inner and outer family must do.
fn of_shape(world: &World, shape: &str, service: Named) -> Vec<Case> {
    let header = if world.backends[service.id as usize].family == 6 {
        40
    } else {
        20
    };
    let packet = service.packet().payload(b"hello");
    let case = |sentence: &str| Case::new(format!("{shape}: {sentence}"), world);
    let becomes = |inner: &Packet, class| into(world, service, inner, class).new_flow();
    let tagged = packet.clone().vlan(5);
    let twice = packet.clone().service_vlan(7).vlan(0x6005);
    let marked = packet.clone().traffic_class(0xb9);
    let padded = packet.clone().trailing(7);
    let largest = packet.clone().filled_to(1500 - header);
    vec![
        case("a packet gets an outer header, and nothing inside changes").sends(&packet, becomes(&packet, 0)),
        case("a VLAN tag stays in front of the outer header").sends(&tagged, becomes(&tagged, 0)),
        case("two tags stay in front of the outer header").sends(&twice, becomes(&twice, 0)),
        case("DSCP and ECN are copied").sends(&marked, becomes(&marked, 0xb9)),
        case("octets after the packet's end are in no length").sends(&padded, becomes(&padded, 0)),
        case("a packet that just fits goes on").sends(&largest, becomes(&largest, 0)),
        case("the packets of a flow have the same outer header")
            .sends(&packet, becomes(&packet, 0).flow(state::ESTABLISHED, service.id))
            .sends(&packet, into(world, service, &packet, 0)),
        case("a driver without room in front of the frame costs the packet")
            .only_on_the_host("the kernel's test run always leaves room")
            .headroom(header - 1)
            .sends(&packet, Expect::drop_for(service.id, Drop::NoHeadroom).new_flow()),
    ]
}

fn others(world: &World) -> Vec<Case> {
    let inner = TUNNEL_4IN4.packet().payload(b"hello");
    let with_options = inner
        .clone()
        .options(&[148, 4, 0, 0])
        .hops(1)
        .identification(0xabcd)
        .dont_fragment();
    let extended = TUNNEL_6IN6.packet().hop_by_hop().routing().flow_label(0x12345);
    let datagram = TUNNEL_UDP.packet().payload(b"query");
    let elsewhere = TUNNEL_ELSEWHERE.packet().syn();
    vec![
        Case::new(
            "options, TTL, identification and DF inside stay; outside they are the tunnel's own",
            world,
        )
        .sends(
            &with_options,
            into(world, TUNNEL_4IN4, &with_options, 0).new_flow(),
        ),
        Case::new("extension headers and flow label inside stay", world)
            .sends(&extended, into(world, TUNNEL_6IN6, &extended, 0).new_flow()),
        Case::new("a datagram goes through a tunnel", world)
            .sends(&datagram, into(world, TUNNEL_UDP, &datagram, 0).new_flow()),
        Case::new(
            "a tunnel behind another interface gets the frame redirected",
            world,
        )
        .sends(
            &elsewhere,
            into(world, TUNNEL_ELSEWHERE, &elsewhere, 0).new_flow(),
        ),
        Case::new(
            "a tunnel whose backend has no next hop drops the packet untouched",
            world,
        )
        .with(|world| world.backends[TUNNEL_4IN4.id as usize].mac_destination = [0; 6])
        .sends(
            &inner,
            Expect::drop_for(TUNNEL_4IN4.id, Drop::NoNextHop).new_flow(),
        ),
        Case::new("another outer source is used as it is", world)
            .with(|world| {
                world.backends[TUNNEL_4IN4.id as usize].outer_source[..4].copy_from_slice(&[172, 16, 0, 9])
            })
            .sends(&inner, {
                let mut world = world.clone();
                world.backends[TUNNEL_4IN4.id as usize].outer_source[..4].copy_from_slice(&[172, 16, 0, 9]);
                into(&world, TUNNEL_4IN4, &inner, 0).new_flow()
            }),
        Case::new("an MTU of 3000 lets a packet of 2980 octets through", world)
            .with(|world| world.backends[TUNNEL_4IN4.id as usize].mtu = 3000)
            .sends(
                &inner.clone().filled_to(2980),
                into(world, TUNNEL_4IN4, &inner.clone().filled_to(2980), 0).new_flow(),
            ),
        Case::new("an outer checksum that carries twice is right", world)
            .with(|world| {
                let backend = &mut world.backends[TUNNEL_4IN4.id as usize];
                backend.outer_source[..4].fill(0xff);
                backend.address[..4].fill(0xff);
            })
            .sends(&inner, {
                let mut world = world.clone();
                let backend = &mut world.backends[TUNNEL_4IN4.id as usize];
                backend.outer_source[..4].fill(0xff);
                backend.address[..4].fill(0xff);
                into(&world, TUNNEL_4IN4, &inner, 0).new_flow()
            }),
    ]
}
