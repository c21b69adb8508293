//! `Frame` over an XDP context.

use aya_ebpf::{
    helpers::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail},
    programs::XdpContext,
};
use lb_common::pod::Pod;
use lb_ebpf::{frame::Frame, opaque::opaque};

/// The frame of one run of the program.
pub struct XdpFrame<'a> {
    context: &'a XdpContext,
}

impl<'a> XdpFrame<'a> {
    #[inline(always)]
    pub fn new(context: &'a XdpContext) -> Self {
        Self { context }
    }

    /// Where a `T` at `offset` lies, if wholly in the frame.
    #[inline(always)]
    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let start = self.context.data() + offset;
        if start + size_of::<T>() > self.context.data_end() {
            return None;
        }
        Some(start as *mut T)
    }
}

impl Frame for XdpFrame<'_> {
    #[inline(always)]
    fn length(&self) -> usize {
        // Hidden, or the compiler concludes bounds from the length and leaves out checks that the verifier must see.
        opaque((self.context.data_end() - self.context.data()) as u64) as usize
    }

    #[inline(always)]
    fn ingress(&self) -> u32 {
        self.context.ingress_ifindex() as u32
    }

    #[inline(always)]
    fn read<T: Pod>(&self, offset: usize) -> Option<T> {
        // SAFETY: `at` keeps the access inside the packet, and `T` is plain data.
        self.at::<T>(offset)
            .map(|start| unsafe { start.read_unaligned() })
    }

    #[inline(always)]
    fn write<T: Pod>(&mut self, offset: usize, value: T) -> Option<()> {
        // SAFETY: as for `read`.
        self.at::<T>(offset)
            .map(|start| unsafe { start.write_unaligned(value) })
    }

    #[inline(always)]
    fn move_start(&mut self, octets: i32) -> Option<()> {
        // SAFETY: the helper checks the room; every later access asks for the packet's bounds again.
        let refused = unsafe { bpf_xdp_adjust_head(self.context.ctx, -octets) };
        (refused == 0).then_some(())
    }

    #[inline(always)]
    fn cut_to(&mut self, octets: usize) -> Option<()> {
        let more = (octets as u64).wrapping_sub(self.length() as u64) as i64;
        if more >= 0 {
            return None;
        }
        // SAFETY: as for `move_start`; at least an Ethernet header must stay, which the helper checks.
        let refused = unsafe { bpf_xdp_adjust_tail(self.context.ctx, more as i32) };
        (refused == 0).then_some(())
    }
}
