//! A health check through the VIP that is under way: what the programs on its way know of it.

use crate::{backend::Backend, map_names::MapName, pod::map_value};

/// Hash of [`CheckKey`] to [`CheckEntry`]; the daemon's alone, and never pinned. Memory is taken as entries come.
pub const CHECKS: MapName = MapName {
    name: "CHECKS",
    capacity: 65_536,
};

/// This host's end of a check's socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckKey {
    /// As it stands in packets; IPv4 in the first four octets, the rest zero.
    pub address: [u64; 2],
    /// Network byte order.
    pub port: u16,
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    pub reserved: u32,
}

const _: () = assert!(size_of::<CheckKey>() == 24);
map_value!(CheckKey);

/// Where the check goes, and what became of its packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckEntry {
    /// What the outer header and the largest packet follow from: address, outer source, family, mode and MTU. The rest is
    /// unset, since the kernel itself knows the way.
    pub backend: Backend,
    /// In the backend's family, laid out like [`CheckKey::address`].
    pub vip: [u64; 2],
    /// 1 once a packet was handed over to the VIP; written by the program.
    pub handed: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<CheckEntry>() == 88);
map_value!(CheckEntry);

/// An address as packets have it: IPv4 in the first four octets, the rest zero.
#[inline(always)]
pub const fn address_words(octets: &[u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *octets;
    [
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
    ]
}
