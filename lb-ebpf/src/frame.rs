//! A frame as the stages see it: bounds-checked reads and writes, and room in front.

use lb_common::pod::Pod;

/// An Ethernet frame in one linear buffer.
pub trait Frame {
    /// Octets from the destination MAC to the last byte.
    fn length(&self) -> usize;

    /// Index of the interface the frame came in on.
    fn ingress(&self) -> u32;

    /// Copies a `T` from `offset`; `None` when it does not lie wholly in the frame.
    fn read<T: Pod>(&self, offset: usize) -> Option<T>;

    /// Writes a `T` at `offset`; `None`, and no change, when it does not lie wholly in the frame.
    fn write<T: Pod>(&mut self, offset: usize, value: T) -> Option<()>;

    /// Moves the frame's start `octets` towards the front (negative: towards the back). What was at `offset` is then
    /// at `offset + octets`; new bytes hold anything. `None`, and no change, when there is no such room.
    fn move_start(&mut self, octets: i32) -> Option<()>;

    /// Cuts the frame to so many octets. `None`, and no change, when it is not longer.
    fn cut_to(&mut self, octets: usize) -> Option<()>;
}
