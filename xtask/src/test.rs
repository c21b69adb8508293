//! `cargo xtask test`: everything that is needed, everything that is built, every test.

use std::path::Path;

use anyhow::Result;

use crate::{build, packages, run, setup};

#[derive(clap::Args)]
pub struct Arguments {
    /// Passed to `cargo nextest run`, for example the name of a test
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    setup::need_root("the tests make network namespaces and load programs into the kernel, which")?;
    setup::run()?;
    all(&arguments.rest)
}

/// Builds and tests; the runner's summary is the last thing printed.
pub fn all(rest: &[String]) -> Result<()> {
    build::bpf()?;
    build::daemon(false)?;
    doctests()?;
    let mut nextest = packages::NEXTEST.cargo()?;
    run::run(nextest.args(["run", "--workspace", "--no-tests=fail"]).args(rest))
}

/// The runner knows no doctests; cargo runs them, where there are any.
fn doctests() -> Result<()> {
    let root = run::root();
    for library in ["lb-common", "lb-ebpf", "lb-user"] {
        if has_doctests(&root.join(library).join("src")) {
            run::run(run::cargo("test").args(["--quiet", "--doc", "--package", library]))?;
        }
    }
    Ok(())
}

fn has_doctests(directory: &Path) -> bool {
    let opens = |line: &str| {
        let line = line.trim_start();
        line.starts_with("//") && line.trim_start_matches(['/', '!', ' ']) == "```"
    };
    run::rust_files(directory)
        .iter()
        .any(|(_, text)| text.lines().any(opens))
}
