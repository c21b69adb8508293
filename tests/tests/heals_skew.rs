//! Promise: what makes the spread of new flows uneven is noticed, named and put right; what is not a fault raises no alarm.
//!
//! Faults are written straight into the pinned maps, as a stray tool or a lost write would.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

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
    lab::{Config, Daemon, Lab, Place, Service, VIP4, within},
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
        let lab = Lab::new(&[Place::Front; 3])?;
        let servers = Servers::start(&lab, 80)?;
        let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends);
        let mut config = Config::new([service]);
        // The clock must not heal what the watch should.
        config.seeds.push("interval = \"6h\"".to_owned());
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
            let slots = check(&report, "slots")?;
            ensure!(slots["checked_seconds_ago"].is_number(), "{slots}");
            ensure!(scene.quiet(&report), "{report}");
            Ok(())
        })?;
        Ok(scene)
    }

    fn report(&self) -> Result<Value> {
        let output = self.daemon.cli(&["skew", "--json"])?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
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

    /// The events of the watch, from the one after `id` on.
    fn told(&self, id: u64) -> Result<Vec<Value>> {
        let events = self.daemon.json(&["events"])?;
        let all = events.as_array().context("a list of events")?.iter();
        Ok(all
            .filter(|event| event["id"].as_u64() > Some(id))
            .filter(|event| matches!(event["kind"].as_str(), Some("skew" | "heal")))
            .cloned()
            .collect())
    }

    fn last_event(&self) -> Result<u64> {
        let events = self.daemon.json(&["events"])?;
        let last = events.as_array().and_then(|all| all.last());
        last.and_then(|event| event["id"].as_u64()).context("an event")
    }

    /// The fault is noticed with this cause, put right, and its alarm over; open connections go on.
    fn heals(
        &self,
        cause: &str,
        fault: impl FnOnce(&Self) -> Result<()>,
        healed: impl Fn(&Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.last_event()?;
        fault(self).context("making the fault")?;
        within(PATIENCE, "it is put right", || healed(self))?;
        within(PATIENCE, "it is named and over", || {
            let told = self.told(before)?;
            let says = |text: &str| {
                told.iter()
                    .any(|event| event["text"].as_str().is_some_and(|said| said.contains(text)))
            };
            for text in ["firing", &format!("cause {cause}"), "resolved"] {
                ensure!(says(text), "nothing says {text:?}: {told:#?}");
            }
            let other: Vec<_> = told
                .iter()
                .filter(|event| event["text"].as_str().is_some_and(|said| said.contains("cause ")))
                .filter(|event| !event["text"].as_str().is_some_and(|said| said.contains(cause)))
                .collect();
            ensure!(other.is_empty(), "other causes too: {other:#?}");
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
        let seeds = self.read_seeds()?;
        let keys: BTreeSet<(u64, u64)> = seeds.iter().map(|seed| (seed.k0, seed.k1)).collect();
        ensure!(keys.len() == seeds.len(), "equal keys");
        ensure!(
            seeds
                .iter()
                .all(|seed| seed.generation > 0 && (seed.k0, seed.k1) != (0, 0)),
            "a seed is unset"
        );
        Ok(())
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

/// A self-check of the report.
fn check<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    let checks = report["self_checks"].as_array().context("self-checks")?;
    let found = checks.iter().find(|check| check["name"] == name);
    found.with_context(|| format!("no self-check {name}: {report}"))
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
    let mut owned = std::collections::BTreeMap::new();
    for slot in slots {
        *owned.entry(*slot).or_default() += 1;
    }
    owned.into_iter().collect()
}

#[test]
fn told_and_left_alone_when_healing_is_off() -> Proof {
    let lab = Lab::new(&[Place::Front; 2])?;
    let service = Service::new("web", "tcp", VIP4, 80)
        .line("affinity = \"client\"")
        .backends(&lab.backends);
    let mut config = Config::new([service]);
    config
        .seeds
        .extend(["interval = \"6h\"", "[skew]", "auto_heal = false"].map(str::to_owned));
    let daemon = Daemon::start(&lab.balancer, config)?;
    let mut seeds: Array<_, Seed> =
        Map::from_map_data(MapData::from_pin(daemon.pins().join(SEEDS.name))?)?.try_into()?;
    let shared = seeds.get(&0, 0)?;
    seeds.set(
        0,
        Seed {
            k1: !shared.k1,
            ..shared
        },
        0,
    )?;
    within(PATIENCE, "it is told", || {
        let events = daemon.ok(&["events"])?;
        ensure!(events.contains("cause seed-failure"), "{events}");
        ensure!(events.contains("auto_heal is off"), "{events}");
        Ok(())
    })?;
    Ok(())
}

/// Everything about a long-lived client, many clients and one heavy client with affinity is as it should be.
#[test]
fn innocent_traffic_raises_no_alarm() -> Proof {
    const CLIENTS: u8 = 40;
    let lab = Lab::new(&[Place::Front; 3])?;
    let addresses: Vec<IpAddr> = (0..CLIENTS).map(|n| Ipv4Addr::new(10, 1, 1, n).into()).collect();
    let batch: String = addresses
        .iter()
        .map(|address| format!("addr add {address}/16 dev eth0\n"))
        .collect();
    lab.client.ip(&batch)?;
    let _servers = Servers::start(&lab, 80)?;
    let services = [
        Service::new("sticky", "udp", VIP4, 80)
            .line("affinity = \"client\"")
            .backends(&lab.backends),
        Service::new("web", "tcp", VIP4, 80).backends(&lab.backends),
    ];
    let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let client = Client::new(&lab);
    for address in &addresses {
        client.from(*address, to(), 4)?;
    }
    // One client opens most of the flows.
    client.from(addresses[0], to(), 3000)?;
    client.many(Kind::Tcp, to(), 2000)?;
    daemon.ok(&["seeds", "rotate"])?;
    client.many(Kind::Tcp, to(), 2000)?;
    let seen = |report: &Value, name: &str| {
        let services = report["services"].as_array().cloned().unwrap_or_default();
        services.into_iter().find(|service| service["service"] == name)
    };
    within(PATIENCE, "the watch has seen all of it", || {
        let report = daemon.json(&["skew"])?;
        let sticky = seen(&report, "sticky").context("sticky")?;
        let web = seen(&report, "web").context("web")?;
        ensure!(sticky["flows"].as_u64() >= Some(3160), "{sticky}");
        ensure!(web["fresh_flows"].as_u64() >= Some(3800), "{web}");
        // A client counts once however many flows it opens.
        ensure!(sticky["fresh_flows"].as_u64() <= Some(60), "{sticky}");
        let samples = check(&report, "samples")?;
        ensure!(samples["ok"] == true, "{samples}");
        let hash = check(&report, "hash")?;
        ensure!(
            hash["ok"] == true && hash["checked_seconds_ago"].is_number(),
            "{hash}"
        );
        Ok(())
    })?;
    let events = daemon.json(&["events"])?;
    let alarms: Vec<&Value> = events
        .as_array()
        .context("events")?
        .iter()
        .filter(|event| {
            event["kind"] == "skew" && event["text"].as_str().is_some_and(|text| text.contains("firing"))
        })
        .collect();
    assert!(alarms.is_empty(), "{alarms:#?}");
    let checks = daemon.metrics()?.by_label(
        "evenkeel_skew_self_checks_total",
        "result",
        &[("check", "samples")],
    );
    assert!(checks.contains_key("ok"), "{checks:?}");
    assert_eq!(
        checks.get("failed"),
        None,
        "every sample was computed again with the same result"
    );
    Ok(())
}
