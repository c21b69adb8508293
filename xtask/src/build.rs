//! `cargo xtask build`: the BPF object, what is in it, and the binary around it.

use std::fs;

use anyhow::{Context, Result, anyhow};

use crate::{
    bpf_build::{self, Toolchain},
    bpf_object, run, setup,
};

#[derive(clap::Args)]
pub struct Arguments {
    /// Only the BPF programs, not the daemon
    #[arg(long)]
    bpf_only: bool,
    /// The daemon optimised, as it ships
    #[arg(long)]
    release: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    setup::to_build()?;
    bpf()?;
    if arguments.bpf_only {
        return Ok(());
    }
    daemon(arguments.release)
}

/// Builds the objects that ship, checks them and says how large they are.
pub fn bpf() -> Result<()> {
    let root = run::root();
    let toolchain = Toolchain::recorded(&root).map_err(|e| anyhow!(e))?;
    for name in [bpf_build::PRODUCT, bpf_build::CHECK] {
        let object = toolchain.build(&root, name).map_err(|e| anyhow!(e))?;
        let data = fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
        let report = bpf_object::inspect(&data).map_err(|e| anyhow!("{name}: {e}"))?;
        println!(
            "{name}: {report} ({})",
            object.strip_prefix(&root).unwrap_or(&object).display()
        );
    }
    Ok(())
}

/// Builds the `evenkeel` binary.
pub fn daemon(release: bool) -> Result<()> {
    let mut cargo = run::cargo("build");
    cargo.args(["--package", "lb-user", "--bin", "evenkeel"]);
    if release {
        cargo.arg("--release");
    }
    run::run(&mut cargo)
}
