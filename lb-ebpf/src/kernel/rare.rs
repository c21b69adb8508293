//! The way from the balancer's program to those for rare frames.

use aya_ebpf::{btf_maps::ProgramArray, macros::btf_map, programs::XdpContext};
use lb_common::map_names::{self, Rare};
use lb_ebpf::verdict::Verdict;

#[btf_map]
static RARE: ProgramArray<{ map_names::RARE.capacity }> = ProgramArray::new();

/// Goes over to a program for rare frames and does not come back; answers `None` when it is not loaded.
#[inline(always)]
pub fn leave(to: Rare, context: &XdpContext) -> Option<Verdict> {
    // SAFETY: what the daemon puts there is an XDP program; a missing one falls through.
    unsafe { RARE.tail_call(context, to as u32) };
    None
}
