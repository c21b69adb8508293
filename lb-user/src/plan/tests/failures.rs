//! What does not fit: a precise error, and no plan at all.

use super::*;
use crate::plan::{PlanError, slot_table::SlotTableError};

fn refused(desired: &Desired, observed: &Observed) -> PlanError {
    make_plan(desired, observed, &Scope::All, &mut SlotTableCache::default()).unwrap_err()
}

/// `count` services on VIPs of their own, with one backend each.
fn services(count: u8) -> Desired {
    let services = (0..count).map(|number| {
        let key = service_key(IpAddr::from([192, 0, 2, number]), Some(80), Protocol::Tcp);
        (
            key,
            service(&format!("s{number}"), [(backend(number), serving(1))]),
        )
    });
    Desired {
        services: services.collect(),
        ..desired()
    }
}

#[test]
fn too_many_services() {
    let error = refused(&services(5), &empty());
    assert_eq!(
        error,
        PlanError::Services {
            service: "s4 (192.0.2.4:80/tcp)".into(),
            needed: 5,
            capacity: 4
        }
    );
    assert!(error.next_step().contains("datapath.max_services = 5"), "{error}");
    // As many as fit may all be replaced at once: the old ones go first.
    let observed = simulate(&empty(), &plan(&services(4), &empty()));
    let mut others = services(8);
    others.services = others
        .services
        .split_off(&service_key(address("192.0.2.4"), None, Protocol::Tcp));
    assert_eq!(simulate(&observed, &plan(&others, &observed)).services.len(), 4);
}

#[test]
fn too_many_services_with_some_out_of_scope() {
    let observed = simulate(&empty(), &plan(&services(4), &empty()));
    let fifth = *services(5).services.keys().next_back().unwrap();
    let scope = Scope::Services([fifth].into());
    let error = make_plan(&services(5), &observed, &scope, &mut SlotTableCache::default()).unwrap_err();
    assert!(
        matches!(
            error,
            PlanError::Services {
                needed: 5,
                capacity: 4,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn too_many_backends() {
    let mut desired = desired();
    web_of(&mut desired).backends = (0..17).map(|last| (backend(last), serving(1))).collect();
    let error = refused(&desired, &empty());
    let expected = PlanError::Backends {
        service: "web (192.0.2.10:443/tcp)".into(),
        address: backend(16),
        capacity: 16,
        wanted: 17,
        leaving: 0,
    };
    assert_eq!(error, expected);
    assert!(
        error.next_step().contains("datapath.max_backends = 17"),
        "{error}"
    );
}

#[test]
fn entries_that_leave_are_not_free_yet() {
    let mut desired = desired();
    web_of(&mut desired).backends = (20..34).map(|last| (backend(last), serving(1))).collect();
    let error = refused(&desired, &running());
    assert!(
        matches!(
            error,
            PlanError::Backends {
                wanted: 14,
                leaving: 3,
                capacity: 16,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn too_few_slots() {
    let mut desired = desired();
    web_of(&mut desired).slots = Some(20_001);
    let error = refused(&desired, &empty());
    let expected = PlanError::Slots {
        service: "web (192.0.2.10:443/tcp)".into(),
        wanted: 20_011,
        largest: 20_000,
        capacity: 20_000,
        suggested: 40_011,
    };
    assert_eq!(error, expected);
    assert!(
        error.next_step().contains("datapath.max_slots = 40011"),
        "{error}"
    );
}

#[test]
fn a_region_freed_by_the_plan_is_not_used_by_it() {
    let mut large = desired();
    web_of(&mut large).slots = Some(11_003);
    let observed = simulate(&empty(), &plan(&large, &empty()));
    web_of(&mut large).backends.remove(&backend(11));
    assert!(matches!(
        refused(&large, &observed),
        PlanError::Slots { largest: 8997, .. }
    ));
}

#[test]
fn a_weight_without_a_slot() {
    let mut desired = desired();
    web_of(&mut desired)
        .backends
        .get_mut(&backend(13))
        .unwrap()
        .weight = 65_535;
    let error = refused(&desired, &empty());
    let PlanError::SlotTable { source, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(matches!(
        source,
        SlotTableError::NoSlot {
            size: 1021,
            needed: 65_537,
            ..
        }
    ));
}

#[test]
fn a_seed_without_a_cpu_and_a_table_without_a_key() {
    let mut wrong = desired();
    wrong.seeds.insert(3, seed(1));
    assert_eq!(
        refused(&wrong, &empty()),
        PlanError::SeedPlace { cpu: 2, possible: 2 }
    );
    let mut wrong = desired();
    wrong.settings.table_key = FingerprintKey::UNSET;
    assert_eq!(refused(&wrong, &empty()), PlanError::TableKey);
    assert!(plan(&wrong, &running()).steps.is_empty());
}
