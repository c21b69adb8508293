//! A pinned array map in this process's memory.

use std::{marker::PhantomData, os::fd::AsFd, ptr::NonNull};

use anyhow::{Context, Result};
use lb_common::pod::Pod;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// All values of a `BPF_F_MMAPABLE` array.
pub struct MappedMap<T> {
    start: NonNull<T>,
    entries: usize,
    octets: usize,
    _values: PhantomData<T>,
}

impl<T: Pod> MappedMap<T> {
    pub fn new(map: impl AsFd, entries: usize) -> Result<Self> {
        let octets = (entries * size_of::<T>()).next_multiple_of(4096);
        // SAFETY: a new shared mapping of the map's pages; the kernel checks the length.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                octets,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
        }
        .context("cannot mmap a BPF map")?;
        Ok(Self {
            start: NonNull::new(start.cast()).context("mmap gave no address")?,
            entries,
            octets,
            _values: PhantomData,
        })
    }

    pub fn get(&self, index: usize) -> T {
        assert!(index < self.entries);
        // SAFETY: in bounds, and `T` is plain data.
        unsafe { self.start.add(index).read_volatile() }
    }

    pub fn set(&mut self, index: usize, value: T) {
        assert!(index < self.entries);
        // SAFETY: as above.
        unsafe { self.start.add(index).write_volatile(value) }
    }

    /// Sets everything to zero and leaves as much of it in the CPU's caches as fits.
    pub fn clear(&mut self) {
        // SAFETY: the whole mapping is ours to write, and zero is a valid value.
        unsafe { self.start.write_bytes(0, self.entries) }
        // A large fill goes past the caches; rows of small tables are about tables that the caches hold.
        for index in 0..self.entries {
            std::hint::black_box(self.get(index));
        }
    }
}

impl<T> Drop for MappedMap<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing borrows from it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.octets) };
    }
}
