//! A small world of services, backends and seeds, from which tables in memory and the kernel's maps are filled.

mod describe;
pub mod edit;
pub mod standard;

use std::collections::BTreeMap;

use lb_common::{
    backend::Backend,
    fingerprint::FingerprintKey,
    flow::{FlowBucket, FlowValue},
    flow_hash::Key,
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
    vip_filter,
};

use super::tables::Sizes;

/// Interface that frames come in on: the loopback's index, which a test run of the kernel uses.
pub const INGRESS: u32 = 1;
/// Another interface, to which frames are redirected.
pub const OTHER_INTERFACE: u32 = 7;
/// Samples that fit the smallest ring buffer of the kernel: 4096 octets, 8 for the header of each.
pub const SAMPLE_CAPACITY: usize = 4095 / (size_of::<lb_common::sample::Sample>() + 8);

/// Contents of all maps, the clock, and the CPU that handles the packets.
#[derive(Clone, Debug)]
pub struct World {
    pub cpu: u32,
    /// The datapath's clock, seconds.
    pub now: u32,
    /// Without its clock and the size of the service index, which the engines fill in.
    pub settings: Settings,
    pub vip_filter: Box<[u64; vip_filter::WORDS]>,
    pub services: BTreeMap<ServiceKey, Service>,
    pub backends: Vec<Backend>,
    pub slots: Vec<BackendRef>,
    pub seeds: Vec<Seed>,
    pub flows: Vec<FlowBucket>,
    pub fragments: Vec<FlowBucket>,
    slots_used: u32,
}

/// Entries of all maps of a world on a CPU; one more CPU is there that never handles a packet.
pub const fn sizes(cpu: u32) -> Sizes {
    Sizes {
        cpus: cpu as usize + 2,
        backends: 64,
        slots: 2048,
        flow_buckets: 16,
        fragment_buckets: 4,
        fresh_words: 64,
    }
}

/// What a world's fingerprint key is made from.
const TABLE_SECRET: Key = Key {
    k0: 0x1716_1514_1312_1110,
    k1: 0x0f0e_0d0c_0b0a_0908,
};

impl World {
    /// Nothing but settings and seeds. Seeds differ by `salt`.
    pub fn empty(cpu: u32, salt: u64) -> Self {
        let sizes = sizes(cpu);
        let mut world = Self {
            cpu,
            now: 1_000_000,
            settings: Settings {
                layout_version: lb_common::settings::LAYOUT_VERSION,
                possible_cpus: sizes.cpus as u32,
                table_key: FingerprintKey::expand(TABLE_SECRET),
                flow_mask: sizes.flow_buckets as u32 - 1,
                fragment_mask: sizes.fragment_buckets as u32 - 1,
                icmp_rate: 1000,
                fresh_mask: sizes.fresh_words as u32 - 1,
                sample_mask: lb_common::settings::one_in(64),
                packet_sample_mask: lb_common::settings::one_in(64),
                backend_stride: sizes.backends as u32,
                timeouts: [0, 10, 30, 120, 21_600, 0, 0, 0],
                ..Settings::default()
            },
            vip_filter: Box::new([0; vip_filter::WORDS]),
            services: BTreeMap::new(),
            backends: vec![Backend::default(); sizes.backends],
            slots: vec![BackendRef::UNSET; sizes.slots],
            seeds: vec![Seed::default(); sizes.cpus + 1],
            flows: vec![FlowBucket::default(); sizes.flow_buckets],
            fragments: vec![FlowBucket::default(); sizes.fragment_buckets],
            slots_used: 0,
        };
        world.rotate(salt);
        world
    }

    /// The reference that names a backend now.
    pub fn reference(&self, id: u32) -> BackendRef {
        BackendRef::new(id, self.backends[id as usize].generation)
    }

    /// Value of a flow that was last seen `idle` seconds ago.
    pub fn flow_value(&self, id: u32, state: u8, idle: u32) -> FlowValue {
        FlowValue {
            backend: self.reference(id),
            state,
            last_seen: self.now - idle,
        }
    }
}
