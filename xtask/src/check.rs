//! `cargo xtask check`: literally what CI runs, from formatting to the tests, whose summary comes last.

use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use crate::{
    bpf_build::{self, Toolchain},
    dependencies, gate, run, setup, test,
};

pub fn run() -> Result<()> {
    setup::need_root("the tests make network namespaces and load programs into the kernel, which")?;
    setup::run()?;
    step("format", || {
        run::run(run::cargo("fmt").args(["--all", "--check"]))
    })?;
    step("lints, host", lint_host)?;
    step("lints, BPF", lint_bpf)?;
    step("documentation", document)?;
    step("dependencies", dependencies::check)?;
    step("distribution gate", || gate::run(&gate::Arguments::default()))?;
    println!("== tests");
    test::all(&[])
}

fn step(name: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    body().with_context(|| format!("check failed at: {name}"))?;
    println!("   {name}: fine, {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn lint_host() -> Result<()> {
    let mut cargo = run::cargo("clippy");
    run::run(cargo.args([
        "--quiet",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

fn lint_bpf() -> Result<()> {
    let root = run::root();
    let toolchain = Toolchain::recorded(&root).map_err(|e| anyhow!(e))?;
    [bpf_build::PRODUCT, bpf_build::CHECK, bpf_build::BENCH]
        .into_iter()
        .try_for_each(|object| toolchain.clippy(&root, object))
        .map_err(|e| anyhow!(e))
}

fn document() -> Result<()> {
    let mut cargo = run::cargo("doc");
    cargo
        .args([
            "--quiet",
            "--locked",
            "--workspace",
            "--all-features",
            "--no-deps",
        ])
        .env("RUSTDOCFLAGS", "-D warnings");
    run::run(&mut cargo)
}
