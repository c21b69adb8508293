//! What is remembered of fragments: how long, under which name, and what gives way.

use lb_common::{
    counters::Event,
    flow::{FlowValue, TAKEN, WAYS, candidate_buckets, state},
    ids::BackendRef,
};

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS, DNS6, WEB},
        },
    },
    verdict::Drop,
};

pub fn cases(world: &World) -> Vec<Case> {
    [times(world), names(world), backends(world), room(world)]
        .into_iter()
        .flatten()
        .collect()
}

fn first(id: u32) -> Expect {
    Expect::dsr(id).new_flow().event(Event::FragmentStored, 1)
}

fn again(id: u32) -> Expect {
    Expect::dsr(id).event(Event::FragmentStored, 1)
}

fn unknown() -> Expect {
    Expect::drop(Drop::FragmentUnknown)
}

fn parts() -> Vec<Packet> {
    DNS.packet().payload(&[1; 64]).fragments(32)
}

fn times(world: &World) -> Vec<Case> {
    let parts = parts();
    vec![
        Case::new("a packet's fragments find their way for 30 seconds", world)
            .sends(&parts[0], first(DNS.id))
            .waits(30)
            .sends(&parts[1], Expect::dsr(DNS.id))
            .waits(1)
            .sends(&parts[2], unknown()),
        Case::new(
            "a first fragment begins the time anew, a later one does not",
            world,
        )
        .sends(&parts[0], first(DNS.id))
        .waits(20)
        .sends(&parts[0], again(DNS.id))
        .waits(20)
        .sends(&parts[1], Expect::dsr(DNS.id))
        .waits(11)
        .sends(&parts[1], unknown()),
    ]
}

fn names(world: &World) -> Vec<Case> {
    let parts = parts();
    let mut case = Case::new("a fragment of another packet is not of this one", world)
        .sends(&parts[0], first(DNS.id))
        .sends(&parts[1].clone().identification(0x1235), unknown())
        .sends(&parts[1].clone().from("192.0.2.2", 0), unknown())
        .sends(
            &parts[1].clone().to(super::super::world::standard::SPREAD.vip, 0),
            unknown(),
        );
    // TCP of the same name.
    case = case.sends(&Packet::ip_v4(6).payload(&[1; 24]).fragment(32, true), unknown());
    let v6 = DNS6.packet().payload(&[1; 64]);
    let other = |offset: u16| {
        Packet::ip_v6(17)
            .payload(&[1; 32])
            .extension(44, &[0, 0, (offset | 1) as u8, 1, 2, 3, 5])
    };
    let reused = DNS.packet().to(DNS.vip, 5353).payload(&[1; 64]).fragments(32);
    vec![
        case,
        Case::new("an IPv6 fragment of another packet is not of this one", world)
            .sends(&v6.fragments(32)[0], first(DNS6.id))
            .sends(&other(32), unknown())
            .sends(&v6.fragments(32)[1].clone().from("2001:db8:c::2", 0), unknown()),
        Case::new(
            "the identification of a packet that is used again leads to the newer one",
            world,
        )
        .sends(&parts[0], first(DNS.id))
        .sends(
            &reused[0],
            Expect::pass(crate::verdict::Pass::NoService).event(Event::FragmentStored, 1),
        )
        .sends(&parts[1], Expect::pass(crate::verdict::Pass::NoService)),
    ]
}

fn backends(world: &World) -> Vec<Case> {
    let parts = parts();
    let begun = |sentence: &str| Case::new(sentence, world).sends(&parts[0], first(DNS.id));
    vec![
        begun("a draining backend gets the rest of a packet")
            .then(|world| world.drain(DNS.id))
            .sends(&parts[1], Expect::dsr(DNS.id)),
        begun("a backend that is down gets nothing more")
            .then(|world| world.backends[DNS.id as usize].state = lb_common::backend::state::DOWN)
            .sends(&parts[1], unknown()),
        begun("another backend with the same id gets nothing of the packet")
            .then(|world| world.replace(DNS.id))
            .sends(&parts[1], unknown()),
        begun("a backend that has lost its next hop costs the fragment")
            .then(|world| world.backends[DNS.id as usize].mac_destination = [0; 6])
            .sends(&parts[1], Expect::drop_for(DNS.id, Drop::NoNextHop)),
        Case::new("an entry that names no backend there is leads nowhere", world)
            .with(|world| {
                let name = parts_name(world);
                let stray = BackendRef::new(60, 1);
                put(world, name, 0, stray, 0);
            })
            .sends(&parts[1], unknown()),
    ]
}

fn parts_name(world: &World) -> u64 {
    let name = parts()[0].fragments_fingerprint(&world.settings.table_key);
    name.expect("an IP packet")
}

/// Puts an entry at one of the eight ways of a name's two buckets.
fn put(world: &World, fingerprint: u64, number: usize, backend: BackendRef, idle: u32) {
    let (one, two) = candidate_buckets(parts_name(world));
    let bucket = [one, two][number / WAYS] & world.settings.fragment_mask;
    let entry = &world.fragments[bucket as usize].entries[number % WAYS];
    let value = FlowValue {
        backend,
        state: state::UNSET,
        last_seen: world.now - idle,
    };
    entry.value.store(value.pack());
    entry.fingerprint.store(fingerprint);
}

/// Both buckets full of others; `idle(way)` gives seconds.
fn full(world: &mut World, idle: impl Fn(usize) -> u32) {
    let backend = world.reference(WEB.id);
    for number in 0..2 * WAYS {
        put(world, TAKEN | number as u64, number, backend, idle(number));
    }
}

fn room(world: &World) -> Vec<Case> {
    let parts = parts();
    let evicts = || Expect::dsr(DNS.id).new_flow().event(Event::FragmentEvicted, 1);
    let case = |sentence: &str, idle: fn(usize) -> u32, expect: Expect| {
        Case::new(sentence, world)
            .with(|world| full(world, idle))
            .sends(&parts[0], expect)
            .sends(&parts[1], Expect::dsr(DNS.id))
    };
    vec![
        case(
            "in a full table the oldest fragments give way",
            |way| way as u32,
            evicts(),
        ),
        case(
            "in a full table of fragments as old the newest packet finds room",
            |_| 5,
            evicts(),
        ),
        case(
            "fragments whose time is over give way, and nothing is lost",
            |way| if way == 5 { 31 } else { 1 },
            first(DNS.id),
        ),
        case(
            "fragments whose time is not quite over are lost when they give way",
            |way| if way == 2 { 30 } else { 1 },
            evicts(),
        ),
        Case::new("fragments find room in their second bucket", world)
            .with(|world| {
                full(world, |_| 1);
                let (_, second) = candidate_buckets(parts_name(world));
                let bucket = (second & world.settings.fragment_mask) as usize;
                world.fragments[bucket].entries[3].fingerprint.store(0);
            })
            .sends(&parts[0], first(DNS.id))
            .sends(&parts[1], Expect::dsr(DNS.id)),
        Case::new(
            "a table smaller than the settings say keeps nothing, and that is counted",
            world,
        )
        .with(|world| world.settings.fragment_mask = u32::MAX)
        .sends(
            &parts[0],
            Expect::dsr(DNS.id).new_flow().event(Event::MapInconsistent, 1),
        )
        .sends(&parts[1], unknown()),
    ]
}
