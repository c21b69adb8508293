//! Tables moved together: never too many, never onto one another, and only where there is room for both copies.

use lb_common::{ids::BackendRef, service::Service, slot_table::bucket_scale};
use proptest::prelude::*;

use super::*;
use crate::plan::{Step, entry::backend_entry, lint::lint, make_stretch, regions::Regions};

/// Services whose tables stand at `(offset, length)`, each full of one backend of its own.
fn tables(capacity: u32, places: &[(u32, u32)]) -> Observed {
    let mut observed = empty();
    observed.capacity.slots = capacity;
    for (id, &(slots_offset, slots_count)) in (1u32..).zip(places) {
        let key = service_key(IpAddr::from([192, 0, 2, id as u8]), Some(80), Protocol::Tcp);
        let service = Service {
            id,
            slots_offset,
            slots_count,
            table_generation: 1,
            bucket_scale: bucket_scale(slots_count),
            ..Service::default()
        };
        observed.services.insert(key, service);
        observed
            .vip_marks
            .insert(ServiceKey::vip_mark(key.address, key.family));
        let bit = vip_filter::bit_of(&key.address, key.family);
        observed.vip_filter[(bit / 64) as usize] |= 1 << (bit % 64);
        let entry = backend_entry(backend(id as u8), &serving(1), id, 1);
        observed.backends.insert(id, entry);
        observed
            .slots
            .insert(id, vec![BackendRef::new(id, 1); slots_count as usize]);
    }
    observed
}

fn moved(plan: &Plan) -> usize {
    let lengths = plan.steps.iter().map(|step| match step {
        Step::WriteSlots { slots, .. } => slots.len(),
        _ => 0,
    });
    lengths.sum()
}

/// Offsets after the moves for a stretch of `length`.
fn offsets(observed: &Observed, length: u32) -> Vec<u32> {
    let plan = make_stretch(observed, length);
    assert_eq!(lint(observed, &plan), Vec::<String>::new());
    let after = simulate(observed, &plan);
    after
        .services
        .values()
        .map(|service| service.slots_offset)
        .collect()
}

#[test]
fn a_small_table_in_the_only_long_stretch_steps_aside() {
    // 127,905 slots are free, 64,516 of them in a row.
    let observed = tables(260_000, &[(0, 1021), (65_537, 65_537), (150_000, 65_537)]);
    assert_eq!(Regions::of(&observed).take(65_537), Err(64_516));
    assert_eq!(offsets(&observed, 65_537), [131_074, 65_537, 150_000]);
}

#[test]
fn nothing_moves_where_it_would_not_help() {
    // As many slots are free as are wanted, and no table fits beside the others while its old copy is in use.
    let observed = tables(1000, &[(100, 300), (500, 300)]);
    assert!(make_stretch(&observed, 400).steps.is_empty());
    assert!(make_stretch(&observed, 1001).steps.is_empty());
    assert!(make_stretch(&observed, u32::MAX).steps.is_empty());
}

#[test]
fn a_table_that_is_not_whole_is_left_alone() {
    let mut observed = tables(1000, &[(100, 50), (300, 200)]);
    observed.slots.get_mut(&1).unwrap().pop();
    let plan = make_stretch(&observed, 290);
    assert!(
        plan.steps
            .iter()
            .all(|step| !matches!(step, Step::WriteService { service, .. } if service.id == 1))
    );
}

proptest! {
    #[test]
    fn whatever_moves_leaves_a_long_stretch_and_every_table_whole(
        gaps in prop::collection::vec((0u32..300, 1u32..300), 1..8),
        tail in 0u32..300,
        length in 1u32..600,
    ) {
        let mut end = 0;
        let places: Vec<(u32, u32)> = gaps
            .iter()
            .map(|&(gap, count)| {
                let offset = end + gap;
                end = offset + count;
                (offset, count)
            })
            .collect();
        let observed = tables(end + tail, &places);
        let plan = make_stretch(&observed, length);
        prop_assert_eq!(lint(&observed, &plan), Vec::<String>::new());
        let after = simulate(&observed, &plan);
        for (key, service) in &observed.services {
            prop_assert_eq!(&after.slots[&service.id], &observed.slots[&service.id], "{:?}", key);
        }
        let fits_before = Regions::of(&observed).take(length).is_ok();
        if fits_before {
            prop_assert_eq!(moved(&plan), 0);
        } else if moved(&plan) > 0 {
            prop_assert!(Regions::of(&after).take(length).is_ok());
        }
    }
}
