//! The monitor over a datapath that is made up: picks are drawn, faults are put into seeds, slots and hashes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use lb_common::{
    flow_hash::{FlowTuple, Key},
    ids::BackendRef,
    sample::Sample,
    seed::{SHARED, Seed, of_cpu},
    service::{Service, ServiceKey},
    slot_table::{HISTOGRAM_BUCKETS, bucket_of, bucket_scale, slot_of},
};

use super::*;
use crate::{
    counters::BackendTotals,
    state::desired::BackendState,
    watch::{
        published::{Board, Member, Table},
        readback,
        report::{CauseName, StateName},
        source::BUCKETS,
    },
};

const CPUS: u32 = 4;
const SLOTS: u32 = 1021;
const BACKENDS: u32 = 5;

/// A datapath in memory, and what was written to it.
struct World {
    seeds: Vec<Seed>,
    slots: Vec<BackendRef>,
    histograms: Vec<[u64; BUCKETS]>,
    counters: BTreeMap<(u32, u32), BackendTotals>,
    /// What a CPU's hash makes of a good one.
    distort: fn(u32, u64) -> u64,
    random: u64,
    board: Board,
    monitor: Monitor,
    second: u64,
    told: Vec<Told>,
}

fn key() -> ServiceKey {
    ServiceKey {
        port: [0, 80],
        protocol: 6,
        family: 4,
        ..ServiceKey::default()
    }
}

impl Source for World {
    fn cpus(&self) -> u32 {
        CPUS
    }

    fn origin(&self) -> u64 {
        1
    }

    fn histogram(&self, cpu: u32) -> [u64; BUCKETS] {
        self.histograms[cpu as usize]
    }

    fn backend(&self, cpu: u32, id: u32) -> BackendTotals {
        self.counters.get(&(cpu, id)).copied().unwrap_or_default()
    }

    fn seeds(&self) -> Vec<Seed> {
        self.seeds.clone()
    }

    fn slot(&self, index: u32) -> Option<BackendRef> {
        self.slots.get(index as usize).copied()
    }

    fn is_serving(&self, _: BackendRef) -> bool {
        true
    }
}

fn settings() -> Settings {
    Settings {
        interval: Duration::from_secs(1),
        false_alarms_per_year: 1.0,
        auto_heal: true,
        auto_heal_services: BTreeMap::new(),
        limits: Limits::DEFAULT,
    }
}

fn table(slots: &[BackendRef]) -> Table {
    let owned = crate::watch::published::owned(slots);
    let member = |id: u32| Member {
        endpoint: IpAddr::from([10, 0, 0, id as u8]),
        reference: BackendRef::new(id, 1),
        state: BackendState::Serving,
        owned: owned.get(&BackendRef::new(id, 1)).copied().unwrap_or(0),
        weight: 1,
    };
    Table {
        name: "web".into(),
        service: Service {
            id: 1,
            slots_offset: 0,
            slots_count: SLOTS,
            table_generation: 1,
            bucket_scale: bucket_scale(SLOTS),
            ..Service::default()
        },
        slots: slots.into(),
        members: (1..=BACKENDS).map(member).collect(),
    }
}

impl World {
    fn new(settings: Settings) -> Self {
        let slots: Vec<BackendRef> = (0..SLOTS)
            .map(|slot| BackendRef::new(1 + slot % BACKENDS, 1))
            .collect();
        let seed = |index: u32| Seed {
            k0: 100 + u64::from(index),
            k1: 7,
            generation: 1,
            reserved: 0,
        };
        let seeds: Vec<Seed> = (0..=CPUS).map(seed).collect();
        let board = Board::default();
        board.writing().publish(Published {
            seeds: (0..).zip(seeds.iter().copied()).collect(),
            services: [(key(), Arc::new(table(&slots)))].into(),
        });
        Self {
            seeds,
            slots,
            histograms: vec![[0; BUCKETS]; CPUS as usize],
            counters: BTreeMap::new(),
            distort: |_, hash| hash,
            random: 42,
            board,
            monitor: Monitor::new(settings),
            second: 0,
            told: Vec::new(),
        }
    }

    fn next(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random ^ self.random >> 29
    }

    /// New flows of fresh keys, on all CPUs in turn; every one is sampled.
    fn flows(&mut self, count: u32) {
        let published = self.board.read();
        let table_generation = published
            .services
            .values()
            .next()
            .unwrap()
            .service
            .table_generation;
        for number in 0..count {
            let cpu = number % CPUS;
            let (client, ports) = (self.next() as u32, self.next() as u32);
            let tuple = FlowTuple::v4(client, 0xc000_020a, ports, 6);
            let seed = self.seeds[of_cpu(cpu) as usize];
            let key = Key {
                k0: seed.k0,
                k1: seed.k1,
            };
            let hash = (self.distort)(cpu, tuple.hash(key));
            let slot = slot_of(hash, SLOTS);
            let backend = self.slots[slot as usize];
            self.histograms[cpu as usize][bucket_of(slot, bucket_scale(SLOTS)) as usize] += 1;
            let counted = self.counters.entry((cpu, backend.id())).or_default();
            counted.flows += 1;
            counted.fresh_flows += 1;
            counted.packets += 10;
            if number % 10 == 0 {
                let sample = Sample {
                    words: tuple.words,
                    hash,
                    ports: tuple.ports,
                    service: 1,
                    slot,
                    table_generation,
                    seed_generation: seed.generation,
                    backend,
                    seed_index: of_cpu(cpu),
                    cpu,
                    protocol: 6,
                    family: 4,
                    ..Sample::default()
                };
                let mut sampled = std::mem::take(&mut self.monitor.sampled);
                sampled.take(&sample, &published, self);
                self.monitor.sampled = sampled;
            }
        }
    }

    /// One second, with so many new flows; remedies are not carried out.
    fn second(&mut self, flows: u32) -> Vec<Ask> {
        self.second += 1;
        self.flows(flows);
        let (published, findings) = readback::look(&self.board, self).unwrap();
        let mut monitor = std::mem::replace(&mut self.monitor, Monitor::new(settings()));
        let at = Duration::from_secs(self.second);
        let outcome = monitor.check(at, published, Some(findings), self);
        self.monitor = monitor;
        self.told.extend(outcome.told);
        outcome.asks
    }

    fn seconds(&mut self, seconds: u32, flows: u32) -> Vec<Ask> {
        (0..seconds).flat_map(|_| self.second(flows)).collect()
    }

    fn done(&mut self, ask: &Ask) {
        self.monitor.carried_out(ask, &Ok(1), 0);
    }

    fn service(&self) -> crate::watch::report::ServiceSkew {
        self.monitor.report(0).services[0].clone()
    }

    fn said(&self, text: &str) -> bool {
        self.told.iter().any(|told| told.text.contains(text))
    }
}

#[test]
fn good_traffic_is_quiet_and_shares_are_shown() {
    let mut world = World::new(settings());
    let asks = world.seconds(150, 400);
    assert!(
        asks.is_empty() && world.told.is_empty(),
        "{asks:?} {:?}",
        world.told
    );
    let service = world.service();
    assert_eq!(service.state, StateName::Quiet);
    assert_eq!(service.cause, Some(CauseName::Healthy));
    assert!((24_000..=28_000).contains(&service.fresh_flows), "{service:?}");
    for backend in &service.backends {
        let observed = backend.observed.unwrap();
        assert!(
            backend.low <= backend.expected && backend.expected <= backend.high,
            "{backend:?}"
        );
        assert!((observed - 0.2).abs() < 0.03, "{backend:?}");
    }
    let report = world.monitor.report(0);
    assert_eq!(report.streams, 1 + u64::from(CPUS) + 1);
    assert!(
        report.self_checks.iter().all(|check| check.ok),
        "{:?}",
        report.self_checks
    );
    assert_eq!(report.cpus.len(), 1 + CPUS as usize);
}

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

#[test]
fn a_new_table_is_no_fault() {
    let mut world = World::new(settings());
    for round in 0..20u32 {
        world.seconds(3, 500);
        let drained = 1 + round % BACKENDS;
        let serving: Vec<u32> = (1..=BACKENDS).filter(|id| *id != drained).collect();
        world.slots = (0..SLOTS)
            .map(|slot| BackendRef::new(serving[slot as usize % serving.len()], 1))
            .collect();
        let writing = world.board.writing();
        let mut published = Published::clone(&world.board.read());
        let mut new = table(&world.slots);
        new.members[drained as usize - 1].state = BackendState::Draining;
        new.service.table_generation = round + 2;
        published.services.insert(key(), Arc::new(new));
        writing.publish(published);
        drop(writing);
    }
    assert!(world.told.is_empty(), "{:?}", world.told);
}

#[test]
fn nothing_is_found_while_the_controller_writes() {
    let mut world = World::new(settings());
    world.second(0);
    world.seeds[1] = Seed::default();
    let writing = world.board.writing();
    assert!(readback::look(&world.board, &world).is_none());
    drop(writing);
    let (_, findings) = readback::look(&world.board, &world).unwrap();
    assert_eq!(findings.seeds.len(), 1);
    assert_eq!(SHARED, 0);
    assert_eq!(HISTOGRAM_BUCKETS as usize, BUCKETS);
}

/// Prints what a check of a thousand services costs; the promise holds for release builds.
#[test]
fn a_check_of_a_thousand_services() {
    let mut world = World::new(settings());
    let slots = world.slots.clone();
    let services = (0..1000u32).map(|number| {
        let mut table = table(&slots);
        table.name = format!("web{number}").into();
        table.service.id = 1 + number;
        let key = ServiceKey {
            port: (number as u16).to_be_bytes(),
            ..key()
        };
        (key, Arc::new(table))
    });
    let published = Published {
        seeds: (0..).zip(world.seeds.iter().copied()).collect(),
        services: services.collect(),
    };
    world.board.writing().publish(published);
    world.second(1000);
    let start = std::time::Instant::now();
    world.second(1000);
    println!(
        "1,000 services of {BACKENDS} backends: {:?} a check",
        start.elapsed()
    );
    assert_eq!(world.monitor.report(0).services.len(), 1000);
    assert!(world.told.is_empty(), "{:?}", world.told);
}
