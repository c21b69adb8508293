//! Promise: what makes the spread of new flows uneven is noticed, named and put right.
//!
//! Faults are written straight into the pinned maps, as a stray tool or a lost write would.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    ids::BackendRef,
    map_names::{SEEDS, SLOTS},
    seed::Seed,
    service::{Service as Entry, ServiceKey},
};
use lb_user::{
    maps::{MapWriter, PinnedMaps},
    state::desired::{Protocol, service_key},
};
use serde_json::Value;
use tests::{
    Proof,
    lab::{
        Config, Daemon, Lab, Place, Service, VIP4, Watched,
        watched::{fit, self_check},
        within,
    },
    traffic::{Client, Kind, LongLived, Servers},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A lab with one service, and open connections that nothing may disturb.
struct Scene {
    daemon: Daemon,
    flows: LongLived,
    client: Client,
    _servers: Servers,
    lab: Lab,
}

fn to() -> SocketAddr {
    SocketAddr::new(VIP4, 80)
}

fn key() -> ServiceKey {
    service_key(VIP4, Some(80), Protocol::Tcp)
}

impl Scene {
    fn set() -> Result<Self> {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Config)) -> Result<Self> {
        let lab = Lab::new(&[Place::Front; 3])?;
        let servers = Servers::start(&lab, 80)?;
        let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends);
        let mut config = Config::new([service]);
        // The clock must not heal what the watch should.
        config.seeds.push("interval = \"6h\"".to_owned());
        change(&mut config);
        let daemon = Daemon::start(&lab.balancer, config)?;
        let client = Client::new(&lab);
        let flows = LongLived::open(&client, to(), 12)?;
        let scene = Self {
            daemon,
            flows,
            client,
            _servers: servers,
            lab,
        };
        within(PATIENCE, "the watch looks", || {
            let report = scene.report()?;
            let slots = self_check(&report, "slots")?;
            ensure!(slots["checked_seconds_ago"].is_number(), "{slots}");
            ensure!(scene.quiet(&report), "{report}");
            Ok(())
        })?;
        Ok(scene)
    }

    fn watched(&self) -> Watched<'_> {
        Watched(&self.daemon)
    }

    fn report(&self) -> Result<Value> {
        Ok(self.watched().report(None)?.0)
    }

    /// No alarm stands and no self-check fails.
    fn quiet(&self, report: &Value) -> bool {
        let alarmed = |service: &Value| matches!(service["state"].as_str(), Some("firing" | "healing"));
        let services = report["services"]
            .as_array()
            .is_some_and(|all| !all.iter().any(alarmed));
        let checks = report["self_checks"]
            .as_array()
            .is_some_and(|all| all.iter().all(|check| check["ok"] == true));
        services && checks
    }

    /// The fault is noticed with this cause, put right, and its alarm over; open connections go on.
    fn heals(
        &self,
        cause: &str,
        fault: impl FnOnce(&Self) -> Result<()>,
        healed: impl Fn(&Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.watched().mark()?;
        fault(self).context("making the fault")?;
        within(PATIENCE, "it is put right", || healed(self))?;
        within(PATIENCE, "it is named and over", || {
            let told = self.watched().told(before)?;
            let says = |text: &str| told.iter().any(|told| told.text.contains(text));
            for text in ["firing", &format!("cause {cause}"), "resolved"] {
                ensure!(says(text), "nothing says {text:?}: {told:#?}");
            }
            self.watched().blames_only(before, cause)?;
            let report = self.report()?;
            ensure!(self.quiet(&report), "{report:#}");
            Ok(())
        })?;
        self.flows.check(cause)?;
        // New flows go on as well.
        self.client.many(Kind::Tcp, to(), 20)?;
        Ok(())
    }

    fn map(&self, name: &str) -> Result<Map> {
        let path = self.daemon.pins().join(name);
        let data = MapData::from_pin(&path).with_context(|| path.display().to_string())?;
        Ok(Map::from_map_data(data)?)
    }

    fn seeds(&self) -> Result<Array<MapData, Seed>> {
        Ok(self.map(SEEDS.name)?.try_into()?)
    }

    fn read_seeds(&self) -> Result<Vec<Seed>> {
        let seeds = self.seeds()?;
        (0..seeds.len()).map(|index| Ok(seeds.get(&index, 0)?)).collect()
    }

    fn write_seeds(&self, seed: impl Fn(u32, Seed) -> Seed) -> Result<()> {
        let mut seeds = self.seeds()?;
        for index in 0..seeds.len() {
            let before = seeds.get(&index, 0)?;
            seeds.set(index, seed(index, before), 0)?;
        }
        Ok(())
    }

    fn seeds_are_fit(&self) -> Result<()> {
        fit(&self.read_seeds()?)
    }

    fn entry(&self) -> Result<Entry> {
        let maps = PinnedMaps::open_read_only(self.daemon.pins())?;
        maps.read_service(&key())?.context("the service is there")
    }

    fn write_entry(&self, entry: Entry) -> Result<()> {
        Ok(PinnedMaps::open(self.daemon.pins())?.write_service(&key(), &entry)?)
    }

    fn slots(&self) -> Result<Vec<BackendRef>> {
        let maps = PinnedMaps::open_read_only(self.daemon.pins())?;
        Ok(maps.slots_of(&self.entry()?))
    }

    fn write_slots(&self, slot: impl Fn(usize, BackendRef) -> BackendRef) -> Result<()> {
        let mut map: Array<_, u32> = self.map(SLOTS.name)?.try_into()?;
        let offset = self.entry()?.slots_offset;
        for (place, before) in self.slots()?.into_iter().enumerate() {
            map.set(offset + place as u32, slot(place, before).bits(), 0)?;
        }
        Ok(())
    }
}

#[test]
fn seeds_that_were_falsified_without_any_traffic() -> Proof {
    let scene = Scene::set()?;
    scene.heals(
        "seed-failure",
        |scene| scene.write_seeds(|_, _| Seed::default()),
        Scene::seeds_are_fit,
    )?;
    scene.heals(
        "seed-failure",
        |scene| {
            let first = scene.read_seeds()?[1];
            scene.write_seeds(|index, before| if index == 0 { before } else { first })
        },
        Scene::seeds_are_fit,
    )?;
    let generations: Vec<u32> = scene.read_seeds()?.iter().map(|seed| seed.generation).collect();
    scene.heals(
        "seed-failure",
        // A key of zeros under the right generation.
        |scene| {
            scene.write_seeds(|index, before| match index {
                1 => Seed {
                    generation: before.generation,
                    ..Seed::default()
                },
                _ => before,
            })
        },
        Scene::seeds_are_fit,
    )?;
    let after = scene.read_seeds()?;
    assert!(
        after[1].generation > generations[1],
        "a seed that something else wrote is never used again"
    );
    assert_eq!(after[2].generation, generations[2], "the others stay");
    Ok(())
}

#[test]
fn slots_that_were_falsified_without_any_traffic() -> Proof {
    let scene = Scene::set()?;
    let wanted = owned(&scene.slots()?);
    assert_eq!(wanted.len(), 3);
    let as_before = |scene: &Scene| {
        let found = owned(&scene.slots()?);
        ensure!(found == wanted, "{found:?} instead of {wanted:?}");
        Ok(())
    };
    // A hole.
    scene.heals(
        "table-mismatch",
        |scene| scene.write_slots(|place, before| if place < 200 { BackendRef::UNSET } else { before }),
        as_before,
    )?;
    // One backend with the slots of two.
    let (first, second) = (wanted[0].0, wanted[1].0);
    scene.heals(
        "table-mismatch",
        |scene| scene.write_slots(|_, before| if before == second { first } else { before }),
        as_before,
    )?;
    // Another table altogether.
    scene.heals(
        "table-mismatch",
        |scene| {
            let entry = scene.entry()?;
            scene.write_entry(Entry {
                slots_count: 16,
                ..entry
            })
        },
        as_before,
    )?;
    Ok(())
}

#[test]
fn slots_of_a_backend_that_drains() -> Proof {
    let scene = Scene::set()?;
    let address = scene.lab.backends[0].address(false).to_string();
    let before = owned(&scene.slots()?);
    scene.daemon.ok(&["backend", "drain", "web", &address])?;
    let wanted = owned(&scene.slots()?);
    assert_eq!(wanted.len(), 2);
    let draining = before
        .iter()
        .map(|(backend, _)| *backend)
        .find(|backend| wanted.iter().all(|(other, _)| other != backend))
        .context("one drains")?;
    scene.heals(
        "table-mismatch",
        |scene| scene.write_slots(|place, before| if place % 3 == 0 { draining } else { before }),
        |scene| {
            let found = owned(&scene.slots()?);
            ensure!(found == wanted, "{found:?} instead of {wanted:?}");
            Ok(())
        },
    )?;
    Ok(())
}

fn owned(slots: &[BackendRef]) -> Vec<(BackendRef, usize)> {
    let mut owned = BTreeMap::new();
    for slot in slots {
        *owned.entry(*slot).or_default() += 1;
    }
    owned.into_iter().collect()
}

/// What is wrong is told, shown, and stays as it is through the comparisons of the maps – until someone asks.
#[test]
fn told_and_left_alone_when_healing_is_off() -> Proof {
    let mut scene = Scene::with(|config| {
        config
            .seeds
            .extend(["[skew]", "auto_heal = false"].map(str::to_owned))
    })?;
    let (seeds, slots) = (scene.read_seeds()?, scene.slots()?);
    let before = scene.watched().mark()?;
    let falsified = |index: u32, seed: Seed| match index {
        0 | 1 => Seed { k1: !seed.k1, ..seed },
        _ => seed,
    };
    let told = |scene: &Scene, cause: &str, left: &str| {
        within(PATIENCE, "it is told, and that it is left", || {
            let told = scene.watched().told(before)?;
            let says = |text: &str| told.iter().any(|told| told.text.contains(text));
            for text in [cause, "auto_heal is off"] {
                ensure!(says(text), "nothing says {text:?}: {told:#?}");
            }
            let events = scene.daemon.ok(&["events"])?;
            ensure!(events.contains(left), "{events}");
            Ok(())
        })
    };
    let wanted = owned(&slots);
    let (first, second) = (wanted[0].0, wanted[1].0);
    scene.write_slots(|_, slot| if slot == second { first } else { slot })?;
    told(
        &scene,
        "cause table-mismatch",
        "the slots of web are not as written, and left so",
    )?;
    scene.write_seeds(falsified)?;
    told(
        &scene,
        "cause seed-failure",
        "the shared seed, the seed of CPU 0 and the slots of web are not as written, and left so",
    )?;
    let wrong_seeds = scene.read_seeds()?;
    let wrong_slots = scene.slots()?;
    let status = scene.daemon.ok(&["status"])?;
    assert!(
        status.contains("left so: auto_heal is off") && status.contains("evenkeel reload"),
        "{status}"
    );
    let report = scene.report()?;
    let todo = report["services"][0]["todo"].to_string();
    assert!(
        todo.contains("auto_heal is off") && todo.contains("evenkeel"),
        "{report:#}"
    );
    // Samples follow the traffic, which writes settings, and nothing else.
    scene.client.many(Kind::Tcp, to(), 300)?;
    assert_eq!(scene.read_seeds()?, wrong_seeds);
    assert_eq!(scene.slots()?, wrong_slots);
    scene.daemon.ok(&["reload"])?;
    assert_eq!(scene.read_seeds()?, seeds);
    assert_eq!(owned(&scene.slots()?), wanted);
    within(PATIENCE, "the alarm is over", || {
        let report = scene.report()?;
        ensure!(scene.quiet(&report), "{report:#}");
        let status = scene.daemon.json(&["status"])?;
        ensure!(status["problems"] == Value::Array(Vec::new()), "{status:#}");
        Ok(())
    })?;
    scene.flows.check("left and put right")?;
    // New seeds by command are new seeds, whatever stands there.
    scene.write_seeds(falsified)?;
    scene.daemon.ok(&["seeds", "rotate", "--all"])?;
    let rotated = scene.read_seeds()?;
    assert!(
        rotated
            .iter()
            .zip(&seeds)
            .all(|(new, old)| new.generation > old.generation)
    );
    scene.seeds_are_fit()?;
    scene.daemon.stop()?;
    Ok(())
}

/// The ring of samples has a reader only while a daemon runs.
#[test]
fn samples_end_with_the_daemon_and_begin_with_the_next() -> Proof {
    let mut scene = Scene::with(|_| ())?;
    let mask = |scene: &Scene| -> Result<u64> {
        let maps = PinnedMaps::open_read_only(scene.daemon.pins())?;
        Ok(maps.settings().sample_mask)
    };
    let samples = |scene: &Scene| {
        scene.client.many(Kind::Tcp, to(), 50)?;
        let mask = mask(scene)?;
        ensure!(mask < u64::from(u32::MAX), "no flow is sampled: {mask:#x}");
        Ok(())
    };
    within(PATIENCE, "flows are sampled", || samples(&scene))?;
    scene.daemon.stop()?;
    assert_eq!(mask(&scene)?, u64::MAX, "no flow is sampled without a reader");
    scene.flows.check("without a daemon")?;
    scene.daemon.launch()?;
    scene.daemon.wait_ready()?;
    within(PATIENCE, "the next daemon samples again", || samples(&scene))?;
    scene.flows.check("with the next")?;
    Ok(())
}
