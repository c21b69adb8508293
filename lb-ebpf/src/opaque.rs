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

/// 1 for zero, else 0.
#[inline(always)]
pub fn is_zero(value: u64) -> u64 {
    (opaque(value | value.wrapping_neg()) >> 63) ^ 1
}

/// 1 when `a < b`, else 0; both below 2^63.
#[inline(always)]
pub fn is_less(a: u64, b: u64) -> u64 {
    opaque(a.wrapping_sub(b)) >> 63
}

/// `chosen` when `bit` is 1, `otherwise` when it is 0.
#[inline(always)]
pub fn select(bit: u64, chosen: u64, otherwise: u64) -> u64 {
    let mask = opaque(bit).wrapping_neg();
    chosen & mask | otherwise & !mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_branches() {
        for a in [0, 1, 2, u64::MAX >> 1, u64::MAX, 1 << 63] {
            assert_eq!(is_zero(a), u64::from(a == 0));
        }
        for a in [0, 1, 7, u64::from(u32::MAX), u64::MAX >> 1] {
            for b in [0, 1, 7, u64::from(u32::MAX), u64::MAX >> 1] {
                assert_eq!(is_less(a, b), u64::from(a < b));
                assert_eq!(select(is_less(a, b), a, b), a.min(b));
            }
        }
    }
}
