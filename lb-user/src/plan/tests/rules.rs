//! The rules of [`crate::plan::order`], one by one, and that lint notices when they are broken.

use lb_common::backend::state;

use super::*;
use crate::plan::{Step, lint::lint};

/// A plan with steps of every kind.
fn rich() -> (Observed, Plan) {
    let mut desired = desired();
    let web = web_of(&mut desired);
    web.backends.remove(&backend(11));
    web.backends.get_mut(&backend(12)).unwrap().state = BackendState::Draining;
    web.backends.insert(backend(14), serving(1));
    desired
        .services
        .insert(dns(), service("dns", [(backend(11), serving(1))]));
    desired.seeds = BTreeMap::from([(1, seed(2))]);
    desired.settings.new_timeout = 5;
    let observed = running();
    let plan = plan(&desired, &observed);
    (observed, plan)
}

fn notes_if(change: impl FnOnce(&mut Vec<Step>)) -> String {
    let (observed, mut plan) = rich();
    assert_eq!(lint(&observed, &plan), Vec::<String>::new());
    change(&mut plan.steps);
    lint(&observed, &plan).join("\n")
}

fn find(steps: &[Step], wanted: impl Fn(&Step) -> bool) -> usize {
    steps.iter().position(wanted).unwrap()
}

fn is_removal(step: &Step) -> bool {
    matches!(step, Step::WriteBackend { backend, .. } if backend.state == state::UNSET)
}

#[track_caller]
fn noted(change: impl FnOnce(&mut Vec<Step>), expected: &str) {
    let notes = notes_if(change);
    assert!(notes.contains(expected), "{notes:?}");
}

#[test]
fn entries_after_slots_are_noticed() {
    noted(
        |steps| {
            let entry = find(steps, |step| matches!(step, Step::WriteBackend { .. }));
            let entry = steps.remove(entry);
            steps.push(entry);
        },
        "a slot names",
    );
}

#[test]
fn an_entry_removed_before_the_switch_is_noticed() {
    noted(
        |steps| {
            let removal = find(steps, is_removal);
            let removal = steps.remove(removal);
            steps.insert(0, removal);
        },
        "stops taking flows while a slot",
    );
}

#[test]
fn a_drain_before_the_switch_is_noticed() {
    noted(
        |steps| {
            let drain = |step: &Step| matches!(step, Step::WriteBackend { backend, .. } if backend.state == state::DRAINING);
            let drain = find(steps, drain);
            let drain = steps.remove(drain);
            steps.insert(0, drain);
        },
        "stops taking flows while a slot",
    );
}

#[test]
fn a_table_in_a_region_in_use_is_noticed() {
    noted(
        |steps| {
            let table = find(steps, |step| matches!(step, Step::WriteSlots { .. }));
            let Step::WriteSlots { offset, .. } = &mut steps[table] else {
                unreachable!()
            };
            *offset = 1020;
        },
        "written into a region that 192.0.2.10:443/tcp uses",
    );
}

#[test]
fn a_switch_without_a_table_is_noticed() {
    noted(
        |steps| steps.retain(|step| !matches!(step, Step::WriteSlots { .. })),
        "which were not written",
    );
}

#[test]
fn a_table_outside_the_map_is_noticed() {
    noted(
        |steps| {
            steps.push(Step::WriteSlots {
                offset: 19_999,
                slots: vec![BackendRef::new(1, 1); 2],
            })
        },
        "outside the map",
    );
}

#[test]
fn overlapping_tables_are_noticed() {
    noted(
        |steps| {
            let table = find(steps, |step| matches!(step, Step::WriteSlots { .. }));
            steps.push(steps[table].clone());
        },
        "written twice",
    );
}

#[test]
fn a_cleared_bitmap_before_its_seed_is_noticed() {
    noted(|steps| steps.swap(0, 1), "cleared before the seed was switched");
}

#[test]
fn a_filter_that_hides_a_service_is_noticed() {
    noted(
        |steps| steps.retain(|step| !matches!(step, Step::WriteFilter(_))),
        "hides [2001:db8::53]:all/udp",
    );
}

#[test]
fn an_old_generation_is_noticed() {
    noted(
        |steps| {
            let new = |step: &Step| matches!(step, Step::WriteBackend { id: 4.., .. });
            let entry = find(steps, new);
            let Step::WriteBackend { backend, .. } = &mut steps[entry] else {
                unreachable!()
            };
            backend.generation = 9;
        },
        "generation 9 after 0",
    );
}

#[test]
fn another_backend_in_a_used_entry_is_noticed() {
    noted(
        |steps| {
            let entry = find(steps, |step| matches!(step, Step::WriteBackend { id: 4.., .. }));
            let Step::WriteBackend { id, .. } = &mut steps[entry] else {
                unreachable!()
            };
            *id = 3;
        },
        "another backend in an entry that is in use",
    );
}

#[test]
fn a_slot_of_another_services_backend_is_noticed() {
    noted(
        |steps| {
            let table = find(steps, |step| matches!(step, Step::WriteSlots { .. }));
            let Step::WriteSlots { slots, .. } = &mut steps[table] else {
                unreachable!()
            };
            slots[3] = BackendRef::new(2, 1);
        },
        "a slot names 2v1",
    );
}

#[test]
fn another_key_for_living_flows_is_noticed() {
    noted(
        |steps| {
            let place = find(steps, |step| matches!(step, Step::WriteSettings(_)));
            let Step::WriteSettings(settings) = &mut steps[place] else {
                unreachable!()
            };
            settings.table_key = FingerprintKey::from_words([2; _]);
        },
        "the key of a living flow table changes",
    );
}

#[test]
fn a_backend_keeps_its_entry_whatever_changes_but_its_address() {
    let mut desired = desired();
    let changed = web_of(&mut desired).backends.get_mut(&backend(12)).unwrap();
    (changed.weight, changed.mode, changed.udp_idle) = (5, Mode::Ipip, 9);
    let after = simulate(&running(), &plan(&desired, &running()));
    assert_eq!(after.backends.len(), 3);
    assert_eq!(
        (after.backends[&2].generation, after.backends[&2].udp_idle),
        (1, 9)
    );
    assert_eq!(
        shares(&after, web()).values().copied().collect::<Vec<_>>(),
        [128, 638, 255]
    );
}

#[test]
fn service_ids_are_found_when_they_ran_out() {
    let mut observed = running();
    let mut stray = observed.backends[&1];
    stray.service = u32::MAX;
    observed.backends.insert(9, stray);
    let mut desired = desired();
    desired.services.insert(dns(), service("dns", []));
    let after = simulate(&observed, &plan(&desired, &observed));
    assert_eq!(after.services[&dns()].id, 2);
}

#[test]
fn a_backend_that_comes_back_is_a_new_one() {
    let mut without = desired();
    web_of(&mut without).backends.remove(&backend(11));
    let gone = simulate(&running(), &plan(&without, &running()));
    assert_eq!(
        (
            gone.backends[&1].state,
            gone.backends[&1].generation,
            gone.backends[&1].removed_at
        ),
        (0, 1, 1000)
    );
    let back = simulate(&gone, &plan(&desired(), &gone));
    assert_eq!(
        shares(&back, web()).keys().copied().collect::<Vec<_>>(),
        [2, 3, 4]
    );
}

#[test]
fn a_full_map_reuses_the_longest_removed_entry_with_a_new_generation() {
    let mut observed = running();
    observed.capacity.backends = 4;
    let mut without = desired();
    web_of(&mut without).backends.remove(&backend(11));
    let gone = simulate(&observed, &plan(&without, &observed));
    let back = simulate(&gone, &plan(&desired(), &gone));
    assert_eq!(
        (back.backends[&1].generation, back.backends[&1].removed_at),
        (2, 0)
    );
}

#[test]
fn draining_down_and_unresolved_backends_own_no_slots() {
    let mut desired = desired();
    let backends = &mut web_of(&mut desired).backends;
    backends.get_mut(&backend(11)).unwrap().state = BackendState::Draining;
    backends.get_mut(&backend(12)).unwrap().state = BackendState::Down;
    backends.insert(
        backend(14),
        DesiredBackend {
            next_hop: None,
            ..serving(1)
        },
    );
    let wrong_family = NextHop {
        source: address("2001:db8::1"),
        ..serving(1).next_hop.unwrap()
    };
    backends.insert(
        backend(15),
        DesiredBackend {
            next_hop: Some(wrong_family),
            ..serving(1)
        },
    );
    let after = simulate(&running(), &plan(&desired, &running()));
    assert_eq!(shares(&after, web()), BTreeMap::from([(3, 1021)]));
    assert_eq!(after.backends[&1].state, state::DRAINING);
    assert_eq!(after.backends[&2].state, state::DOWN);
    assert!(!after.backends[&4].is_resolved() && !after.backends[&5].is_resolved());
}

#[test]
fn a_plan_of_one_service_leaves_the_others_alone() {
    let mut both = desired();
    both.services
        .insert(dns(), service("dns", [(backend(11), serving(1))]));
    let mut observed = simulate(&empty(), &plan(&both, &empty()));
    // Only the service in scope need be read.
    let dns_id = observed.services[&dns()].id;
    let slots = observed.slots.remove(&dns_id).unwrap();
    web_of(&mut both).backends.remove(&backend(12));
    both.services.remove(&dns());
    let mut after = simulate(&observed, &plan_one(&both, &observed, web()));
    assert_eq!(after.services[&dns()], observed.services[&dns()]);
    assert_eq!(after.vip_filter, observed.vip_filter);
    assert_eq!(shares(&after, web()).keys().copied().collect::<Vec<_>>(), [2, 4]);
    after.slots.insert(dns_id, slots);
    assert!(plan_one(&both, &after, web()).steps.is_empty());
    let rest = plan(&both, &after).to_string();
    assert!(
        rest.starts_with(
            "service [2001:db8::53]:all/udp: remove\nVIP 2001:db8::53: remove its mark\nbackend 1v1: remove\n"
        ),
        "{rest}"
    );
}

#[test]
fn the_datagram_timeout_is_the_longest_and_falls_with_a_whole_plan_only() {
    let timeout =
        |observed: &Observed| observed.settings.timeouts[usize::from(lb_common::flow::state::DATAGRAM)];
    let mut desired = desired();
    let idle = |desired: &mut Desired, seconds| {
        web_of(desired)
            .backends
            .values_mut()
            .for_each(|backend| backend.udp_idle = seconds);
    };
    idle(&mut desired, 300);
    let raised = simulate(&running(), &plan_one(&desired, &running(), web()));
    assert_eq!((timeout(&running()), timeout(&raised)), (120, 300));
    idle(&mut desired, 20);
    let kept = simulate(&raised, &plan_one(&desired, &raised, web()));
    assert_eq!(timeout(&kept), 300);
    assert_eq!(timeout(&simulate(&kept, &plan(&desired, &kept))), 20);
}

#[test]
fn a_change_of_one_backend_in_a_large_set_is_quick() {
    // Unoptimised, with every plan inspected, the full thousand takes a quarter of a minute.
    let count = if cfg!(debug_assertions) { 50 } else { 1000u32 };
    let services = (0..count).map(|number| {
        let key = service_key(
            IpAddr::from((0xc612_0000 + number).to_be_bytes()),
            Some(80),
            Protocol::Tcp,
        );
        let backends = (0..100).map(|last| {
            let address = IpAddr::from((0x0a00_0000 + number * 256 + last).to_be_bytes());
            (address, serving(1))
        });
        (key, service(&format!("s{number}"), backends))
    });
    let mut desired = Desired {
        services: services.collect(),
        ..desired()
    };
    let mut observed = empty();
    observed.capacity = Capacity {
        services: 1000,
        backends: 110_000,
        slots: 11_000_000,
        ..observed.capacity
    };
    let mut tables = SlotTableCache::default();
    let started = std::time::Instant::now();
    let whole = make_plan(&desired, &observed, &Scope::All, &mut tables).unwrap();
    println!(
        "{count} services x 100 backends from nothing: {:?}",
        started.elapsed()
    );
    observed = simulate(&observed, &whole);
    let started = std::time::Instant::now();
    assert!(
        make_plan(&desired, &observed, &Scope::All, &mut tables)
            .unwrap()
            .steps
            .is_empty()
    );
    println!("the same again, nothing to do: {:?}", started.elapsed());
    let (key, changed) = desired.services.iter_mut().nth(25).unwrap();
    changed.backends.pop_last();
    let scope = Scope::Services([*key].into());
    let slots = observed.slots.remove(&observed.services[key].id).unwrap();
    observed.slots = BTreeMap::from([(observed.services[key].id, slots)]);
    let rounds = (0..5).map(|_| {
        let mut tables = SlotTableCache::default();
        let started = std::time::Instant::now();
        let plan = make_plan(&desired, &observed, &scope, &mut tables).unwrap();
        assert_eq!(plan.steps.len(), 3);
        started.elapsed()
    });
    println!("one backend less in one of them: {:?}", rounds.min().unwrap());
}
