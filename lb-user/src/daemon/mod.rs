//! The daemon: one controller owns the wanted state and is the only one to change the datapath; the rest reads.

mod announce;
mod bring;
mod change;
mod check_path;
mod controller;
mod drift;
mod edits;
pub mod flow_reads;
mod handle;
mod heal;
mod health;
pub mod health_reads;
pub mod host;
mod ledger;
mod limits;
pub mod logging;
mod next_hops;
mod publish;
pub mod reads;
mod reconcile;
mod seed_clock;
mod seeds;
pub mod shared;
pub mod source_reads;
mod sources;
mod start;
pub mod view;

use std::{path::PathBuf, time::Duration};

pub use handle::Command;
pub use ledger::BringError;

/// What the command line says about a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub config_file: PathBuf,
    /// Instead of the configured one.
    pub socket: Option<PathBuf>,
    /// Replace foreign XDP programs.
    pub replace: bool,
    /// Take the datapath down at SIGTERM and SIGINT.
    pub detach_on_exit: bool,
    /// How long VIPs are withdrawn before that.
    pub drain: Duration,
}

/// Runs until SIGTERM or SIGINT.
pub fn run(options: Options) -> anyhow::Result<()> {
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async { tokio::spawn(start::run(options)).await });
    // Connections that are still open do not keep the process.
    runtime.shutdown_background();
    result?
}
