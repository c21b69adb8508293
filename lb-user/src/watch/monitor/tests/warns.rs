//! Warnings of the monitor: weights, filters of fresh keys, seeds.

use super::*;
use crate::{
    state::desired::Sampling,
    watch::{gauges::Gauges, report::WarningName},
};

fn standing(world: &World) -> Vec<(WarningName, String)> {
    let warnings = world.monitor.report(0).warnings.into_iter();
    warnings
        .map(|warning| (warning.warning, warning.object))
        .collect()
}

/// By the metrics.
fn stands(world: &World, name: WarningName) -> bool {
    let all = Gauges::of(&world.monitor).warnings;
    let mut of_name = all.iter().filter(|(_, known, _)| *known == name).peekable();
    assert!(of_name.peek().is_some(), "every warning has its gauge");
    of_name.any(|(_, _, stands)| *stands)
}

fn fresh_check(world: &World) -> bool {
    let checks = world.monitor.report(0).self_checks;
    checks.iter().find(|check| check.name == "fresh-keys").unwrap().ok
}

#[test]
fn slots_that_do_not_stand_for_weights() {
    let mut world = World::new(settings());
    world.seconds(2, 100);
    assert!(standing(&world).is_empty());
    world.publish_table(|table| table.members[4].weight = 4);
    world.second(100);
    assert_eq!(standing(&world), [(WarningName::Weights, "web".to_owned())]);
    assert!(stands(&world, WarningName::Weights));
    assert!(
        world.said("10.0.0.5 owns 20.0% of them and should own 50.0%") && world.said("slots = "),
        "{:?}",
        world.told
    );
    assert!(!world.monitor.is_alarm(), "a setting is no fault");
    // It is told once, and once that it is over.
    let told = world.told.len();
    world.seconds(30, 100);
    assert_eq!(world.told.len(), told, "{:?}", world.told);
    // A backend without a next hop, and one that drains, own nothing by intention.
    world.slots = (0..SLOTS).map(|slot| BackendRef::new(1 + slot % 3, 1)).collect();
    let slots = world.slots.clone();
    world.publish_table(|before| {
        *before = table(&slots);
        before.members[3].weight = 0;
        before.members[4].state = BackendState::Draining;
    });
    world.second(100);
    assert!(
        standing(&world).is_empty() && world.said("no longer: "),
        "{:?}",
        world.told
    );
    assert!(!stands(&world, WarningName::Weights));
}

#[test]
fn a_witness_that_is_stuck_on_one_cpu() {
    let mut world = World::new(settings());
    world.monitor.sampled.set_sampling(sampling());
    world.seconds(5, 1000);
    assert!(world.is_quiet() && fresh_check(&world), "{:?}", world.told);
    world.witness = |cpu, hash| if cpu == 1 { 64 } else { hash };
    world.rotate(0..=CPUS);
    let mut seconds = 0;
    while fresh_check(&world) {
        world.second(1000);
        seconds += 1;
        assert!(seconds < 30, "{:?}", world.told);
    }
    assert!(
        world.said("the filter of CPU 1 takes new keys for known ones"),
        "{:?}",
        world.told
    );
    assert!(!world.said("the filter of CPU 0"), "{:?}", world.told);
    assert!(world.monitor.is_alarm() && world.monitor.report(0).is_alarm());
    assert!(stands(&world, WarningName::FreshKeysStarved));
    world.witness = |_, hash| hash;
    world.rotate([of_cpu(1)]);
    world.seconds(3, 1000);
    assert!(
        fresh_check(&world) && world.said("no longer: "),
        "{:?}",
        world.told
    );
}

#[test]
fn keys_that_were_all_seen_starve_no_filter() {
    for clients in [40, 600, 3000] {
        let mut world = World::new(settings());
        world.clients = clients;
        world.monitor.sampled.set_sampling(sampling());
        world.seconds(40, 2000);
        assert!(fresh_check(&world), "{clients}: {:?}", world.told);
        // Nor after a restart of the daemon, to which every bit is old.
        world.monitor = Monitor::new(settings());
        world.monitor.sampled.set_sampling(sampling());
        world.seconds(40, 2000);
        assert!(fresh_check(&world), "{clients}: {:?}", world.told);
        // Nor when a filter is cleared without a new seed.
        world.fresh[1].fill(0);
        world.second(0);
        assert!(fresh_check(&world), "{clients}: {:?}", world.told);
        world.seconds(20, 2000);
        assert!(fresh_check(&world), "{clients}: {:?}", world.told);
    }
}

#[test]
fn a_full_filter_of_the_shared_seed_is_told_and_never_rotated() {
    let mut world = World::new(settings());
    world.fresh[SHARED as usize].fill(u64::MAX);
    world.seconds(3, 100);
    assert!(world.is_quiet(), "nobody uses it: {:?}", world.told);
    world.publish_table(|table| table.service.flags = flag::CLIENT_AFFINITY);
    let asks = world.seconds(5, 100);
    assert!(asks.is_empty(), "clients stay where they are: {asks:?}");
    assert_eq!(
        standing(&world),
        [(WarningName::FreshKeysFull, "fresh keys".to_owned())]
    );
    assert!(stands(&world, WarningName::FreshKeysFull));
    assert!(world.said("the shared seed is 100.0% full") && world.said("evenkeel seeds rotate --shared"));
    assert!(!world.monitor.is_alarm());
    // Of a CPU the controller takes care.
    world.fresh[1].fill(u64::MAX);
    world.second(100);
    assert_eq!(standing(&world).len(), 1);
    world.rotate([SHARED]);
    world.second(100);
    assert!(
        standing(&world).is_empty() && world.said("no longer: "),
        "{:?}",
        world.told
    );
}

/// One client opens everything, so that fresh keys say nothing: fair seeds move it from backend to backend.
#[test]
fn seeds_that_all_prefer_one_backend_are_found_without_fresh_keys() {
    let heavy = |distort: fn(u32, u64) -> u64| {
        let mut world = World::new(settings());
        (world.clients, world.sampled, world.distort) = (1, false, distort);
        for _ in 0..60 {
            world.seconds(2, 40);
            world.rotate(1..=CPUS);
        }
        world.second(40);
        world
    };
    let fair = heavy(|_, hash| hash);
    assert!(fair.is_quiet(), "{:?}", fair.told);
    let seeds = fair.service().seeds.unwrap();
    assert!(
        seeds.ended >= 230 && seeds.evidence < seeds.threshold,
        "{seeds:?}"
    );
    let stuck = heavy(|_, _| 1);
    assert_eq!(standing(&stuck), [(WarningName::Seeds, "web".to_owned())]);
    assert!(
        stuck.said("10.0.0.1 got 100.0% of the new flows on average instead of 20."),
        "{:?}",
        stuck.told
    );
    assert!(stuck.monitor.is_alarm() && stuck.monitor.report(0).is_alarm());
    assert!(stands(&stuck, WarningName::Seeds));
}

#[test]
fn seeds_that_a_remedy_ended_are_not_bet_on() {
    let mut world = World::new(settings());
    world.second(100);
    for _ in 0..5 {
        world.second(100);
        world.rotate(1..=CPUS);
        let ask = Ask {
            owner: Owner::Box,
            remedy: Remedy::RotateSeeds { cpus: None },
        };
        world.done(&ask);
        world.second(100);
    }
    assert_eq!(world.service().seeds.unwrap().ended, 0);
}

#[test]
fn counters_that_are_others_are_not_bet_on() {
    let mut world = World::new(settings());
    world.seconds(20, 400);
    // Other maps, in which one backend has a long history.
    world.origin += 1;
    for cpu in 0..CPUS {
        world.counters.entry((cpu, 1)).or_default().flows += 1_000_000;
    }
    world.seconds(20, 400);
    world.rotate(1..=CPUS);
    world.second(400);
    let seeds = world.service().seeds.unwrap();
    assert_eq!(seeds.ended, CPUS);
    assert!(seeds.evidence < 1.0, "{seeds:?}");
}

#[test]
fn more_counts_by_seed_than_there_is_room_for_are_not_kept() {
    let mut world = World::new(settings());
    world.publish_table(|table| {
        let member = |id: u32| Member {
            endpoint: IpAddr::from((0x0a00_0000 + id).to_be_bytes()),
            reference: BackendRef::new(id, 1),
            owned: 0,
            weight: 0,
            state: BackendState::Serving,
        };
        table.members.extend((1000..301_000).map(member));
    });
    world.second(0);
    let report = world.monitor.report(0);
    assert_eq!(report.services[0].seeds, None);
    assert_eq!(report.streams, 1 + u64::from(CPUS) + 1);
}

fn sampling() -> Sampling {
    Sampling {
        flow_bits: 3,
        ..Sampling::OFF
    }
}
