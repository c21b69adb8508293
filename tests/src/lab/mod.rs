//! Network namespaces, the cables between them, and the daemon under test.

pub mod binary;
pub mod config;
pub mod daemon;
pub mod decap;
pub mod netns;
pub mod process;
pub mod slots;
pub mod sweep;
pub mod tamper;
pub mod tcx;
pub mod topology;
pub mod wait;
pub mod watched;
pub mod xdp;

pub use config::{Config, Service};
pub use daemon::Daemon;
pub use decap::Decap;
pub use netns::Netns;
pub use slots::Slots;
pub use tamper::Tamper;
pub use tcx::Tcx;
pub use topology::{Backend, Lab, Place, VIP4, VIP6};
pub use wait::{eventually, within};
pub use watched::{Mark, Told, Watched};
pub use xdp::Xdp;
