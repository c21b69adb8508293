//! Full buckets: who gives way to whom.

use lb_common::{
    counters::Event,
    flow::{candidate_buckets, state},
};

use crate::testing::{
    case::{Case, Expect},
    packet::Packet,
    world::{
        World,
        standard::{DNS, Named, WEB},
    },
};

pub fn cases(world: &World) -> Vec<Case> {
    [syns(world), others(world), order(world), room(world)]
        .into_iter()
        .flatten()
        .collect()
}

/// A packet to the service whose flow has two different buckets.
pub(super) fn two_buckets(world: &World, service: Named) -> Packet {
    let apart = |packet: &Packet| {
        let (first, second) = candidate_buckets(packet.fingerprint(&world.settings.table_key).expect("IP"));
        (first ^ second) & world.settings.flow_mask != 0
    };
    (40000..)
        .map(|port| service.packet().from_port(port))
        .find(apart)
        .expect("some port")
}

/// Both buckets hold eight flows in this state, idle for one to eight seconds.
fn full_of(sentence: &str, world: &World, packet: &Packet, held: u8) -> Case {
    let flow = packet.clone();
    Case::new(sentence, world).with(|world| world.fill_buckets(&flow, WEB.id, |way| (held, way as u32 + 1)))
}

fn stores(packet: &Packet, as_state: u8, over: Event) -> (Packet, Expect) {
    let id = if as_state == state::DATAGRAM {
        DNS.id
    } else {
        WEB.id
    };
    (
        packet.clone(),
        Expect::dsr(id).fresh().picked_and(over).flow(as_state, id),
    )
}

fn gives_up(packet: &Packet, id: u32) -> (Packet, Expect) {
    (
        packet.clone(),
        Expect::dsr(id).fresh().picked_and(Event::FlowNotStored).no_flow(),
    )
}

fn syns(world: &World) -> Vec<Case> {
    let packet = two_buckets(world, WEB);
    let syn = packet.clone().syn();
    let with = |case: Case, (packet, expect): (Packet, Expect)| case.sends(&packet, expect);
    vec![
        with(
            full_of(
                "a SYN never displaces an established flow, and its ACK picks the same backend",
                world,
                &packet,
                state::ESTABLISHED,
            ),
            gives_up(&syn, WEB.id),
        )
        .sends(
            &syn,
            Expect::dsr(WEB.id).picked_and(Event::FlowNotStored).no_flow(),
        ),
        with(
            full_of(
                "a SYN does not displace a datagram flow",
                world,
                &packet,
                state::DATAGRAM,
            ),
            gives_up(&syn, WEB.id),
        ),
        with(
            full_of("a SYN displaces another new flow", world, &packet, state::NEW),
            stores(&syn, state::NEW, Event::EvictedNew),
        ),
        with(
            full_of("a SYN displaces a closing flow", world, &packet, state::CLOSING),
            stores(&syn, state::NEW, Event::EvictedClosing),
        ),
        with(
            Case::new("a SYN displaces an established flow that has expired", world).with(|world| {
                world.fill_buckets(&packet, WEB.id, |way| {
                    (state::ESTABLISHED, if way == 5 { 21_601 } else { 1 })
                });
            }),
            stores(&syn, state::NEW, Event::EvictedExpired),
        ),
        with(
            full_of(
                "a FIN of an unknown flow displaces no established flow",
                world,
                &packet,
                state::ESTABLISHED,
            ),
            gives_up(&packet.clone().fin(), WEB.id),
        ),
        with(
            full_of(
                "a FIN of an unknown flow displaces a new one",
                world,
                &packet,
                state::NEW,
            ),
            stores(&packet.clone().fin(), state::CLOSING, Event::EvictedNew),
        ),
    ]
}

fn others(world: &World) -> Vec<Case> {
    let packet = two_buckets(world, WEB);
    let datagram = two_buckets(world, DNS);
    let with = |case: Case, (packet, expect): (Packet, Expect)| case.sends(&packet, expect);
    vec![
        with(
            full_of(
                "an established flow displaces the oldest established one",
                world,
                &packet,
                state::ESTABLISHED,
            ),
            stores(&packet, state::ESTABLISHED, Event::EvictedEstablished),
        ),
        with(
            full_of(
                "an established flow displaces a datagram flow",
                world,
                &packet,
                state::DATAGRAM,
            ),
            stores(&packet, state::ESTABLISHED, Event::EvictedDatagram),
        ),
        with(
            full_of(
                "an established flow displaces a new one",
                world,
                &packet,
                state::NEW,
            ),
            stores(&packet, state::ESTABLISHED, Event::EvictedNew),
        ),
        with(
            full_of(
                "a datagram flow never displaces an established one",
                world,
                &datagram,
                state::ESTABLISHED,
            ),
            gives_up(&datagram, DNS.id),
        ),
        with(
            full_of(
                "a datagram flow displaces the oldest datagram flow",
                world,
                &datagram,
                state::DATAGRAM,
            ),
            stores(&datagram, state::DATAGRAM, Event::EvictedDatagram),
        ),
        with(
            full_of(
                "a datagram flow displaces a new one",
                world,
                &datagram,
                state::NEW,
            ),
            stores(&datagram, state::DATAGRAM, Event::EvictedNew),
        ),
    ]
}

/// A sentence, the way that must give way, how that is counted, and state and idle seconds of the eight ways.
type Row = (&'static str, usize, Event, [(u8, u32); 8]);

fn order(world: &World) -> Vec<Case> {
    let packet = two_buckets(world, WEB);
    let rows: [Row; 5] = [
        (
            "of equals the one idle for longest gives way",
            6,
            Event::EvictedEstablished,
            [
                (4, 10),
                (4, 20),
                (4, 30),
                (4, 40),
                (4, 50),
                (4, 60),
                (4, 99),
                (4, 70),
            ],
        ),
        (
            "a closing flow gives way before a new one, however young",
            3,
            Event::EvictedClosing,
            [
                (2, 20),
                (4, 20),
                (3, 20),
                (1, 1),
                (2, 29),
                (4, 9999),
                (3, 99),
                (2, 20),
            ],
        ),
        (
            "an expired flow gives way before a closing one",
            2,
            Event::EvictedExpired,
            [(1, 9), (1, 8), (2, 31), (2, 30), (4, 5), (3, 1), (1, 7), (4, 5)],
        ),
        (
            "what may give way in the first bucket does, whatever the second holds",
            1,
            Event::EvictedClosing,
            [(4, 9), (1, 8), (2, 30), (2, 30), (4, 5), (2, 31), (1, 9), (4, 5)],
        ),
        (
            "a new flow gives way before datagram and established flows",
            7,
            Event::EvictedNew,
            [
                (4, 99),
                (3, 99),
                (4, 99),
                (3, 99),
                (4, 99),
                (3, 99),
                (4, 99),
                (2, 0),
            ],
        ),
    ];
    rows.into_iter()
        .map(|(sentence, way, event, held)| {
            // A way that was displaced is not found under its name, and the others are.
            Case::new(sentence, world)
                .with(|world| world.fill_buckets(&packet, WEB.id, |way| held[way]))
                .sends(
                    &packet,
                    Expect::dsr(WEB.id)
                        .fresh()
                        .picked_and(event)
                        .flow(state::ESTABLISHED, WEB.id)
                        .displaces(
                            World::filler(way),
                            (0..8).filter(|other| *other != way).map(World::filler),
                        ),
                )
        })
        .collect()
}

fn room(world: &World) -> Vec<Case> {
    let packet = two_buckets(world, WEB);
    let fingerprint = packet.fingerprint(&world.settings.table_key).expect("IP");
    let (first, second) = candidate_buckets(fingerprint);
    let mask = world.settings.flow_mask;
    let (first, second) = ((first & mask) as usize, (second & mask) as usize);
    let free = |world: &mut World, bucket: usize, ways: &[usize]| {
        for way in ways {
            world.flows[bucket].entries[*way].fingerprint.store(0);
        }
    };
    let stored = || Expect::dsr(WEB.id).new_flow();
    let filled = |sentence: &str| full_of(sentence, world, &packet, state::ESTABLISHED);
    vec![
        filled("a single free entry of the first bucket takes the flow")
            .with(|world| free(world, first, &[2]))
            .sends(&packet, stored().at(first, 2)),
        filled("a single free entry of the second bucket takes the flow")
            .with(|world| free(world, second, &[3]))
            .sends(&packet, stored().at(second, 3)),
        filled("the emptier bucket takes the flow")
            .with(|world| {
                free(world, first, &[3]);
                free(world, second, &[2, 3]);
            })
            .sends(&packet, stored().at(second, 2)),
        filled("of two equally full buckets the first takes the flow")
            .with(|world| {
                free(world, first, &[2, 3]);
                free(world, second, &[2, 3]);
            })
            .sends(&packet, stored().at(first, 2)),
        Case::new(
            "a table smaller than the settings say is counted, and the packet goes on",
            world,
        )
        .with(|world| world.settings.flow_mask = 0x0fff_ffff)
        .sends(
            &packet,
            Expect::dsr(WEB.id)
                .fresh()
                .picked_and(Event::MapInconsistent)
                .no_flow(),
        ),
    ]
}
