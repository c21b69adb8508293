//! The dependency check: every crate is used, comes from the registry, and has a licence of `.deny.toml`.
//!
//! `cargo deny check licenses bans sources` reads the same file; it is not called because building it takes longer
//! than everything else together.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{packages, run};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licences,
}

/// What the product is built for; crates of other systems are never part of it.
#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
}

#[derive(Deserialize)]
struct Crate {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

pub fn check() -> Result<()> {
    let root = run::root();
    let policy = fs::read_to_string(root.join(".deny.toml")).context("cannot read .deny.toml")?;
    let policy: Policy = toml::from_str(&policy).context(".deny.toml cannot be understood")?;
    let mut cargo = run::cargo("metadata");
    cargo.args(["--format-version", "1", "--locked"]);
    for target in &policy.graph.targets {
        cargo.args(["--filter-platform", target]);
    }
    let metadata =
        run::output(&mut cargo).context("`cargo metadata --locked` fails: is Cargo.lock up to date?")?;
    let metadata: Metadata = serde_json::from_str(&metadata).context("cargo metadata printed no metadata")?;
    let complaints: Vec<_> = metadata
        .packages
        .iter()
        .filter_map(|one| complaint(one, &policy))
        .collect();
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    println!(
        "   {} crates, all from the registry and under licences of .deny.toml",
        metadata.packages.len()
    );
    run::run(&mut packages::MACHETE.cargo()?).context("a dependency is declared and not used")
}

fn complaint(one: &Crate, policy: &Policy) -> Option<String> {
    let Crate { name, version, .. } = one;
    if let Some(source) = &one.source
        && source != REGISTRY
    {
        return Some(format!(
            "{name} {version} comes from {source}, not from the registry"
        ));
    }
    let Some(licence) = &one.license else {
        return Some(format!("{name} {version} names no licence"));
    };
    (!allowed(licence, &policy.licenses.allow))
        .then(|| format!("{name} {version} is under {licence}, which .deny.toml does not allow"))
}

/// Evaluates an SPDX expression, the old `/` for OR included; exceptions (WITH) only widen a licence.
fn allowed(expression: &str, allow: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut at = 0;
    either(&words, &mut at, allow) && at == words.len()
}

fn either(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let mut result = both(words, at, allow);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        result |= both(words, at, allow);
    }
    result
}

fn both(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let mut result = single(words, at, allow);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        result &= single(words, at, allow);
    }
    result
}

fn single(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let result = either(words, at, allow);
        *at += 1;
        return result;
    }
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    allow.contains(*word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions() {
        let allow = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned).into();
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT/Apache-2.0", true),
            ("GPL-2.0-only OR MIT", true),
            ("MIT AND GPL-2.0-only", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR GPL-3.0) AND OpenSSL", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("", false),
        ] {
            assert_eq!(allowed(expression, &allow), expected, "{expression}");
        }
    }
}
