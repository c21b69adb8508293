//! Simulates traffic and faults against the skew statistics and holds them to their targets; started by
//! `cargo xtask simulate`.
//!
//! A check is one second. Counts are drawn by exact samplers from generators that depend on the seed, the scenario and
//! the run alone, so that a result can be had again on any machine with any number of CPUs.

mod causes;
mod cost;
mod datapath;
mod delays;
mod histograms;
mod incident;
mod intervals;
mod keys;
mod lab;
mod quiet;
mod row;
mod traffic;
mod trial;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use tests::simulation::{chance, service};

use lab::Lab;

/// Targets T1 to T11 of the skew statistics, by simulation.
#[derive(Parser)]
struct Arguments {
    /// Write the rows as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Few runs of everything; three standard errors beyond a limit are borne
    #[arg(long)]
    quick: bool,
    /// Another seed gives another chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these targets, for example T6
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Leave out what depends on the machine's speed
    #[arg(long)]
    no_timing: bool,
}

type Target = (&'static str, fn(&mut Lab));

const TARGETS: [Target; 11] = [
    ("T1", quiet::run_length),
    ("T2", quiet::long_run_length),
    ("T3", keys::concentration),
    ("T4", quiet::tolerance),
    ("T5", quiet::changes),
    ("T6", delays::delays),
    ("T7", histograms::delays),
    ("T8", incident::growth),
    ("T9", causes::attribution),
    ("T10", intervals::coverage),
    ("T11", cost::cost),
];

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    for only in &arguments.only {
        let known = TARGETS.iter().any(|(id, _)| id == only);
        anyhow::ensure!(known, "there is no target {only}; T1 to T11 are simulated");
    }
    let mut lab = Lab::new(arguments.seed, arguments.quick, !arguments.no_timing);
    let wanted = |id: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == id);
    for (_, target) in TARGETS.iter().filter(|(id, _)| wanted(id)) {
        target(&mut lab);
    }
    let fine = lab.finish();
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&lab.json())? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("rows written to {}", path.display());
    }
    Ok(if fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
