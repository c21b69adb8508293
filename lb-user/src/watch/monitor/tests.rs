//! The monitor over a datapath that is made up: picks are drawn, faults are put into seeds, slots and hashes.

mod faults;
mod input;
mod warns;

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
    service::{Service, ServiceKey, flag},
    slot_table::{HISTOGRAM_BUCKETS, bucket_of, bucket_scale, slot_of},
};

use super::*;
use crate::{
    counters::BackendTotals,
    skew::state::Remedy,
    state::desired::BackendState,
    watch::{
        incident::Told,
        published::{Board, Member, Table},
        readback,
        report::{CauseName, StateName},
        source::BUCKETS,
    },
};

const CPUS: u32 = 4;
const SLOTS: u32 = 1021;
const BACKENDS: u32 = 5;
/// Words of a bitmap of fresh keys.
const FRESH_WORDS: usize = 1 << 13;

/// A datapath in memory, and what was written to it.
struct World {
    cpus: u32,
    origin: u64,
    seeds: Vec<Seed>,
    slots: Vec<BackendRef>,
    histograms: Vec<[u64; BUCKETS]>,
    counters: BTreeMap<(u32, u32), BackendTotals>,
    /// What a CPU's hash makes of a good one.
    distort: fn(u32, u64) -> u64,
    /// The same of the hash that tells fresh keys.
    witness: fn(u32, u64) -> u64,
    /// Bitmaps of fresh keys by index of the seed.
    fresh: Vec<Vec<u64>>,
    /// Clients are drawn from so many; 0: from all.
    clients: u64,
    sampled: bool,
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
        self.cpus
    }

    fn origin(&self) -> u64 {
        self.origin
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

    fn fresh_bits(&self, index: u32) -> Option<[u64; 2]> {
        let words = self.fresh.get(index as usize)?;
        let set = words.iter().map(|word| u64::from(word.count_ones())).sum();
        Some([set, FRESH_WORDS as u64 * 64])
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
        Self::of_cpus(CPUS, settings)
    }

    fn of_cpus(cpus: u32, settings: Settings) -> Self {
        let slots: Vec<BackendRef> = (0..SLOTS)
            .map(|slot| BackendRef::new(1 + slot % BACKENDS, 1))
            .collect();
        let seed = |index: u32| Seed {
            k0: 100 + u64::from(index),
            k1: 7,
            generation: 1,
            reserved: 0,
        };
        let seeds: Vec<Seed> = (0..=cpus).map(seed).collect();
        let board = Board::default();
        board.writing().publish(Published {
            seeds: (0..).zip(seeds.iter().copied()).collect(),
            services: [(key(), Arc::new(table(&slots)))].into(),
        });
        Self {
            cpus,
            origin: 1,
            fresh: vec![vec![0; FRESH_WORDS]; seeds.len()],
            witness: |_, hash| hash,
            clients: 0,
            sampled: true,
            seeds,
            slots,
            histograms: vec![[0; BUCKETS]; cpus as usize],
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

    /// The client and the ports of a new flow.
    fn key(&mut self) -> (u32, u32) {
        let (client, ports) = (self.next(), self.next());
        match self.clients {
            0 => (client as u32, ports as u32),
            clients => ((client >> 20) as u32 % clients as u32, 7),
        }
    }

    /// New flows on all CPUs in turn; one in eleven is sampled.
    fn flows(&mut self, count: u32) {
        let published = self.board.read();
        let service = published.services.values().next().unwrap().service;
        let by_client = service.flags & flag::CLIENT_AFFINITY != 0;
        for number in 0..count {
            let cpu = number % self.cpus;
            let (client, ports) = self.key();
            let tuple = FlowTuple::v4(client, 0xc000_020a, ports, 6);
            let seed_index = if by_client { SHARED } else { of_cpu(cpu) };
            let seed = self.seeds[seed_index as usize];
            let key = Key {
                k0: seed.k0,
                k1: seed.k1,
            };
            let right = if by_client {
                tuple.hash_client(key)
            } else {
                tuple.hash(key)
            };
            let hash = (self.distort)(cpu, right);
            let slot = slot_of(hash, SLOTS);
            let backend = self.slots[slot as usize];
            let witness = (self.witness)(cpu, tuple.hash(Key { k0: 3, k1: 5 }));
            let word = &mut self.fresh[seed_index as usize][(witness >> 6) as usize % FRESH_WORDS];
            let fresh = u64::from(*word >> (witness & 63) & 1 == 0);
            *word |= 1 << (witness & 63);
            let bucket = &mut self.histograms[cpu as usize][bucket_of(slot, bucket_scale(SLOTS)) as usize];
            *bucket = bucket.wrapping_add(fresh);
            let counted = self.counters.entry((cpu, backend.id())).or_default();
            *counted += BackendTotals {
                flows: 1,
                fresh_flows: fresh,
                packets: 10,
                bytes: 1000,
            };
            if number % 11 == 0 && self.sampled {
                let sample = Sample {
                    words: tuple.words,
                    hash,
                    ports: tuple.ports,
                    service: 1,
                    slot,
                    table_generation: service.table_generation,
                    seed_generation: seed.generation,
                    backend,
                    seed_index,
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

    /// New seeds for these, as the controller writes them.
    fn rotate(&mut self, indices: impl IntoIterator<Item = u32>) {
        for index in indices {
            let seed = &mut self.seeds[index as usize];
            seed.k0 = seed.k0.wrapping_mul(31).wrapping_add(1);
            seed.generation += 1;
            self.fresh[index as usize].fill(0);
        }
        let seeds = (0..).zip(self.seeds.iter().copied()).collect();
        self.publish(|published| published.seeds = seeds);
    }

    fn publish(&self, change: impl FnOnce(&mut Published)) {
        let writing = self.board.writing();
        let mut published = Published::clone(&self.board.read());
        change(&mut published);
        writing.publish(published);
    }

    /// Publishes another form of the only service.
    fn publish_table(&self, change: impl FnOnce(&mut Table)) {
        self.publish(|published| {
            let mut table = Table::clone(&published.services[&key()]);
            change(&mut table);
            published.services.insert(key(), Arc::new(table));
        });
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

    fn is_quiet(&self) -> bool {
        self.told.is_empty()
            && !self.monitor.is_alarm()
            && self.monitor.self_checks().iter().all(|(_, failed)| !failed)
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
    assert_eq!(
        report.streams,
        2 + u64::from(CPUS) + 1,
        "new flows count twice: fresh ones, and all from seed to seed"
    );
    assert!(
        report.self_checks.iter().all(|check| check.ok),
        "{:?}",
        report.self_checks
    );
    assert_eq!(report.cpus.len(), 1 + CPUS as usize);
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
