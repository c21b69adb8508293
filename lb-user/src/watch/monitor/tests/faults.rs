//! Faults are found, named and put right.

use super::*;

#[test]
fn zeroed_seeds_are_found_without_traffic_and_resolved_by_the_rewrite() {
    let mut world = World::new(settings());
    world.seconds(3, 0);
    let good = world.seeds.clone();
    world.seeds.fill(Seed::default());
    let asks = world.second(0);
    assert_eq!(
        asks,
        [Ask {
            owner: Owner::Box,
            remedy: Remedy::RewriteSeeds
        }]
    );
    assert_eq!(
        world.service().state,
        StateName::Firing,
        "the box's alarm is the service's"
    );
    assert_eq!(world.service().cause, Some(CauseName::SeedFailure));
    // Nothing is asked for twice while it is being done.
    assert!(world.second(0).is_empty());
    world.seeds = good;
    world.done(&asks[0]);
    world.second(0);
    world.second(0);
    assert_eq!(world.service().state, StateName::Resolved);
    assert!(
        world.said("cause seed-failure") && world.said("something else had written"),
        "{:?}",
        world.told
    );
}

#[test]
fn of_two_cpus_the_one_whose_seed_is_stuck_is_named() {
    let mut world = World::of_cpus(2, settings());
    world.rotate([1, 2]);
    world.seconds(3, 0);
    assert!(world.is_quiet(), "{:?}", world.told);
    // The controller writes both, and one write is lost: the seed of before goes on.
    let before = world.seeds[2];
    world.rotate([1, 2]);
    world.seeds[2] = before;
    let asks = world.second(0);
    assert_eq!(asks.len(), 1, "{asks:?}");
    assert_eq!(asks[0].remedy, Remedy::RewriteSeeds);
    let service = world.service();
    assert_eq!(service.cause, Some(CauseName::SeedFailure));
    assert_eq!(service.scope.as_deref(), Some("CPU 1"));
    assert!(
        service
            .explanation
            .contains("the seed of CPU 1 is of generation 2 instead of 3"),
        "{service:?}"
    );
    // On both it is everywhere, and so it is said.
    world.seeds[1] = Seed {
        generation: 1,
        ..world.seeds[1]
    };
    world.second(0);
    assert_eq!(world.service().scope.as_deref(), Some("CPUs 0 and 1"));
}

#[test]
fn what_someone_puts_right_is_over_at_once() {
    let mut world = World::new(Settings {
        auto_heal: false,
        ..settings()
    });
    world.seconds(5, 1000);
    // Seen by looks, samples and flows alike.
    let good = world.seeds[1];
    let published = world.board.read();
    world.seeds[1].k0 = 0;
    world.distort = |cpu, hash| {
        if cpu == 0 {
            hash & 0x0f00_0000_0000_0000
        } else {
            hash
        }
    };
    assert!(world.seconds(10, 1000).is_empty());
    assert_eq!(world.service().state, StateName::Firing);
    assert!(world.monitor.histograms.found().alarm);
    world.seeds[1] = good;
    world.distort = |_, hash| hash;
    world.monitor.put_right();
    world.seconds(2, 1000);
    assert_eq!(world.service().state, StateName::Resolved, "{:?}", world.told);
    assert!(
        Arc::ptr_eq(&published, &world.board.read()),
        "nothing was published"
    );
    // What is not right after all is found again.
    world.distort = |cpu, hash| {
        if cpu == 0 {
            hash & 0x0f00_0000_0000_0000
        } else {
            hash
        }
    };
    world.seconds(5, 1000);
    assert_eq!(world.service().state, StateName::Firing);
}

#[test]
fn the_window_grows_with_what_was_counted() {
    let mut world = World::new(settings());
    assert_eq!(world.monitor.report(0).window_seconds, 0.0);
    // The first reading is what the next is compared with.
    world.seconds(4, 100);
    assert_eq!(world.monitor.report(0).window_seconds, 3.0);
    world.seconds(100, 100);
    assert!((60.0..=70.0).contains(&world.monitor.report(0).window_seconds));
}

#[test]
fn another_interval_starts_anew_with_every_service() {
    let mut world = World::new(settings());
    world.seconds(5, 100);
    let other = Settings {
        interval: Duration::from_secs(2),
        ..settings()
    };
    world.monitor.configure(other);
    world.second(100);
    assert_eq!(
        world.monitor.report(0).services.len(),
        1,
        "nothing new was published"
    );
    world.seconds(5, 100);
    assert!(world.service().flows > 0);
    assert!(world.is_quiet(), "{:?}", world.told);
}

#[test]
fn the_second_fault_within_a_minute_is_put_right_too() {
    let mut world = World::new(settings());
    world.second(0);
    for round in 0..6 {
        let good = world.slots[3];
        world.slots[3] = BackendRef::UNSET;
        let asks = world.second(0);
        assert_eq!(asks.len(), 1, "round {round}");
        assert!(matches!(asks[0].remedy, Remedy::RewriteSlots { .. }));
        world.slots[3] = good;
        world.done(&asks[0]);
        assert!(world.second(0).is_empty());
    }
    assert!(!world.said("did not help"), "{:?}", world.told);
}

#[test]
fn a_write_that_does_not_stay_is_said_so() {
    let mut world = World::new(settings());
    world.second(0);
    world.slots[0] = BackendRef::UNSET;
    for _ in 0..10 {
        for ask in world.second(0) {
            world.done(&ask);
        }
    }
    assert_eq!(world.service().state, StateName::Firing);
    assert!(world.said("did not help"), "{:?}", world.told);
}

#[test]
fn nothing_is_asked_for_where_healing_is_off() {
    let mut world = World::new(Settings {
        auto_heal_services: [("web".to_owned(), false)].into(),
        ..settings()
    });
    world.second(0);
    world.slots[7] = BackendRef::UNSET;
    assert!(world.seconds(5, 0).is_empty());
    assert_eq!(world.service().cause, Some(CauseName::TableMismatch));
    assert!(world.said("auto_heal is off"));
    // The service alone: the box heals.
    world.seeds[1] = Seed::default();
    assert_eq!(world.second(0).len(), 1);
}

#[test]
fn a_collapsed_hash_on_one_cpu_is_named_within_seconds() {
    let mut world = World::new(settings());
    world.seconds(20, 1000);
    assert!(world.told.is_empty(), "{:?}", world.told);
    world.distort = |cpu, hash| {
        if cpu == 2 {
            hash & 0x0f00_0000_0000_0000
        } else {
            hash
        }
    };
    let mut asks = Vec::new();
    for _ in 0..5 {
        asks.extend(world.second(1000));
    }
    let wanted = Remedy::RotateSeeds {
        cpus: Some(BTreeSet::from([2])),
    };
    assert_eq!(asks.len(), 1, "{asks:?}");
    assert_eq!(asks[0].remedy, wanted);
    assert_eq!(world.service().cause, Some(CauseName::HashFailure));
    let cpus = world.monitor.report(0).cpus;
    let alarmed: Vec<Option<u32>> = cpus.iter().filter(|cpu| cpu.alarm).map(|cpu| cpu.cpu).collect();
    assert!(
        alarmed.contains(&Some(2)) && !alarmed.contains(&Some(1)),
        "{alarmed:?}"
    );
    // New seeds do not help a broken hash.
    world.done(&asks[0]);
    world.seconds(15, 1000);
    assert!(world.said("the hash itself is broken"), "{:?}", world.told);
}

#[test]
fn a_table_that_is_wrong_in_the_program_is_found_by_samples() {
    let mut world = World::new(settings());
    world.seconds(3, 400);
    // The watch reads good slots, the program picks from others: what it serves is moved by one.
    let good = world.slots.clone();
    world.slots.rotate_left(1);
    world.flows(200);
    world.slots = good;
    world.second(0);
    let service = world.service();
    assert_eq!(service.cause, Some(CauseName::TableMismatch), "{service:?}");
    assert_eq!(service.state, StateName::Firing);
}

#[test]
fn a_backend_with_double_its_share_is_found_by_its_flows_alone() {
    let mut world = World::new(Settings {
        auto_heal: false,
        ..settings()
    });
    world.seconds(5, 200);
    // Published slots are the same; a wrong expectation cannot be read back.
    let slots = world.slots.clone();
    for _ in 0..60 {
        for (place, slot) in world.slots.iter_mut().enumerate() {
            if slot.id() == 2 && place % 2 == 0 {
                *slot = BackendRef::new(1, 1);
            }
        }
        world.flows(200);
        world.slots.clone_from(&slots);
        world.monitor.sampled.restart();
        world.second(0);
    }
    let service = world.service();
    assert_eq!(service.state, StateName::Firing, "{service:?}");
    assert_eq!(service.cause, Some(CauseName::TableMismatch));
    let most = service.effect.max_ratio.unwrap();
    assert_eq!(most.endpoint, IpAddr::from([10, 0, 0, 1]));
    assert!(most.low > 1.15, "{most:?}");
    assert!(
        service
            .onset_seconds_ago
            .is_some_and(|ago| (1.0..=61.0).contains(&ago)),
        "{service:?}"
    );
}
