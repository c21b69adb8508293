//! An array map in this process's memory.

use std::{os::fd::AsFd, ptr};

use anyhow::{Context, Result, ensure};
use aya::{Ebpf, maps::Map};
use lb_common::{map_names::MapName, pod::Pod};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The program runs only inside system calls of the thread that owns this, so nothing changes under its hands.
pub(super) struct Array {
    start: *mut u8,
    length: usize,
    /// Octets from one entry to the next: the kernel rounds them up to 8.
    stride: usize,
    entries: usize,
}

impl Array {
    pub(super) fn take(programs: &mut Ebpf, map: MapName, value: usize) -> Result<Self> {
        let Some(Map::Array(data)) = programs.take_map(map.name) else {
            anyhow::bail!("the object has no array {}", map.name);
        };
        let info = data.info()?;
        ensure!(
            info.value_size() as usize == value,
            "{} has values of {} octets",
            map.name,
            info.value_size()
        );
        let (entries, stride) = (info.max_entries() as usize, value.next_multiple_of(8));
        let length = (entries * stride).next_multiple_of(rustix::param::page_size());
        // SAFETY: a new mapping at an address of the kernel's choice; it aliases nothing of ours.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                data.fd().as_fd(),
                0,
            )
        };
        let start = start
            .with_context(|| format!("mapping {} into memory", map.name))?
            .cast();
        Ok(Self {
            start,
            length,
            stride,
            entries,
        })
    }

    pub(super) fn clear(&mut self) {
        // SAFETY: the mapping has this length.
        unsafe { ptr::write_bytes(self.start, 0, self.length) };
    }

    pub(super) fn write<T: Pod>(&mut self, index: usize, value: &T) {
        assert!(index < self.entries && size_of::<T>() <= self.stride);
        // SAFETY: entry `index` is inside the mapping and has room for a `T`, which is plain data.
        unsafe {
            self.start
                .add(index * self.stride)
                .cast::<T>()
                .write_unaligned(*value)
        };
    }

    /// All entries as words; only for values whose size is a multiple of 8.
    pub(super) fn words(&self) -> Vec<u64> {
        let count = self.entries * self.stride / 8;
        // SAFETY: the mapping is page-aligned and holds so many words; the program is not running now.
        unsafe { std::slice::from_raw_parts(self.start.cast::<u64>(), count) }.to_vec()
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `mmap` answered, and nothing borrows it any more.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}
