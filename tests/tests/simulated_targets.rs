//! Promise: in simulated traffic the detectors reach their targets, and the simulation gives the same answer again.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What a short simulation prints as JSON; `Err` with what it printed if it found a target missed.
fn simulate(threads: &str, arguments: &[&str]) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("rows.json");
    let output = Command::new(env!("CARGO_BIN_EXE_simulate"))
        .args(["--quick", "--no-timing", "--json"])
        .arg(&file)
        .args(arguments)
        .env("RAYON_NUM_THREADS", threads)
        .output()
        .context("cannot start the simulation")?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_str(&fs::read_to_string(file)?)?)
}

/// Each of `targets` has rows that passed, and none that failed; nothing else was simulated.
fn reaches(targets: &[&str]) -> Result<()> {
    let only: Vec<&str> = targets.iter().flat_map(|id| ["--only", *id]).collect();
    let answer = simulate("0", &only)?;
    let mut passed = BTreeMap::<&str, u32>::new();
    for row in answer["rows"].as_array().context("no rows")? {
        ensure!(row["result"] != "FAIL", "{row}");
        let id = row["id"].as_str().context("a row without id")?;
        *passed.entry(id).or_default() += u32::from(row["result"] == "PASS");
    }
    for id in targets {
        ensure!(passed.get(id).is_some_and(|rows| *rows > 0), "{id}: {passed:?}");
    }
    ensure!(passed.len() == targets.len(), "{passed:?}");
    Ok(())
}

#[test]
fn sound_traffic_raises_no_false_alarm() -> Result<()> {
    reaches(&["T1", "T2", "T3", "T4", "T5"])
}

#[test]
fn faults_are_found_in_time_and_measured_at_little_cost() -> Result<()> {
    reaches(&["T6", "T7", "T8", "T10", "T11"])
}

#[test]
fn the_cause_that_is_named_is_the_cause() -> Result<()> {
    reaches(&["T9"])
}

/// Not on which thread ran what: a result can be had again anywhere.
#[test]
fn results_depend_on_the_seed_alone() -> Result<()> {
    let only = ["--only", "T6", "--only", "T7"];
    let one = simulate("1", &only)?;
    assert_eq!(simulate("3", &only)?, one);
    let other = simulate("3", &[&only[..], &["--seed", "2"]].concat())?;
    assert_ne!(other["rows"], one["rows"]);
    Ok(())
}

#[test]
fn a_target_that_there_is_not_is_refused() {
    let refused = simulate("1", &["--only", "T99"]).unwrap_err().to_string();
    assert!(
        refused.contains("there is no target T99; T1 to T11 are simulated"),
        "{refused}"
    );
}
