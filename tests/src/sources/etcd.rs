//! Debian's etcd on loopback, written to through its own JSON gateway.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::port;
use crate::lab::{netns::unique, process::Process, within};

/// One member that is a cluster of its own.
pub struct Etcd {
    // Stopped before its directory goes.
    process: Option<Process>,
    directory: TempDir,
    client: SocketAddr,
    peer: SocketAddr,
    /// Of a user, once there are users.
    token: Option<String>,
}

impl Etcd {
    pub fn start() -> Result<Self> {
        port::on_free_port(|client| {
            let mut etcd = Self {
                process: None,
                directory: directory()?,
                client,
                peer: port::free()?,
                token: None,
            };
            etcd.restart()?;
            Ok(etcd)
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("etcd was killed")?.signal(signal)
    }

    /// Starts it again with what it has on disk, on the same ports.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let (client, peer) = (self.url(), format!("http://{}", self.peer));
        let child = Command::new("etcd")
            .args(["--name", "one", "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.directory.path())
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting etcd (package etcd-server)")?;
        let process = self.process.insert(Process::new(child));
        let health = format!("{client}/health");
        within(Duration::from_secs(30), "etcd is healthy", || {
            ensure!(process.is_running(), "etcd has ended");
            let said = curl(&[&health])?;
            ensure!(said["health"] == "true", "it says {said}");
            Ok(())
        })
    }

    /// Runs it on another port meanwhile, where nobody follows it.
    pub fn elsewhere(&mut self, change: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let here = std::mem::replace(&mut self.client, port::free()?);
        self.restart()?;
        change(self)?;
        self.client = here;
        self.restart()
    }

    /// Loses all it has and starts again.
    pub fn lose_everything(&mut self) -> Result<()> {
        self.kill()?;
        self.directory = directory()?;
        self.restart()
    }

    pub fn put(&self, key: &str, value: &str) -> Result<i64> {
        let put = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)});
        revision(&self.ask("kv/put", &put)?)
    }

    pub fn delete(&self, key: &str) -> Result<i64> {
        revision(&self.ask("kv/deleterange", &json!({"key": STANDARD.encode(key)}))?)
    }

    /// Deletes a key with as little delay as can be, for those who measure: when etcd was asked, and when it had answered.
    pub fn delete_timed(&self, key: &str) -> Result<(Instant, Instant)> {
        let body = json!({"key": STANDARD.encode(key)}).to_string();
        let mut stream = TcpStream::connect(self.client)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let request = format!(
            "POST /v3/kv/deleterange HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.client,
            body.len()
        );
        let asked = Instant::now();
        stream.write_all(request.as_bytes())?;
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer)?;
        let answered = Instant::now();
        let answer = String::from_utf8_lossy(&answer[..length]);
        ensure!(answer.starts_with("HTTP/1.1 200 "), "etcd says {answer}");
        Ok((asked, answered))
    }

    /// Puts several keys in one transaction, one revision for all.
    pub fn put_together(&self, keys: &[String]) -> Result<i64> {
        let puts: Vec<_> = keys
            .iter()
            .map(|key| json!({"request_put": {"key": STANDARD.encode(key)}}))
            .collect();
        revision(&self.ask("kv/txn", &json!({"success": puts}))?)
    }

    /// Forgets all older revisions.
    pub fn compact(&self, revision: i64) -> Result<()> {
        let compact = json!({"revision": revision.to_string(), "physical": true});
        self.ask("kv/compaction", &compact).map(drop)
    }

    /// From now on only `root` with this password may read or write.
    pub fn protect(&mut self, password: &str) -> Result<()> {
        let root = json!({"name": "root", "password": password});
        self.ask("auth/user/add", &root)?;
        self.ask("auth/role/add", &json!({"name": "root"}))?;
        self.ask("auth/user/grant", &json!({"user": "root", "role": "root"}))?;
        self.ask("auth/enable", &json!({}))?;
        let token = self.ask("auth/authenticate", &root)?["token"].clone();
        self.token = Some(token.as_str().context("a token is text")?.to_owned());
        Ok(())
    }

    fn ask(&self, what: &str, asked: &Value) -> Result<Value> {
        let authorization = format!("Authorization: {}", self.token.as_deref().unwrap_or_default());
        let (url, asked) = (format!("{}/v3/{what}", self.url()), asked.to_string());
        curl(&["--header", &authorization, "--data", &asked, &url])
    }
}

fn directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new()
        .prefix(&format!("{}-etcd-", unique()))
        .tempdir()?)
}

fn revision(answer: &Value) -> Result<i64> {
    let revision = answer["header"]["revision"].as_str();
    Ok(revision.context("an answer has a revision")?.parse()?)
}

fn curl(arguments: &[&str]) -> Result<Value> {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--max-time", "10"])
        .args(["--noproxy", "*"])
        .args(arguments)
        .output()
        .context("starting curl (package curl)")?;
    ensure!(
        output.status.success(),
        "curl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}
