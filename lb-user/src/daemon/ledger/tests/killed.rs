//! A daemon that is killed at any word of any step leaves maps that forward, and the next daemon finishes what was begun.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Enters a change until death.
fn enter_and_die(scene: &mut Scene, wanted: &Wanted, write: usize, eighths: usize) {
    scene.ledger.maps.die_at(write, eighths);
    let death = catch_unwind(AssertUnwindSafe(|| scene.enter(wanted).map(drop)));
    assert_eq!(death.unwrap_err().downcast_ref(), Some(&"killed"));
}

#[test]
fn wherever_it_is_killed_the_next_daemon_finishes_the_change_and_flows_go_on() {
    for change in &CHANGES {
        let (wanted, plan, after) = undisturbed(change);
        for step in 0..plan.steps.len() {
            for eighths in 0..8 {
                let what = format!("{}, step {step} ({eighths}/8): {}", change.name, plan.steps[step]);
                let mut scene = Scene::set();
                let mut flows = scene.flows();
                let undo = {
                    let draft = scene.draft(&wanted);
                    scene
                        .ledger
                        .replace(draft.services, draft.answers, draft.settings)
                };
                flows.retain(|flow| flow.is_wanted(&scene.ledger.desired));
                scene.ledger.restore(undo);
                scene.watch(flows.clone());
                enter_and_die(&mut scene, &wanted, step, eighths);
                assert_eq!(unsound(&scene.observed()), Vec::<String>::new(), "{what}");
                assert_eq!(scene.on_disk(), wanted.overlay, "{what}");

                scene.begin_anew(&wanted.file, wanted.settings);
                scene.resolve();
                assert_eq!(scene.shape(), after, "{what}");
                assert_eq!(scene.reconcile(), 0, "{what}");
                let observed = scene.observed();
                flows
                    .iter()
                    .for_each(|flow| assert!(flow.goes_on(&observed), "{what}: {flow:?}"));
            }
        }
    }
}

#[test]
fn killed_over_and_over_at_its_start_it_gets_there() {
    let change = CHANGES
        .iter()
        .find(|change| change.name == "a file applied")
        .unwrap();
    let (wanted, plan, after) = undisturbed(change);
    let mut scene = Scene::set();
    enter_and_die(&mut scene, &wanted, 0, 4);
    for round in 0..3 * plan.steps.len() {
        scene.watch(Vec::new());
        scene.ledger.maps.heal();
        scene.ledger.maps.die_at(round / 3, 3 * (round % 3));
        let file = wanted.file.clone();
        let begun = catch_unwind(AssertUnwindSafe(|| {
            scene.begin_anew_dying(&file, wanted.settings)
        }));
        assert_eq!(unsound(&scene.observed()), Vec::<String>::new(), "round {round}");
        if begun.is_ok() {
            break;
        }
    }
    scene.ledger.maps.heal();
    scene.begin_anew(&wanted.file, wanted.settings);
    scene.resolve();
    assert_eq!(scene.shape(), after);
}

impl Scene {
    /// [`begin_anew`](Self::begin_anew) without healing the maps first; what they became is kept even in death.
    fn begin_anew_dying(&mut self, file: &[ServiceSpec], settings: DesiredSettings) {
        let mut overlay = self.on_disk();
        overlay.settle(file);
        let store = Store::<Overlay>::new(self.directory.path());
        let maps = self.ledger.maps.clone();
        self.ledger = Ledger::new(file, overlay, settings, maps, store);
        self.begin(false);
    }
}

#[test]
fn entries_of_a_service_that_never_came_do_not_fill_the_maps_for_good() {
    let service = |name: &str, vip: &str, first: u8| {
        let mut spec = parse_services(APPLIED, "test").unwrap().pop().unwrap();
        (spec.name, spec.vip) = (name.to_owned(), ip(vip));
        let address = |last| BackendSpec::new(IpAddr::from([10, 0, 0, last]));
        spec.backends = (first..first + 8).map(address).collect();
        spec
    };
    // Room for the eight entries of the scene and eight more.
    let mut scene = Scene::on(maps(16));
    let mut wanted = scene.wanted.clone();
    wanted
        .overlay
        .add_service(&wanted.file, service("mail", "192.0.2.11", 100))
        .unwrap();
    let flows = scene.flows();
    scene.watch(flows.clone());
    // The entries are written, the service is not.
    enter_and_die(&mut scene, &wanted, 8, 4);
    assert_eq!(scene.shape().entries_in_use, 16);
    scene.begin_anew(&wanted.file, wanted.settings);
    scene.resolve();
    assert_eq!(scene.shape().entries_in_use, 16);
    assert_eq!(scene.observed().services.len(), 4);
    assert_eq!(scene.reconcile(), 0);
}

#[test]
fn hundreds_of_kills_leak_no_entry_and_no_slot() {
    // Two sets of six beside the eight of the scene: whoever leaks one entry a kill is soon out of them.
    let mut scene = Scene::on(maps(24));
    let flows: Vec<Flow> = scene.flows();
    let sets = [40u8, 60].map(|first| {
        let mut wanted = scene.wanted.clone();
        for last in first..first + 6 {
            let spec = BackendSpec::new(IpAddr::from([10, 0, 0, last]));
            wanted.overlay.add_backend(&wanted.file, "web", spec).unwrap();
        }
        wanted
    });
    for round in 0..250 {
        let wanted = &sets[round % 2];
        scene.watch(flows.clone());
        let steps = scene.plan_of(wanted).steps.len();
        enter_and_die(&mut scene, wanted, round * 7 % steps, round % 8);
        scene.begin_anew(&wanted.file, wanted.settings);
        scene.resolve();
        assert_eq!(scene.shape().entries_in_use, 8 + 6, "round {round}");
        assert_eq!(scene.reconcile(), 0, "round {round}");
    }
}

#[test]
fn a_rotation_cut_short_leaves_every_seed_usable_and_every_flow_where_it_is() {
    for write in 0..6 {
        for eighths in 0..8 {
            let mut scene = Scene::set();
            let flows = scene.flows();
            scene.watch(flows.clone());
            for (index, seed) in &mut scene.ledger.desired.seeds {
                (seed.k0, seed.k1, seed.generation) = (1000 + u64::from(*index), 1000, 2);
            }
            scene.ledger.maps.die_at(write, eighths);
            let nothing = Scope::Services(BTreeSet::new());
            let death = catch_unwind(AssertUnwindSafe(|| {
                let Scene { ledger, recorder, .. } = &mut scene;
                ledger.bring_about(&nothing, Trigger::Seeds, recorder).unwrap()
            }));
            assert!(death.is_err(), "write {write}");
            let file = scene.wanted.file.clone();
            scene.begin_anew(&file, settings());
            scene.resolve();
            let switched = scene.ledger.maps.seeds.iter().filter(|seed| seed.generation == 2);
            // A seed is switched and its bitmap cleared by two writes.
            assert_eq!(switched.count(), write.div_ceil(2), "write {write}, {eighths}/8");
            assert!(
                scene
                    .ledger
                    .maps
                    .seeds
                    .iter()
                    .all(|seed| (seed.k0, seed.k1) != (0, 0))
            );
            assert_eq!(scene.reconcile(), 0);
        }
    }
}
