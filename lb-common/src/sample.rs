//! A sampled pick: what the datapath did with one new flow, for the daemon to recompute.

use crate::{ids::BackendRef, pod::map_value};

/// Record of the ring buffer `SAMPLES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// [`crate::flow_hash::FlowTuple::words`]: addresses as loaded from the packet.
    pub words: [u64; 4],
    /// The hash that picked the slot.
    pub hash: u64,
    pub ports: u32,
    pub service: u32,
    pub slot: u32,
    pub table_generation: u32,
    pub seed_generation: u32,
    pub backend: BackendRef,
    /// Index into `SEEDS` of the seed that was used.
    pub seed_index: u32,
    pub cpu: u32,
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<Sample>() == 80);
map_value!(Sample);
