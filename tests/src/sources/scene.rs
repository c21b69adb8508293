//! A service with traffic whose backends a source names.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    lab::{Config, Daemon, Lab, Service, VIP4, eventually, within},
    traffic::{Client, LongLived, Rush, Rushed, Servers},
};

/// The service, called `web`, at port 80 of [`VIP4`].
pub const TO: SocketAddr = SocketAddr::new(VIP4, 80);
/// Open connections all the while.
const OPEN: usize = 60;
/// New connections a second, unless a test wants more.
const RATE: u32 = 200;

/// The daemon and those it hands flows to. Servers that name backends belong on the balancer's loopback: see [`Netns::run`].
///
/// [`Netns::run`]: crate::lab::Netns::run
pub struct Scene {
    // Stopped before the namespaces go.
    pub daemon: Daemon,
    pub servers: Servers,
    pub lab: Lab,
}

/// Connections that stay open and ever new ones.
pub struct Traffic {
    pub held: LongLived,
    pub rush: Rush,
}

impl Scene {
    /// With further lines of the service, its sources among them. The daemon is made and not started.
    pub fn new(lab: Lab, lines: &str) -> Result<Self> {
        let servers = Servers::start(&lab, TO.port())?;
        let service = Service::new("web", "tcp", VIP4, TO.port()).line(lines);
        let daemon = Daemon::prepare(&lab.balancer, Config::new([service]))?;
        Ok(Self { daemon, servers, lab })
    }

    /// Starts the daemon and waits until it is ready and so many serve.
    pub fn start(&mut self, serving: u64) -> Result<()> {
        self.daemon.launch()?;
        self.daemon.wait_ready()?;
        eventually("all serve", || self.serving() == Some(serving))
    }

    pub fn serving(&self) -> Option<u64> {
        self.daemon.json(&["services"]).ok()?[0]["serving"].as_u64()
    }

    /// What the daemon says of the first source.
    pub fn source(&self) -> Result<Value> {
        Ok(self.daemon.json(&["discovery"])?[0].clone())
    }

    /// How often the first source failed.
    pub fn failures(&self) -> Option<u64> {
        self.source().ok()?["failures"].as_u64()
    }

    /// Waits until the first source rules.
    pub fn fresh(&self) -> Result<()> {
        // A question that gets lost is given up after ten seconds; only then is another one asked.
        within(Duration::from_secs(30), "the source rules", || {
            let source = self.source()?;
            ensure!(source["state"] == "fresh" && source["held"].is_null(), "{source}");
            Ok(())
        })
    }

    /// Does something to the source, waits until that failed once more or took `held` away in vain, and finds that
    /// nothing came of it.
    pub fn bears(
        &self,
        what: &str,
        held: u64,
        traffic: &Traffic,
        lie: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let serving = self.serving();
        let failures = self.failures();
        lie()?;
        eventually(&format!("{what}: heard"), || {
            self.source()
                .is_ok_and(|source| source["held"]["count"] == held || source["failures"].as_u64() > failures)
        })?;
        ensure!(self.serving() == serving, "{what}: {:?} serve", self.serving());
        traffic.go_on(what)
    }

    pub fn traffic(&self) -> Result<Traffic> {
        Traffic::start(&self.lab, TO, RATE)
    }

    pub fn is_attached(&self) -> Result<bool> {
        let links = self.ip(&["link", "show", "dev", "eth0"])?;
        Ok(!links[0]["xdp"].is_null())
    }

    /// Whether the VIP is announced.
    pub fn has_vip(&self) -> Result<bool> {
        let links = self.ip(&["address", "show", "dev", "lo"])?;
        let addresses = links[0]["addr_info"].as_array();
        let vip = json!(VIP4);
        Ok(addresses.is_some_and(|addresses| addresses.iter().any(|address| address["local"] == vip)))
    }

    fn ip(&self, arguments: &[&str]) -> Result<Value> {
        let output = self
            .lab
            .balancer
            .command("ip")?
            .arg("-json")
            .args(arguments)
            .output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Traffic {
    pub fn start(lab: &Lab, to: SocketAddr, rate: u32) -> Result<Self> {
        Ok(Self {
            held: LongLived::open(&Client::new(lab), to, OPEN)?,
            rush: Rush::start(lab, to, rate)?,
        })
    }

    /// Nothing has failed so far, and more comes through.
    pub fn go_on(&self, after: &str) -> Result<()> {
        self.rush.go_on(20)?;
        self.held.check(after)
    }

    /// Nothing failed; prints how much that was.
    pub fn finish(self, what: &str) -> Result<Rushed> {
        self.held.check(what)?;
        let rushed = self.rush.finish()?;
        rushed.print(what);
        Ok(rushed)
    }
}

/// Packets that the datapath dropped, by reason.
pub fn dropped(daemon: &Daemon) -> Result<Vec<(String, u64)>> {
    let dropped = daemon
        .metrics()?
        .by_label("evenkeel_verdicts_total", "reason", &[("verdict", "drop")]);
    let dropped = dropped.into_iter().map(|(reason, count)| (reason, count as u64));
    Ok(dropped.filter(|(_, count)| *count > 0).collect())
}

/// Endpoints as a file or a web server names them.
pub fn list(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    let entries: Vec<Value> = addresses
        .into_iter()
        .map(|address| json!({ "address": address }))
        .collect();
    json!({ "endpoints": entries }).to_string()
}

/// Replaces a file at once.
pub fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    Ok(fs::rename(&new, file)?)
}
