//! The link header: MAC addresses, at most two VLAN tags, the ethertype of the packet inside.

use crate::{
    frame::Frame,
    headers::{ETHERNET_LENGTH, VLAN_LENGTH},
};

/// Offset of the first tag, or of the ethertype.
const TAGS: usize = ETHERNET_LENGTH - 2;

/// Destination and source MAC address.
type Macs = [[u8; 6]; 2];

/// Moves one or two VLAN tags, each with the ethertype before it, `from` octets to the front of the frame; the network
/// header is then at `network`.
#[inline(always)]
pub(crate) fn move_tags(frame: &mut impl Frame, network: usize, from: usize) -> Option<()> {
    let tag = frame.read::<u32>(TAGS + from)?;
    frame.write(TAGS, tag)?;
    if network > ETHERNET_LENGTH + VLAN_LENGTH {
        let tag = frame.read::<u32>(TAGS + VLAN_LENGTH + from)?;
        frame.write(TAGS + VLAN_LENGTH, tag)?;
    }
    Some(())
}

/// Moves the link header, up to the network header's place, `from` octets to the front of the frame, turned round.
#[inline(always)]
pub(crate) fn move_round(frame: &mut impl Frame, network: usize, from: usize) -> Option<()> {
    let [destination, source] = frame.read::<Macs>(from)?;
    frame.write(0, [source, destination])?;
    if network > ETHERNET_LENGTH {
        move_tags(frame, network, from)?;
    }
    let kind = frame.read::<u16>(network - 2 + from)?;
    frame.write(network - 2, kind)
}

/// Turns the frame back to where it came from.
#[inline(always)]
pub(crate) fn turn_round(frame: &mut impl Frame) -> Option<()> {
    let [destination, source] = frame.read::<Macs>(0)?;
    frame.write(0, [source, destination])
}

/// Whether both addresses are those of single stations: a frame to many is never answered (RFC 1122, section 3.2.2).
#[inline(always)]
pub(crate) fn is_between_two(frame: &impl Frame) -> bool {
    match frame.read::<Macs>(0) {
        Some([destination, source]) => (destination[0] | source[0]) & 1 == 0,
        None => false,
    }
}
