//! `cargo xtask gate`: the distribution gate: a million new flows, in every way of picking, must be spread evenly.

use anyhow::{Context, Result};

use crate::{build, packages, run, setup};

#[derive(clap::Args, Default)]
pub struct Arguments {
    /// New flows, over all ways of picking
    #[arg(long, value_name = "N")]
    flows: Option<u64>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    setup::need_root("the gate makes network namespaces and loads programs into the kernel, which")?;
    setup::to_build()?;
    packages::install(&packages::to_demonstrate())?;
    setup::mount_bpffs()?;
    build::bpf()?;
    build::daemon(false)?;
    let mut gate = run::cargo("run");
    gate.args([
        "--quiet",
        "--package",
        "tests",
        "--bin",
        "distribution-gate",
        "--",
    ]);
    if let Some(flows) = arguments.flows {
        gate.arg("--flows").arg(flows.to_string());
    }
    gate.env("EVENKEEL_BIN", run::target_directory()?.join("debug/evenkeel"));
    run::run(&mut gate)
        .context("new flows are not shown to be spread evenly, so that this build must not ship")
}
