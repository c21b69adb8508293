//! Promise: the systemd unit in `deploy/` is right, confines the daemon as far as it says, and gives it all that it needs.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, binary, process::Process, within},
    traffic::{Client, Kind, Servers},
};

/// Tenths, as `systemd-analyze security` of systemd 252 counts: 0 is confined in every way, 100 in none.
const EXPOSURE: u32 = 22;

fn unit() -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/evenkeel.service");
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// What the unit says for a key, all lines together.
fn setting(unit: &str, key: &str) -> String {
    let start = format!("{key}=");
    let values: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix(&start))
        .collect();
    values.join(" ")
}

/// A unit in a directory of its own, which starts the daemon under test.
struct Unit {
    directory: tempfile::TempDir,
}

impl Unit {
    fn new(text: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let binary = binary::evenkeel()?;
        let text = text.replace("/usr/bin/evenkeel", &binary.display().to_string());
        fs::write(directory.path().join("evenkeel.service"), text)?;
        Ok(Self { directory })
    }

    fn analyze(&self, arguments: &[&str]) -> Result<Output> {
        Command::new("systemd-analyze")
            .args(arguments)
            .arg(self.path())
            .stdin(Stdio::null())
            .output()
            .context("starting systemd-analyze (package systemd)")
    }

    fn is_confined(&self) -> Result<(bool, String)> {
        let threshold = format!("--threshold={EXPOSURE}");
        let output = self.analyze(&["security", "--offline=true", "--no-pager", &threshold])?;
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let said = said.concat();
        ensure!(said.contains("Overall exposure level"), "{said}");
        Ok((output.status.success(), said))
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("evenkeel.service")
    }
}

#[test]
fn systemd_accepts_the_unit() -> Proof {
    let verify = |text: &str| -> Result<(bool, String)> {
        let output = Unit::new(text)?.analyze(&["verify", "--man=no"])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // What other units of this machine are warned of is none of our business.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("evenkeel")).collect();
        Ok((output.status.success() && ours.is_empty(), said))
    };
    let text = unit()?;
    let (accepted, said) = verify(&text)?;
    assert!(accepted, "{said}");
    // A key that systemd does not know would do nothing, unseen.
    let (accepted, said) = verify(&text.replace("BindPaths=", "BindPath="))?;
    assert!(!accepted && said.contains("BindPath"), "{said}");
    Ok(())
}

#[test]
fn the_unit_confines_the_daemon() -> Proof {
    let text = unit()?;
    let (confined, said) = Unit::new(&text)?.is_confined()?;
    assert!(confined, "{said}");
    for key in [
        "CapabilityBoundingSet",
        "SystemCallFilter",
        "RestrictNamespaces",
        "ProtectKernelTunables",
    ] {
        assert!(text.contains(&format!("\n{key}=")), "{key}");
        let without = text.replace(&format!("\n{key}="), "\n#");
        let (confined, said) = Unit::new(&without)?.is_confined()?;
        assert!(!confined, "without {key}:\n{said}");
    }
    Ok(())
}

/// Sources that are down at the start, or backends that do not pass yet, are waited for without end.
#[test]
fn a_start_that_waits_is_no_failure() -> Proof {
    let text = unit()?;
    assert_eq!(setting(&text, "Type"), "notify");
    assert_eq!(setting(&text, "TimeoutStartSec"), "infinity");
    Ok(())
}

#[test]
fn the_capabilities_of_the_unit_are_enough() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let service = Service::new("web", "tcp", VIP4, 80)
        .line("announce = \"address\"")
        .backends(&lab.backends);
    let daemon = Daemon::prepare(&lab.balancer, Config::new([service]))?;
    let unit = unit()?;
    let mut process = confined(&lab, &daemon, &unit)?;
    wait_ready(&daemon, &mut process)?;
    let spread = Client::new(&lab).many(Kind::Tcp, SocketAddr::new(VIP4, 80), 100)?;
    assert_eq!(spread.len(), 2, "{spread:?}");
    let wanted: BTreeSet<String> = capabilities(&unit).into_iter().collect();
    assert_eq!(held(process.id())?, wanted);
    daemon.ok(&["seeds", "rotate", "--all"])?;
    daemon.ok(&["backend", "drain", "web", &lab.backends[0].v4.to_string()])?;
    wait_self_checks(&daemon)?;
    assert!(has_vip(&lab)?, "it is not announced:\n{}", daemon.log());
    let status = daemon.json(&["status"])?;
    assert_eq!(status["ready"], true, "{status}");
    let log = daemon.log();
    let refused = log
        .lines()
        .find(|line| line.contains("not permitted") || line.contains("denied"));
    assert_eq!(refused, None);
    // The limit of open files that a process begins with is raised to the highest allowed.
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.id()))?;
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let files: Vec<&str> = files.context("no limit")?.split_whitespace().collect();
    assert_eq!(files[3..5], ["4096", "4096"], "{files:?}");
    Ok(())
}

/// One capability less than the unit gives, of those that the datapath needs, and it does not start.
#[test]
fn the_capabilities_of_the_unit_are_needed() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends);
    let daemon = Daemon::prepare(&lab.balancer, Config::new([service]))?;
    for needed in ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"] {
        let unit = unit()?;
        let fewer = unit.replace(&format!("{needed} "), "");
        assert!(capabilities(&fewer).len() < capabilities(&unit).len());
        let mut process = confined(&lab, &daemon, &fewer)?;
        within(Duration::from_secs(60), "it is refused", || {
            ensure!(
                !process.is_running(),
                "it runs without {needed}:\n{}",
                daemon.log()
            );
            Ok(())
        })?;
        let status = process.child().wait()?;
        assert!(!status.success(), "without {needed}");
        assert!(
            daemon.log().contains(&format!("{needed} missing")),
            "{needed}: {}",
            daemon.log()
        );
    }
    Ok(())
}

/// `evenkeel run` as root with the capabilities of the unit, without new privileges and with few open files.
fn confined(lab: &Lab, daemon: &Daemon, unit: &str) -> Result<Process> {
    let kept: Vec<String> = capabilities(unit).iter().map(|name| format!("+{name}")).collect();
    let run = daemon.run_command()?;
    let log = File::options()
        .create(true)
        .append(true)
        .open(daemon.directory().join("log"))?;
    let mut command = lab.balancer.command("prlimit")?;
    command
        .args(["--nofile=1024:4096", "setpriv", "--no-new-privs"])
        .args(["--inh-caps", "-all"])
        .args(["--bounding-set", &format!("-all,{}", kept.join(","))])
        .arg(run.get_program())
        .args(run.get_args())
        .env("EVENKEEL_LOG", "info")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let child = command.spawn().context("starting prlimit (package util-linux)")?;
    Ok(Process::new(child))
}

/// Names as setpriv(1) has them.
fn capabilities(unit: &str) -> Vec<String> {
    setting(unit, "CapabilityBoundingSet")
        .split_whitespace()
        .map(|name| name.trim_start_matches("CAP_").to_ascii_lowercase())
        .collect()
}

/// Effective capabilities of a process.
fn held(pid: u32) -> Result<BTreeSet<String>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = u64::from_str_radix(line.context("no CapEff")?.trim(), 16)?;
    // As in linux/capability.h.
    let numbers = [(0, "chown"), (12, "net_admin"), (38, "perfmon"), (39, "bpf")];
    let known = numbers.iter().fold(0u64, |known, (bit, _)| known | 1 << bit);
    ensure!(bits & !known == 0, "more than expected: {bits:#x}");
    let held = numbers.iter().filter(|(bit, _)| bits & (1 << bit) != 0);
    Ok(held.map(|(_, name)| (*name).to_owned()).collect())
}

fn wait_ready(daemon: &Daemon, process: &mut Process) -> Result<()> {
    within(Duration::from_secs(60), "it is ready", || {
        ensure!(process.is_running(), "it ended:\n{}", daemon.log());
        let (code, body) = daemon.http("/readyz")?;
        ensure!(code == 200, "{code} {body}");
        let services = daemon.json(&["services"])?;
        ensure!(services[0]["unresolved"] == 0, "{services}");
        Ok(())
    })
}

/// Seeds and slots were read back, and the hash was asked for known answers on every CPU: which needs the right to run the
/// program.
fn wait_self_checks(daemon: &Daemon) -> Result<()> {
    within(Duration::from_secs(60), "self-checks pass", || {
        let metrics = daemon.metrics()?;
        let failed = metrics.sum("evenkeel_skew_self_check_failed", &[])?;
        let made = metrics.sum("evenkeel_skew_self_checks_total", &[("result", "ok")])?;
        ensure!(failed == 0.0 && made > 0.0, "{failed} fail, {made} passed");
        Ok(())
    })
}

fn has_vip(lab: &Lab) -> Result<bool> {
    let mut ip = lab.balancer.command("ip")?;
    let output = ip.args(["-json", "address", "show", "dev", "lo"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).contains(&format!("\"{VIP4}\"")))
}
