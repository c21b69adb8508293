//! The maps, and `Tables` over them. Names and capacities come from `lb_common::map_names`.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, RingBuf},
    helpers::{bpf_get_smp_processor_id, bpf_jiffies64},
    macros::btf_map,
    programs::XdpContext,
};
use aya_log_ebpf::warn;
use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters},
    flow::FlowBucket,
    ids::BackendRef,
    map_names,
    sample::Sample,
    seed::Seed,
    service::{Service, ServiceKey},
    service_index::ServiceEntry,
    settings::Settings,
    shared::Word,
    vip_filter,
};
use lb_ebpf::{
    service,
    tables::{Tables, Warning},
};

const MMAP: usize = BPF_F_MMAPABLE as usize;

/// The VIP filter as one map value.
pub struct Filter([Word; vip_filter::WORDS]);

#[btf_map]
static SETTINGS: Array<Settings, { map_names::SETTINGS.capacity }, MMAP> = Array::new();
#[btf_map]
static VIP_FILTER: Array<Filter, { map_names::VIP_FILTER.capacity }, MMAP> = Array::new();
#[btf_map]
static SERVICE_HEADS: Array<Word, { map_names::SERVICE_HEADS.capacity }, MMAP> = Array::new();
#[btf_map]
static SERVICES: Array<ServiceEntry, { map_names::SERVICES.capacity }, MMAP> = Array::new();
#[btf_map]
static BACKENDS: Array<Backend, { map_names::BACKENDS.capacity }, MMAP> = Array::new();
#[btf_map]
static SLOTS: Array<u32, { map_names::SLOTS.capacity }, MMAP> = Array::new();
#[btf_map]
static SEEDS: Array<Seed, { map_names::SEEDS.capacity }, MMAP> = Array::new();
#[btf_map]
static FLOWS: Array<FlowBucket, { map_names::FLOWS.capacity }, MMAP> = Array::new();
#[btf_map]
static FRAGMENTS: Array<FlowBucket, { map_names::FRAGMENTS.capacity }, MMAP> = Array::new();
#[btf_map]
static FRESH: Array<Word, { map_names::FRESH.capacity }, MMAP> = Array::new();
#[btf_map]
static BACKEND_COUNTERS: Array<BackendCounters, { map_names::BACKEND_COUNTERS.capacity }, MMAP> =
    Array::new();
#[btf_map]
static CPU_COUNTERS: Array<CpuCounters, { map_names::CPU_COUNTERS.capacity }, MMAP> = Array::new();
#[btf_map]
static SAMPLES: RingBuf<Sample, { map_names::SAMPLES.capacity }> = RingBuf::new();

/// The maps as one run of the program sees them.
pub struct KernelTables<'a> {
    context: &'a XdpContext,
    cpu: u32,
    filter: Option<&'static Filter>,
}

impl<'a> KernelTables<'a> {
    #[inline(always)]
    pub fn new(context: &'a XdpContext) -> Self {
        // SAFETY: the helper has no preconditions.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        // Before anything is read from the packet, which would have to wait on the stack meanwhile.
        let filter = VIP_FILTER.get(0);
        Self { context, cpu, filter }
    }
}

impl Tables for KernelTables<'_> {
    #[inline(always)]
    fn cpu(&self) -> u32 {
        self.cpu
    }

    #[inline(always)]
    fn jiffies(&self) -> u64 {
        // SAFETY: the helper has no preconditions (Linux 5.6).
        unsafe { bpf_jiffies64() }
    }

    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        SETTINGS.get(0)
    }

    #[inline(always)]
    fn vip_bit(&self, bit: u32) -> bool {
        let Some(filter) = self.filter else {
            return false;
        };
        match filter.0.get((bit >> 6) as usize) {
            Some(word) => word.load() >> (bit & 63) & 1 != 0,
            None => false,
        }
    }

    #[inline(always)]
    fn service(&self, key: &ServiceKey, settings: &Settings) -> Option<&Service> {
        let head = |index| SERVICE_HEADS.get(index).map(Word::load);
        service::walk(key, settings, head, |index| SERVICES.get(index))
    }

    #[inline(always)]
    fn backend(&self, id: u32) -> Option<&Backend> {
        BACKENDS.get(id)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<BackendRef> {
        SLOTS.get(index).map(|bits| BackendRef::from_bits(*bits))
    }

    #[inline(always)]
    fn seed(&self, index: u32) -> Option<&Seed> {
        SEEDS.get(index)
    }

    #[inline(always)]
    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket> {
        FLOWS.get(index)
    }

    #[inline(always)]
    fn fragment_bucket(&self, index: u32) -> Option<&FlowBucket> {
        FRAGMENTS.get(index)
    }

    #[inline(always)]
    fn fresh_word(&self, index: u32) -> Option<&Word> {
        FRESH.get(index)
    }

    #[inline(always)]
    fn backend_counters(&self, index: u32) -> Option<&BackendCounters> {
        BACKEND_COUNTERS.get(index)
    }

    #[inline(always)]
    fn cpu_counters(&self) -> Option<&CpuCounters> {
        CPU_COUNTERS.get(self.cpu)
    }

    #[inline(always)]
    fn sample(&self, sample: &Sample) -> bool {
        let Some(mut entry) = SAMPLES.reserve(0) else {
            return false;
        };
        entry.write(*sample);
        entry.submit(0);
        true
    }

    #[inline(always)]
    fn warn(&self, warning: Warning, about: u32) {
        let context = self.context;
        match warning {
            Warning::NoBackend => warn!(
                context,
                "service {}: no backend may take new flows; dropped", about
            ),
            Warning::NoSeed => warn!(context, "service {}: no seed is set; dropped", about),
            Warning::SeedMissing => {
                warn!(
                    context,
                    "service {}: CPU {} has no seed; the shared one picks", about, self.cpu
                );
            }
            Warning::SlotNotServing => {
                warn!(
                    context,
                    "service {}: slots name backends that are not serving; dropped", about
                );
            }
            Warning::Inconsistent => warn!(context, "service {}: an index points outside its map", about),
        }
    }
}
