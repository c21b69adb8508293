//! Counters that one CPU writes and the daemon reads in place.

use crate::{shared::Word, slot_table::HISTOGRAM_BUCKETS};

/// Room for verdict counters; verdicts are numbered in `lb-ebpf/src/verdict.rs`.
pub const VERDICT_SLOTS: usize = 64;
/// Room for event counters.
pub const EVENT_SLOTS: usize = 32;

/// Entry of `BACKEND_COUNTERS[cpu * stride + id]`.
#[repr(C)]
#[derive(Debug, Default, Clone)]
pub struct BackendCounters {
    /// New flows picked.
    pub flows: Word,
    pub packets: Word,
    /// Octets of the frames as they arrived.
    pub bytes: Word,
    /// New flows whose key was seen for the first time in the seed's life.
    pub fresh_flows: Word,
}

const _: () = assert!(size_of::<BackendCounters>() == 32);

/// Entry of `CPU_COUNTERS[cpu]`.
#[repr(C)]
#[derive(Debug, Clone)]
pub struct CpuCounters {
    pub verdicts: [Word; VERDICT_SLOTS],
    /// Indexed by [`Event`].
    pub events: [Word; EVENT_SLOTS],
    /// Second of the datapath's clock in which this CPU last logged a warning, by event.
    pub warned: [Word; EVENT_SLOTS - 1],
    /// ICMP messages that this CPU made in a second: the second of the datapath's clock in the upper half, how many in
    /// the lower.
    pub answered: Word,
    pub histogram: Histogram,
}

const _: () = assert!(size_of::<CpuCounters>() == 1024 + size_of::<Histogram>());

/// Picks by bucket of their slot.
#[repr(C)]
#[derive(Debug, Clone)]
pub struct Histogram {
    pub picks: [Word; HISTOGRAM_BUCKETS as usize],
    pub fresh: [Word; HISTOGRAM_BUCKETS as usize],
}

const _: () = assert!(size_of::<Histogram>() == 4096);

/// Things worth counting that are not a frame's way out. Picks and fresh keys are not among them: the [`Histogram`]
/// has them already.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A flow was stored in a free entry.
    FlowStored = 0,
    /// A flow was stored over an expired one.
    EvictedExpired = 1,
    EvictedClosing = 2,
    EvictedNew = 3,
    EvictedDatagram = 4,
    EvictedEstablished = 5,
    /// A flow could not be stored: every candidate entry holds something it may not evict.
    FlowNotStored = 6,
    /// A live entry named a backend that is down or gone; the flow was picked anew.
    FlowRepicked = 7,
    /// The CPU's seed is unset; the shared seed picked instead.
    SeedMissing = 8,
    /// A slot named a backend that is not serving; the next slots were tried.
    SlotNotServing = 9,
    /// A sample found the ring buffer full.
    SampleLost = 10,
    /// An index pointed outside a map: a bug, or maps written by something else.
    MapInconsistent = 11,
    /// An ICMP error was forwarded to the backend of the flow that it is about.
    IcmpErrorForwarded = 12,
    /// The backend of a first fragment was remembered.
    FragmentStored = 13,
    /// The same, over one that other fragments may still have come for.
    FragmentEvicted = 14,
}

impl Event {
    pub const ALL: [Self; 15] = [
        Self::FlowStored,
        Self::EvictedExpired,
        Self::EvictedClosing,
        Self::EvictedNew,
        Self::EvictedDatagram,
        Self::EvictedEstablished,
        Self::FlowNotStored,
        Self::FlowRepicked,
        Self::SeedMissing,
        Self::SlotNotServing,
        Self::SampleLost,
        Self::MapInconsistent,
        Self::IcmpErrorForwarded,
        Self::FragmentStored,
        Self::FragmentEvicted,
    ];

    /// Label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowStored => "flow_stored",
            Self::EvictedExpired => "evicted_expired",
            Self::EvictedClosing => "evicted_closing",
            Self::EvictedNew => "evicted_new",
            Self::EvictedDatagram => "evicted_datagram",
            Self::EvictedEstablished => "evicted_established",
            Self::FlowNotStored => "flow_not_stored",
            Self::FlowRepicked => "flow_repicked",
            Self::SeedMissing => "seed_missing",
            Self::SlotNotServing => "slot_not_serving",
            Self::SampleLost => "sample_lost",
            Self::MapInconsistent => "map_inconsistent",
            Self::IcmpErrorForwarded => "icmp_error_forwarded",
            Self::FragmentStored => "fragment_stored",
            Self::FragmentEvicted => "fragment_evicted",
        }
    }
}

/// An array of words, all zero.
pub fn zeroed<const N: usize>() -> [Word; N] {
    core::array::from_fn(|_| Word::new(0))
}

impl Default for CpuCounters {
    fn default() -> Self {
        Self {
            verdicts: zeroed(),
            events: zeroed(),
            warned: zeroed(),
            answered: Word::new(0),
            histogram: Histogram::default(),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            picks: zeroed(),
            fresh: zeroed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_in_order_and_fit() {
        for (index, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, index);
            assert!(index < EVENT_SLOTS);
        }
    }
}
