//! From a flow's hash to a slot, and from a slot to its bucket in the histogram.

/// Buckets of the hash histogram.
pub const HISTOGRAM_BUCKETS: u32 = 256;
/// Slots of the smallest and the largest table; both prime.
pub const MIN_SLOTS: u32 = 1021;
pub const MAX_SLOTS: u32 = 16_777_213;

/// The slot of a hash in a table of `count` slots: its high half, scaled. `count` 0 gives slot 0.
#[inline(always)]
pub const fn slot_of(hash: u64, count: u32) -> u32 {
    (((hash >> 32) * count as u64) >> 32) as u32
}

/// Binary places of a bucket scale: enough for an exact quotient up to [`MAX_SLOTS`] slots.
const SCALE_SHIFT: u32 = 48;

/// What [`bucket_of`] multiplies by instead of dividing; 0 for an empty table.
pub const fn bucket_scale(count: u32) -> u64 {
    if count == 0 {
        return 0;
    }
    ((HISTOGRAM_BUCKETS as u64) << SCALE_SHIFT).div_ceil(count as u64)
}

/// The histogram bucket of a slot: `slot * 256 / count`, by multiplication with [`bucket_scale`].
#[inline(always)]
pub const fn bucket_of(slot: u32, scale: u64) -> u32 {
    ((slot as u64).wrapping_mul(scale) >> SCALE_SHIFT) as u32 & (HISTOGRAM_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bucket_is_the_exact_quotient(count in MIN_SLOTS..=MAX_SLOTS, pick: u64) {
            let slot = slot_of(pick, count);
            prop_assert!(slot < count);
            let exact = u64::from(slot) * 256 / u64::from(count);
            prop_assert_eq!(u64::from(bucket_of(slot, bucket_scale(count))), exact);
        }

        #[test]
        fn bucket_borders_are_exact(count in MIN_SLOTS..=MAX_SLOTS, bucket in 0u64..256) {
            let first = (bucket * u64::from(count)).div_ceil(256) as u32;
            prop_assert_eq!(u64::from(bucket_of(first, bucket_scale(count))), bucket);
            if first > 0 {
                let below = u64::from(first - 1) * 256 / u64::from(count);
                prop_assert_eq!(u64::from(bucket_of(first - 1, bucket_scale(count))), below);
            }
        }
    }

    #[test]
    fn an_empty_table_has_slot_and_bucket_zero() {
        assert_eq!(slot_of(u64::MAX, 0), 0);
        assert_eq!(bucket_of(0, bucket_scale(0)), 0);
    }
}
