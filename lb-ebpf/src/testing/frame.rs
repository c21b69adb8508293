//! `Frame` over a buffer with the room in front that XDP gives.

use lb_common::pod::Pod;

use crate::frame::Frame;

/// Octets in front of a frame that outer headers may use (XDP_PACKET_HEADROOM, minus the kernel's own share).
pub const HEADROOM: usize = 192;

/// A frame on the host.
#[derive(Clone, Debug)]
pub struct BufferFrame {
    buffer: Vec<u8>,
    start: usize,
    ingress: u32,
}

impl BufferFrame {
    pub fn new(frame: &[u8], ingress: u32) -> Self {
        Self::with_headroom(frame, ingress, HEADROOM)
    }

    /// A frame from a driver that leaves less (or more) room in front of it.
    pub fn with_headroom(frame: &[u8], ingress: u32, headroom: usize) -> Self {
        let mut buffer = vec![0; headroom];
        buffer.extend_from_slice(frame);
        Self {
            buffer,
            start: headroom,
            ingress,
        }
    }

    /// The frame as it is now.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// The bytes a `T` at `offset` has, if wholly in the frame.
    fn range<T>(&self, offset: usize) -> Option<std::ops::Range<usize>> {
        let from = self.start.checked_add(offset)?;
        let to = from.checked_add(size_of::<T>())?;
        (to <= self.buffer.len()).then_some(from..to)
    }
}

impl Frame for BufferFrame {
    fn length(&self) -> usize {
        self.bytes().len()
    }

    fn ingress(&self) -> u32 {
        self.ingress
    }

    fn read<T: Pod>(&self, offset: usize) -> Option<T> {
        let range = self.range::<T>(offset)?;
        // SAFETY: the range has the size of `T`, which is plain data.
        Some(unsafe { self.buffer[range].as_ptr().cast::<T>().read_unaligned() })
    }

    fn write<T: Pod>(&mut self, offset: usize, value: T) -> Option<()> {
        let range = self.range::<T>(offset)?;
        // SAFETY: as for `read`.
        unsafe { self.buffer[range].as_mut_ptr().cast::<T>().write_unaligned(value) };
        Some(())
    }

    fn move_start(&mut self, octets: i32) -> Option<()> {
        let start = i64::try_from(self.start).ok()? - i64::from(octets);
        let start = usize::try_from(start).ok()?;
        // The kernel keeps at least an Ethernet header (bpf_xdp_adjust_head).
        if start + crate::headers::ETHERNET_LENGTH > self.buffer.len() {
            return None;
        }
        self.start = start;
        Some(())
    }

    fn cut_to(&mut self, octets: usize) -> Option<()> {
        // The kernel keeps as much here (bpf_xdp_adjust_tail).
        if octets >= self.length() || octets < crate::headers::ETHERNET_LENGTH {
            return None;
        }
        self.buffer.truncate(self.start + octets);
        Some(())
    }
}
