//! A running `evenkeel` in the balancer's namespace, with everything about it unique and taken away on drop.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    Config, Netns, binary, config::METRICS, netns::unique, process::Process, sweep::BPFFS, wait::within,
};
use crate::traffic::metrics::Metrics;

/// An unoptimised daemon under emulation needs half a minute.
const START: Duration = Duration::from_secs(60);
const LOG_TAIL: usize = 6000;

/// The daemon, its directories and its pins.
pub struct Daemon {
    netns: Netns,
    binary: PathBuf,
    process: Option<Process>,
    directory: TempDir,
    pins: PathBuf,
    pub config: Config,
}

impl Daemon {
    /// Starts and waits until it is ready and every backend has a next hop.
    pub fn start(netns: &Netns, config: Config) -> Result<Self> {
        let mut daemon = Self::prepare(netns, config)?;
        daemon.launch()?;
        daemon.wait_ready()?;
        Ok(daemon)
    }

    /// Directories and configuration, no process yet.
    pub fn prepare(netns: &Netns, config: Config) -> Result<Self> {
        let name = unique();
        let directory = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir()?;
        let daemon = Self {
            netns: netns.clone(),
            binary: binary::evenkeel()?,
            process: None,
            directory,
            pins: Path::new(BPFFS).join(name),
            config,
        };
        daemon.write_config()?;
        Ok(daemon)
    }

    /// Starts the process and does not wait for anything.
    pub fn launch(&mut self) -> Result<()> {
        let child = self.run_command()?.spawn().context("starting evenkeel")?;
        self.process = Some(Process::new(child));
        Ok(())
    }

    /// Runs `evenkeel run` to its end, for a start that must be refused.
    pub fn run_to_end(&self) -> Result<Output> {
        let mut process = Process::new(self.run_command()?.spawn().context("starting evenkeel")?);
        within(START, "evenkeel ends", || match process.child().try_wait()? {
            Some(_) => Ok(()),
            None => bail!("it runs"),
        })?;
        let status = process.child().wait()?;
        Ok(Output {
            status,
            stdout: Vec::new(),
            stderr: self.log().into_bytes(),
        })
    }

    /// `evenkeel run` with the log in a file.
    pub fn run_command(&self) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = self.netns.command(&self.binary)?;
        command
            .args(["run", "--config"])
            .arg(self.config_path())
            .env("EVENKEEL_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(command)
    }

    /// Waits until the daemon says it is ready and no wanted backend lacks a next hop.
    pub fn wait_ready(&mut self) -> Result<()> {
        within(START, "evenkeel is ready", || {
            ensure!(self.is_running(), "it ended:\n{}", self.log_tail());
            let (code, body) = self.http("/readyz")?;
            ensure!(code == 200, "{code} {body}");
            for service in self.json(&["services"])?.as_array().context("a list")? {
                ensure!(service["unresolved"] == 0, "{service}");
            }
            Ok(())
        })
    }

    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_running)
    }

    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process
            .as_ref()
            .context("the daemon is not running")?
            .signal(signal)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("the daemon is not running")?.kill()
    }

    /// SIGTERM; it must end by itself, without an error.
    pub fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the daemon is not running")?;
        let status = process.stop(Duration::from_secs(10))?;
        let status = status.context("SIGTERM did not end the daemon within ten seconds")?;
        ensure!(status.success(), "the daemon ended with {status}");
        Ok(())
    }

    /// Stops, and starts again with the same directories.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.launch()?;
        self.wait_ready()
    }

    /// Runs a command against this daemon.
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        self.cli_command(arguments)?.output().context("starting evenkeel")
    }

    pub fn cli_command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.netns.command(&self.binary)?;
        command
            .args(arguments)
            .env("EVENKEEL_SOCKET", self.socket())
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a command that must succeed; gives back what it printed.
    pub fn ok(&self, arguments: &[&str]) -> Result<String> {
        let output = self.cli(arguments)?;
        ensure!(
            output.status.success(),
            "evenkeel {}: {}\n{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a command that must succeed with `--json`.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = arguments.to_vec();
        all.push("--json");
        let text = self.ok(&all)?;
        serde_json::from_str(&text).with_context(|| format!("{} printed {text}", all.join(" ")))
    }

    /// The metrics now.
    pub fn metrics(&self) -> Result<Metrics> {
        let (code, body) = self.http("/metrics")?;
        ensure!(code == 200, "/metrics answered {code}: {body}");
        Metrics::parse(&body)
    }

    /// Status code and body of a page of the metrics server.
    pub fn http(&self, page: &str) -> Result<(u16, String)> {
        let address: SocketAddr = METRICS.parse()?;
        self.netns.run(|| get(address, page))
    }

    /// Writes the configuration file again, after a change of [`config`](Self::config).
    pub fn write_config(&self) -> Result<()> {
        Ok(fs::write(
            self.config_path(),
            self.config.text(self.directory(), &self.pins),
        )?)
    }

    pub fn config_path(&self) -> PathBuf {
        self.directory().join("evenkeel.toml")
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.directory().join("api.sock")
    }

    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// For a daemon whose pins belong elsewhere; takes effect with the next start.
    pub fn set_pins(&mut self, pins: PathBuf) -> Result<()> {
        self.pins = pins;
        self.write_config()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.directory().join("log")
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let mut start = log.len().saturating_sub(LOG_TAIL);
        while !log.is_char_boundary(start) {
            start += 1;
        }
        log[start..].to_owned()
    }

    fn print_diagnosis(&self) {
        for arguments in [&["status"][..], &["backends"]] {
            match self.cli(arguments) {
                Ok(output) => eprintln!(
                    "--- evenkeel {}\n{}{}",
                    arguments.join(" "),
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                ),
                Err(error) => eprintln!("--- evenkeel {}: {error:#}", arguments.join(" ")),
            }
        }
        if let Ok(metrics) = self.metrics() {
            eprintln!("--- verdicts and events\n{}", metrics.moved());
        }
        eprintln!("--- log\n{}", self.log_tail());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_diagnosis();
        }
        self.process = None;
        let _ = Command::new(&self.binary)
            .arg("detach")
            .arg("--pin-directory")
            .arg(&self.pins)
            .output();
        let _ = fs::remove_dir_all(&self.pins);
    }
}

fn get(address: SocketAddr, page: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET {page} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let code = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((code, body.to_owned()))
}
