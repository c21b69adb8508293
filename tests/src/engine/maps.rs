//! The kernel's maps, filled from a world and read back as a state.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use aya::{Ebpf, maps::Map};
use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters},
    flow::FlowBucket,
    ids::BackendRef,
    map_names::{self, MapName},
    seed::Seed,
    service::{Service, ServiceKey},
    service_index::head_shift,
    settings::{Settings, initial_jiffies},
    shared::Word,
    vip_filter,
};
use lb_ebpf::testing::{
    engine::{State, ticks},
    world::World,
};
use lb_user::maps::{MappedArray, ServiceIndex};
use rustix::time::{ClockId, clock_gettime};

use super::array::Array;

pub(super) struct Maps {
    settings: Array,
    vip_filter: Array,
    services: ServiceIndex,
    service_shift: u32,
    backends: Array,
    slots: Array,
    seeds: Array,
    flows: Array,
    fragments: Array,
    fresh: Array,
    backend_counters: Array,
    cpu_counters: Array,
}

impl Maps {
    pub(super) fn take(programs: &mut Ebpf) -> Result<Self> {
        let heads: MappedArray<Word> = mapped(programs, map_names::SERVICE_HEADS)?;
        let entries = mapped(programs, map_names::SERVICES)?;
        let mut array = |map, size| Array::take(programs, map, size);
        Ok(Self {
            settings: array(map_names::SETTINGS, size_of::<Settings>())?,
            vip_filter: array(map_names::VIP_FILTER, size_of::<[u64; vip_filter::WORDS]>())?,
            service_shift: head_shift(heads.len()),
            // The program never runs while they are written, so nothing needs rest.
            services: ServiceIndex::open(heads, entries, Duration::ZERO),
            backends: array(map_names::BACKENDS, size_of::<Backend>())?,
            slots: array(map_names::SLOTS, size_of::<BackendRef>())?,
            seeds: array(map_names::SEEDS, size_of::<Seed>())?,
            flows: array(map_names::FLOWS, size_of::<FlowBucket>())?,
            fragments: array(map_names::FRAGMENTS, size_of::<FlowBucket>())?,
            fresh: array(map_names::FRESH, size_of::<u64>())?,
            backend_counters: array(map_names::BACKEND_COUNTERS, size_of::<BackendCounters>())?,
            cpu_counters: array(map_names::CPU_COUNTERS, size_of::<CpuCounters>())?,
        })
    }

    /// Clears what the program writes.
    pub(super) fn clear(&mut self) {
        let written = [
            &mut self.flows,
            &mut self.fragments,
            &mut self.fresh,
            &mut self.backend_counters,
            &mut self.cpu_counters,
        ];
        for array in written {
            array.clear();
        }
    }

    pub(super) fn clear_fresh(&mut self) {
        self.fresh.clear();
    }

    /// Writes everything the program only reads.
    pub(super) fn write(&mut self, world: &World) -> Result<()> {
        let settings = Settings {
            service_shift: self.service_shift,
            ..with_clock(world)
        };
        self.settings.write(0, &settings);
        self.vip_filter.write(0, &*world.vip_filter);
        self.write_services(&world.services)?;
        for (index, backend) in world.backends.iter().enumerate() {
            self.backends.write(index, backend);
        }
        for (index, slot) in world.slots.iter().enumerate() {
            self.slots.write(index, slot);
        }
        for (index, seed) in world.seeds.iter().enumerate() {
            self.seeds.write(index, seed);
        }
        Ok(())
    }

    fn write_services(&mut self, services: &BTreeMap<ServiceKey, Service>) -> Result<()> {
        for key in self.services.list().keys() {
            if !services.contains_key(key) {
                self.services.remove(key)?;
            }
        }
        for (key, service) in services {
            self.services.set(key, service)?;
        }
        Ok(())
    }

    pub(super) fn write_flows(&mut self, world: &World) {
        write_buckets(&mut self.flows, &world.flows);
        write_buckets(&mut self.fragments, &world.fragments);
    }

    pub(super) fn state(&self, cpu: u32) -> State {
        State {
            cpu: cpu as usize,
            cpu_counters: self.cpu_counters.words(),
            backend_counters: self.backend_counters.words(),
            flows: self.flows.words(),
            fragments: self.fragments.words(),
            fresh: self.fresh.words(),
        }
    }
}

fn write_buckets(array: &mut Array, buckets: &[FlowBucket]) {
    for (index, bucket) in buckets.iter().enumerate() {
        let words: [[u64; 2]; 4] = bucket
            .entries
            .each_ref()
            .map(|entry| [entry.fingerprint.load(), entry.value.load()]);
        array.write(index, &words);
    }
}

fn mapped<T>(programs: &mut Ebpf, map: MapName) -> Result<MappedArray<T>> {
    let Some(Map::Array(data)) = programs.take_map(map.name) else {
        anyhow::bail!("the object has no array {}", map.name);
    };
    Ok(MappedArray::new(
        map.name,
        data.fd(),
        data.info()?.max_entries(),
        true,
    )?)
}

/// The world's settings with a clock that stands at the world's second: it ticks 2^24 jiffies a second.
fn with_clock(world: &World) -> Settings {
    Settings {
        clock_base: jiffies().wrapping_sub(ticks(world.now)),
        clock_multiplier: 1,
        ..world.settings
    }
}

/// The kernel's `jiffies`, to a few thousand.
fn jiffies() -> u64 {
    let hz = lb_user::maps::kernel_hz();
    let now = clock_gettime(ClockId::Monotonic);
    initial_jiffies(hz) + now.tv_sec as u64 * u64::from(hz)
}
