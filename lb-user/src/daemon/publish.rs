//! From a plan that was carried out to what stands in the maps by it: pure. Nothing here is read back.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use lb_common::{
    backend::{Backend, state},
    ids::BackendRef,
    service::{Service, ServiceKey},
};

use crate::{
    maps::Scope,
    plan::{Plan, Step},
    state::{
        desired::{Desired, DesiredService, address_from},
        observed::Observed,
    },
    watch::published::{Member, Published, Table, owned},
};

/// What a plan wrote, by what it wrote to.
#[derive(Default)]
struct Written<'a> {
    services: BTreeMap<ServiceKey, Service>,
    tables: BTreeMap<u32, &'a [BackendRef]>,
    backends: BTreeMap<u32, Backend>,
}

impl<'a> Written<'a> {
    fn by(plan: &'a Plan) -> Self {
        let mut written = Self::default();
        for step in &plan.steps {
            match step {
                Step::WriteService { key, service } => {
                    written.services.insert(*key, *service);
                }
                Step::WriteSlots { offset, slots } => {
                    written.tables.insert(*offset, slots);
                }
                Step::WriteBackend { id, backend } => {
                    written.backends.insert(*id, *backend);
                }
                Step::WriteSettings(_)
                | Step::WriteSeed { .. }
                | Step::ClearFresh { .. }
                | Step::RemoveService { .. }
                | Step::WriteFilter(_) => {}
            }
        }
        written
    }
}

/// What is published after `plan`, made for `scope` from `desired` and `observed`, was carried out. What the plan left as
/// it was, it had found to be as it should be.
pub(super) fn after(
    before: &Published,
    desired: &Desired,
    scope: &Scope,
    observed: &Observed,
    plan: &Plan,
) -> Published {
    let mut published = Published {
        seeds: desired.seeds.clone(),
        services: before.services.clone(),
    };
    let keys: BTreeSet<ServiceKey> = match scope {
        Scope::Services(keys) => keys.clone(),
        Scope::All => desired
            .services
            .keys()
            .chain(before.services.keys())
            .copied()
            .collect(),
    };
    if keys.is_empty() {
        return published;
    }
    let written = Written::by(plan);
    let service_of = |key: &ServiceKey| written.services.get(key).or_else(|| observed.services.get(key));
    let ids = keys.iter().filter_map(|key| Some(service_of(key)?.id)).collect();
    let entries = entries(observed, &written, &ids);
    for key in keys {
        let service = service_of(&key);
        let (Some(wanted), Some(service)) = (desired.services.get(&key), service) else {
            published.services.remove(&key);
            continue;
        };
        let known = before.services.get(&key);
        let slots = slots_of(service, known, &written, observed);
        let members = members(entries.get(&service.id), wanted, &slots);
        let table = Table {
            name: match known {
                Some(known) if *known.name == *wanted.name => Arc::clone(&known.name),
                _ => wanted.name.as_str().into(),
            },
            service: *service,
            slots,
            members,
        };
        if known.is_none_or(|known| **known != table) {
            published.services.insert(key, Arc::new(table));
        }
    }
    published
}

/// What is published after `plan` moved tables as they are.
pub(super) fn moved(before: &Published, plan: &Plan) -> Published {
    let mut published = before.clone();
    for (key, service) in Written::by(plan).services {
        if let Some(table) = published.services.get_mut(&key) {
            Arc::make_mut(table).service = service;
        }
    }
    published
}

fn slots_of(
    service: &Service,
    known: Option<&Arc<Table>>,
    written: &Written<'_>,
    observed: &Observed,
) -> Arc<[BackendRef]> {
    if service.slots_count == 0 {
        return Arc::default();
    }
    if let Some(slots) = written.tables.get(&service.slots_offset) {
        return (*slots).into();
    }
    let place = |service: &Service| {
        (
            service.slots_offset,
            service.slots_count,
            service.table_generation,
        )
    };
    match known {
        Some(known) if place(&known.service) == place(service) => Arc::clone(&known.slots),
        _ => observed
            .slots
            .get(&service.id)
            .map_or_else(Arc::default, |slots| slots.as_slice().into()),
    }
}

/// Entries of these services in use after the plan: service id → address → reference.
fn entries(
    observed: &Observed,
    written: &Written<'_>,
    services: &BTreeSet<u32>,
) -> BTreeMap<u32, BTreeMap<IpAddr, BackendRef>> {
    let unwritten = observed
        .backends
        .iter()
        .filter(|(id, _)| !written.backends.contains_key(id));
    let mut entries: BTreeMap<u32, BTreeMap<IpAddr, BackendRef>> = BTreeMap::new();
    for (id, entry) in unwritten.chain(&written.backends) {
        if entry.state != state::UNSET && services.contains(&entry.service) {
            let address = address_from(&entry.address, entry.family);
            let reference = BackendRef::new(*id, entry.generation);
            entries
                .entry(entry.service)
                .or_default()
                .insert(address, reference);
        }
    }
    entries
}

fn members(
    entries: Option<&BTreeMap<IpAddr, BackendRef>>,
    wanted: &DesiredService,
    slots: &[BackendRef],
) -> Vec<Member> {
    let owned = owned(slots);
    let member = |(address, backend): (&IpAddr, &crate::state::desired::DesiredBackend)| {
        let reference = *entries?.get(&address.to_canonical())?;
        Some(Member {
            endpoint: *address,
            reference,
            state: backend.state,
            owned: owned.get(&reference).copied().unwrap_or(0),
            weight: backend.next_hop.map_or(0, |_| backend.weight),
        })
    };
    wanted.backends.iter().filter_map(member).collect()
}
