//! How a new flow gets its backend: seeds, slots, fresh keys, samples.

use lb_common::{
    backend::state,
    counters::Event,
    flow::TAKEN,
    seed::{self, Seed},
    settings::one_in,
    slot_table::bucket_scale,
};

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            SAMPLE_CAPACITY, World,
            standard::{AFFINITY, AFFINITY6, FLEET, Named, SPREAD, WEB},
        },
    },
    verdict::Drop,
};

pub fn cases(world: &World) -> Vec<Case> {
    [spread(world), seeds(world), slots(world), evidence(world)]
        .into_iter()
        .flatten()
        .collect()
}

/// New flows from many ports to a service, each to the backend that an independent pick gives.
fn many(mut case: Case, service: Named, packet: impl Fn(u16) -> Packet) -> Case {
    for port in 0..24 {
        let packet = packet(port);
        let id = case.world.pick(&packet, &service.key());
        case = case.sends(&packet, Expect::dsr(id).new_flow());
    }
    case
}

fn spread(world: &World) -> Vec<Case> {
    let from = |port| SPREAD.packet().from("192.0.2.7", 1024 + port * 7).syn();
    let client = |service: Named, number: u16| {
        let client = if service.vip.contains(':') {
            format!("2001:db8:c::{number:x}")
        } else {
            format!("192.0.2.{number}")
        };
        service.packet().from(&client, 5000).syn()
    };
    let same = AFFINITY.packet().from("192.0.2.77", 6000);
    let at = world.pick(&same, &AFFINITY.key());
    vec![
        many(
            Case::new("per-CPU selection picks by this CPU's seed", world),
            SPREAD,
            from,
        ),
        many(
            Case::new("fleet selection picks by the shared seed", world),
            FLEET,
            |port| FLEET.packet().from_port(1024 + port * 7).syn(),
        ),
        many(
            Case::new(
                "client affinity picks by the client's address and the shared seed",
                world,
            ),
            AFFINITY,
            |number| client(AFFINITY, number),
        ),
        many(
            Case::new("client affinity works over IPv6", world),
            AFFINITY6,
            |number| client(AFFINITY6, number),
        ),
        Case::new(
            "every flow of a client goes to one backend with affinity, and only the first is fresh",
            world,
        )
        .sends(&same.clone().syn(), Expect::dsr(at).new_flow())
        .sends(
            &same.clone().from_port(6001).syn(),
            Expect::dsr(at).picked_and(Event::FlowStored),
        )
        .sends(
            &same.from_port(6002).syn(),
            Expect::dsr(at).picked_and(Event::FlowStored),
        ),
        Case::new("a new seed picks anew", world)
            .sends(
                &from(1),
                Expect::dsr(world.pick(&from(1), &SPREAD.key())).new_flow(),
            )
            .then(|world| world.rotate(0xfeed))
            .sends(&from(2), {
                let mut rotated = world.clone();
                rotated.rotate(0xfeed);
                Expect::dsr(rotated.pick(&from(2), &SPREAD.key())).new_flow()
            }),
    ]
}

fn unset(world: &mut World, index: u32) {
    world.seeds[index as usize] = Seed::default();
}

fn seeds(world: &World) -> Vec<Case> {
    let own = seed::of_cpu(world.cpu);
    let syn = SPREAD.packet().syn();
    let by_shared = {
        let mut world = world.clone();
        world.services.get_mut(&SPREAD.key()).expect("the service").flags = lb_common::service::flag::FLEET;
        world.pick(&syn, &SPREAD.key())
    };
    let no_seed = || Expect::drop(Drop::NoSeed);
    vec![
        Case::new(
            "a CPU without a seed picks with the shared one, and says so",
            world,
        )
        .with(|world| unset(world, own))
        .sends(
            &syn,
            Expect::dsr(by_shared).new_flow().event(Event::SeedMissing, 1),
        ),
        Case::new("a CPU with a key but no generation has no seed", world)
            .with(|world| world.seeds[own as usize].generation = 0)
            .sends(
                &syn,
                Expect::dsr(by_shared).new_flow().event(Event::SeedMissing, 1),
            ),
        Case::new(
            "without any seed a new flow is dropped: nothing is ever hashed with zeros",
            world,
        )
        .with(|world| world.seeds.fill(Seed::default()))
        .sends(&syn, no_seed().event(Event::SeedMissing, 1).no_flow()),
        Case::new(
            "fleet selection without a shared seed drops, whatever the CPU's",
            world,
        )
        .with(|world| unset(world, seed::SHARED))
        .sends(&FLEET.packet().syn(), no_seed()),
        Case::new(
            "client affinity without a shared seed drops, whatever the CPU's",
            world,
        )
        .with(|world| unset(world, seed::SHARED))
        .sends(&AFFINITY.packet().syn(), no_seed()),
        Case::new("per-CPU selection does not need the shared seed", world)
            .with(|world| unset(world, seed::SHARED))
            .sends(&WEB.packet().syn(), Expect::dsr(WEB.id).new_flow()),
        Case::new("known flows do not need a seed", world)
            .sends(&WEB.packet().syn(), Expect::dsr(WEB.id).new_flow())
            .then(|world| world.seeds.fill(Seed::default()))
            .sends(&WEB.packet(), Expect::dsr(WEB.id)),
    ]
}

/// A SYN whose first slot in the service is `wanted`, modulo three.
fn landing_on(world: &World, service: Named, wanted: u32) -> Packet {
    let entry = world.services[&service.key()];
    (1024..)
        .map(|port| service.packet().from_port(port).syn())
        .find(|packet| {
            let slot = world.slot_of(packet, &entry);
            slot % 3 == wanted && slot + 3 < entry.slots_count
        })
        .expect("some port lands there")
}

fn slots(world: &World) -> Vec<Case> {
    // Slot n names backend 5 + n % 3.
    let (id, next) = (SPREAD.id, SPREAD.id + 1);
    let syn = landing_on(world, SPREAD, 0);
    let tried = |id, times| Expect::dsr(id).new_flow().event(Event::SlotNotServing, times);
    let of = move |world: &mut World, id: u32, state: u8| world.backends[id as usize].state = state;
    vec![
        Case::new(
            "a slot that names a draining backend gives way to the next slot",
            world,
        )
        .with(|world| of(world, id, state::DRAINING))
        .sends(&syn, tried(next, 1)),
        Case::new(
            "a slot that names a backend that is down gives way to the next slot",
            world,
        )
        .with(|world| of(world, id, state::DOWN))
        .sends(&syn, tried(next, 1)),
        Case::new("two slots out of order give way to the third", world)
            .with(|world| {
                of(world, id, state::DOWN);
                of(world, next, state::DRAINING);
            })
            .sends(&syn, tried(id + 2, 2)),
        Case::new(
            "a slot that names an older generation gives way to the next slot",
            world,
        )
        .with(|world| world.backends[id as usize].generation ^= 4)
        .sends(&syn, tried(next, 1)),
        Case::new(
            "a slot that names a backend of another service gives way to the next slot",
            world,
        )
        .with(|world| world.backends[id as usize].service = WEB.id)
        .sends(&syn, tried(next, 1)),
        Case::new(
            "a slot that names an id beyond the map gives way to the next slot",
            world,
        )
        .with(|world| {
            let gone = world.reference(id);
            for slot in world.slots.iter_mut().filter(|slot| **slot == gone) {
                *slot = lb_common::ids::BackendRef::new(1 << 19, 1);
            }
        })
        .sends(&syn, tried(next, 1)),
        Case::new("the slot after the last is the first", world)
            .with(|world| {
                let service = world.services.get_mut(&SPREAD.key()).expect("the service");
                service.slots_count = 1;
                service.bucket_scale = bucket_scale(1);
                of(world, id, state::DRAINING);
            })
            .sends(
                &syn,
                Expect::drop(Drop::NoBackend).event(Event::SlotNotServing, 8),
            ),
    ]
}

/// Until the ring buffer is full, which tells how many there were.
fn packets_sampled(world: &World) -> Case {
    let every = 4;
    let mut case = Case::new("one packet in four of a backend is sampled, of any flow", world)
        .with(|world| world.settings.packet_sample_mask = one_in(2))
        .sends(&WEB.packet().syn(), Expect::dsr(WEB.id).new_flow())
        .sends(&WEB.packet(), Expect::dsr(WEB.id));
    let last = (SAMPLE_CAPACITY + 1) * every;
    for number in 3..=last {
        let expect = Expect::dsr(WEB.id);
        let lost = number == last;
        let expect = if lost {
            expect.event(Event::SampleLost, 1)
        } else {
            expect
        };
        case = case.sends(&WEB.packet(), expect);
    }
    case
}

fn evidence(world: &World) -> Vec<Case> {
    let syn = WEB.packet().syn();
    let mut sampled = Case::new(
        "every new flow is sampled until the ring buffer is full; then they are lost",
        world,
    )
    .with(|world| world.settings.sample_mask = one_in(0))
    .with(|world| world.settings.fresh_mask = u32::MAX);
    for number in 0..=SAMPLE_CAPACITY as u16 {
        // Without bitmaps no key is fresh, and none can meet another's bit.
        let expect = Expect::dsr(WEB.id).event(Event::MapInconsistent, 1);
        let expect = expect.picked_and(Event::FlowNotStored);
        let lost = number as usize == SAMPLE_CAPACITY;
        let expect = if lost {
            expect.event(Event::SampleLost, 1)
        } else {
            expect
        };
        sampled = sampled.sends(&syn.clone().from_port(2000 + number), expect);
    }
    let sampled = sampled.with(|world| {
        for bucket in 0..world.flows.len() {
            for (way, entry) in world.flows[bucket].entries.iter().enumerate() {
                entry.value.store(
                    world
                        .flow_value(WEB.id, lb_common::flow::state::ESTABLISHED, 1)
                        .pack(),
                );
                entry.fingerprint.store(TAKEN | (bucket * 4 + way) as u64);
            }
        }
    });
    vec![
        sampled,
        packets_sampled(world),
        Case::new("no flow is sampled when samples are off", world)
            .with(|world| world.settings.sample_mask = one_in(64))
            .sends(&syn, Expect::dsr(WEB.id).new_flow()),
        Case::new("a key is fresh once in a seed's life", world)
            .sends(&syn, Expect::dsr(WEB.id).new_flow())
            .waits(31)
            .sends(&syn, Expect::dsr(WEB.id).picked_and(Event::FlowStored))
            .clears_fresh()
            .waits(31)
            .sends(&syn, Expect::dsr(WEB.id).new_flow()),
        Case::new("a bitmap beyond its map is counted, and the flow goes on", world)
            .with(|world| world.settings.fresh_mask = u32::MAX)
            .sends(
                &syn,
                Expect::dsr(WEB.id)
                    .picked_and(Event::FlowStored)
                    .event(Event::MapInconsistent, 1),
            ),
        Case::new("a known flow is no pick", world)
            .sends(&syn, Expect::dsr(WEB.id).new_flow())
            .sends(&WEB.packet(), Expect::dsr(WEB.id))
            .sends(&WEB.packet().payload(b"GET /"), Expect::dsr(WEB.id)),
    ]
}
