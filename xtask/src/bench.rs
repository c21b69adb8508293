//! `cargo xtask bench`: what a packet and a change cost, as ratios within one run, what the statistics of the spread,
//! checks and many endpoints take.

use std::path::PathBuf;

use anyhow::{Result, anyhow};

use crate::{
    bpf_build::{self, Toolchain},
    build, run, setup,
};

#[derive(clap::Args)]
pub struct Arguments {
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds of each packet measurement; the median counts
    #[arg(long)]
    rounds: Option<usize>,
    /// Only `packet`, `control`, `skew`, `health` or `discovery`
    #[arg(long)]
    only: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    setup::to_build()?;
    build::bpf()?;
    let root = run::root();
    let object = Toolchain::recorded(&root)
        .and_then(|toolchain| toolchain.build(&root, bpf_build::BENCH))
        .map_err(|e| anyhow!(e))?;
    // The daemon that the figures of discovery are about.
    let mut daemon = run::cargo("build");
    daemon.args([
        "--release",
        "--quiet",
        "--package",
        "lb-user",
        "--bin",
        "evenkeel",
    ]);
    run::run(&mut daemon)?;
    let mut cargo = run::cargo("run");
    cargo
        .args([
            "--release",
            "--quiet",
            "--package",
            "tests",
            "--bin",
            "bench",
            "--",
        ])
        .arg("--object")
        .arg(object);
    if let Some(json) = &arguments.json {
        cargo.arg("--json").arg(std::path::absolute(json)?);
    }
    if let Some(rounds) = arguments.rounds {
        cargo.arg("--rounds").arg(rounds.to_string());
    }
    if let Some(only) = &arguments.only {
        cargo.arg("--only").arg(only);
    }
    run::run(&mut cargo)
}
