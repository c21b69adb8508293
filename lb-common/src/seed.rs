//! The seeds of selection: one for each CPU and one that all share.

use crate::pod::map_value;

/// Entry of `SEEDS`: index [`SHARED`] is the shared seed, index `1 + cpu` that CPU's.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Seed {
    pub k0: u64,
    pub k1: u64,
    /// 1.. and one more at each rotation; 0 means unset: never hash with it.
    pub generation: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<Seed>() == 24);
map_value!(Seed);

/// Index of the shared seed in `SEEDS`, and of the shared region in `FRESH`.
pub const SHARED: u32 = 0;

/// Index of a CPU's seed in `SEEDS`, and of its region in `FRESH`.
#[inline(always)]
pub const fn of_cpu(cpu: u32) -> u32 {
    cpu + 1
}

/// A seed is a secret: whoever knows it can aim flows at one backend.
impl core::fmt::Debug for Seed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Seed {{ generation: {}, .. }}", self.generation)
    }
}
