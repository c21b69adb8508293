//! What one service needs: its backends' entries, its slot table, its own entry.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use lb_common::{
    backend::{Backend, state},
    ids::BackendRef,
    service::{Service, ServiceKey, VIP_MARK},
    slot_table::bucket_scale,
};

use super::{
    PlanError, Scope,
    entry::{backend_entry, service_flags},
    leftovers::removed,
    order::Phases,
    regions::Regions,
    slot_table::{self, Member},
    table_cache::SlotTableCache,
};
use crate::state::{
    desired::{Desired, DesiredService, address_bytes, key_text},
    ids::IdPool,
    observed::Observed,
};

/// Family and bytes of an address, as entries hold them.
type Place = (u8, [u8; 16]);

/// Plans services one after another, giving out ids and regions as it goes.
pub(super) struct ServicePlanner<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    scope: &'a Scope,
    tables: &'a mut SlotTableCache,
    regions: Regions,
    ids: IdPool<'a>,
    /// Entries in use of the services in scope: service id → address → id.
    entries: BTreeMap<u32, BTreeMap<Place, u32>>,
    /// Entries in use that no service in scope can have.
    leftovers: Vec<u32>,
    /// In use before the plan or given out by it.
    service_ids: BTreeSet<u32>,
    last_service_id: u32,
}

impl<'a> ServicePlanner<'a> {
    pub fn new(
        desired: &'a Desired,
        observed: &'a Observed,
        scope: &'a Scope,
        tables: &'a mut SlotTableCache,
    ) -> Self {
        let service_ids: BTreeSet<u32> = observed.services.values().map(|service| service.id).collect();
        let mut planner = Self {
            desired,
            observed,
            scope,
            tables,
            regions: Regions::of(observed),
            ids: IdPool::new(&observed.backends, observed.capacity.backends),
            entries: BTreeMap::new(),
            leftovers: Vec::new(),
            last_service_id: service_ids.last().copied().unwrap_or(0),
            service_ids,
        };
        planner.sort_entries();
        planner
    }

    /// Plans every service in scope; returns the keys of all services that are there afterwards.
    pub fn plan(mut self, phases: &mut Phases) -> Result<BTreeSet<ServiceKey>, PlanError> {
        let desired = self.desired;
        let mut after: BTreeSet<ServiceKey> = self.observed.services.keys().copied().collect();
        for key in self.keys() {
            if let Some(wanted) = desired.services.get(&key) {
                after.insert(key);
                self.check_room(&after, &key, wanted)?;
                self.write_service(&key, wanted, phases)?;
            } else if after.remove(&key) {
                self.remove_service(&key, phases);
            }
        }
        let leftovers = std::mem::take(&mut self.leftovers);
        self.remove_entries(leftovers, phases);
        Ok(after)
    }

    /// The services in scope; those that go come first, so that they make room for those that come.
    fn keys(&self) -> Vec<ServiceKey> {
        let mut keys: Vec<ServiceKey> = match self.scope {
            Scope::All => self
                .desired
                .services
                .keys()
                .chain(self.observed.services.keys())
                .copied()
                .collect(),
            Scope::Services(keys) => keys.iter().copied().collect(),
        };
        keys.sort_unstable_by_key(|key| (self.desired.services.contains_key(key), *key));
        keys.dedup();
        keys
    }

    fn sort_entries(&mut self) {
        let in_scope = |key: &ServiceKey| match self.scope {
            Scope::All => true,
            Scope::Services(keys) => keys.contains(key),
        };
        let services = self.observed.services.iter().filter(|(key, _)| in_scope(key));
        self.entries = services
            .map(|(_, service)| (service.id, BTreeMap::new()))
            .collect();
        for (&id, entry) in self.observed.backends.range(1..) {
            if entry.state == state::UNSET {
                continue;
            }
            self.last_service_id = self.last_service_id.max(entry.service);
            let Some(siblings) = self.entries.get_mut(&entry.service) else {
                if *self.scope == Scope::All {
                    self.leftovers.push(id);
                }
                continue;
            };
            // Generation 0 or a second entry for one address: only something else than a plan writes these.
            let place = (entry.family, entry.address);
            if entry.generation == 0 || siblings.contains_key(&place) {
                self.leftovers.push(id);
            } else {
                siblings.insert(place, id);
            }
        }
    }

    fn check_room(
        &self,
        after: &BTreeSet<ServiceKey>,
        key: &ServiceKey,
        wanted: &DesiredService,
    ) -> Result<(), PlanError> {
        let capacity = self.observed.capacity.services;
        if after.len() as u64 <= u64::from(capacity) || self.observed.services.contains_key(key) {
            return Ok(());
        }
        let staying = match self.scope {
            Scope::All => BTreeSet::new(),
            Scope::Services(_) => after.clone(),
        };
        let needed = staying
            .iter()
            .chain(self.desired.services.keys())
            .collect::<BTreeSet<_>>()
            .len() as u32;
        Err(PlanError::Services {
            service: name_of(key, wanted),
            needed,
            capacity,
        })
    }

    fn remove_service(&mut self, key: &ServiceKey, phases: &mut Phases) {
        self.tables.forget(key);
        phases.services_out.push(*key);
        let id = self.observed.services.get(key).map_or(0, |service| service.id);
        let entries = self.entries.remove(&id).unwrap_or_default();
        self.remove_entries(entries.into_values(), phases);
    }

    fn write_service(
        &mut self,
        key: &ServiceKey,
        wanted: &DesiredService,
        phases: &mut Phases,
    ) -> Result<(), PlanError> {
        let current = self.observed.services.get(key).copied();
        let id = match current {
            Some(service) if service.id != 0 => service.id,
            _ => self.new_service_id(),
        };
        let table = self.write_backends(key, id, wanted, phases)?;
        let base = Service {
            id,
            flags: service_flags(wanted),
            ..current.unwrap_or_default()
        };
        let service = Service {
            reserved: 0,
            ..self.write_table(key, wanted, base, table, phases)?
        };
        if current != Some(service) {
            phases.services_in.push((*key, service));
        }
        Ok(())
    }

    /// Ids only count up, so that a leftover of one service is not taken for another's.
    fn new_service_id(&mut self) -> u32 {
        let next = self.last_service_id.saturating_add(1);
        let id = if next < VIP_MARK {
            self.last_service_id = next;
            next
        } else {
            let unused = (1..VIP_MARK).find(|id| !self.service_ids.contains(id));
            unused.expect("there are fewer services than ids")
        };
        self.service_ids.insert(id);
        id
    }

    /// Writes what differs; returns the table that the service should have.
    fn write_backends(
        &mut self,
        key: &ServiceKey,
        service: u32,
        wanted: &DesiredService,
        phases: &mut Phases,
    ) -> Result<Table, PlanError> {
        let mut known = self.entries.remove(&service).unwrap_or_default();
        let mut members = Vec::with_capacity(wanted.backends.len());
        let mut references = Vec::with_capacity(wanted.backends.len());
        for (&address, backend) in &wanted.backends {
            let (bytes, family) = address_bytes(address);
            let current = known
                .remove(&(family, bytes))
                .map(|id| (id, self.observed.backends[&id]));
            let reference = match current {
                Some((id, entry)) => BackendRef::new(id, entry.generation),
                None => self
                    .ids
                    .take()
                    .ok_or_else(|| self.no_entry_left(key, wanted, address))?,
            };
            let entry = backend_entry(address, backend, service, reference.generation());
            let takes_flows = entry.state == state::SERVING && entry.is_resolved();
            if takes_flows {
                members.push(Member {
                    address: address.to_canonical(),
                    weight: backend.weight,
                });
                references.push(reference);
            }
            if current != Some((reference.id(), entry)) {
                let phase = if takes_flows {
                    &mut phases.entries_in
                } else {
                    &mut phases.entries_out
                };
                phase.push((reference.id(), entry));
            }
        }
        self.remove_entries(known.into_values(), phases);
        if members.is_empty() {
            return Ok(Table::default());
        }
        let owners = slot_table::size_for(wanted.backends.len(), wanted.slots)
            .and_then(|size| self.tables.table(key, &members, size))
            .map_err(|source| PlanError::SlotTable {
                service: name_of(key, wanted),
                source,
            })?;
        Ok(Table { owners, references })
    }

    /// `base` with `table`: where it is already, or in a new region.
    fn write_table(
        &mut self,
        key: &ServiceKey,
        wanted: &DesiredService,
        base: Service,
        table: Table,
        phases: &mut Phases,
    ) -> Result<Service, PlanError> {
        let count = table.owners.len() as u32;
        let bucket_scale = bucket_scale(count);
        let held = if base.slots_count == 0 {
            Some(&[][..])
        } else {
            self.held_slots(&base)
        };
        if base.table_generation != 0 && held.is_some_and(|held| table.slots().eq(held.iter().copied())) {
            return Ok(Service { bucket_scale, ..base });
        }
        let mut slots_offset = 0;
        if count > 0 {
            slots_offset = self.regions.take(count).map_err(|largest| PlanError::Slots {
                service: name_of(key, wanted),
                wanted: count,
                largest,
                capacity: self.observed.capacity.slots,
                suggested: u64::from(self.observed.capacity.slots) + u64::from(count),
            })?;
            phases.tables.push((slots_offset, table.slots().collect()));
        }
        let table_generation = base.table_generation.wrapping_add(1).max(1);
        Ok(Service {
            slots_offset,
            slots_count: count,
            table_generation,
            bucket_scale,
            ..base
        })
    }

    fn held_slots(&self, service: &Service) -> Option<&'a [BackendRef]> {
        self.observed.slots.get(&service.id).map(Vec::as_slice)
    }

    fn remove_entries(&self, ids: impl IntoIterator<Item = u32>, phases: &mut Phases) {
        let observed = self.observed;
        let out = ids
            .into_iter()
            .map(|id| (id, removed(&observed.backends[&id], observed.now)));
        phases.entries_out.extend(out);
    }

    fn no_entry_left(&self, key: &ServiceKey, wanted: &DesiredService, address: IpAddr) -> PlanError {
        let services: BTreeMap<u32, &ServiceKey> = self
            .observed
            .services
            .iter()
            .map(|(key, service)| (service.id, key))
            .collect();
        let stays = |entry: &Backend| {
            let service = services
                .get(&entry.service)
                .and_then(|key| self.desired.services.get(key));
            let mut addresses = service.into_iter().flat_map(|service| service.backends.keys());
            addresses.any(|address| address_bytes(*address) == (entry.address, entry.family))
        };
        let in_use = self
            .observed
            .backends
            .values()
            .filter(|entry| entry.state != state::UNSET);
        PlanError::Backends {
            service: name_of(key, wanted),
            address,
            capacity: self.observed.capacity.backends.saturating_sub(1),
            wanted: self
                .desired
                .services
                .values()
                .map(|service| service.backends.len() as u32)
                .sum(),
            leaving: in_use.filter(|entry| !stays(entry)).count() as u32,
        }
    }
}

/// A slot table as owners, and who they are.
#[derive(Default)]
struct Table {
    owners: Arc<[u32]>,
    references: Vec<BackendRef>,
}

impl Table {
    fn slots(&self) -> impl ExactSizeIterator<Item = BackendRef> {
        self.owners.iter().map(|&owner| self.references[owner as usize])
    }
}

fn name_of(key: &ServiceKey, service: &DesiredService) -> String {
    format!("{} ({})", service.name, key_text(key))
}
