//! Arithmetic instead of branches, where the BPF verifier would walk every branch both ways.

/// The value itself, hidden from the optimiser, which would otherwise turn the arithmetic around it into a branch.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut value = value;
        // SAFETY: moves a register to itself. (An empty template would give two lines the same offset, which the
        // kernel refuses.)
        unsafe { core::arch::asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack)) };
        value
    }
    #[cfg(not(target_arch = "bpf"))]
    value
}

/// The value itself, hidden; what was read from memory before must be read again. In a loop over the packet, or its
/// bounds are read in front of the loop into registers that the verifier no longer knows as such.
#[inline(always)]
pub fn anew(value: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut value = value;
        // SAFETY: moves a register to itself; says nothing of memory, so that it might have been written.
        unsafe { core::arch::asm!("{0} = {0}", inout(reg) value, options(nostack)) };
        value
    }
    #[cfg(not(target_arch = "bpf"))]
    value
}
