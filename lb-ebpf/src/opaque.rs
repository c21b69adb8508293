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
