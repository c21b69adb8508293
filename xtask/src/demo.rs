//! `cargo xtask demo`: installs, builds, and hands over to the program that shows the balancer at work.

use anyhow::Result;

use crate::{build, packages, run, setup};

#[derive(clap::Args)]
pub struct Arguments {
    /// At the end leave everything running until Ctrl-C, to look around in it
    #[arg(long)]
    stay: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    setup::need_root("the demo makes network namespaces and loads programs into the kernel, which")?;
    setup::to_build()?;
    packages::install(&packages::to_demonstrate())?;
    setup::mount_bpffs()?;
    build::bpf()?;
    println!("building   evenkeel");
    build::daemon(false)?;
    let mut demo = run::cargo("run");
    demo.args([
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "lab",
        "--bin",
        "evenkeel-demo",
        "--",
    ]);
    if arguments.stay {
        demo.arg("--stay");
    }
    // What failed has been said by the program itself.
    let status = demo
        .env("EVENKEEL_BIN", run::target_directory()?.join("debug/evenkeel"))
        .status()?;
    std::process::exit(status.code().unwrap_or(1));
}
