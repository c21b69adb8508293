//! A recorded sample of the spread: what was read at each check, to be explained later and elsewhere.
//!
//! The file is JSON lines ([`mod@format`]): a header, then one line a check. The daemon answers `GET /v1/skew/counters` with
//! a [`Reading`], [`Writer`] makes a file of successive ones, [`open`] reads it back, and [`Replay`] runs the detector, the
//! effect sizes and the attribution over it. The same file always gives the same report.

pub mod format;
mod read;
mod replay;
mod take;
mod world;
mod write;

#[cfg(test)]
mod tests;

pub use format::{Check, Header, Reading, VERSION};
pub use read::{RecordError, Records, open};
pub use replay::{Explained, Moment, Replay};
pub use take::take;
pub use write::Writer;
