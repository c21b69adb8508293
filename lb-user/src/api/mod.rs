//! The daemon's interface on a Unix socket: HTTP with JSON, for the command line and for scripts.

pub mod client;
pub mod peer;
pub mod requests;
pub mod server;
pub mod socket;
pub mod types;

#[cfg(test)]
mod tests;

/// Where the daemon listens unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/evenkeel/api.sock";
