//! The datapath: what happens to a frame, from first byte to verdict.
//!
//! Everything here is generic over [`frame::Frame`] and [`tables::Tables`] and is tested on the host; the XDP
//! program in `main.rs` supplies the kernel's packet and maps.
#![cfg_attr(not(any(test, feature = "testing")), no_std)]

pub mod verdict;
