//! What the daemon tells the datapath once for all packets.

use crate::{fingerprint::FingerprintKey, pod::map_value};

/// Moves when the layout or meaning of any pinned map changes; the daemon adopts only maps of its own version.
pub const LAYOUT_VERSION: u32 = 6;

/// The only entry of `SETTINGS`. All-zero is unset: the datapath passes every frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// [`LAYOUT_VERSION`]; 0 while the daemon has not set the datapath up.
    pub layout_version: u32,
    /// CPUs that per-CPU indices may name.
    pub possible_cpus: u32,
    /// Key of the flow fingerprint; lives as long as the flow table. See [`held_key`](Self::held_key).
    pub table_key: FingerprintKey,
    /// `jiffies` at boot and seconds a jiffy in 2^-[`CLOCK_SHIFT`] units: see [`seconds`](Self::seconds).
    pub clock_base: u64,
    /// A new flow is sampled when the count of picks (of its CPU and bucket) has none of these bits: see [`one_in`].
    pub sample_mask: u64,
    /// A packet is sampled when the count of packets (of its CPU and backend) has none of these bits.
    pub packet_sample_mask: u64,
    pub clock_multiplier: u32,
    /// Flow buckets minus one (a power of two minus one).
    pub flow_mask: u32,
    /// 64-bit words of a region of `FRESH`, minus one (a power of two minus one).
    pub fresh_mask: u32,
    /// Entries of a CPU's stretch of `BACKEND_COUNTERS`.
    pub backend_stride: u32,
    /// Seconds without a packet after which a flow is gone, by [`crate::flow::state`]. The one of datagrams is the
    /// longest `udp_idle` of all services: a datagram flow idle for longer may be evicted.
    pub timeouts: [u32; 8],
    /// [`crate::service_index::head_shift`] of the entries of `SERVICE_HEADS`.
    pub service_shift: u32,
    /// Buckets of `FRAGMENTS` minus one (a power of two minus one).
    pub fragment_mask: u32,
    /// ICMP messages that each CPU may make in a second: answers to echo requests and to packets too big.
    pub icmp_rate: u32,
    /// Bits of [`flag`].
    pub flags: u32,
}

const _: () = assert!(size_of::<Settings>() == 272);
map_value!(Settings);

/// Bits of [`Settings::flags`].
pub mod flag {
    /// Echo requests to VIPs are left to the kernel.
    pub const PING_KERNEL: u32 = 1;
}

/// The mask that samples one in 2^`bits`; 64 turns samples off.
pub const fn one_in(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Binary places of [`Settings::clock_multiplier`].
pub const CLOCK_SHIFT: u32 = 24;

/// The kernel's `INITIAL_JIFFIES` (include/linux/jiffies.h): five minutes before the 32-bit wrap.
pub const fn initial_jiffies(hz: u32) -> u64 {
    (1 << 32) - 300 * hz as u64
}

/// Seconds a jiffy, in 2^-[`CLOCK_SHIFT`] units, rounded; `hz` is the kernel's `CONFIG_HZ`.
pub const fn clock_multiplier(hz: u32) -> u32 {
    ((1 << CLOCK_SHIFT) + hz / 2) / hz
}

impl Settings {
    /// The key that flows in the table were stored with. None while the settings do not stand: a key that was only
    /// partly written is no key.
    pub fn held_key(&self) -> Option<FingerprintKey> {
        (self.layout_version != 0 && !self.table_key.is_unset()).then_some(self.table_key)
    }

    /// The datapath's clock: whole seconds since boot (suspended time left out), from the `jiffies` counter.
    #[inline(always)]
    pub fn seconds(&self, jiffies: u64) -> u32 {
        (jiffies
            .wrapping_sub(self.clock_base)
            .wrapping_mul(self.clock_multiplier as u64)
            >> CLOCK_SHIFT) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_counts_seconds_for_every_usual_hz() {
        for hz in [100, 250, 300, 1000] {
            let settings = Settings {
                clock_base: initial_jiffies(hz),
                clock_multiplier: clock_multiplier(hz),
                ..Settings::default()
            };
            for seconds in [0u64, 1, 299, 300, 301, 86_400, 30 * 86_400] {
                let jiffies = initial_jiffies(hz) + seconds * u64::from(hz) + u64::from(hz) / 2;
                let shown = u64::from(settings.seconds(jiffies));
                assert!(
                    shown.abs_diff(seconds) <= 1 + seconds / 50_000,
                    "{hz} {seconds} {shown}"
                );
            }
        }
    }
}
