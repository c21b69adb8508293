//! Servers of every kind that health checks ask, on loopback, and a checker beside them.

pub mod bed;
pub mod dns;
pub mod grpc;
pub mod nginx;
pub mod scripted;

pub use bed::{Bed, check};
pub use dns::Dnsmasq;
pub use grpc::GrpcServer;
pub use nginx::Nginx;
pub use scripted::{Scripted, ScriptedUdp};
