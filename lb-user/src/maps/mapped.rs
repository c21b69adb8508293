//! A memory-mapped `BPF_F_MMAPABLE` array as typed entries, shared with the kernel.

use std::{
    io,
    marker::PhantomData,
    os::fd::AsFd,
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use lb_common::{
    counters::{BackendCounters, CpuCounters},
    flow::FlowBucket,
    pod::Pod,
    shared::Word,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::MapError;

/// Types made of [`Word`]s only, which may be borrowed while the kernel writes them.
///
/// # Safety
///
/// Every byte of the type must belong to a `Word`.
pub unsafe trait Shared: 'static {}

// SAFETY: all of these are `Word`s or arrays and structs of nothing else.
unsafe impl Shared for Word {}
// SAFETY: as above.
unsafe impl Shared for BackendCounters {}
// SAFETY: as above.
unsafe impl Shared for CpuCounters {}
// SAFETY: as above.
unsafe impl Shared for FlowBucket {}
// SAFETY: as above.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is memory shared with the kernel; all access goes through volatile word loads and stores.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `mmap` answered, and nothing borrows it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// An array map in this process's memory. Clones share the mapping.
pub struct MappedArray<T> {
    name: &'static str,
    mapping: Arc<Mapping>,
    entries: u32,
    writable: bool,
    entry: PhantomData<fn() -> T>,
}

impl<T> Clone for MappedArray<T> {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            mapping: Arc::clone(&self.mapping),
            entries: self.entries,
            writable: self.writable,
            entry: PhantomData,
        }
    }
}

impl<T> MappedArray<T> {
    /// Octets from one entry to the next: the kernel rounds values of arrays up to 8 (`array_map_alloc`).
    const STRIDE: usize = size_of::<T>().next_multiple_of(8);

    /// Maps all entries of the array behind `fd`, whose value size must have been checked.
    pub fn new(name: &'static str, fd: impl AsFd, entries: u32, writable: bool) -> Result<Self, MapError> {
        let page = rustix::param::page_size();
        let length = (entries as usize * Self::STRIDE).next_multiple_of(page);
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new shared mapping at an address of the kernel's choice; it aliases nothing of ours.
        let start = unsafe { mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, fd, 0) }.map_err(
            |error| MapError::Mmap {
                name,
                source: io::Error::from(error),
            },
        )?;
        let start = NonNull::new(start.cast()).ok_or_else(|| MapError::Mmap {
            name,
            source: io::Error::other("mapped at address zero"),
        })?;
        Ok(Self {
            name,
            mapping: Arc::new(Mapping { start, length }),
            entries,
            writable,
            entry: PhantomData,
        })
    }

    pub fn len(&self) -> u32 {
        self.entries
    }

    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    fn pointer(&self, index: u32) -> Result<*mut u8, MapError> {
        if index >= self.entries {
            return Err(MapError::Range {
                name: self.name,
                index: u64::from(index),
                entries: self.entries,
            });
        }
        // SAFETY: the index is inside, so the offset is inside the mapping.
        Ok(unsafe { self.mapping.start.as_ptr().add(index as usize * Self::STRIDE) })
    }

    fn writable_pointer(&self, index: u32) -> Result<*mut u8, MapError> {
        if !self.writable {
            return Err(MapError::ReadOnly { name: self.name });
        }
        self.pointer(index)
    }
}

impl<T: Pod> MappedArray<T> {
    const WORDS: usize = size_of::<T>() / 8;
    /// Values are whole 8-byte words, or one 4-byte word.
    const SHAPE: () =
        assert!((size_of::<T>().is_multiple_of(8) || size_of::<T>() == 4) && align_of::<T>() <= 8);

    pub fn get(&self, index: u32) -> Option<T> {
        let () = Self::SHAPE;
        let from = self.pointer(index).ok()?;
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        let to = value.as_mut_ptr().cast::<u8>();
        if size_of::<T>() == 4 {
            // SAFETY: both are 4 bytes, valid; the source is aligned to 8, the target may not be.
            unsafe {
                to.cast::<u32>()
                    .write_unaligned(from.cast::<u32>().read_volatile())
            };
        } else {
            for word in 0..Self::WORDS {
                // SAFETY: `word` stays within the size of `T` on both sides; the source is aligned to 8.
                unsafe {
                    let bits = from.cast::<u64>().add(word).read_volatile();
                    to.cast::<u64>().add(word).write_unaligned(bits);
                }
            }
        }
        // SAFETY: every byte was written, and any bit pattern is a value of a plain-data type.
        Some(unsafe { value.assume_init() })
    }

    /// Writes an entry word by word, lowest address first except for the word that makes it valid.
    pub(super) fn set(&self, index: u32, value: T, order: Order) -> Result<(), MapError> {
        let () = Self::SHAPE;
        let to = self.writable_pointer(index)?;
        let from = (&raw const value).cast::<u8>();
        if size_of::<T>() == 4 {
            // SAFETY: both are 4 bytes, valid; the target is aligned to 8, the source may not be.
            unsafe {
                to.cast::<u32>()
                    .write_volatile(from.cast::<u32>().read_unaligned())
            };
            return Ok(());
        }
        let write = |word: usize| {
            // SAFETY: `word` stays within the size of `T` on both sides; the target is aligned to 8.
            unsafe {
                let bits = from.cast::<u64>().add(word).read_unaligned();
                to.cast::<u64>().add(word).write_volatile(bits);
            }
        };
        for word in order.words(Self::WORDS) {
            if let Order::Last(last) = order
                && last == word
            {
                fence(Ordering::Release);
            }
            write(word);
            if let Order::First(first) = order
                && first == word
            {
                fence(Ordering::Release);
            }
        }
        Ok(())
    }
}

/// What stands in an entry when its writer dies after `done` words of `new`.
#[cfg(test)]
pub(super) fn torn<T: Pod>(old: T, new: T, order: Order, done: usize) -> T {
    let mut value = old;
    let to = (&raw mut value).cast::<u8>();
    let from = (&raw const new).cast::<u8>();
    for word in order.words(size_of::<T>() / 8).take(done) {
        // SAFETY: `word` stays within the size of both, which are plain data of which any bytes are a value.
        unsafe { ptr::copy_nonoverlapping(from.add(8 * word), to.add(8 * word), 8) };
    }
    value
}

/// When the word that makes an entry valid is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Any,
    /// Before the others: the entry is going away.
    First(usize),
    /// After the others: the entry is being filled.
    Last(usize),
}

impl Order {
    /// The words of an entry of `count` as they are written one after the other.
    fn words(self, count: usize) -> impl Iterator<Item = usize> {
        let (first, last) = match self {
            Self::Any => (None, None),
            Self::First(word) => (Some(word), None),
            Self::Last(word) => (None, Some(word)),
        };
        let middle = (0..count).filter(move |word| first != Some(*word) && last != Some(*word));
        first.into_iter().chain(middle).chain(last)
    }
}

impl<T: Shared> MappedArray<T> {
    /// All entries, in place.
    pub fn as_slice(&self) -> &[T] {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        // SAFETY: the mapping holds that many entries without gaps, lives as long as `self`, is page-aligned,
        // and `Shared` types are cells that may change while borrowed.
        unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr().cast(), self.entries as usize) }
    }

    /// All entries, in place, for storing into them.
    pub(super) fn as_writable(&self) -> Result<&[T], MapError> {
        self.writable_pointer(0)?;
        Ok(self.as_slice())
    }
}

#[cfg(test)]
impl<T> MappedArray<T> {
    /// An array in plain shared memory.
    pub(crate) fn in_memory(entries: u32) -> Self {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let file = memfd_create("array", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, u64::from(entries) * Self::STRIDE as u64).unwrap();
        Self::new("TEST", file, entries, true).unwrap()
    }

    pub(crate) fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }
}

#[cfg(test)]
impl<T: Pod> MappedArray<T> {
    pub(crate) fn put(&self, index: u32, value: T) {
        self.set(index, value, Order::Any).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use lb_common::{backend::Backend, ids::BackendRef, seed::Seed};

    use super::*;

    #[test]
    fn values_survive_whatever_the_order_of_their_words() {
        let seeds = MappedArray::<Seed>::in_memory(3);
        let seed = Seed {
            k0: 1,
            k1: 2,
            generation: 3,
            reserved: 0,
        };
        for (index, order) in [(0, Order::Any), (1, Order::First(2)), (2, Order::Last(2))] {
            seeds.set(index, seed, order).unwrap();
            assert_eq!(seeds.get(index), Some(seed), "{order:?}");
        }
        let backends = MappedArray::<Backend>::in_memory(2);
        let backend = Backend {
            address: [7; 16],
            interface: 9,
            mac_source: [5; 6],
            state: 1,
            ..Backend::default()
        };
        backends.put(1, backend);
        assert_eq!(
            (backends.get(0), backends.get(1)),
            (Some(Backend::default()), Some(backend))
        );
    }

    #[test]
    fn four_byte_values_keep_the_kernels_distance_of_eight() {
        let slots = MappedArray::<BackendRef>::in_memory(4);
        slots.put(1, BackendRef::new(5, 6));
        slots.put(2, BackendRef::new(7, 8));
        assert_eq!(slots.get(1), Some(BackendRef::new(5, 6)));
        assert_eq!(MappedArray::<BackendRef>::STRIDE, 8);
    }

    #[test]
    fn outside_and_read_only_are_refused() {
        let slots = MappedArray::<BackendRef>::in_memory(4);
        assert_eq!(slots.get(4), None);
        let outside = slots.set(4, BackendRef::UNSET, Order::Any).unwrap_err();
        assert_eq!(outside.to_string(), "map TEST has 4 entries, index 4 is outside");
        let refused = slots
            .read_only()
            .set(0, BackendRef::UNSET, Order::Any)
            .unwrap_err();
        assert!(matches!(refused, MapError::ReadOnly { .. }));
    }
}
