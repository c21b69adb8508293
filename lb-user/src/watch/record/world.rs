//! A recorded check as what the monitor looks at: a source of counters, what was published, and what was found.

use std::{collections::BTreeMap, sync::Arc};

use lb_common::{
    ids::BackendRef,
    seed::{SHARED, Seed, of_cpu},
    service::{Service, ServiceKey},
};

use super::format::{BackendRecord, Check, Place, SeedRecord, ServiceRecord};
use crate::{
    counters::BackendTotals,
    skew::attribution::{Audit, TableRead},
    state::desired::BackendState,
    watch::{
        published::{Member, Published, Table},
        readback::{Findings, WrongTable},
        source::{BUCKETS, Source},
    },
};

/// Counters as they were read.
pub(super) struct Recorded {
    cpus: u32,
    origin: u64,
    histograms: BTreeMap<u32, [u64; BUCKETS]>,
    /// By CPU and backend id.
    backends: BTreeMap<(u32, u32), BackendTotals>,
    serving: Vec<BackendRef>,
}

impl Recorded {
    /// `cpus`: CPUs that might have counted.
    pub(super) fn of(check: &Check, cpus: u32) -> Self {
        let histograms = check.cpus.iter().map(|cpu| {
            let mut buckets = [0; BUCKETS];
            for (bucket, count) in buckets.iter_mut().zip(&cpu.fresh) {
                *bucket = *count;
            }
            (cpu.cpu, buckets)
        });
        let all = || check.services.iter().flat_map(|service| &service.backends);
        let serving = all().filter(|backend| backend.state == BackendState::Serving);
        let mut backends: BTreeMap<(u32, u32), BackendTotals> = BTreeMap::new();
        for backend in all() {
            for (cpu, fresh) in check.cpus.iter().zip(&backend.fresh) {
                backends.entry((cpu.cpu, backend.id)).or_default().fresh_flows = *fresh;
            }
            // Recorded as sums only: one CPU stands for all.
            let first = backends.entry((0, backend.id)).or_default();
            (first.flows, first.packets) = (backend.flows, backend.packets);
        }
        Self {
            cpus,
            origin: check.source,
            histograms: histograms.collect(),
            backends,
            serving: serving.map(reference).collect(),
        }
    }
}

fn reference(backend: &BackendRecord) -> BackendRef {
    BackendRef::new(backend.id, backend.generation)
}

impl Source for Recorded {
    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn origin(&self) -> u64 {
        self.origin
    }

    fn histogram(&self, cpu: u32) -> [u64; BUCKETS] {
        self.histograms.get(&cpu).copied().unwrap_or([0; BUCKETS])
    }

    fn backend(&self, cpu: u32, id: u32) -> BackendTotals {
        self.backends.get(&(cpu, id)).copied().unwrap_or_default()
    }

    fn seeds(&self) -> Vec<Seed> {
        // Never recorded: they are secrets. What was found wrong with them is.
        Vec::new()
    }

    fn slot(&self, _index: u32) -> Option<BackendRef> {
        // Not recorded: what was found wrong with them is.
        None
    }

    fn counts_by_cpu(&self) -> bool {
        false
    }

    fn is_serving(&self, backend: BackendRef) -> bool {
        self.serving.contains(&backend)
    }
}

/// What a check says was published; `before` itself, or its tables, where nothing changed.
pub(super) fn published(check: &Check, before: &Arc<Published>) -> Arc<Published> {
    let services: BTreeMap<ServiceKey, Arc<Table>> = check
        .services
        .iter()
        .map(|service| {
            let known = before.services.get(&key(service));
            let table = known
                .filter(|table| is_of(table, service))
                .map_or_else(|| Arc::new(table(service)), Arc::clone);
            (key(service), table)
        })
        .collect();
    let same = services.len() == before.services.len()
        && services.iter().all(|(key, table)| {
            before
                .services
                .get(key)
                .is_some_and(|old| Arc::ptr_eq(old, table))
        });
    let seeds = seeds(check);
    if same && seeds == before.seeds {
        return Arc::clone(before);
    }
    Arc::new(Published { seeds, services })
}

/// Generations; the keys are secrets and never recorded.
fn seeds(check: &Check) -> BTreeMap<u32, Seed> {
    let seed = |seed: &SeedRecord| {
        let index = match seed.place {
            Place::Shared => SHARED,
            Place::Cpu(cpu) => of_cpu(cpu),
        };
        let generation = seed.generation;
        (
            index,
            Seed {
                generation,
                ..Seed::default()
            },
        )
    };
    check.seeds.iter().map(seed).collect()
}

/// A key that stands for a service: VIP and port are not recorded.
fn key(service: &ServiceRecord) -> ServiceKey {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&service.id.to_be_bytes());
    ServiceKey {
        address,
        ..ServiceKey::default()
    }
}

fn entry(service: &ServiceRecord) -> Service {
    Service {
        id: service.id,
        slots_count: service.slots,
        table_generation: service.table_generation,
        flags: service.flags,
        ..Service::default()
    }
}

fn members(service: &ServiceRecord) -> impl Iterator<Item = Member> {
    service.backends.iter().map(|backend| Member {
        endpoint: backend.endpoint,
        reference: reference(backend),
        state: backend.state,
        owned: backend.owned,
        weight: backend.weight,
    })
}

fn is_of(table: &Table, service: &ServiceRecord) -> bool {
    *table.name == *service.name
        && table.service == entry(service)
        && table.members.iter().copied().eq(members(service))
}

/// A table in which each backend owns as many slots as it did; which ones is not recorded and not looked at.
fn table(service: &ServiceRecord) -> Table {
    let owned =
        members(service).flat_map(|member| std::iter::repeat_n(member.reference, member.owned as usize));
    let mut slots: Vec<BackendRef> = owned.take(service.slots as usize).collect();
    slots.resize(service.slots as usize, BackendRef::UNSET);
    Table {
        name: service.name.as_str().into(),
        service: entry(service),
        slots: slots.into(),
        members: members(service).collect(),
    }
}

/// What reading back had found.
pub(super) fn findings(check: &Check) -> Findings {
    let tables = check.services.iter().filter_map(|service| {
        let fault = service.table_fault?;
        let wrong = WrongTable {
            read: TableRead {
                cpu: None,
                wanted: fault.wanted,
                found: fault.found,
            },
            wrong: fault.wrong,
            slots: fault.slots,
        };
        Some((key(service), wrong))
    });
    Findings {
        seeds: check.seed_faults.iter().copied().map(Into::into).collect(),
        tables: tables.collect(),
        seeds_read: check.seeds.len(),
        tables_read: check.services.len(),
        slots_read: check
            .services
            .iter()
            .map(|service| u64::from(service.slots))
            .sum(),
    }
}

/// Choices that had been computed again, by service id.
pub(super) fn audits(check: &Check) -> impl Iterator<Item = (u32, Audit)> {
    check.services.iter().flat_map(|service| {
        service.audits.iter().map(|audit| {
            let audit = Audit {
                cpu: audit.cpu,
                checked: audit.checked,
                wrong_slot: audit.wrong_slot,
                wrong_backend: audit.wrong_backend,
            };
            (service.id, audit)
        })
    })
}

/// The heaviest keys: service id, flows, backend.
pub(super) fn heavy(check: &Check) -> impl Iterator<Item = (u32, u64, BackendRef)> {
    check.services.iter().flat_map(|service| {
        let keys = service.top_keys.iter();
        keys.map(|key| (service.id, key.count, BackendRef::new(key.id, key.generation)))
    })
}

/// The flows with the most packets: service id, part of the packets, backend.
pub(super) fn heavy_flows(check: &Check) -> impl Iterator<Item = (u32, f64, BackendRef)> {
    check.services.iter().flat_map(|service| {
        let flows = service.top_flows.iter();
        flows.map(|flow| (service.id, flow.part, BackendRef::new(flow.id, flow.generation)))
    })
}
