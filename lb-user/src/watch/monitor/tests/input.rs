//! Readings that are not what they should be: never an alarm, never a panic, and after them everything goes on.

use super::*;

/// Fair flows a second.
const RATE: u32 = 300;

/// Twenty seconds before, the incident, forty seconds after: nothing is told, and the flows of the time after are counted.
fn undisturbed(mut world: World, name: &str, incident: impl FnOnce(&mut World)) -> World {
    world.seconds(20, RATE);
    incident(&mut world);
    world.seconds(40, RATE);
    assert!(world.is_quiet(), "{name}: {:?}", world.told);
    let service = world.service();
    let after = u64::from(RATE) * 38;
    assert!(service.flows >= after, "{name}: {} flows counted", service.flows);
    world
}

/// Counters that only a fault could make: everything on one backend and in one bucket.
fn heap(world: &mut World, cpu: u32, flows: u64) {
    let counted = world.counters.entry((cpu, 1)).or_default();
    *counted += BackendTotals {
        flows,
        fresh_flows: flows,
        packets: flows,
        bytes: flows,
    };
    let bucket = &mut world.histograms[cpu as usize][0];
    *bucket = bucket.wrapping_add(flows);
}

#[test]
fn counters_that_go_back() {
    undisturbed(World::new(settings()), "one backend on one CPU", |world| {
        *world.counters.get_mut(&(1, 2)).unwrap() = BackendTotals::default();
    });
    undisturbed(World::new(settings()), "a histogram", |world| {
        world.histograms[2] = [0; BUCKETS];
    });
    undisturbed(World::new(settings()), "by one", |world| {
        world.counters.get_mut(&(0, 1)).unwrap().fresh_flows -= 1;
        world.histograms[0][0] = world.histograms[0][0].saturating_sub(1);
    });
}

#[test]
fn counters_that_are_reset_and_maps_that_are_made_anew() {
    undisturbed(World::new(settings()), "all of them", |world| {
        world.counters.clear();
        world.histograms.fill([0; BUCKETS]);
    });
    // More flows than before, and none of them of this second.
    undisturbed(World::new(settings()), "another map", |world| {
        world.origin += 1;
        heap(world, 0, 1_000_000);
    });
}

#[test]
fn cpus_that_come_and_go() {
    let mut world = World::of_cpus(3, settings());
    heap(&mut world, 2, 500_000);
    world.cpus = 2;
    let world = undisturbed(world, "one comes with a history", |world| world.cpus = 3);
    let world = undisturbed(world, "and goes", |world| world.cpus = 2);
    assert_eq!(world.monitor.report(0).streams, 2 + 2 + 1);
}

#[test]
fn checks_that_are_missing() {
    undisturbed(World::new(settings()), "three", |world| {
        world.flows(3 * RATE);
        world.second += 3;
    });
    // Without a look at seeds and slots, because the controller writes them.
    undisturbed(World::new(settings()), "without a look", |world| {
        for _ in 0..3 {
            world.second += 1;
            world.flows(RATE);
            let mut monitor = std::mem::replace(&mut world.monitor, Monitor::new(settings()));
            let at = Duration::from_secs(world.second);
            let outcome = monitor.check(at, world.board.read(), None, world);
            assert!(outcome.asks.is_empty() && outcome.told.is_empty());
            world.monitor = monitor;
        }
    });
}

#[test]
fn a_daemon_that_was_suspended() {
    // What happened meanwhile is not known well enough to be evidence.
    undisturbed(World::new(settings()), "an hour", |world| {
        heap(world, 1, 5_000_000);
        world.second += 3600;
    });
}

#[test]
fn a_clock_that_is_set() {
    undisturbed(World::new(settings()), "back", |world| world.second -= 15);
    undisturbed(World::new(settings()), "stands still", |world| {
        world.second -= 1;
        world.second(RATE);
        world.second -= 1;
        world.second(RATE);
    });
    undisturbed(World::new(settings()), "far ahead", |world| {
        world.second += 1 << 40;
    });
}

#[test]
fn a_clock_that_is_set_back_during_an_alarm_keeps_the_alarm() {
    let mut world = World::new(settings());
    world.seconds(10, 0);
    world.slots[0] = BackendRef::UNSET;
    world.second(0);
    assert_eq!(world.service().state, StateName::Firing);
    world.second -= 8;
    world.second(0);
    let service = world.service();
    assert_eq!(service.state, StateName::Firing);
    assert!(service.since_seconds >= 0.0);
}

#[test]
fn backends_without_a_share() {
    undisturbed(World::new(settings()), "one of five", |world| {
        world.slots = (0..SLOTS).map(|slot| BackendRef::new(1 + slot % 4, 1)).collect();
        let slots = world.slots.clone();
        world.publish_table(|before| {
            *before = table(&slots);
            before.members[4].weight = 0;
        });
    });
    let mut world = World::new(settings());
    world.slots.clear();
    world.publish_table(|table| {
        table.slots = Arc::default();
        table.service.slots_count = 0;
        for member in &mut table.members {
            member.owned = 0;
        }
    });
    world.seconds(100, 0);
    assert!(world.is_quiet(), "no slot at all: {:?}", world.told);
    let service = world.service();
    assert!(service.backends.iter().all(|backend| backend.expected == 0.0));
    // And nobody at all.
    world.publish_table(|table| table.members.clear());
    world.seconds(100, 0);
    assert!(world.is_quiet(), "no backend at all: {:?}", world.told);
    assert!(world.service().backends.is_empty());
}

#[test]
fn a_single_backend() {
    let mut world = World::new(settings());
    world.slots = vec![BackendRef::new(1, 1); SLOTS as usize];
    let slots = world.slots.clone();
    world.publish_table(|before| {
        *before = table(&slots);
        before.members.truncate(1);
    });
    let world = undisturbed(world, "one backend", |_| ());
    let service = world.service();
    assert_eq!(service.backends[0].observed, Some(1.0));
    assert_eq!(service.effect.tv, 0.0);
}

#[test]
fn no_traffic_at_all() {
    let mut world = World::new(settings());
    world.seconds(400, 0);
    assert!(world.is_quiet(), "{:?}", world.told);
    let service = world.service();
    assert_eq!(service.cause, Some(CauseName::TooLittleData));
    assert_eq!((service.evidence, service.flows), (0.0, 0));
    assert!(service.backends.iter().all(|backend| backend.observed.is_none()));
    // Nor is a minute of silence in the middle.
    undisturbed(World::new(settings()), "silence", |world| {
        world.seconds(60, 0);
    });
}

#[test]
fn counters_that_pass_their_end() {
    let mut world = World::new(settings());
    let end = u64::MAX - u64::from(RATE);
    let near = BackendTotals {
        flows: end,
        packets: end,
        bytes: end,
        fresh_flows: end,
    };
    for cpu in 0..CPUS {
        for id in 1..=BACKENDS {
            world.counters.insert((cpu, id), near);
        }
        world.histograms[cpu as usize].fill(u64::MAX - 3);
    }
    let world = undisturbed(world, "2^64", |_| ());
    let wrapped = |counted: &BackendTotals| counted.flows < end;
    assert!(world.counters.values().all(wrapped), "{:?}", world.counters);
    // No second was lost but the first, which is what the next is compared with.
    assert_eq!(world.monitor.report(0).window_seconds, 59.0);
    assert_eq!(world.service().flows, u64::from(RATE) * 59);
}
