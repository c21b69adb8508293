//! Plans as text: what people read is what is checked.

use super::*;

#[test]
fn nothing_changes_nothing() {
    insta::assert_snapshot!(plan(&desired(), &running()));
}

#[test]
fn first_start() {
    insta::assert_snapshot!(plan(&desired(), &empty()));
}

#[test]
fn one_more_backend() {
    let mut desired = desired();
    web_of(&mut desired).backends.insert(backend(14), serving(1));
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn a_drain_switches_the_table_before_the_entry() {
    let mut desired = desired();
    web_of(&mut desired).backends.get_mut(&backend(12)).unwrap().state = BackendState::Draining;
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn a_drained_backend_comes_back_entry_first() {
    let mut drained = desired();
    web_of(&mut drained).backends.get_mut(&backend(12)).unwrap().state = BackendState::Draining;
    let observed = simulate(&running(), &plan(&drained, &running()));
    insta::assert_snapshot!(plan(&desired(), &observed));
}

#[test]
fn a_removed_backend() {
    let mut desired = desired();
    web_of(&mut desired).backends.remove(&backend(11));
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn the_last_backend_loses_its_next_hop() {
    let mut desired = desired();
    for backend in web_of(&mut desired).backends.values_mut() {
        backend.next_hop = None;
    }
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn a_new_next_hop_needs_no_table() {
    let mut desired = desired();
    let moved = web_of(&mut desired).backends.get_mut(&backend(13)).unwrap();
    moved.next_hop.as_mut().unwrap().mac_destination[5] = 10;
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn a_service_takes_the_place_of_another() {
    let mut desired = desired();
    desired.services.remove(&web());
    let hop = NextHop {
        source: address("2001:db8::1"),
        ..serving(1).next_hop.unwrap()
    };
    let far = DesiredBackend {
        mode: Mode::Ipip,
        udp_idle: 30,
        next_hop: Some(hop),
        ..serving(1)
    };
    let near = DesiredBackend {
        mode: Mode::Ipip,
        ..serving(3)
    };
    let dns_service = DesiredService {
        selection: Selection::Fleet,
        affinity: Affinity::Client,
        slots: Some(2000),
        ..service("dns", [(address("2001:db8:1::1"), far), (backend(11), near)])
    };
    desired.services.insert(dns(), dns_service);
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn a_rotation_of_one_seed() {
    let mut desired = desired();
    desired.seeds = BTreeMap::from([(2, seed(2))]);
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn another_selection_keeps_the_table() {
    let mut desired = desired();
    web_of(&mut desired).selection = Selection::Fleet;
    insta::assert_snapshot!(plan(&desired, &running()));
}

#[test]
fn leftovers_of_something_else_are_removed() {
    let mut observed = running();
    let mut stray = observed.backends[&1];
    stray.service = 77;
    observed.backends.insert(9, stray);
    insta::assert_snapshot!(plan(&desired(), &observed));
}

#[test]
fn a_table_that_was_written_to_is_built_anew() {
    let mut observed = running();
    observed.slots.get_mut(&1).unwrap()[500] = BackendRef::new(3, 9);
    insta::assert_snapshot!(plan(&desired(), &observed));
}
