//! Which service a packet belongs to, and backends that cannot be reached.

use lb_common::{backend::state, counters::Event, flow};

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{ALL_PORTS, ALL_PORTS_UDP, DNS, ELSEWHERE, EMPTY, EXACT, UNRESOLVED, WEB, WEB6},
        },
    },
    verdict::{Drop, Pass},
};

pub fn cases(world: &World) -> Vec<Case> {
    [lookup(world), reach(world), none(world)]
        .into_iter()
        .flatten()
        .collect()
}

fn lookup(world: &World) -> Vec<Case> {
    let no_service = || Expect::pass(Pass::NoService);
    vec![
        Case::new("a VIP's port without a service passes", world)
            .sends(&WEB.packet().to(WEB.vip, 81).syn(), no_service()),
        Case::new("an IPv6 VIP's port without a service passes", world)
            .sends(&WEB6.packet().to(WEB6.vip, 53).syn(), no_service()),
        Case::new("a service's port of the other protocol passes", world)
            .sends(&Packet::udp_v4().to(WEB.vip, 80), no_service())
            .sends(&Packet::tcp_v4().to(DNS.vip, 53).syn(), no_service()),
        Case::new("the exact port wins over all ports", world)
            .sends(&EXACT.packet().syn(), Expect::dsr(EXACT.id).new_flow()),
        Case::new(
            "all ports of a VIP match any port without a service of its own",
            world,
        )
        .sends(
            &ALL_PORTS.packet().to(ALL_PORTS.vip, 444).syn(),
            Expect::dsr(ALL_PORTS.id).new_flow(),
        ),
        Case::new("all ports of a VIP match port 0", world).sends(
            &ALL_PORTS.packet().to(ALL_PORTS.vip, 0).syn(),
            Expect::dsr(ALL_PORTS.id).new_flow(),
        ),
        Case::new("all ports are all ports of one protocol", world)
            .sends(&Packet::udp_v4().to(ALL_PORTS.vip, 443), no_service()),
        Case::new("all ports of UDP match a datagram to any port", world).sends(
            &ALL_PORTS_UDP.packet().to(ALL_PORTS_UDP.vip, 9999),
            Expect::dsr(ALL_PORTS_UDP.id).new_flow(),
        ),
        Case::new("port 0 of a VIP whose services have ports passes", world)
            .sends(&WEB.packet().to(WEB.vip, 0).syn(), no_service()),
    ]
}

fn reach(world: &World) -> Vec<Case> {
    vec![
        Case::new(
            "a backend behind another interface gets the frame redirected",
            world,
        )
        .sends(&ELSEWHERE.packet().syn(), Expect::dsr(ELSEWHERE.id).new_flow())
        .sends(&ELSEWHERE.packet(), Expect::dsr(ELSEWHERE.id)),
        Case::new(
            "a backend without a next hop loses the packet, and the flow stays with it",
            world,
        )
        .sends(
            &UNRESOLVED.packet().syn(),
            Expect::drop_for(UNRESOLVED.id, Drop::NoNextHop)
                .new_flow()
                .flow(flow::state::NEW, UNRESOLVED.id),
        )
        .then(|world| world.backends[UNRESOLVED.id as usize].mac_destination = [2, 0, 0, 0, 1, 24])
        .sends(&UNRESOLVED.packet().syn(), Expect::dsr(UNRESOLVED.id)),
        Case::new("a backend without an interface has no next hop", world)
            .with(|world| world.backends[WEB.id as usize].interface = 0)
            .sends(
                &WEB.packet().syn(),
                Expect::drop_for(WEB.id, Drop::NoNextHop).new_flow(),
            ),
        Case::new(
            "a packet one octet longer than the backend's MTU is dropped",
            world,
        )
        .sends(
            &WEB.packet().filled_to(1501),
            Expect::drop_for(WEB.id, Drop::TooBig).new_flow(),
        ),
        Case::new(
            "the MTU counts the IP packet, not the frame's tags and padding",
            world,
        )
        .sends(
            &WEB.packet().filled_to(1500).service_vlan(7).vlan(5).trailing(40),
            Expect::dsr(WEB.id).new_flow(),
        ),
        Case::new("a backend entry without a mode drops the packet", world)
            .with(|world| world.backends[WEB.id as usize].mode = 0)
            .sends(
                &WEB.packet().syn(),
                Expect::drop_for(WEB.id, Drop::Inconsistent).new_flow(),
            ),
    ]
}

fn none(world: &World) -> Vec<Case> {
    let nobody = |tried| {
        let expect = Expect::drop(Drop::NoBackend);
        if tried == 0 {
            expect
        } else {
            expect.event(Event::SlotNotServing, tried)
        }
    };
    vec![
        Case::new("a service without backends drops new flows", world)
            .sends(&EMPTY.packet().syn(), nobody(0).no_flow())
            .sends(&EMPTY.packet(), nobody(0)),
        Case::new(
            "a service that loses its last backend drops its flows when it is down",
            world,
        )
        .sends(&WEB.packet().syn(), Expect::dsr(WEB.id).new_flow())
        .then(|world| {
            world.drain(WEB.id);
            world.backends[WEB.id as usize].state = state::DOWN;
        })
        .sends(&WEB.packet(), nobody(0).event(Event::FlowRepicked, 1).no_flow()),
        Case::new(
            "slots that all name a backend that is down are tried eight times",
            world,
        )
        .with(|world| world.backends[WEB.id as usize].state = state::DOWN)
        .sends(&WEB.packet().syn(), nobody(8)),
        Case::new("slots that were never written are tried eight times", world)
            .with(|world| world.slots.fill(lb_common::ids::BackendRef::UNSET))
            .sends(&WEB.packet().syn(), nobody(8)),
        Case::new(
            "slots that name another service's backend are tried eight times",
            world,
        )
        .with(|world| world.backends[WEB.id as usize].service = DNS.id)
        .sends(&WEB.packet().syn(), nobody(8)),
        Case::new("slots beyond the map are an inconsistency, not a crash", world)
            .with(|world| {
                let service = world.services.get_mut(&WEB.key()).expect("the service");
                service.slots_offset = 1 << 20;
            })
            .sends(
                &WEB.packet().syn(),
                Expect::drop(Drop::Inconsistent).event(Event::MapInconsistent, 1),
            ),
    ]
}
