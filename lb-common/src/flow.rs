//! The flow table's memory: buckets of four entries, one cache line each.

use crate::{ids::BackendRef, shared::Word};

/// Entries of a bucket.
pub const WAYS: usize = 4;

/// Entry of `FLOWS`: 64 bytes, which a page-aligned map keeps in one cache line.
#[repr(C)]
#[derive(Default, Debug, Clone)]
pub struct FlowBucket {
    pub entries: [FlowEntry; WAYS],
}

/// Set in every fingerprint, while the bit above it never is. So one instruction tells a free entry, and two tell two
/// fingerprints apart without a branch: a difference is below 2⁶³, and only zero is not negative when negated.
pub const TAKEN: u64 = 1 << 62;

/// A fingerprint from 64 bits of a hash, of which it keeps the upper 62.
#[inline(always)]
pub const fn fingerprint(hash: u64) -> u64 {
    hash >> 2 | TAKEN
}

/// A flow. Fingerprint 0 means free. Several CPUs write at once: the value goes in before the fingerprint,
/// and a torn pair may at worst send one packet of a new flow elsewhere.
#[repr(C)]
#[derive(Default, Debug, Clone)]
pub struct FlowEntry {
    /// [`crate::fingerprint::FingerprintKey::of_flow`] with the table's key, with [`TAKEN`] set; 0 when free.
    pub fingerprint: Word,
    /// A packed [`FlowValue`].
    pub value: Word,
}

const _: () = assert!(size_of::<FlowBucket>() == 64);

/// What is kept of a flow: bits 0–27 backend, 28–31 state, 32–63 last packet in seconds of the datapath's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowValue {
    pub backend: BackendRef,
    /// One of [`state`].
    pub state: u8,
    pub last_seen: u32,
}

/// Values of [`FlowValue::state`], in the order in which flows give way to others: the lowest goes first.
pub mod state {
    pub const UNSET: u8 = 0;
    /// TCP, FIN or RST seen.
    pub const CLOSING: u8 = 1;
    /// TCP, only SYN seen.
    pub const NEW: u8 = 2;
    /// UDP.
    pub const DATAGRAM: u8 = 3;
    /// TCP, a segment without SYN seen.
    pub const ESTABLISHED: u8 = 4;
    /// States in use, for tables indexed by state.
    pub const COUNT: usize = 5;
    pub const NAMES: [&str; COUNT] = ["unset", "closing", "new", "datagram", "established"];
}

impl FlowValue {
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        self.backend.bits() as u64 | ((self.state & 0xf) as u64) << 28 | (self.last_seen as u64) << 32
    }

    #[inline(always)]
    pub const fn unpack(bits: u64) -> Self {
        Self {
            backend: BackendRef::from_bits(bits as u32),
            state: (bits >> 28) as u8 & 0xf,
            last_seen: (bits >> 32) as u32,
        }
    }
}

/// The two buckets a fingerprint may live in, before the table's mask, which may keep the lower 30 bits.
#[inline(always)]
pub const fn candidate_buckets(fingerprint: u64) -> (u32, u32) {
    (fingerprint as u32, (fingerprint >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_survives_packing() {
        let value = FlowValue {
            backend: BackendRef::new(0xabcde, 0xf1),
            state: state::DATAGRAM,
            last_seen: 0xdead_beef,
        };
        assert_eq!(FlowValue::unpack(value.pack()), value);
    }
}
