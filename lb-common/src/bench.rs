//! What `cargo xtask bench` and its wrapper program tell each other.

use crate::pod::map_value;

/// The only entry of `BENCH_STATE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BenchState {
    /// Repetitions so far; the daemon side sets it to 0.
    pub runs: u64,
    /// The repetitions at whose start the clock is read.
    pub first_run: u64,
    pub last_run: u64,
    /// Nanoseconds then.
    pub started: u64,
    pub ended: u64,
    /// Flows to step through; 0 or 1 leaves the packet as it is.
    pub flows: u32,
    /// The next flow.
    pub next: u32,
    /// First source address: IPv4, or bits 64–95 of an IPv6 address; host order.
    pub first_address: u32,
    /// Octets of the template.
    pub length: u32,
    /// Ethertype of the template, as in the packet.
    pub ethertype: u16,
    pub v6: u16,
    pub reserved: u32,
}

const _: () = assert!(size_of::<BenchState>() == 64);
map_value!(BenchState);
