//! Samples: what the datapath did with one new flow, for the daemon to compute again, and packets of any flow, to tell
//! which flows have most of them.

use crate::{ids::BackendRef, pod::map_value};

/// Record of the ring buffer `SAMPLES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// [`crate::flow_hash::FlowTuple::words`]: addresses as loaded from the packet.
    pub words: [u64; 4],
    /// The hash that picked the slot; this, the slot, the generations and the seed are 0 in [`kind::PACKET`].
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
    /// One of [`kind`].
    pub kind: u8,
    pub reserved: u8,
    /// The IP packet's length.
    pub octets: u32,
}

/// Values of [`Sample::kind`].
pub mod kind {
    /// A new flow, for which a backend was picked.
    pub const NEW_FLOW: u8 = 0;
    /// A packet of a flow, the first included.
    pub const PACKET: u8 = 1;
}

const _: () = assert!(size_of::<Sample>() == 80);
map_value!(Sample);
