//! Seeds that something else wrote, where healing is off: left by everything that nobody asked for, and by nothing else.

use super::*;

/// A CPU's seed that is not as written, with healing off.
fn falsified() -> Scene {
    let mut scene = Scene::set();
    scene.ledger.hands_off = true;
    scene.ledger.maps.seeds[2] = foreign();
    scene
}

fn foreign() -> Seed {
    Seed {
        k0: 99,
        ..fresh_seed(2)
    }
}

fn bring(scene: &mut Scene, scope: &Scope, trigger: Trigger) -> usize {
    scene.ledger.bring_about(scope, trigger, &scene.recorder).unwrap()
}

#[test]
fn what_nobody_asked_for_leaves_a_falsified_seed() {
    let nothing = Scope::Services(BTreeSet::new());
    for trigger in [
        Trigger::Reconcile,
        Trigger::Samples,
        Trigger::NextHop,
        Trigger::Seeds,
        Trigger::Heal,
    ] {
        for scope in [&Scope::All, &nothing] {
            let mut scene = falsified();
            assert_eq!(bring(&mut scene, scope, trigger), 0, "{trigger:?}");
            assert_eq!(scene.ledger.maps.seeds[2], foreign(), "{trigger:?}");
            // What the watch compares with is what was written.
            assert_eq!(scene.ledger.board.read().seeds[&2], fresh_seed(2));
            scene.ledger.hands_off = false;
            assert_eq!(bring(&mut scene, scope, trigger), 2, "{trigger:?}");
            assert_eq!(scene.ledger.maps.seeds[2], fresh_seed(2), "{trigger:?}");
        }
    }
}

#[test]
fn a_new_seed_is_written_beside_one_that_is_left() {
    let mut scene = falsified();
    let new = Seed {
        k0: 17,
        generation: 2,
        ..fresh_seed(1)
    };
    scene.ledger.desired.seeds.insert(1, new);
    bring(&mut scene, &Scope::All, Trigger::Seeds);
    assert_eq!(scene.ledger.maps.seeds[1..], [new, foreign()]);
    // And over one that was left, when its own time comes.
    let own = Seed {
        generation: 2,
        ..fresh_seed(2)
    };
    scene.ledger.desired.seeds.insert(2, own);
    bring(&mut scene, &Scope::All, Trigger::Seeds);
    assert_eq!(scene.ledger.maps.seeds[2], own);
}

#[test]
fn whoever_asks_for_a_change_gets_the_seeds_as_they_should_be() {
    for trigger in [Trigger::Start, Trigger::Edit, Trigger::Reload] {
        let mut scene = falsified();
        bring(&mut scene, &Scope::All, trigger);
        assert_eq!(scene.ledger.maps.seeds[2], fresh_seed(2), "{trigger:?}");
    }
}

#[test]
fn a_change_that_was_not_finished_is_finished() {
    let mut scene = falsified();
    let new = Seed {
        k0: 17,
        generation: 2,
        ..fresh_seed(1)
    };
    scene.ledger.desired.seeds.insert(1, new);
    scene.ledger.maps.fail_once_at(0);
    let result = scene
        .ledger
        .bring_about(&Scope::All, Trigger::Seeds, &scene.recorder);
    assert!(result.is_err() && scene.ledger.is_behind());
    scene.reconcile();
    assert_eq!(scene.ledger.maps.seeds[1..], [new, fresh_seed(2)]);
    assert!(!scene.ledger.is_behind());
}
