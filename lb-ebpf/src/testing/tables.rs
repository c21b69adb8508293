//! `Tables` in memory.

use std::{cell::RefCell, collections::BTreeMap};

use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters},
    flow::FlowBucket,
    ids::BackendRef,
    sample::Sample,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
    shared::Word,
    vip_filter,
};

use crate::tables::{Tables, Warning};

/// Maps on the host. What is not filled in reads as all-zero where the kernel's map is an array.
pub struct MemoryTables {
    pub cpu: u32,
    pub jiffies: u64,
    pub settings: Settings,
    pub vip_filter: Box<[u64; vip_filter::WORDS]>,
    pub services: BTreeMap<ServiceKey, Service>,
    pub backends: Vec<Backend>,
    pub slots: Vec<BackendRef>,
    pub seeds: Vec<Seed>,
    pub flows: Vec<FlowBucket>,
    pub fragments: Vec<FlowBucket>,
    pub fresh: Vec<Word>,
    pub backend_counters: Vec<BackendCounters>,
    pub cpu_counters: Vec<CpuCounters>,
    pub samples: RefCell<Vec<Sample>>,
    /// Samples that fit before the reader takes them out.
    pub sample_capacity: usize,
    pub warnings: RefCell<Vec<(Warning, u32)>>,
}

/// Entries of the maps.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub cpus: usize,
    pub backends: usize,
    pub slots: usize,
    /// A power of two.
    pub flow_buckets: usize,
    /// A power of two.
    pub fragment_buckets: usize,
    /// 64-bit words of a fresh-key region, a power of two.
    pub fresh_words: usize,
}

impl MemoryTables {
    /// Empty maps: every frame passes until settings are written.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            cpu: 0,
            jiffies: 0,
            settings: Settings::default(),
            vip_filter: Box::new([0; vip_filter::WORDS]),
            services: BTreeMap::new(),
            backends: vec![Backend::default(); sizes.backends],
            slots: vec![BackendRef::UNSET; sizes.slots],
            seeds: vec![Seed::default(); sizes.cpus + 1],
            flows: vec![FlowBucket::default(); sizes.flow_buckets],
            fragments: vec![FlowBucket::default(); sizes.fragment_buckets],
            fresh: vec![Word::new(0); (sizes.cpus + 1) * sizes.fresh_words],
            backend_counters: vec![BackendCounters::default(); sizes.cpus * sizes.backends],
            cpu_counters: vec![CpuCounters::default(); sizes.cpus],
            samples: RefCell::default(),
            sample_capacity: usize::MAX,
            warnings: RefCell::default(),
        }
    }

    /// Sets the filter bit and the mark of a VIP address.
    pub fn add_vip(&mut self, address: [u8; 16], family: u8) {
        let bit = vip_filter::bit_of(&address, family);
        self.vip_filter[(bit / 64) as usize] |= 1 << (bit % 64);
        let mark = Service {
            id: lb_common::service::VIP_MARK,
            ..Service::default()
        };
        self.services.insert(ServiceKey::vip_mark(address, family), mark);
    }
}

impl Tables for MemoryTables {
    fn cpu(&self) -> u32 {
        self.cpu
    }

    fn jiffies(&self) -> u64 {
        self.jiffies
    }

    fn settings(&self) -> Option<&Settings> {
        Some(&self.settings)
    }

    fn vip_bit(&self, bit: u32) -> bool {
        self.vip_filter
            .get((bit / 64) as usize)
            .is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    fn service(&self, key: &ServiceKey, _: &Settings) -> Option<&Service> {
        self.services.get(key)
    }

    fn backend(&self, id: u32) -> Option<&Backend> {
        self.backends.get(id as usize)
    }

    fn slot(&self, index: u32) -> Option<BackendRef> {
        self.slots.get(index as usize).copied()
    }

    fn seed(&self, index: u32) -> Option<&Seed> {
        self.seeds.get(index as usize)
    }

    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket> {
        self.flows.get(index as usize)
    }

    fn fragment_bucket(&self, index: u32) -> Option<&FlowBucket> {
        self.fragments.get(index as usize)
    }

    fn fresh_word(&self, index: u32) -> Option<&Word> {
        self.fresh.get(index as usize)
    }

    fn backend_counters(&self, index: u32) -> Option<&BackendCounters> {
        self.backend_counters.get(index as usize)
    }

    fn cpu_counters(&self) -> Option<&CpuCounters> {
        self.cpu_counters.get(self.cpu as usize)
    }

    fn sample(&self, sample: &Sample) -> bool {
        let mut samples = self.samples.borrow_mut();
        let fits = samples.len() < self.sample_capacity;
        if fits {
            samples.push(*sample);
        }
        fits
    }

    fn warn(&self, warning: Warning, about: u32) {
        self.warnings.borrow_mut().push((warning, about));
    }
}
