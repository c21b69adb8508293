//! What can be the matter, by chance: ten classes, and a box and a service in the state that each means.

use lb_user::skew::attribution::{Cause, Scope, Verdict};
use rand::{Rng as _, RngExt, seq::index::sample};

use super::faults::{HashFault, SeedFault, elephants, wrong_table};
use crate::{chance::Rng, service::Service, traffic::Traffic};

/// CPUs of the box; one bit each in a set of them.
pub const CPUS: u32 = 64;
pub type CpuSet = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Healthy,
    EntropyGlobal,
    EntropyPartial,
    KeyConcentration,
    Elephants,
    Table,
    Stale,
    Drained,
    TooLittle,
    /// A seed that does not change, or is another CPU's, under a good hash: no skew.
    Seed,
}

impl Class {
    pub const ALL: [Self; 10] = [
        Self::Healthy,
        Self::EntropyGlobal,
        Self::EntropyPartial,
        Self::KeyConcentration,
        Self::Elephants,
        Self::Table,
        Self::Stale,
        Self::Drained,
        Self::TooLittle,
        Self::Seed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::EntropyGlobal => "hash, all CPUs",
            Self::EntropyPartial => "hash, some CPUs",
            Self::KeyConcentration => "heavy keys",
            Self::Elephants => "elephants",
            Self::Table => "wrong table",
            Self::Stale => "stale on some",
            Self::Drained => "drained",
            Self::TooLittle => "too little",
            Self::Seed => "seed, no skew",
        }
    }

    /// What a verdict says.
    pub fn of(verdict: &Verdict) -> Self {
        match (&verdict.cause, &verdict.scope) {
            (Cause::Seed { .. }, _) => Self::Seed,
            (Cause::Hash(_), Scope::Global) => Self::EntropyGlobal,
            (Cause::Hash(_), Scope::Cpus(_)) => Self::EntropyPartial,
            (Cause::Table(_), _) => Self::Table,
            (Cause::StaleTable(_), _) => Self::Stale,
            (Cause::KeyConcentration(_), _) => Self::KeyConcentration,
            (Cause::Drained { .. }, _) => Self::Drained,
            (Cause::TooLittleData(_), _) => Self::TooLittle,
            (Cause::ElephantFlows(_), _) => Self::Elephants,
            (Cause::Healthy, _) => Self::Healthy,
        }
    }

    pub fn is_entropy(self) -> bool {
        matches!(self, Self::EntropyGlobal | Self::EntropyPartial)
    }

    /// Whether it explains uneven traffic by what clients send, so that nobody looks any further.
    pub fn is_excuse(self) -> bool {
        matches!(self, Self::KeyConcentration | Self::Elephants)
    }

    /// Whether it is a fault that moves traffic.
    pub fn is_fault(self) -> bool {
        self.is_entropy() || matches!(self, Self::Table | Self::Stale)
    }
}

/// A box and a service, and what happens to them.
pub struct Case {
    pub traffic: Traffic,
    /// Flows a check.
    pub rate: f64,
    pub before: Service,
    /// What the control plane makes of the service when it happens.
    pub after: Option<Service>,
    /// The backend that leaves then.
    pub leaving: Option<usize>,
    pub hash: Option<HashFault>,
    /// By slot, what the datapath holds instead of what was built; on these CPUs.
    pub wrong: Option<(CpuSet, Vec<u32>)>,
    pub seeds: Option<SeedFault>,
    /// Flows that last: their packets as a part of all others', and their backends.
    pub elephants: Vec<(f64, usize)>,
}

impl Case {
    pub fn new(class: Class, rng: &mut Rng) -> Self {
        let n = rng.random_range(2..=64);
        let slots = Some(size_for_one_more(n));
        let before: Vec<(u32, u32)> = Service::random(n, rng).backends;
        let mut case = Self {
            traffic: Traffic::Unique,
            rate: rng.random_range(60.0..3600.0),
            before: Service::new(&before, slots),
            after: None,
            leaving: None,
            hash: None,
            wrong: None,
            seeds: None,
            elephants: Vec::new(),
        };
        match class {
            Class::Healthy => {}
            Class::EntropyGlobal => case.break_hash(CpuSet::MAX, rng),
            Class::EntropyPartial => {
                let count = rng.random_range(1..=8);
                case.break_hash(some_cpus(count, rng), rng);
            }
            Class::KeyConcentration => case.traffic = heavy_traffic(rng),
            Class::Elephants => case.elephants = elephants(&case.before.p(), rng),
            Class::Table => case.wrong = Some((CpuSet::MAX, wrong_table(&case.before, slots, rng))),
            Class::Stale => case.leave_stale(slots, rng),
            Class::Drained => {
                let backend = rng.random_range(0..n as usize);
                case.change(backend, 0, slots);
            }
            Class::TooLittle => case.rate = log_uniform(0.05, 1.0, rng),
            Class::Seed => {
                let count = rng.random_range(1..=8);
                let cpus = some_cpus(count, rng);
                let kinds = [
                    SeedFault::Old(cpus),
                    SeedFault::Zero(cpus),
                    SeedFault::Equal(cpus),
                ];
                case.seeds = Some(kinds[rng.random_range(0..3)]);
            }
        }
        case
    }

    /// A broken hash under clients that are few: hardly a fresh key is left to see it by.
    pub fn few_clients(rng: &mut Rng) -> Self {
        let mut case = Self::new(Class::EntropyPartial, rng);
        case.traffic = some_clients(20.0, 2000.0, rng);
        case
    }

    /// 5 to 100 % of the keys stuck, or all of them collapsed to a few hashes; three in ten times under heavy keys.
    fn break_hash(&mut self, cpus: CpuSet, rng: &mut Rng) {
        let (part, values) = match rng.random_range(0..2) {
            0 => (rng.random_range(0.05..=1.0), 1),
            _ => (1.0, [1, 4, 16, 64][rng.random_range(0..4)]),
        };
        let values = (0..values).map(|_| rng.next_u64()).collect();
        self.hash = Some(HashFault { cpus, part, values });
        if rng.random_bool(0.3) {
            self.traffic = match rng.random_range(0..2) {
                0 => some_clients(20_000.0, 100_000.0, rng),
                _ => one_client(rng),
            };
        }
    }

    /// The control plane gives a backend another weight, 0 to drain it.
    fn change(&mut self, backend: usize, weight: u32, slots: Option<u32>) {
        let mut backends = self.before.backends.clone();
        backends[backend].1 = weight;
        self.leaving = (weight == 0).then_some(backend);
        self.after = Some(Service::new(&backends, slots));
    }

    /// A backend joins, leaves, or has three times or a third of its weight, and 1 to 20 CPUs do not follow.
    fn leave_stale(&mut self, slots: Option<u32>, rng: &mut Rng) {
        let backend = rng.random_range(0..self.before.count());
        let weight = self.before.backends[backend].1;
        match rng.random_range(0..4) {
            0 => {
                let mut backends = self.before.backends.clone();
                backends[backend].1 = 0;
                self.before = Service::new(&backends, slots);
                self.change(backend, weight, slots);
            }
            1 => self.change(backend, 0, slots),
            2 => self.change(backend, 3 * weight, slots),
            _ => self.change(backend, weight / 3, slots),
        }
        let count = rng.random_range(1..=20);
        self.wrong = Some((some_cpus(count, rng), self.before.slots.clone()));
    }
}

/// The size of tables, which must not change when a backend joins.
fn size_for_one_more(n: u32) -> u32 {
    Service::even(n + 1).size()
}

fn log_uniform(from: f64, to: f64, rng: &mut Rng) -> f64 {
    rng.random_range(from.ln()..to.ln()).exp()
}

fn some_cpus(count: usize, rng: &mut Rng) -> CpuSet {
    let chosen = sample(rng, CPUS as usize, count);
    chosen.into_iter().fold(0, |set, cpu| set | 1 << cpu)
}

fn some_clients(least: f64, most: f64, rng: &mut Rng) -> Traffic {
    Traffic::Clients {
        count: log_uniform(least, most, rng) as u32,
        exponent: rng.random_range(0.9..1.5),
    }
}

/// Clients of which few have most: many of them, some behind NAT, or one among many.
fn heavy_traffic(rng: &mut Rng) -> Traffic {
    match rng.random_range(0..3) {
        0 => some_clients(100.0, 2000.0, rng),
        1 => some_clients(5.0, 50.0, rng),
        _ => one_client(rng),
    }
}

fn one_client(rng: &mut Rng) -> Traffic {
    Traffic::OneClient {
        part: rng.random_range(0.15..0.5),
    }
}
