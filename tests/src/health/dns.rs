//! Debian's dnsmasq on loopback, as a server that speaks UDP.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::lab::{process::Process, within};

const ATTEMPTS: usize = 5;

/// A question for the address of `ok.health.test`, with recursion desired (RFC 1035, section 4.1).
pub const QUESTION: &str = "ek\u{1}\0\0\u{1}\0\0\0\0\0\0\u{2}ok\u{6}health\u{4}test\0\0\u{1}\0\u{1}";
/// The address in its answer, and the length before it.
pub const ANSWER: &str = "\0\u{4}\u{7f}\u{1}\u{2}\u{3}";

/// Answers for `ok.health.test` with 127.1.2.3 and for nothing else. Stopped on drop.
pub struct Dnsmasq {
    _process: Process,
    pub address: SocketAddr,
}

impl Dnsmasq {
    pub fn start() -> Result<Self> {
        for _ in 1..ATTEMPTS {
            if let Ok(server) = Self::attempt() {
                return Ok(server);
            }
        }
        Self::attempt()
    }

    fn attempt() -> Result<Self> {
        let address = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let child = Command::new("/usr/sbin/dnsmasq")
            .args([
                "--no-daemon",
                "--conf-file=/dev/null",
                "--pid-file",
                "--user=root",
            ])
            .args(["--no-resolv", "--no-hosts", "--bind-interfaces"])
            .args([
                "--listen-address=127.0.0.1",
                "--address=/ok.health.test/127.1.2.3",
            ])
            .arg(format!("--port={}", address.port()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting dnsmasq (package dnsmasq-base)")?;
        let mut process = Process::new(child);
        // It listens by TCP on the same port.
        within(Duration::from_secs(20), "dnsmasq answers", || {
            let listens = TcpStream::connect(address);
            if process.is_running() {
                listens.map(drop)?
            }
            Ok(())
        })?;
        if !process.is_running() {
            bail!("dnsmasq ended at once");
        }
        Ok(Self {
            _process: process,
            address,
        })
    }
}
