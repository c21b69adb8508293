//! Raw frames: a socket that sees and sends them, a checker of every length and checksum, and the witness.

pub mod frame;
pub mod socket;
pub mod witness;

pub use frame::{Packet, Seen, Transport, inspect};
pub use socket::RawSocket;
pub use witness::{Tally, Witness};
