//! A change that fails at any step is refused, and nothing is left of it: not in the maps, not on disk, not in memory.

use std::fs;

use super::*;
use crate::plan::Step;

fn taken_back(result: Result<Entered, NotEntered>) -> TakenBack {
    match result {
        Err(NotEntered::TakenBack(failure)) => *failure,
        other => panic!("{other:?}"),
    }
}

/// The step that takes a backend's entry or its service away: what comes back after it has other ids.
fn removal_of(flow: &Flow, plan: &Plan) -> Option<usize> {
    let removes = |step: &Step| match step {
        Step::WriteBackend { id, backend } => *id == flow.reference.id() && backend.state == state::UNSET,
        Step::RemoveService { key } => *key == flow.service,
        _ => false,
    };
    plan.steps.iter().position(removes)
}

#[test]
fn whatever_step_fails_the_change_is_taken_back() {
    for change in &CHANGES {
        let (wanted, plan, after) = undisturbed(change);
        for step in 0..plan.steps.len() {
            let what = format!("{}, step {step}: {}", change.name, plan.steps[step]);
            let mut scene = Scene::set();
            let before = scene.shape();
            let flows = scene.flows();
            // Only a removal that was carried out loses flows of a backend that then stays after all.
            let kept = flows
                .iter()
                .filter(|flow| removal_of(flow, &plan).is_none_or(|removal| removal >= step));
            scene.watch(kept.cloned().collect());
            scene.ledger.maps.fail_once_at(step);
            let failure = taken_back(scene.enter(&wanted));

            assert_eq!((failure.error.step, failure.error.done), (step, step), "{what}");
            let text = failure.error.to_string();
            assert!(text.contains(&plan.steps[step].to_string()), "{what}: {text}");
            assert!(
                failure.maps.is_ok() && failure.disk.is_ok(),
                "{what}: {failure:?}"
            );
            assert_eq!(scene.on_disk(), scene.wanted.overlay, "{what}");
            assert_eq!(scene.ledger.overlay, scene.wanted.overlay, "{what}");
            assert_eq!(scene.shape(), before, "{what}");
            assert_eq!(scene.reconcile(), 0, "{what}");

            scene.watch(Vec::new());
            scene.enter(&wanted).unwrap();
            assert_eq!(scene.shape(), after, "{what}, the second time");
            assert_eq!(scene.on_disk(), wanted.overlay);
        }
    }
}

#[test]
fn while_the_maps_refuse_everything_the_state_in_between_is_sound_and_a_reconcile_ends_it() {
    for change in &CHANGES {
        let (wanted, plan, after) = undisturbed(change);
        for step in 0..plan.steps.len() {
            let what = format!("{}, step {step}: {}", change.name, plan.steps[step]);
            let mut scene = Scene::set();
            let before = scene.shape();
            scene.watch(Vec::new());
            scene.ledger.maps.fail_at(step);
            let failure = taken_back(scene.enter(&wanted));
            // Where nothing is to be seen of the change, nothing is to be taken back.
            assert_eq!(
                failure.maps.is_ok(),
                scene.shape() == before,
                "{what}: {failure:?}"
            );
            assert_eq!(scene.on_disk(), scene.wanted.overlay, "{what}");
            assert_eq!(unsound(&scene.observed()), Vec::<String>::new(), "{what}");

            scene.ledger.maps.heal();
            scene.reconcile();
            assert_eq!(scene.shape(), before, "{what}");
            assert_eq!(scene.reconcile(), 0, "{what}");
            scene.enter(&wanted).unwrap();
            assert_eq!(scene.shape(), after, "{what}, the second time");
        }
    }
}

#[test]
fn a_full_disk_refuses_before_anything_is_touched() {
    for change in &CHANGES {
        let (wanted, ..) = undisturbed(change);
        let mut scene = Scene::set();
        let before = (scene.shape(), scene.ledger.maps.writes);
        // A directory where the new file should be: root may write anywhere else.
        fs::create_dir(scene.directory.path().join("overlay.new")).unwrap();
        let error = scene.enter(&wanted).unwrap_err();
        assert!(matches!(error, NotEntered::Unsaved(_)), "{error:?}");
        assert!(error.to_string().contains("state.directory"), "{error}");
        assert_eq!((scene.shape(), scene.ledger.maps.writes), before);
        assert_eq!(scene.on_disk(), scene.wanted.overlay);
        assert_eq!(scene.reconcile(), 0);
    }
}

#[test]
fn without_room_nothing_is_touched_and_the_next_step_says_how_much_is_needed() {
    // Eight entries are in use.
    let mut scene = Scene::on(maps(9));
    let mut wanted = scene.wanted.clone();
    let specs = parse_services(APPLIED, "test").unwrap();
    wanted.overlay.apply_file(&wanted.file, specs).unwrap();
    let before = (scene.shape(), scene.ledger.maps.writes);
    let error = scene.enter(&wanted).unwrap_err();
    let NotEntered::Planless(BringError::Plan(error)) = error else {
        panic!("{error:?}")
    };
    assert!(error.next_step().contains("max_backends = "), "{error:?}");
    assert_eq!((scene.shape(), scene.ledger.maps.writes), before);
    assert_eq!(scene.on_disk(), scene.wanted.overlay);
    assert_eq!(scene.reconcile(), 0);
}

#[test]
fn an_answer_that_came_with_a_refused_change_is_not_forgotten_by_other_services() {
    let mut scene = Scene::set();
    let address = ip("10.0.0.14");
    // The resolver has not yet said anything of a backend that two services have.
    scene.ledger.resolutions.remove(&address);
    scene.ledger.next_hops.remove(&address);
    let all = scene.ledger.effective.services.keys().cloned().collect();
    scene.ledger.refresh_desired(&all);
    scene.reconcile();

    let mut wanted = scene.wanted.clone();
    let spec = BackendSpec {
        mode: Some(Mode::Ipip),
        ..BackendSpec::new(address)
    };
    wanted.overlay.add_backend(&wanted.file, "dns", spec).unwrap();
    scene.ledger.maps.fail_once_at(1);
    taken_back(scene.enter(&wanted));
    let Answers { changed, .. } = scene.ledger.take_news(news(&scene.ledger.addresses()));
    assert_eq!(changed, [address].into());
}

#[test]
fn a_table_finds_room_when_free_slots_lie_apart() {
    let mut scene = Scene::set();
    let mut wanted = scene.wanted.clone();
    let mut enter = |scene: &mut Scene, slots, weight| {
        wanted.file[0].slots = Some(slots);
        wanted.file[0].backends[0].weight = weight;
        let shown = scene.plan_of(&wanted).steps.len();
        scene.watch(scene.flows());
        scene.enter(&wanted).unwrap();
        (shown, scene.table_of_web())
    };
    // Another table stands before the stretch that web left: free are 1,021, 6,007 and 1,307 slots, no 7,001 in a row.
    assert_eq!(enter(&mut scene, 6007, 1).1, (3063, 6007));
    assert_eq!(enter(&mut scene, 6007, 2).1, (9070, 6007));
    let (shown, place) = enter(&mut scene, 7001, 2);
    assert_eq!(place, (1021, 7001));
    assert_eq!(shown, 4, "the plan that is shown tells the move too");
    assert_eq!(scene.reconcile(), 0);
}
