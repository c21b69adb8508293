//! A backend entry: where a packet for one backend of one service goes and in which shape.

use crate::{
    ids::BackendRef,
    pod::{map_value, pod},
};

/// Entry of `BACKENDS[id]`. One entry belongs to one service: the same host behind two services has two.
///
/// All-zero is unset. A removed entry keeps its generation and has state 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// Network byte order; IPv4 in the first four bytes, the rest zero.
    pub address: [u8; 16],
    /// Source address of the outer header (`ipip`), same layout and family as `address`.
    pub outer_source: [u8; 16],
    /// Id of the service ([`crate::service::Service::id`]) that the entry belongs to.
    pub service: u32,
    /// Interface to the next hop; equal to the ingress interface means XDP_TX.
    pub interface: u32,
    /// Next hop's MAC and this host's MAC on `interface`; all-zero while the next hop is unresolved.
    pub mac_destination: [u8; 6],
    pub mac_source: [u8; 6],
    /// 1..=255; 0 only in an entry that was never used.
    pub generation: u8,
    /// One of [`state`].
    pub state: u8,
    /// One of [`mode`].
    pub mode: u8,
    /// Family of `address`: 4 or 6.
    pub family: u8,
    /// Largest IP packet that fits `interface`, octets.
    pub mtu: u16,
    /// How long a datagram flow lives without a packet, seconds.
    pub udp_idle: u16,
    /// When the entry was removed, seconds on the datapath's clock; 0 while it is in use.
    pub removed_at: u32,
}

const _: () = assert!(size_of::<Backend>() == 64);
map_value!(Backend);

/// Values of [`Backend::state`].
pub mod state {
    /// No backend here.
    pub const UNSET: u8 = 0;
    /// Owns slots: takes new flows.
    pub const SERVING: u8 = 1;
    /// Owns no slots; its flows go on.
    pub const DRAINING: u8 = 2;
    /// Its flows are picked anew.
    pub const DOWN: u8 = 3;
}

/// Values of [`Backend::mode`].
pub mod mode {
    pub const UNSET: u8 = 0;
    /// Direct server return: MAC addresses only.
    pub const DSR: u8 = 1;
    /// IP in IP, outer family by the backend's address (RFC 2003, RFC 2473, RFC 4213).
    pub const IPIP: u8 = 2;
}

impl Backend {
    /// Whether an established flow may stay here.
    #[inline(always)]
    pub fn keeps_flows(&self) -> bool {
        self.state == state::SERVING || self.state == state::DRAINING
    }

    #[inline(always)]
    pub fn is_resolved(&self) -> bool {
        // As one word, which is read to be written to the frame anyway.
        self.interface != 0 && self.macs().first << 16 != 0
    }

    /// Whether `reference` means the backend that is in this entry now.
    #[inline(always)]
    pub fn is_named_by(&self, reference: BackendRef) -> bool {
        self.generation == reference.generation() && self.state != state::UNSET
    }
}

pod!(crate::backend::MacPair);

/// Destination and source MAC as they stand at the start of a frame, in words: copied as bytes they cost a load and a
/// store each.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
pub struct MacPair {
    first: u64,
    last: u32,
}

const _: () = assert!(size_of::<MacPair>() == 12);
// One after the other, and both words aligned.
const _: () = assert!(
    core::mem::offset_of!(Backend, mac_destination) % 8 == 0
        && core::mem::offset_of!(Backend, mac_source) == core::mem::offset_of!(Backend, mac_destination) + 6
);

impl Backend {
    /// What the frame's link header begins with on its way to the next hop.
    #[inline(always)]
    pub fn macs(&self) -> MacPair {
        let start = (&raw const *self)
            .cast::<u8>()
            .wrapping_add(core::mem::offset_of!(Backend, mac_destination));
        // SAFETY: the twelve octets of both addresses lie side by side in the backend, asserted above.
        unsafe {
            MacPair {
                first: start.cast::<u64>().read_unaligned(),
                last: start.add(8).cast::<u32>().read_unaligned(),
            }
        }
    }
}
