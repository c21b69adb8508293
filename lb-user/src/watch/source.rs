//! What the watch reads: counters, seeds and slots as they stand in the datapath, without a system call.

use std::{path::Path, sync::Arc};

use lb_common::{
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey},
    slot_table::HISTOGRAM_BUCKETS,
};

use crate::{
    counters::{BackendTotals, Counters},
    maps::{MapError, MapWriter, PinnedMaps},
};

/// Buckets of a hash histogram.
pub const BUCKETS: usize = HISTOGRAM_BUCKETS as usize;

/// The datapath's memory, or what stands for it in a test.
pub trait Source: Send + 'static {
    /// CPUs that may count.
    fn cpus(&self) -> u32;
    /// Another number when the counters are others.
    fn origin(&self) -> u64;
    /// Picks of fresh keys by bucket.
    fn histogram(&self, cpu: u32) -> [u64; BUCKETS];
    /// What one CPU counted for a backend id.
    fn backend(&self, cpu: u32, id: u32) -> BackendTotals;
    /// All entries of `SEEDS`.
    fn seeds(&self) -> Vec<Seed>;
    /// An entry of `SLOTS`; `None` outside.
    fn slot(&self, index: u32) -> Option<BackendRef>;
    /// An entry of `SERVICES`.
    fn service(&self, _key: &ServiceKey) -> Entry {
        Entry::Unknown
    }
    /// Bits set in the filter of fresh keys of a seed, and its bits, by index into `SEEDS`; `None` where nobody reads it.
    fn fresh_bits(&self, _index: u32) -> Option<[u64; 2]> {
        None
    }
    /// Whether [`Source::backend`] knows which CPU counted flows and packets.
    fn counts_by_cpu(&self) -> bool {
        true
    }
    /// Whether a backend may take new flows.
    fn is_serving(&self, backend: BackendRef) -> bool;
}

/// What is known of an entry of `SERVICES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It cannot be read, or nobody reads it.
    Unknown,
    /// What stands there; `None`: nothing.
    Read(Option<Service>),
}

/// Pinned maps, opened for reading.
#[derive(Clone)]
pub struct Mapped {
    maps: Arc<PinnedMaps>,
    counters: Counters,
}

impl Mapped {
    pub fn open(pin_directory: &Path) -> Result<Self, MapError> {
        let maps = PinnedMaps::open_read_only(pin_directory)?;
        Ok(Self {
            counters: maps.counters(),
            maps: Arc::new(maps),
        })
    }
}

impl Source for Mapped {
    fn cpus(&self) -> u32 {
        self.counters.cpus()
    }

    fn origin(&self) -> u64 {
        // The kernel's memory behind these mappings lives as long as they do.
        0
    }

    fn histogram(&self, cpu: u32) -> [u64; BUCKETS] {
        self.counters.histogram(cpu).fresh
    }

    fn backend(&self, cpu: u32, id: u32) -> BackendTotals {
        self.counters.backend_of(cpu, id)
    }

    fn seeds(&self) -> Vec<Seed> {
        self.maps.seeds()
    }

    fn slot(&self, index: u32) -> Option<BackendRef> {
        self.maps.slot(index)
    }

    fn service(&self, key: &ServiceKey) -> Entry {
        match self.maps.read_service(key) {
            Ok(entry) => Entry::Read(entry),
            Err(_) => Entry::Unknown,
        }
    }

    fn fresh_bits(&self, index: u32) -> Option<[u64; 2]> {
        let bits = u64::from(self.counters.capacity().fresh_words) * u64::from(u64::BITS);
        let set = self.counters.fresh_fill(index) * bits as f64;
        Some([set.round() as u64, bits])
    }

    fn is_serving(&self, backend: BackendRef) -> bool {
        self.counters.backend_entry(backend.id()).is_some_and(|entry| {
            entry.is_named_by(backend) && entry.state == lb_common::backend::state::SERVING
        })
    }
}
