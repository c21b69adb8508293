//! Maps in vectors, for tests of everything that reads or writes maps.

use std::collections::BTreeMap;

use lb_common::{
    backend::Backend,
    ids::BackendRef,
    map_names,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
    vip_filter,
};

use super::{MapError, MapReader, MapWriter, Scope, holds, region, split_marks};
use crate::state::observed::{Capacity, Observed};

/// Stands in for the pinned maps; can be told to refuse a write.
#[derive(Clone, Debug)]
pub struct InMemoryMaps {
    pub capacity: Capacity,
    pub settings: Settings,
    pub services: BTreeMap<ServiceKey, Service>,
    pub backends: Vec<Backend>,
    pub slots: Vec<BackendRef>,
    pub seeds: Vec<Seed>,
    pub fresh: Vec<u64>,
    pub filter: Box<[u64; vip_filter::WORDS]>,
    pub now: u32,
    /// Writes carried out so far.
    pub writes: usize,
    failure: Option<usize>,
}

impl InMemoryMaps {
    pub fn new(capacity: Capacity) -> Self {
        let seeds = capacity.possible_cpus as usize + 1;
        Self {
            capacity,
            settings: Settings::default(),
            services: BTreeMap::new(),
            backends: vec![Backend::default(); capacity.backends as usize],
            slots: vec![BackendRef::UNSET; capacity.slots as usize],
            seeds: vec![Seed::default(); seeds],
            fresh: vec![0; seeds * capacity.fresh_words as usize],
            filter: Box::new([0; vip_filter::WORDS]),
            now: 1000,
            writes: 0,
            failure: None,
        }
    }

    /// Refuses every write after this many more; until called again.
    pub fn fail_at(&mut self, writes_until_failure: usize) {
        self.failure = Some(self.writes + writes_until_failure);
    }

    pub fn heal(&mut self) {
        self.failure = None;
    }

    fn writing(&mut self) -> Result<(), MapError> {
        if self.failure.is_some_and(|failure| self.writes >= failure) {
            return Err(MapError::Refused { write: self.writes });
        }
        self.writes += 1;
        Ok(())
    }
}

fn entry<'a, T>(name: &'static str, entries: &'a mut [T], index: u32) -> Result<&'a mut T, MapError> {
    let count = entries.len() as u32;
    entries.get_mut(index as usize).ok_or(MapError::Range {
        name,
        index: u64::from(index),
        entries: count,
    })
}

impl MapReader for InMemoryMaps {
    fn observe(&self, scope: &Scope) -> Result<Observed, MapError> {
        let slots = self
            .services
            .iter()
            .filter(|(key, _)| holds(scope, key))
            .map(|(_, service)| {
                let slots = region(service, self.capacity.slots).map_or_else(Vec::new, |range| {
                    self.slots[range.start as usize..range.end as usize].to_vec()
                });
                (service.id, slots)
            })
            .collect();
        let backends = (0u32..)
            .zip(&self.backends)
            .filter(|(_, backend)| **backend != Backend::default())
            .map(|(id, backend)| (id, *backend))
            .collect();
        let (services, vip_marks) = split_marks(self.services.clone());
        Ok(Observed {
            capacity: self.capacity,
            settings: self.settings,
            services,
            vip_marks,
            backends,
            slots,
            seeds: self.seeds.clone(),
            vip_filter: self.filter.clone(),
            now: self.now,
        })
    }
}

impl MapWriter for InMemoryMaps {
    fn write_settings(&mut self, settings: &Settings) -> Result<(), MapError> {
        self.writing()?;
        self.settings = *settings;
        Ok(())
    }

    fn write_seed(&mut self, index: u32, seed: Seed) -> Result<(), MapError> {
        self.writing()?;
        *entry(map_names::SEEDS.name, &mut self.seeds, index)? = seed;
        Ok(())
    }

    fn read_seed(&self, index: u32) -> Result<Seed, MapError> {
        self.seeds.get(index as usize).copied().ok_or(MapError::Range {
            name: map_names::SEEDS.name,
            index: u64::from(index),
            entries: self.seeds.len() as u32,
        })
    }

    fn clear_fresh(&mut self, index: u32) -> Result<(), MapError> {
        self.writing()?;
        let words = self.capacity.fresh_words as usize;
        let start = index as usize * words;
        let entries = self.fresh.len() as u32;
        self.fresh
            .get_mut(start..start + words)
            .ok_or(MapError::Range {
                name: map_names::FRESH.name,
                index: start as u64,
                entries,
            })?
            .fill(0);
        Ok(())
    }

    fn write_backend(&mut self, id: u32, backend: &Backend) -> Result<(), MapError> {
        self.writing()?;
        *entry(map_names::BACKENDS.name, &mut self.backends, id)? = *backend;
        Ok(())
    }

    fn write_slots(&mut self, offset: u32, slots: &[BackendRef]) -> Result<(), MapError> {
        self.writing()?;
        let start = offset as usize;
        let entries = self.slots.len() as u32;
        self.slots
            .get_mut(start..start + slots.len())
            .ok_or(MapError::Range {
                name: map_names::SLOTS.name,
                index: (start + slots.len()) as u64,
                entries,
            })?
            .copy_from_slice(slots);
        Ok(())
    }

    fn read_service(&self, key: &ServiceKey) -> Result<Option<Service>, MapError> {
        Ok(self.services.get(key).copied())
    }

    fn write_service(&mut self, key: &ServiceKey, service: &Service) -> Result<(), MapError> {
        self.writing()?;
        self.services.insert(*key, *service);
        Ok(())
    }

    fn remove_service(&mut self, key: &ServiceKey) -> Result<(), MapError> {
        self.writing()?;
        self.services.remove(key);
        Ok(())
    }

    fn write_filter(&mut self, filter: &[u64; vip_filter::WORDS]) -> Result<(), MapError> {
        self.writing()?;
        self.filter.copy_from_slice(filter);
        Ok(())
    }
}
