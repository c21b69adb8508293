//! Promise: nothing is attached and nothing is ready before there is a first state.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, eventually, within},
    traffic::{Client, Servers},
};

/// Whether an XDP program is on the balancer's `eth0`.
fn attached(lab: &Lab) -> Result<bool> {
    let output = lab
        .balancer
        .command("ip")?
        .args(["-json", "link", "show", "dev", "eth0"])
        .output()?;
    let links: Value = serde_json::from_slice(&output.stdout)?;
    Ok(!links[0]["xdp"].is_null())
}

#[test]
fn whenever_it_is_attached_it_can_forward() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends);
    let mut daemon = Daemon::prepare(&lab.balancer, Config::new([service]))?;
    assert!(!attached(&lab)?);
    daemon.launch()?;
    // The first moment at which the program is there, the maps behind it are complete.
    within(std::time::Duration::from_secs(20), "attached", || {
        ensure!(daemon.is_running(), "it ended");
        ensure!(attached(&lab)?, "not yet");
        Ok(())
    })?;
    Client::new(&lab).tcp(SocketAddr::new(VIP4, 80))?;
    Ok(())
}

#[test]
fn a_start_that_fails_attaches_nothing() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    // The second interface does not exist: the first must be left alone.
    let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends);
    let daemon = Daemon::prepare(
        &lab.balancer,
        Config::new([service]).interfaces(&["eth0", "eth7"]),
    )?;
    let output = daemon.run_to_end()?;
    assert!(!output.status.success());
    assert!(!attached(&lab)?);
    Ok(())
}

#[test]
fn a_backend_without_a_next_hop_is_said_and_left_out() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let silent = "10.2.0.99".parse()?;
    let service = Service::new("web", "tcp", VIP4, 80)
        .backends(&lab.backends)
        .backend(silent, 5);
    let mut daemon = Daemon::prepare(&lab.balancer, Config::new([service]))?;
    daemon.launch()?;
    eventually("the living backend serves", || {
        daemon
            .json(&["services"])
            .is_ok_and(|services| services[0]["serving"] == 1)
    })?;
    let client = Client::new(&lab);
    for _ in 0..20 {
        client.tcp(SocketAddr::new(VIP4, 80))?;
    }
    let services = daemon.json(&["services"])?;
    assert_eq!(services[0]["unresolved"], 1, "{services}");
    let status = daemon.ok(&["status"])?;
    assert!(status.contains("10.2.0.99"), "{status}");
    Ok(())
}

#[test]
fn a_service_without_backends_is_up_to_its_state() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let mut daemon = Daemon::start(&lab.balancer, Config::new([Service::new("web", "tcp", VIP4, 80)]))?;
    let client = Client::new(&lab);
    daemon.ok(&["backend", "add", "web", &lab.backends[0].v4.to_string()])?;
    eventually("the first backend serves", || {
        client.tcp(SocketAddr::new(VIP4, 80)).is_ok()
    })?;
    assert!(daemon.is_running());
    Ok(())
}
