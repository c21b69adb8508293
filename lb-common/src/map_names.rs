//! The name and the compiled-in capacity of every map; the daemon resizes most of them at load.

/// A map of the BPF object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapName {
    /// Also the name of its pin; the kernel shows the first 15 bytes (BPF_OBJ_NAME_LEN).
    pub name: &'static str,
    /// Entries unless the daemon resizes it.
    pub capacity: usize,
}

macro_rules! maps {
    ($($(#[$doc:meta])* $constant:ident = $capacity:expr;)+) => {
        $($(#[$doc])* pub const $constant: MapName = MapName { name: stringify!($constant), capacity: $capacity };)+
        /// Every map that is pinned and adopted.
        pub const ALL: &[MapName] = &[$($constant),+];
    };
}

maps! {
    /// One [`crate::settings::Settings`].
    SETTINGS = 1;
    /// One array of [`crate::vip_filter::WORDS`] words.
    VIP_FILTER = 1;
    /// First entry of each chain in `SERVICES`: see [`crate::service_index`].
    SERVICE_HEADS = 2048;
    /// [`crate::service_index::ServiceEntry`]: services and the marks of VIPs.
    SERVICES = 1537;
    /// [`crate::backend::Backend`] by id.
    BACKENDS = 1024;
    /// [`crate::ids::BackendRef`] by slot; regions belong to services.
    SLOTS = 65536;
    /// [`crate::seed::Seed`]: the shared one, then one a CPU.
    SEEDS = 3;
    /// [`crate::flow::FlowBucket`].
    FLOWS = 1024;
    /// 64-bit words of the fresh-key bitmaps: the shared region, then one a CPU.
    FRESH = 3072;
    /// [`crate::counters::BackendCounters`] by CPU and backend id.
    BACKEND_COUNTERS = 2048;
    /// [`crate::counters::CpuCounters`] by CPU.
    CPU_COUNTERS = 2;
    /// Ring buffer of [`crate::sample::Sample`]; octets.
    SAMPLES = 262_144;
    /// [`crate::flow::FlowBucket`]: which backend the first fragment of a packet went to. Not resized by the daemon.
    FRAGMENTS = 4096;
    /// Programs that the balancer's program leaves rare frames to, by [`Rare`].
    RARE = 3;
}

// A fingerprint finds its buckets by a mask.
const _: () = assert!(FRAGMENTS.capacity.is_power_of_two());

/// Indices of `RARE`. Several programs, since one of all is more than the kernel's verifier looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rare {
    /// ICMP.
    Icmp = 0,
    /// Fragments.
    Fragment = 1,
    /// Packets too big for the way to their backend.
    TooBig = 2,
}

impl Rare {
    pub const ALL: [Self; RARE.capacity] = [Self::Icmp, Self::Fragment, Self::TooBig];

    /// The program's name in the object.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Icmp => "icmp",
            Self::Fragment => "fragment",
            Self::TooBig => "too_big",
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_fit_the_kernel() {
        for map in super::ALL {
            // "BACKEND_COUNTERS" is cut by the kernel to 15 bytes; only the pin's file name counts for us.
            assert!(map.name.len() <= 16, "{}", map.name);
        }
    }
}
