//! Promise: the distribution gate passes what is spread evenly, in every way of picking, and nothing else.

use std::{net::SocketAddr, process::Command};

use anyhow::Context;
use tests::{
    Proof,
    gate::{Draw, Gate, SERVICES, verdict::UNEVEN},
    lab::{Tamper, binary::evenkeel},
    traffic::Kind,
};

/// More than come before an alarm, so that it is the alarm that ends the gate.
const MANY: u64 = 1_000_000;

/// The program that CI runs, with fewer flows than there.
#[test]
fn an_even_spread_passes() -> Proof {
    let output = Command::new(env!("CARGO_BIN_EXE_distribution-gate"))
        .args(["--flows", "90000"])
        .env("EVENKEEL_BIN", evenkeel()?)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    for name in ["PASSED", "per-cpu even", "fleet even", "affinity-client even"] {
        assert!(said.contains(name), "nothing says {name}: {said}");
    }
    Ok(())
}

#[test]
fn a_balancer_that_does_not_start_fails() -> Proof {
    let output = Command::new(env!("CARGO_BIN_EXE_distribution-gate"))
        .env("EVENKEEL_BIN", "/bin/false")
        .output()?;
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("FAILED"), "{errors}");
    Ok(())
}

/// A backend has the slots of another as well.
#[test]
fn falsified_slots_fail() -> Proof {
    let gate = Gate::set(&["[skew]", "auto_heal = false"])?;
    let floods = gate.traffic(Draw::Blind)?;
    let (vip, [from, to]) = gate.per_cpu();
    let mut tamper = Tamper::open(gate.daemon.pins(), SocketAddr::V4(vip), Kind::Udp)?;
    tamper.give_slots(from, to)?;
    let verdict = gate.judge(MANY)?;
    drop(floods);
    assert_eq!(verdict.code, Some(UNEVEN), "{:#}", verdict.report);
    assert_eq!(
        finding(&verdict.report, "per-cpu"),
        Some("uneven"),
        "{:#}",
        verdict.report
    );
    let error = verdict.passes(SERVICES).unwrap_err().to_string();
    assert!(
        error.starts_with("new flows are not spread as they should be")
            && error.contains("slot table of per-cpu"),
        "{error}"
    );
    Ok(())
}

/// Everything that can be read back is as it should be, and the flows fall into half of the buckets all the same.
#[test]
fn a_hash_that_seems_to_have_collapsed_fails() -> Proof {
    let gate = Gate::set(&["[skew]", "auto_heal = false"])?;
    let floods = gate.traffic(Draw::Aimed { buckets: 128 })?;
    let verdict = gate.judge(MANY)?;
    drop(floods);
    assert_eq!(verdict.code, Some(UNEVEN), "{:#}", verdict.report);
    let failed = verdict.report["failed_checks"].as_array().context("a list")?;
    assert!(failed.is_empty(), "{failed:?}");
    let error = verdict.passes(SERVICES).unwrap_err().to_string();
    assert!(error.contains("the hash does not spread"), "{error}");
    Ok(())
}

fn finding<'a>(report: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    let services = report["services"].as_array()?;
    let found = services.iter().find(|service| service["service"] == name)?;
    found["finding"].as_str()
}
