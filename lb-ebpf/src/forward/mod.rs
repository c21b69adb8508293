//! From a backend to a frame on its way: the header rewrite of the backend's mode.

mod dsr;
pub(crate) mod ipip;

use lb_common::backend::{Backend, mode};

use crate::{
    frame::Frame,
    headers::{IPV4_LENGTH, IPV6_LENGTH},
    parse::Packet,
    verdict::{Drop, Forward, Verdict},
};

/// The largest IP packet that fits the way to the backend, octets.
#[inline(always)]
pub fn room(backend: &Backend) -> u32 {
    let outer = match (backend.mode, backend.family) {
        (mode::IPIP, 6) => IPV6_LENGTH,
        (mode::IPIP, _) => IPV4_LENGTH,
        _ => 0,
    };
    (backend.mtu as u32).saturating_sub(outer as u32)
}

/// Rewrites the frame for the backend. A frame that is dropped is as it came.
#[inline(always)]
pub fn forward(frame: &mut impl Frame, packet: &Packet, fingerprint: u64, backend: &Backend) -> Verdict {
    if !backend.is_resolved() {
        return Verdict::Drop(Drop::NoNextHop);
    }
    let done = match backend.mode {
        mode::DSR => dsr::rewrite(frame, packet, backend).map(|()| Forward::Dsr),
        mode::IPIP => ipip::encapsulate(frame, packet, fingerprint, backend).map(|()| Forward::Ipip),
        _ => Err(Drop::Inconsistent),
    };
    match done {
        Ok(how) => Verdict::Forward {
            how,
            interface: backend.interface,
        },
        Err(reason) => Verdict::Drop(reason),
    }
}

/// The MAC addresses for the next hop, at the start of the frame.
#[inline(always)]
fn write_macs(frame: &mut impl Frame, backend: &Backend) -> Option<()> {
    frame.write(0, backend.macs())
}
