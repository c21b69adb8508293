//! The datapath: what happens to a frame, from first byte to verdict.
//!
//! Everything here is generic over [`frame::Frame`] and [`tables::Tables`] and is tested on the host; the XDP
//! program in `main.rs` supplies the kernel's packet and maps.
#![cfg_attr(not(any(test, feature = "testing")), no_std)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

pub mod check;
pub mod checksum;
pub mod datapath;
pub mod decap;
pub mod flow;
pub mod forward;
pub mod frame;
pub mod headers;
mod link;
pub mod opaque;
pub mod parse;
pub mod pick;
pub mod probe;
pub mod rare;
pub mod service;
pub mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verdict;
