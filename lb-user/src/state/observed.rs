//! What the maps hold, read from the maps and not from memory.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::{
    backend::Backend,
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
    vip_filter,
};

/// A snapshot of the pinned maps, as much of it as a plan needs.
#[derive(Clone, Debug)]
pub struct Observed {
    pub capacity: Capacity,
    pub settings: Settings,
    /// Without the marks of VIPs.
    pub services: BTreeMap<ServiceKey, Service>,
    /// The marks of VIPs that stand in the same map ([`ServiceKey::vip_mark`]).
    pub vip_marks: BTreeSet<ServiceKey>,
    /// Every entry that is not all-zero, removed ones (state 0, generation kept) included.
    pub backends: BTreeMap<u32, Backend>,
    /// The slots of the services a plan looks at, by service id, as they stand in the service's region.
    pub slots: BTreeMap<u32, Vec<BackendRef>>,
    /// All entries of `SEEDS`, in order.
    pub seeds: Vec<Seed>,
    pub vip_filter: Box<[u64; vip_filter::WORDS]>,
    /// The datapath's clock when the snapshot was taken, seconds.
    pub now: u32,
}

/// Entries of the maps as created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub services: u32,
    /// Backend ids; id 0 is never used.
    pub backends: u32,
    pub slots: u32,
    pub possible_cpus: u32,
    pub flow_buckets: u32,
    /// 64-bit words of one region of `FRESH`.
    pub fresh_words: u32,
    /// The kernel's `CONFIG_HZ`.
    pub hz: u32,
}
