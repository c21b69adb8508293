//! `cargo xtask simulate`: the detectors against seeded, deterministic traffic, beside the figures they must reach.

use std::path::PathBuf;

use anyhow::Result;

use crate::{build, run, setup};

#[derive(clap::Args)]
pub struct Arguments {
    /// Write the rows as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Few runs of everything
    #[arg(long)]
    quick: bool,
    /// Another seed gives another chance
    #[arg(long)]
    seed: Option<u64>,
    /// Only these targets, for example T6
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Leave out what depends on the machine's speed
    #[arg(long)]
    no_timing: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    setup::to_build()?;
    build::bpf()?;
    let mut cargo = run::cargo("run");
    cargo.args([
        "--release",
        "--quiet",
        "--package",
        "tests",
        "--bin",
        "simulate",
        "--",
    ]);
    if let Some(json) = &arguments.json {
        cargo.arg("--json").arg(std::path::absolute(json)?);
    }
    if arguments.quick {
        cargo.arg("--quick");
    }
    if let Some(seed) = arguments.seed {
        cargo.arg("--seed").arg(seed.to_string());
    }
    for id in &arguments.only {
        cargo.arg("--only").arg(id);
    }
    if arguments.no_timing {
        cargo.arg("--no-timing");
    }
    run::run(&mut cargo)
}
