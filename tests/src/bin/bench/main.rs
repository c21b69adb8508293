//! Measures Evenkeel beside a floor and a kernel-LRU balancer, in one run; started by `cargo xtask bench`.

mod control;
mod deaths;
mod discovery;
mod health;
mod memory;
mod packet;
mod program;
mod removals;
mod report;
mod skew;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

/// Packet costs and control-plane latencies as ratios within one run, and what the statistics of the spread and health
/// checks take.
#[derive(Parser)]
struct Arguments {
    /// Write the figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rounds of each packet measurement; the median counts
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// Only packets, only the control plane, only the statistics of the spread, only health checks, or only discovery
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// The BPF object with the wrapper, the floor and the LRU balancer
    #[arg(long)]
    object: PathBuf,
    /// The BPF object under test, instead of the one that the daemon embeds
    #[arg(long)]
    product: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Part {
    Packet,
    Control,
    Skew,
    Health,
    Discovery,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let read = |path: &PathBuf| {
        std::fs::read(path)
            .with_context(|| format!("cannot read {}; start it by `cargo xtask bench`", path.display()))
    };
    let objects = program::Objects {
        product: match &arguments.product {
            Some(path) => read(path)?,
            None => lb_user::program::object().to_vec(),
        },
        bench: read(&arguments.object)?,
    };
    let mut report = report::Report::default();
    let wanted = |part| arguments.only.is_none_or(|only| only == part);
    if wanted(Part::Packet) {
        packet::run(&objects, arguments.rounds, &mut report)?;
    }
    if wanted(Part::Control) {
        control::run(&mut report)?;
    }
    if wanted(Part::Skew) {
        skew::run(&mut report);
    }
    if wanted(Part::Health) {
        health::run(&mut report)?;
    }
    if wanted(Part::Discovery) {
        discovery::run(&mut report)?;
    }
    if let Some(path) = arguments.json {
        std::fs::write(&path, report.json()?).with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nfigures written to {}", path.display());
    }
    Ok(())
}
