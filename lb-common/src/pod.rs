//! Plain data: types that any bit pattern may fill and whose bytes may be read.

/// A type without padding, pointers or invalid bit patterns.
///
/// # Safety
///
/// Every bit pattern of the type's size must be a valid value, and the type must have no padding,
/// so that it may be copied to and from packet bytes and map values.
pub unsafe trait Pod: Copy + 'static {}

macro_rules! pod {
    ($($t:ty),+ $(,)?) => {
        $(
            // SAFETY: integers and arrays of them, or `repr(C)` structs of such with explicit padding
            // whose size is asserted beside their definition.
            unsafe impl $crate::pod::Pod for $t {}
        )+
    };
}
pub(crate) use pod;

pod!(u8, u16, u32, u64);

// SAFETY: an array of plain data has no padding of its own.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// Implements aya's own plain-data mark for map keys and values.
macro_rules! map_value {
    ($($t:ty),+ $(,)?) => {
        $crate::pod::pod!($($t),+);
        $(
            // SAFETY: as for `Pod`, which asks the same.
            #[cfg(feature = "user")]
            unsafe impl aya::Pod for $t {}
        )+
    };
}
pub(crate) use map_value;
