//! The scene: namespaces, servers, the daemon; all of it gone when it is dropped.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    lab::{Config, Daemon, Lab, Place, Service, VIP4, within},
    traffic::{Client, Servers},
};

const PORT: u16 = 80;
const WEIGHTS: [u32; 3] = [1, 1, 2];
/// Until the watch must have made a check; it makes one each second.
const CHECKED: Duration = Duration::from_secs(10);

/// Fields are dropped in this order: the daemon before the namespaces it runs in.
pub struct Stage {
    pub daemon: Daemon,
    pub client: Client,
    pub vip: SocketAddr,
    pub backends: Vec<Backend>,
    pub cpus: usize,
    _servers: Servers,
    lab: Lab,
}

/// A backend as the demo talks of it.
pub struct Backend {
    /// What its server answers with.
    pub name: String,
    pub address: IpAddr,
    pub weight: u32,
}

impl Stage {
    pub fn set() -> Result<Self> {
        let lab = Lab::new(&[Place::Front; WEIGHTS.len()]).context("cannot make the network namespaces")?;
        // Each connection leaves its port in TIME_WAIT for a minute.
        lab.client.sysctl(&[("ipv4/ip_local_port_range", "1024 65535")])?;
        let servers = Servers::start(&lab, PORT)?;
        let backends: Vec<_> = lab
            .backends
            .iter()
            .zip(WEIGHTS)
            .map(|(backend, weight)| Backend {
                name: backend.name.clone(),
                address: backend.v4,
                weight,
            })
            .collect();
        let mut service = Service::new("web", "tcp", VIP4, PORT).line("mode = \"dsr\"");
        for backend in &backends {
            service = service.backend(backend.address, backend.weight);
        }
        let daemon =
            Daemon::start(&lab.balancer, Config::new([service])).context("the daemon does not start")?;
        let vip = SocketAddr::new(VIP4, PORT);
        Ok(Self {
            daemon,
            client: Client::new(&lab),
            vip,
            backends,
            cpus: thread::available_parallelism()?.get(),
            _servers: servers,
            lab,
        })
    }

    /// New flows that the daemon has counted.
    pub fn counted_flows(&self) -> Result<u64> {
        let services = self.daemon.json(&["services"])?;
        services[0]["flows"]
            .as_u64()
            .context("`evenkeel services --json` names no flows")
    }

    /// Returns right after a check of the watch: what is broken now has to wait longest for the next.
    pub fn wait_for_check(&self) -> Result<()> {
        let last = || {
            let metrics = self.daemon.metrics()?;
            metrics.sum("evenkeel_skew_last_check_timestamp_seconds", &[])
        };
        let before = last()?;
        within(CHECKED, "the watch makes a check", || {
            ensure!(last()? > before, "none was made");
            Ok(())
        })
    }

    /// The daemon's newest events, oldest first.
    pub fn events(&self) -> Result<Vec<Value>> {
        let output = self.daemon.cli(&["events", "--json"])?;
        ensure!(
            output.status.success(),
            "the daemon no longer answers `evenkeel events`"
        );
        serde_json::from_slice(&output.stdout).context("`evenkeel events --json` printed no list")
    }

    /// How to talk to this daemon from another shell.
    pub fn command_line(&self) -> String {
        let binary = std::env::var("EVENKEEL_BIN").unwrap_or_else(|_| "evenkeel".to_owned());
        let (netns, socket) = (self.lab.balancer.name(), self.daemon.socket());
        format!(
            "nsenter --net=/run/netns/{netns} {binary} --socket {}",
            socket.display()
        )
    }

    /// For a demo that fails: what one would ask first.
    pub fn explain(&self) {
        for command in ["status", "backends"] {
            match self.daemon.ok(&[command]) {
                Ok(text) => eprintln!("\n$ evenkeel {command}\n{text}"),
                Err(error) => eprintln!("\n$ evenkeel {command}\n{error:#}"),
            }
        }
        let log = self.daemon.log();
        let lines: Vec<_> = log.lines().collect();
        eprintln!(
            "\nthe end of its log:\n{}",
            lines[lines.len().saturating_sub(30)..].join("\n")
        );
    }
}
