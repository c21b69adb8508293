//! Servers that name backends, and a follower that remembers what it was told.

pub mod broken;
pub mod consul;
pub mod dns;
pub mod dnsmasq;
pub mod etcd;
mod followed;
pub mod kubernetes;
mod port;
pub mod scene;
pub mod scripted;
pub mod site;
mod wire;

pub use followed::Followed;
pub use scene::{Scene, Traffic};
