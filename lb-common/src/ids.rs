//! How a backend entry is named: an id and the generation of the entry behind it.

use crate::pod::map_value;

/// Bits of a backend id: at most 1,048,576 entries of [`crate::backend::Backend`].
pub const BACKEND_ID_BITS: u32 = 20;
/// Ids are below this; id 0 is never used, so that an all-zero reference means "unset".
pub const MAX_BACKEND_IDS: u32 = 1 << BACKEND_ID_BITS;
const ID_MASK: u32 = MAX_BACKEND_IDS - 1;

/// A backend id with the generation it was meant for: bits 0–19 id, bits 20–27 generation, rest zero.
///
/// Zero means unset. A reference whose generation differs from the entry's names a backend that is
/// gone, however often its id was used since (up to 255 times).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BackendRef(u32);

const _: () = assert!(size_of::<BackendRef>() == 4);
map_value!(BackendRef);

impl BackendRef {
    pub const UNSET: Self = Self(0);

    #[inline(always)]
    pub const fn new(id: u32, generation: u8) -> Self {
        Self((id & ID_MASK) | (generation as u32) << BACKEND_ID_BITS)
    }

    /// From stored bits; anything above bit 27 is dropped.
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & 0x0fff_ffff)
    }

    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub const fn id(self) -> u32 {
        self.0 & ID_MASK
    }

    #[inline(always)]
    pub const fn generation(self) -> u8 {
        (self.0 >> BACKEND_ID_BITS) as u8
    }

    #[inline(always)]
    pub const fn is_unset(self) -> bool {
        self.0 == 0
    }
}

impl core::fmt::Debug for BackendRef {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}v{}", self.id(), self.generation())
    }
}

/// The generation after `generation`: 1..=255, never 0.
pub const fn next_generation(generation: u8) -> u8 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_keeps_id_and_generation() {
        let reference = BackendRef::new(MAX_BACKEND_IDS - 1, 255);
        assert_eq!(reference.id(), MAX_BACKEND_IDS - 1);
        assert_eq!(reference.generation(), 255);
        assert_eq!(BackendRef::from_bits(u32::MAX), reference);
        assert!(BackendRef::new(0, 0).is_unset());
    }

    #[test]
    fn generations_skip_zero() {
        assert_eq!(next_generation(0), 1);
        assert_eq!(next_generation(255), 1);
    }
}
