//! The maps of the loaded program, found by their pins and mapped into memory.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use aya::maps::MapData;
use lb_common::{
    backend::{self, Backend},
    counters::{BackendCounters, CpuCounters},
    flow::FlowBucket,
    ids::BackendRef,
    map_names::{self, MapName},
    seed::Seed,
    service::{Service, ServiceKey},
    settings::{LAYOUT_VERSION, Settings},
    shared::Word,
    vip_filter,
};

use super::{
    MapError, MapReader, MapWriter, REST, Scope, ServiceIndex, ServiceWords, check_layout, clock, holds,
    mapped::MappedArray, mapped::Order, region, split_marks,
};
use crate::{
    counters::Counters,
    state::observed::{Capacity, Observed},
};

/// Every pinned map, opened. Dropping it leaves the pins.
pub struct PinnedMaps {
    capacity: Capacity,
    services: ServiceIndex,
    settings: MappedArray<Settings>,
    filter: MappedArray<[u64; vip_filter::WORDS]>,
    backends: MappedArray<Backend>,
    slots: MappedArray<BackendRef>,
    seeds: MappedArray<Seed>,
    fresh: MappedArray<Word>,
    counters: Counters,
}

const _: () = {
    const fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<PinnedMaps>();
};

struct Opener<'a> {
    directory: &'a Path,
    writable: bool,
}

impl Opener<'_> {
    fn open(&self, map: MapName) -> Result<(MapData, u32), MapError> {
        let path: PathBuf = self.directory.join(map.name);
        let failed = |source| MapError::Open {
            name: map.name,
            path: path.clone(),
            source,
        };
        let data = MapData::from_pin(&path).map_err(failed)?;
        let info = data.info().map_err(failed)?;
        check_layout(map.name, &info)?;
        Ok((data, info.max_entries()))
    }

    fn array<T>(&self, map: MapName) -> Result<MappedArray<T>, MapError> {
        let (data, entries) = self.open(map)?;
        MappedArray::new(map.name, data.fd(), entries, self.writable)
    }
}

impl PinnedMaps {
    /// Opens the maps pinned in a directory for reading and writing.
    pub fn open(pin_directory: &Path) -> Result<Self, MapError> {
        Self::open_with(pin_directory, true)
    }

    /// Opens the maps pinned in a directory; every write answers [`MapError::ReadOnly`].
    pub fn open_read_only(pin_directory: &Path) -> Result<Self, MapError> {
        Self::open_with(pin_directory, false)
    }

    fn open_with(directory: &Path, writable: bool) -> Result<Self, MapError> {
        let opener = Opener { directory, writable };
        let settings = opener.array::<Settings>(map_names::SETTINGS)?;
        check_version(settings.get(0).unwrap_or_default().layout_version)?;
        let heads = opener.array::<Word>(map_names::SERVICE_HEADS)?;
        let entries = opener.array::<ServiceWords>(map_names::SERVICES)?;
        let services = ServiceIndex::open(heads, entries, REST);
        let backends = opener.array::<Backend>(map_names::BACKENDS)?;
        let seeds = opener.array::<Seed>(map_names::SEEDS)?;
        let fresh = opener.array::<Word>(map_names::FRESH)?;
        let slots = opener.array::<BackendRef>(map_names::SLOTS)?;
        let flows = opener.array::<FlowBucket>(map_names::FLOWS)?;
        let capacity = Capacity {
            services: services.services(),
            backends: backends.len(),
            slots: slots.len(),
            possible_cpus: seeds.len().saturating_sub(1),
            flow_buckets: flows.len(),
            fresh_words: fresh.len() / seeds.len().max(1),
            hz: clock::kernel_hz(),
        };
        let counters = Counters {
            capacity,
            settings: settings.clone(),
            backends: backends.clone(),
            flows,
            fresh: fresh.clone(),
            by_backend: opener.array::<BackendCounters>(map_names::BACKEND_COUNTERS)?,
            by_cpu: opener.array::<CpuCounters>(map_names::CPU_COUNTERS)?,
        };
        Ok(Self {
            capacity,
            services,
            filter: opener.array(map_names::VIP_FILTER)?,
            settings,
            backends,
            slots,
            seeds,
            fresh,
            counters,
        })
    }

    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub fn settings(&self) -> Settings {
        self.settings.get(0).unwrap_or_default()
    }

    /// The counters and the flow table, readable from any thread.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    pub fn backend(&self, id: u32) -> Option<Backend> {
        self.backends.get(id)
    }

    pub fn slot(&self, index: u32) -> Option<BackendRef> {
        self.slots.get(index)
    }

    pub fn seeds(&self) -> Vec<Seed> {
        (0..self.seeds.len())
            .filter_map(|index| self.seeds.get(index))
            .collect()
    }

    /// The services, without the marks of VIPs.
    pub fn services(&self) -> BTreeMap<ServiceKey, Service> {
        split_marks(self.services.list()).0
    }

    /// The slots of a service's region; none when it points outside the map.
    pub fn slots_of(&self, service: &Service) -> Vec<BackendRef> {
        region(service, self.capacity.slots)
            .into_iter()
            .flatten()
            .filter_map(|slot| self.slots.get(slot))
            .collect()
    }

    fn used_backends(&self) -> BTreeMap<u32, Backend> {
        (0..self.backends.len())
            .filter_map(|id| Some((id, self.backends.get(id)?)))
            .filter(|(_, backend)| *backend != Backend::default())
            .collect()
    }

    fn vip_filter(&self) -> Box<[u64; vip_filter::WORDS]> {
        Box::new(self.filter.get(0).unwrap_or([0; vip_filter::WORDS]))
    }

    /// Zeroes the counters of an id that is given to another backend. No CPU counts for it meanwhile: an id is
    /// given out again only when no flow may hold it.
    fn clear_counters(&self, id: u32) -> Result<(), MapError> {
        let entries = self.counters.by_backend.as_writable()?;
        for entry in entries
            .iter()
            .skip(id as usize)
            .step_by(self.capacity.backends as usize)
        {
            for word in [&entry.flows, &entry.packets, &entry.bytes, &entry.fresh_flows] {
                word.store(0);
            }
        }
        Ok(())
    }
}

fn check_version(pinned: u32) -> Result<(), MapError> {
    if pinned == 0 || pinned == LAYOUT_VERSION {
        return Ok(());
    }
    Err(MapError::Version {
        pinned,
        ours: LAYOUT_VERSION,
    })
}

impl MapReader for PinnedMaps {
    fn observe(&self, scope: &Scope) -> Result<Observed, MapError> {
        let (services, vip_marks) = split_marks(self.services.list());
        let slots = services
            .iter()
            .filter(|(key, _)| holds(scope, key))
            .map(|(_, service)| (service.id, self.slots_of(service)))
            .collect();
        Ok(Observed {
            capacity: self.capacity,
            settings: self.settings(),
            services,
            vip_marks,
            backends: self.used_backends(),
            slots,
            seeds: self.seeds(),
            vip_filter: self.vip_filter(),
            now: clock::datapath_seconds(),
        })
    }
}

/// The word of [`Settings`] with the layout version: while it is 0 the datapath passes everything.
const SETTINGS_VALID: usize = std::mem::offset_of!(Settings, layout_version) / 8;
/// The word of [`Seed`] with the generation: while it is 0 the key is not used.
const SEED_VALID: usize = std::mem::offset_of!(Seed, generation) / 8;
/// The word of [`Backend`] with generation and state.
const BACKEND_VALID: usize = std::mem::offset_of!(Backend, state) / 8;
const _: () = assert!(std::mem::offset_of!(Backend, generation) / 8 == BACKEND_VALID);

/// In which order the words of an entry are written: none in between means a backend, seed or settings that are not.
pub(super) trait Ordered {
    fn order(&self) -> Order;
}

impl Ordered for Settings {
    fn order(&self) -> Order {
        Order::Last(SETTINGS_VALID)
    }
}

impl Ordered for Seed {
    fn order(&self) -> Order {
        match self.generation {
            0 => Order::First(SEED_VALID),
            _ => Order::Last(SEED_VALID),
        }
    }
}

impl Ordered for Backend {
    fn order(&self) -> Order {
        match self.state {
            backend::state::UNSET => Order::First(BACKEND_VALID),
            _ => Order::Last(BACKEND_VALID),
        }
    }
}

impl MapWriter for PinnedMaps {
    fn write_settings(&mut self, settings: &Settings) -> Result<(), MapError> {
        self.settings.set(0, *settings, settings.order())
    }

    fn write_seed(&mut self, index: u32, seed: Seed) -> Result<(), MapError> {
        self.seeds.set(index, seed, seed.order())
    }

    fn read_seed(&self, index: u32) -> Result<Seed, MapError> {
        self.seeds.get(index).ok_or(MapError::Range {
            name: map_names::SEEDS.name,
            index: u64::from(index),
            entries: self.seeds.len(),
        })
    }

    fn clear_fresh(&mut self, index: u32) -> Result<(), MapError> {
        let words = self.capacity.fresh_words as usize;
        let start = index as usize * words;
        self.fresh
            .as_writable()?
            .get(start..start + words)
            .ok_or(MapError::Range {
                name: map_names::FRESH.name,
                index: start as u64,
                entries: self.fresh.len(),
            })?
            .iter()
            .for_each(|word| word.store(0));
        Ok(())
    }

    fn write_backend(&mut self, id: u32, backend: &Backend) -> Result<(), MapError> {
        if self
            .backends
            .get(id)
            .is_some_and(|before| before.generation != backend.generation)
        {
            self.clear_counters(id)?;
        }
        self.backends.set(id, *backend, backend.order())
    }

    fn write_slots(&mut self, offset: u32, slots: &[BackendRef]) -> Result<(), MapError> {
        let end = u64::from(offset) + slots.len() as u64;
        if end > u64::from(self.slots.len()) {
            return Err(MapError::Range {
                name: map_names::SLOTS.name,
                index: end,
                entries: self.slots.len(),
            });
        }
        for (slot, reference) in (offset..).zip(slots) {
            self.slots.set(slot, *reference, Order::Any)?;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        Ok(())
    }

    fn read_service(&self, key: &ServiceKey) -> Result<Option<Service>, MapError> {
        Ok(self.services.get(key))
    }

    fn write_service(&mut self, key: &ServiceKey, service: &Service) -> Result<(), MapError> {
        self.services.set(key, service)
    }

    fn remove_service(&mut self, key: &ServiceKey) -> Result<(), MapError> {
        self.services.remove(key)
    }

    fn write_filter(&mut self, filter: &[u64; vip_filter::WORDS]) -> Result<(), MapError> {
        self.filter.set(0, *filter, Order::Any)
    }
}
