//! Finds the `evenkeel` binary that the tests are about, and refuses one that is older than its sources.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail};

const BUILD: &str = "run `cargo build -p lb-user --bin evenkeel`";

/// `$EVENKEEL_BIN`, or `evenkeel` in the target directory that this test or program was built into.
pub fn evenkeel() -> Result<PathBuf> {
    if let Some(path) = env::var_os("EVENKEEL_BIN") {
        return Ok(PathBuf::from(path));
    }
    let this = env::current_exe()?;
    // Tests are in `deps` below it, programs such as the bench in it.
    let profile = this
        .ancestors()
        .skip(1)
        .find(|directory| !directory.ends_with("deps"))
        .with_context(|| format!("{} is not in a target directory", this.display()))?;
    let binary = profile.join("evenkeel");
    let built = modified(&binary).with_context(|| format!("{} is missing: {BUILD}", binary.display()))?;
    if let Some(newer) = newer_source(&binary.with_extension("d"), built)? {
        bail!("{} is older than {}: {BUILD}", binary.display(), newer.display());
    }
    Ok(binary)
}

/// A source that changed since; cargo's dependency file beside the binary lists them all.
fn newer_source(list: &Path, built: SystemTime) -> Result<Option<PathBuf>> {
    let text = fs::read_to_string(list).with_context(|| format!("reading {}", list.display()))?;
    let (_, sources) = text
        .split_once(": ")
        .with_context(|| format!("{} is no dependency file", list.display()))?;
    // A space in a path is escaped by a backslash.
    let sources = sources.trim_end().replace("\\ ", "\0");
    let mut paths = sources
        .split(' ')
        .map(|path| PathBuf::from(path.replace('\0', " ")));
    Ok(paths.find(|path| {
        path.extension().is_some_and(|extension| extension == "rs")
            && modified(path).is_ok_and(|time| time > built)
    }))
}

fn modified(path: &Path) -> std::io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}
