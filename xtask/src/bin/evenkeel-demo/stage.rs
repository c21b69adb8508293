//! The scene: namespaces, servers, the daemon; all of it gone when it is dropped.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use tests::{
    lab::{Config, Daemon, Lab, Place, Service, VIP4},
    traffic::{Client, Servers},
};

const PORT: u16 = 80;
const WEIGHTS: [u32; 3] = [1, 1, 2];

/// Fields are dropped in this order: the daemon before the namespaces it runs in.
pub struct Stage {
    pub daemon: Daemon,
    pub client: Client,
    pub vip: SocketAddr,
    pub backends: Vec<Backend>,
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
        let daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
        let vip = SocketAddr::new(VIP4, PORT);
        Ok(Self {
            daemon,
            client: Client::new(&lab),
            vip,
            backends,
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
