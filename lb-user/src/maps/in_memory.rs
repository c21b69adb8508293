//! Maps in vectors, for tests of everything that reads or writes maps: they refuse writes, and die in the middle of one.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

use lb_common::{
    backend::Backend,
    ids::BackendRef,
    map_names,
    pod::Pod,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
    vip_filter,
};

use super::{
    MapError, MapReader, MapWriter, Scope, holds, mapped::torn, pinned::Ordered, region, split_marks,
};
use crate::state::observed::{Capacity, Observed};

/// Stands in for the pinned maps.
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
    /// Writes asked for so far, those that were refused too.
    attempts: usize,
    refused: Range<usize>,
    /// The attempt that is only partly carried out, and how many eighths of it.
    death: Option<(usize, usize)>,
    watch: Option<Watch>,
}

#[derive(Clone)]
struct Watch(Arc<dyn Fn(&InMemoryMaps) + Send + Sync>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// How many eighths of a write are carried out before the writer dies; eight: it lives.
#[derive(Clone, Copy)]
struct Fate(usize);

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
            attempts: 0,
            refused: 0..0,
            death: None,
            watch: None,
        }
    }

    /// Refuses every write after this many more.
    pub fn fail_at(&mut self, writes_until_failure: usize) {
        self.refused = self.attempts + writes_until_failure..usize::MAX;
    }

    /// Refuses one write, after this many more.
    pub fn fail_once_at(&mut self, writes_until_failure: usize) {
        let at = self.attempts + writes_until_failure;
        self.refused = at..at + 1;
    }

    /// After this many more writes carries out so many eighths of one, word for word in the order of the pinned maps,
    /// and unwinds: what SIGKILL leaves. To be caught with [`std::panic::catch_unwind`].
    pub fn die_at(&mut self, writes_until_death: usize, eighths: usize) {
        self.death = Some((self.attempts + writes_until_death, eighths));
    }

    /// From now on every write succeeds.
    pub fn heal(&mut self) {
        self.refused = 0..0;
        self.death = None;
    }

    /// Calls this after every write.
    pub fn watch(&mut self, look: impl Fn(&Self) + Send + Sync + 'static) {
        self.watch = Some(Watch(Arc::new(look)));
    }

    fn write(
        &mut self,
        carry_out: impl FnOnce(&mut Self, Fate) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let attempt = self.attempts;
        self.attempts += 1;
        if self.refused.contains(&attempt) {
            return Err(MapError::Refused { write: attempt });
        }
        let fate = match self.death {
            Some((at, eighths)) if at == attempt => Fate(eighths),
            _ => Fate(8),
        };
        carry_out(self, fate)?;
        if let Some(Watch(look)) = self.watch.clone() {
            look(self);
        }
        if fate.is_death() {
            std::panic::resume_unwind(Box::new("killed"));
        }
        self.writes += 1;
        Ok(())
    }
}

impl Fate {
    fn is_death(self) -> bool {
        self.0 < 8
    }

    fn of(self, whole: usize) -> usize {
        whole * self.0 / 8
    }

    /// What stands in an entry afterwards.
    fn value<T: Pod + Ordered>(self, old: T, new: T) -> T {
        torn(old, new, new.order(), self.of(size_of::<T>() / 8))
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

fn stretch<'a, T>(
    name: &'static str,
    entries: &'a mut [T],
    start: usize,
    length: usize,
) -> Result<&'a mut [T], MapError> {
    let count = entries.len() as u32;
    entries.get_mut(start..start + length).ok_or(MapError::Range {
        name,
        index: (start + length) as u64,
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
        self.write(|maps, fate| {
            maps.settings = fate.value(maps.settings, *settings);
            Ok(())
        })
    }

    fn write_seed(&mut self, index: u32, seed: Seed) -> Result<(), MapError> {
        self.write(|maps, fate| {
            let place = entry(map_names::SEEDS.name, &mut maps.seeds, index)?;
            *place = fate.value(*place, seed);
            Ok(())
        })
    }

    fn read_seed(&self, index: u32) -> Result<Seed, MapError> {
        self.seeds.get(index as usize).copied().ok_or(MapError::Range {
            name: map_names::SEEDS.name,
            index: u64::from(index),
            entries: self.seeds.len() as u32,
        })
    }

    fn clear_fresh(&mut self, index: u32) -> Result<(), MapError> {
        self.write(|maps, fate| {
            let words = maps.capacity.fresh_words as usize;
            let region = stretch(
                map_names::FRESH.name,
                &mut maps.fresh,
                index as usize * words,
                words,
            )?;
            region[..fate.of(words)].fill(0);
            Ok(())
        })
    }

    fn write_backend(&mut self, id: u32, backend: &Backend) -> Result<(), MapError> {
        self.write(|maps, fate| {
            let place = entry(map_names::BACKENDS.name, &mut maps.backends, id)?;
            *place = fate.value(*place, *backend);
            Ok(())
        })
    }

    fn write_slots(&mut self, offset: u32, slots: &[BackendRef]) -> Result<(), MapError> {
        self.write(|maps, fate| {
            let region = stretch(
                map_names::SLOTS.name,
                &mut maps.slots,
                offset as usize,
                slots.len(),
            )?;
            let done = fate.of(slots.len());
            region[..done].copy_from_slice(&slots[..done]);
            Ok(())
        })
    }

    fn read_service(&self, key: &ServiceKey) -> Result<Option<Service>, MapError> {
        Ok(self.services.get(key).copied())
    }

    // One word switches it, so all of it or nothing.
    fn write_service(&mut self, key: &ServiceKey, service: &Service) -> Result<(), MapError> {
        self.write(|maps, fate| {
            if !fate.is_death() {
                maps.services.insert(*key, *service);
            }
            Ok(())
        })
    }

    fn remove_service(&mut self, key: &ServiceKey) -> Result<(), MapError> {
        self.write(|maps, fate| {
            if !fate.is_death() {
                maps.services.remove(key);
            }
            Ok(())
        })
    }

    fn write_filter(&mut self, filter: &[u64; vip_filter::WORDS]) -> Result<(), MapError> {
        self.write(|maps, fate| {
            let done = fate.of(filter.len());
            maps.filter[..done].copy_from_slice(&filter[..done]);
            Ok(())
        })
    }
}
