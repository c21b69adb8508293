//! Copies of the live maps as the datapath sees them, which remember what was looked at and change nothing.

use std::cell::{Cell, RefCell};

use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters},
    flow::{FlowBucket, FlowValue, candidate_buckets},
    ids::BackendRef,
    sample::Sample,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
    shared::Word,
};
use lb_ebpf::tables::{Tables, Warning};

use crate::{counters::Counters, state::observed::Observed};

/// Something the datapath looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    VipBit(bool),
    FlowBucket,
    Service(ServiceKey, bool),
    Seed(u32, u32),
    Slot(u32, BackendRef),
}

/// One packet's view of the maps on one CPU.
pub(super) struct LiveTables<'a> {
    cpu: u32,
    observed: &'a Observed,
    /// The two buckets the flow may be in, by index.
    buckets: [(u32, FlowBucket); 2],
    stored: Option<FlowValue>,
    counted: CpuCounters,
    no_backend_counters: BackendCounters,
    fresh: Word,
    seen: RefCell<Vec<Seen>>,
    service: Cell<Option<Service>>,
    backend: Cell<Option<Backend>>,
}

impl<'a> LiveTables<'a> {
    pub(super) fn new(cpu: u32, observed: &'a Observed, counters: &Counters, fingerprint: u64) -> Self {
        let (first, second) = candidate_buckets(fingerprint);
        let buckets = [first, second].map(|bucket| {
            let index = bucket & observed.settings.flow_mask;
            (index, counters.flow_bucket(index).unwrap_or_default())
        });
        Self {
            cpu,
            observed,
            buckets,
            stored: counters.flow(fingerprint),
            counted: CpuCounters::default(),
            no_backend_counters: BackendCounters::default(),
            fresh: Word::default(),
            seen: RefCell::default(),
            service: Cell::new(None),
            backend: Cell::new(None),
        }
    }

    /// In the order of the looks.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// The flow's entry before the packet.
    pub(super) fn stored(&self) -> Option<FlowValue> {
        self.stored
    }

    /// Whether a backend was picked, rather than found in the flow table.
    pub(super) fn picked(&self) -> bool {
        self.counted.histogram.picks.iter().any(|count| count.load() > 0)
    }

    /// The service that was found.
    pub(super) fn service_entry(&self) -> Option<Service> {
        self.service.get()
    }

    /// The backend entry that was looked at last.
    pub(super) fn chosen(&self) -> Option<Backend> {
        self.backend.get()
    }

    fn see(&self, seen: Seen) {
        self.seen.borrow_mut().push(seen);
    }
}

impl Tables for LiveTables<'_> {
    fn cpu(&self) -> u32 {
        self.cpu
    }

    /// The jiffies at which the datapath's clock shows the second of the snapshot.
    fn jiffies(&self) -> u64 {
        let settings = &self.observed.settings;
        settings.clock_base + u64::from(self.observed.now) * u64::from(self.observed.capacity.hz)
    }

    fn settings(&self) -> Option<&Settings> {
        Some(&self.observed.settings)
    }

    fn vip_bit(&self, bit: u32) -> bool {
        let word = self
            .observed
            .vip_filter
            .get((bit / 64) as usize)
            .copied()
            .unwrap_or(0);
        let set = word >> (bit % 64) & 1 == 1;
        self.see(Seen::VipBit(set));
        set
    }

    fn service(&self, key: &ServiceKey, _: &Settings) -> Option<&Service> {
        let found = self.observed.services.get(key);
        self.see(Seen::Service(*key, found.is_some()));
        self.service.set(found.copied());
        found
    }

    fn backend(&self, id: u32) -> Option<&Backend> {
        let found = self.observed.backends.get(&id);
        self.backend.set(found.copied());
        found
    }

    fn slot(&self, index: u32) -> Option<BackendRef> {
        let service = self.service.get()?;
        let slots = self.observed.slots.get(&service.id)?;
        let reference = *slots.get(index.checked_sub(service.slots_offset)? as usize)?;
        self.see(Seen::Slot(index, reference));
        Some(reference)
    }

    fn seed(&self, index: u32) -> Option<&Seed> {
        let found = self.observed.seeds.get(index as usize)?;
        self.see(Seen::Seed(index, found.generation));
        Some(found)
    }

    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket> {
        self.see(Seen::FlowBucket);
        self.buckets
            .iter()
            .find(|(known, _)| *known == index)
            .map(|(_, bucket)| bucket)
    }

    fn fragment_bucket(&self, _index: u32) -> Option<&FlowBucket> {
        None
    }

    fn fresh_word(&self, _index: u32) -> Option<&Word> {
        Some(&self.fresh)
    }

    fn backend_counters(&self, _index: u32) -> Option<&BackendCounters> {
        Some(&self.no_backend_counters)
    }

    fn cpu_counters(&self) -> Option<&CpuCounters> {
        Some(&self.counted)
    }

    fn sample(&self, _sample: &Sample) -> bool {
        true
    }

    fn warn(&self, _event: Warning, _about: u32) {}
}
