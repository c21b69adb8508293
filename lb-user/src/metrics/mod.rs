//! Prometheus metrics: what the daemon did, and what the datapath counted at the moment of the scrape.

mod backends;
mod collector;
mod discovery;
mod families;
mod health;
mod process;
mod recorder;
mod server;
mod skew;
#[cfg(test)]
mod tests;

pub use collector::Collector;
pub use recorder::{Recorder, RotationCause, Trigger};
pub use server::{Metrics, serve};

/// A metric's name in the scrape. Process metrics keep the names that every exporter gives them.
fn full_name(name: &str) -> String {
    if name.starts_with("process_") {
        name.to_owned()
    } else {
        format!("evenkeel_{name}")
    }
}
