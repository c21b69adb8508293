//! Debian's dnsmasq on loopback, with records of the tests' own.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use super::port;
use crate::lab::{netns::unique, process::Process, within};

/// Answers for `example.` from its records, and for nothing else.
pub struct Dnsmasq {
    // Stopped before its directory goes.
    process: Option<Process>,
    directory: TempDir,
    pub address: SocketAddr,
    options: Vec<String>,
}

impl Dnsmasq {
    /// With addresses as in `/etc/hosts` and further options, such as `--srv-host=…`. Records live for a second.
    pub fn start(hosts: &str, options: &[&str]) -> Result<Self> {
        port::on_free_port(|address| {
            let directory = tempfile::Builder::new()
                .prefix(&format!("{}-dns-", unique()))
                .tempdir()?;
            let mut server = Self {
                process: None,
                directory,
                address,
                options: options.iter().map(|option| (*option).to_owned()).collect(),
            };
            fs::write(server.hosts(), hosts)?;
            server.restart()?;
            Ok(server)
        })
    }

    /// Replaces the addresses.
    pub fn set(&self, hosts: &str) -> Result<()> {
        fs::write(self.hosts(), hosts)?;
        let process = self.process.as_ref().context("dnsmasq was killed")?;
        process.signal(Signal::HUP)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Loses all its addresses and comes back with these.
    pub fn restart_with(&mut self, hosts: &str) -> Result<()> {
        self.kill()?;
        fs::write(self.hosts(), hosts)?;
        self.restart()
    }

    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let child = Command::new("dnsmasq")
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--no-resolv",
                "--no-hosts",
            ])
            .args(["--user=root", "--bind-interfaces", "--local=/example/"])
            .args(["--local-ttl=1", "--listen-address=127.0.0.1"])
            .arg(format!("--port={}", self.address.port()))
            .arg(format!("--addn-hosts={}", self.hosts().display()))
            .arg(format!(
                "--pid-file={}",
                self.directory.path().join("pid").display()
            ))
            .args(&self.options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting dnsmasq (package dnsmasq-base)")?;
        let process = self.process.insert(Process::new(child));
        within(Duration::from_secs(10), "dnsmasq listens", || {
            ensure!(process.is_running(), "dnsmasq has ended");
            Ok(TcpStream::connect(self.address).map(drop)?)
        })
    }

    fn hosts(&self) -> PathBuf {
        self.directory.path().join("hosts")
    }
}
