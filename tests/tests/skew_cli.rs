//! Promise: the command line tells of a running daemon's spread, records it, explains the recording without a daemon, and gates.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, within},
    traffic::{Client, Kind, Servers},
};

const OK: i32 = 0;
const FAILED: i32 = 1;
const UNREACHABLE: i32 = 3;
const TOO_LITTLE: i32 = 5;
const NOT_FOUND: i32 = 7;

struct Scene {
    daemon: Daemon,
    client: Client,
    _servers: Servers,
    lab: Lab,
}

impl Scene {
    fn set() -> Result<Self> {
        let lab = Lab::new(&[Place::Front; 3])?;
        let servers = Servers::start(&lab, 80)?;
        let service = Service::new("web", "udp", VIP4, 80).backends(&lab.backends);
        let daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
        Ok(Self {
            daemon,
            client: Client::new(&lab),
            _servers: servers,
            lab,
        })
    }

    fn traffic(&self, flows: u64) -> Result<()> {
        self.client.many(Kind::Udp, SocketAddr::new(VIP4, 80), flows)?;
        Ok(())
    }

    /// Runs a command and checks its exit code; what it printed.
    fn run(&self, arguments: &[&str], code: i32) -> Result<String> {
        let output = self.daemon.cli(arguments)?;
        let text = [output.stdout, output.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned());
        let text = text.concat();
        ensure!(
            output.status.code() == Some(code),
            "{arguments:?} ended with {}:\n{text}",
            output.status
        );
        Ok(text)
    }
}

#[test]
fn the_spread_is_told_recorded_and_explained() -> Proof {
    let mut scene = Scene::set()?;
    // What was counted before the watch's first reading is not in its report.
    let report = within(Duration::from_secs(60), "flows are in the report", || {
        scene.traffic(200)?;
        let report = scene.daemon.json(&["skew", "web"])?;
        let flows = report["services"][0]["fresh_flows"]
            .as_u64()
            .context("a number")?;
        ensure!(flows >= 400, "{flows} fresh flows");
        Ok(report)
    })?;
    let web = &report["services"][0];
    assert_eq!(
        web["backends"].as_array().map(Vec::len),
        Some(scene.lab.backends.len())
    );
    let shares: f64 = web["backends"]
        .as_array()
        .context("a list")?
        .iter()
        .filter_map(|b| b["expected"].as_f64())
        .sum();
    assert!((shares - 1.0).abs() < 1e-9, "{web}");
    for check in report["self_checks"].as_array().context("a list")? {
        assert_eq!(check["ok"], true, "{check}");
    }
    let text = scene.run(&["skew"], OK)?;
    assert!(
        text.starts_with("EVEN ") || text.starts_with("TOO LITTLE"),
        "{text}"
    );
    assert!(text.contains(&scene.lab.backends[0].v4.to_string()), "{text}");
    assert!(scene.run(&["status"], OK)?.contains("SPREAD  "));
    assert!(scene.run(&["skew", "nosuch"], NOT_FOUND)?.contains("nosuch"));

    let file = scene.daemon.directory().join("record");
    let file = file.to_str().context("a path")?.to_owned();
    let mut recording = scene
        .daemon
        .cli_command(&["skew", "--record", &file, "--for", "8s"])?
        .spawn()?;
    scene.traffic(600)?;
    assert!(recording.wait()?.success(), "the recording failed");
    let said = scene.run(&["skew", "--record", &file], FAILED)?;
    assert!(said.contains("is not overwritten"), "{said}");
    scene.daemon.stop()?;
    scene.run(&["skew"], UNREACHABLE)?;
    let text = scene.run(&["explain-skew", &file, "--json"], OK)?;
    let explained: Value = serde_json::from_str(&text)?;
    assert!(
        explained["checks"].as_u64().is_some_and(|checks| checks >= 2),
        "{text}"
    );
    let web = &explained["report"]["services"][0];
    assert!(
        web["fresh_flows"].as_u64().is_some_and(|flows| flows > 0),
        "{text}"
    );
    assert_eq!(explained["last_alarm"], Value::Null, "{text}");
    assert_eq!(
        scene.run(&["explain-skew", &file, "--json"], OK)?,
        text,
        "the same file, the same answer"
    );
    Ok(())
}

#[test]
fn the_gate_waits_for_flows_and_judges_them() -> Proof {
    let scene = Scene::set()?;
    let said = scene.run(&["bench", "distribution", "--timeout", "2s"], TOO_LITTLE)?;
    assert!(
        said.contains("too little traffic to judge") && said.contains("of 1,000,000"),
        "{said}"
    );
    let said = scene.run(&["bench", "distribution", "nosuch", "--timeout", "2s"], NOT_FOUND)?;
    assert!(said.contains("nosuch"), "{said}");
    let gate = scene
        .daemon
        .cli_command(&[
            "bench",
            "distribution",
            "web",
            "--flows",
            "500",
            "--timeout",
            "100s",
            "--json",
        ])?
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    // The gate counts from its first reading on, whenever that is.
    let mut gate = Some(gate);
    within(Duration::from_secs(90), "the gate has seen enough", || {
        scene.traffic(300)?;
        let running = gate.as_mut().context("it ended before")?;
        ensure!(running.try_wait()?.is_some(), "it waits");
        Ok(())
    })?;
    let output = gate.take().context("it ended")?.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    assert_eq!(output.status.code(), Some(OK), "{text}");
    let verdict: Value = serde_json::from_str(&text)?;
    assert_eq!(verdict["passed"], true, "{text}");
    assert!(
        verdict["fresh_flows"].as_u64().is_some_and(|flows| flows >= 500),
        "{text}"
    );
    Ok(())
}
