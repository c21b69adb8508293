//! Direct server return: only the MAC addresses change; the backend holds the VIP and answers the client itself.

use lb_common::backend::Backend;

use crate::{forward::write_macs, frame::Frame, parse::Packet, verdict::Drop};

#[inline(always)]
pub(super) fn rewrite(frame: &mut impl Frame, packet: &Packet, backend: &Backend) -> Result<(), Drop> {
    if packet.length > backend.mtu as u32 {
        return Err(Drop::TooBig);
    }
    write_macs(frame, backend).ok_or(Drop::Inconsistent)
}
