//! A bitmap of VIP addresses that lets the host's own traffic pass after a few nanoseconds.
//!
//! It may say yes wrongly, never no.

/// Bits of the filter.
pub const BITS: u32 = 1 << 16;
/// 64-bit words of the filter: the one value of `VIP_FILTER`.
pub const WORDS: usize = (BITS / 64) as usize;

/// The bit of an IPv4 address as loaded from the packet.
#[inline(always)]
pub const fn bit_v4(address: u32) -> u32 {
    address.wrapping_mul(0x9e37_79b1) >> 16
}

/// The bit of an IPv6 address as loaded from the packet, in two words.
#[inline(always)]
pub const fn bit_v6(address: [u64; 2]) -> u32 {
    let mixed = address[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ address[1];
    (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 48) as u32
}

/// The bit of an address as [`crate::service::ServiceKey`] holds it.
pub fn bit_of(address: &[u8; 16], family: u8) -> u32 {
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| address[at + byte]));
    if family == 6 {
        bit_v6([word(0), word(8)])
    } else {
        bit_v4(word(0) as u32)
    }
}
