//! A machine word in a map that several CPUs, or the kernel and the daemon, read and write at once.

use core::cell::UnsafeCell;

/// A 64-bit word read and written whole, without ordering: a plain load or store on the CPU.
///
/// All-zero is what the kernel fills a new map with.
#[repr(transparent)]
pub struct Word(UnsafeCell<u64>);

// SAFETY: only whole-word volatile loads and stores touch the cell; on the 64-bit machines Evenkeel
// supports these do not tear, and every reader tolerates old values.
unsafe impl Sync for Word {}

impl Word {
    pub const fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[inline(always)]
    pub fn load(&self) -> u64 {
        // SAFETY: the cell is valid and aligned for as long as `self` is borrowed.
        unsafe { self.0.get().read_volatile() }
    }

    #[inline(always)]
    pub fn store(&self, value: u64) {
        // SAFETY: as for `load`; the cell allows writing through a shared reference.
        unsafe { self.0.get().write_volatile(value) }
    }

    /// Adds to a word that one CPU alone writes (a per-CPU counter); wraps at 2^64. Returns the sum.
    #[inline(always)]
    pub fn add(&self, amount: u64) -> u64 {
        let sum = self.load().wrapping_add(amount);
        self.store(sum);
        sum
    }
}

impl Clone for Word {
    fn clone(&self) -> Self {
        Self::new(self.load())
    }
}

impl Default for Word {
    fn default() -> Self {
        Self::new(0)
    }
}

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.load().fmt(f)
    }
}
