//! A service: VIP, port and protocol, and which slots its new flows are spread over.

use crate::pod::map_value;

/// Key of a service in `SERVICES`. The port may be 0: all ports of that address and protocol.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The VIP in network byte order; IPv4 in the first four bytes, the rest zero.
    pub address: [u8; 16],
    /// Network byte order as two bytes; 0 = all ports.
    pub port: [u8; 2],
    /// IP protocol number (6 TCP, 17 UDP).
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    pub reserved: [u8; 4],
    /// Aligns the key: the verifier refuses unaligned words on the stack.
    pub align: [u64; 0],
}

const _: () = assert!(size_of::<ServiceKey>() == 24 && align_of::<ServiceKey>() == 8);
map_value!(ServiceKey);

/// A service in `SERVICES`. All-zero is unset.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// 1..; unique among living services.
    pub id: u32,
    /// First slot of the service's region in `SLOTS`.
    pub slots_offset: u32,
    /// Slots in the region; 0 while no backend is eligible.
    pub slots_count: u32,
    /// Moves with every new slot table, 1..; part of samples, so that a table swap can be told from a fault.
    pub table_generation: u32,
    /// Bits of [`flag`].
    pub flags: u32,
    pub reserved: u32,
    /// [`crate::slot_table::bucket_scale`] of `slots_count`.
    pub bucket_scale: u64,
}

const _: () = assert!(size_of::<Service>() == 32);
map_value!(Service);

/// Bits of [`Service::flags`].
pub mod flag {
    /// Pick with the shared seed: every CPU, and every node with the same secret, picks alike.
    pub const FLEET: u32 = 1;
    /// Hash the client's address only, with the shared seed.
    pub const CLIENT_AFFINITY: u32 = 2;
}

/// Id of the entry that marks an address as a VIP: key with port 0 and protocol 0. What has no port (fragments,
/// truncated headers) is recognised by it as addressed to a VIP; no service may have this id.
pub const VIP_MARK: u32 = u32::MAX;

impl Service {
    /// The value behind [`ServiceKey::vip_mark`].
    pub const MARK: Self = Self {
        id: VIP_MARK,
        slots_offset: 0,
        slots_count: 0,
        table_generation: 0,
        flags: 0,
        reserved: 0,
        bucket_scale: 0,
    };

    #[inline(always)]
    pub const fn from_words(words: [u64; 4]) -> Self {
        // SAFETY: both are 32 bytes of plain data.
        unsafe { core::mem::transmute(words) }
    }

    #[inline(always)]
    pub const fn words(&self) -> [u64; 4] {
        // SAFETY: as above; there is no padding.
        unsafe { core::mem::transmute(*self) }
    }
}

impl ServiceKey {
    /// The key of the mark that every VIP address has besides its services.
    #[inline(always)]
    pub const fn vip_mark(address: [u8; 16], family: u8) -> Self {
        Self {
            address,
            port: [0; 2],
            protocol: 0,
            family,
            reserved: [0; 4],
            align: [],
        }
    }

    /// From packet words: the address as loaded (IPv4 in the low half of the first word), then port, protocol and
    /// family in the bytes of the last. Whole words, because a key put together from bytes costs a loop in the BPF
    /// program.
    #[inline(always)]
    pub const fn from_words(words: [u64; 3]) -> Self {
        // SAFETY: both are 24 bytes of plain data.
        unsafe { core::mem::transmute(words) }
    }

    #[inline(always)]
    pub const fn words(&self) -> [u64; 3] {
        // SAFETY: as above; there is no padding.
        unsafe { core::mem::transmute(*self) }
    }

    /// The key that matches every port of the same VIP and protocol.
    #[inline(always)]
    pub const fn all_ports(mut self) -> Self {
        self.port = [0; 2];
        self
    }

    #[inline(always)]
    pub const fn is_vip_mark(&self) -> bool {
        self.protocol == 0
    }

    pub fn port(&self) -> u16 {
        u16::from_be_bytes(self.port)
    }
}
