//! Promise: whatever is wrong is refused with an error that names the object and the next step, and nothing is half done.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, Xdp, binary, netns::unique},
};

const FAILED: i32 = 1;

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|stream| String::from_utf8_lossy(stream))
        .join("")
}

/// A refusal with the exit code of one, and each of these parts in its message.
fn refused(output: &Output, parts: &[&str]) -> Result<String> {
    let said = text(output);
    ensure!(
        output.status.code() == Some(FAILED),
        "ended with {}:\n{said}",
        output.status
    );
    ensure!(!said.contains("panicked"), "{said}");
    for part in parts {
        ensure!(said.contains(part), "does not say {part:?}:\n{said}");
    }
    Ok(said)
}

const DATAPATH: &str = "[datapath]\ninterfaces = [\"eth0\"]\n";
const SERVICE: &str = "[[service]]\nname = \"web\"\nvip = \"198.18.0.1\"\nport = 80\nprotocol = \"tcp\"\n";
const BACKEND: &str = "[[service.backend]]\naddress = \"10.2.0.21\"\n";

/// What is wrong, the file after `[datapath]`, and parts of the message: the line and the object.
const TABLE: &[(&str, &str, &[&str])] = &[
    ("an unknown section", "[colours]\nred = 1\n", &[":3:", "colours"]),
    (
        "an unknown key of a section",
        "[metrics]\ncolour = \"red\"\n",
        &[":4:", "colour"],
    ),
    (
        "an unknown key of a service",
        "SERVICE colour = \"red\"\n",
        &[":8:", "colour"],
    ),
    (
        "an unknown key of a backend",
        "SERVICE BACKEND colour = \"red\"\n",
        &[":10:", "colour"],
    ),
    ("no TOML at all", "services: [web]\n", &[":3:"]),
    (
        "a string that does not end",
        "[metrics]\nlisten = \"off\n",
        &[":4:"],
    ),
    (
        "a service without a VIP",
        "[[service]]\nname = \"web\"\nport = 80\nprotocol = \"tcp\"\n",
        &[":3:", "vip"],
    ),
    (
        "a VIP that is no address",
        "[[service]]\nname = \"web\"\nvip = \"198.18.0\"\n",
        &[":5:", "web", "address"],
    ),
    (
        "port 0",
        "[[service]]\nname = \"web\"\nvip = \"198.18.0.1\"\nport = 0\nprotocol = \"tcp\"\n",
        &[":6:", "port = 0"],
    ),
    (
        "port 65536",
        "[[service]]\nname = \"web\"\nvip = \"198.18.0.1\"\nport = 65536\nprotocol = \"tcp\"\n",
        &[":6:", "65536"],
    ),
    (
        "an unknown protocol",
        "[[service]]\nname = \"web\"\nvip = \"198.18.0.1\"\nport = 8\nprotocol = \"ip\"\n",
        &[":7:", "web", "\"tcp\""],
    ),
    (
        "an unknown mode",
        "SERVICE mode = \"nat\"\n",
        &[":8:", "web", "\"ipip\""],
    ),
    ("two services of one name", "SERVICE SERVICE", &["web"]),
    (
        "two services of one VIP, port and protocol",
        "SERVICE [[service]]\nname = \"twin\"\nvip = \"198.18.0.1\"\nport = 80\nprotocol = \"tcp\"\n",
        &["twin", "web", "198.18.0.1"],
    ),
    ("a backend twice", "SERVICE BACKEND BACKEND", &["10.2.0.21"]),
    (
        "weight 0",
        "SERVICE BACKEND weight = 0\n",
        &["weight", "10.2.0.21"],
    ),
    (
        "a weight above 65535",
        "SERVICE BACKEND weight = 65536\n",
        &["weight", "10.2.0.21"],
    ),
    (
        "a weight that overflows",
        "SERVICE BACKEND weight = 99999999999\n",
        &[":10:", "web"],
    ),
    (
        "a negative weight",
        "SERVICE BACKEND weight = -1\n",
        &[":10:", "web"],
    ),
    (
        "a backend that is the VIP",
        "SERVICE [[service.backend]]\naddress = \"198.18.0.1\"\n",
        &["198.18.0.1"],
    ),
    (
        "a backend of the other family in dsr",
        "SERVICE [[service.backend]]\naddress = \"fd00:2::21\"\n",
        &["fd00:2::21"],
    ),
    (
        "a loopback VIP",
        "[[service]]\nname = \"web\"\nvip = \"127.0.0.1\"\nport = 80\nprotocol = \"tcp\"\n",
        &["127.0.0.1"],
    ),
    (
        "a multicast backend",
        "SERVICE [[service.backend]]\naddress = \"224.0.0.1\"\n",
        &["224.0.0.1"],
    ),
    (
        "an unspecified backend",
        "SERVICE [[service.backend]]\naddress = \"0.0.0.0\"\n",
        &["0.0.0.0"],
    ),
    (
        "a time without a unit",
        "SERVICE udp_idle = \"30\"\n",
        &[":8:", "30s"],
    ),
    ("a jitter above 1", "[seeds]\njitter = 1.5\n", &[":4:", "jitter"]),
    (
        "a metrics address without a port",
        "[metrics]\nlisten = \"127.0.0.1\"\n",
        &[":4:", "127.0.0.1"],
    ),
    (
        "slots too few for the weights",
        "SERVICE slots = 3\nBACKEND weight = 60000\n[[service.backend]]\naddress = \"10.2.0.22\"\n",
        &["slots"],
    ),
];

#[test]
fn a_wrong_file_is_refused_line_by_line() -> Proof {
    let directory = tempfile::Builder::new()
        .prefix(&format!("{}-", unique()))
        .tempdir()?;
    let check = |text: &str| -> Result<Output> {
        let file = directory.path().join("evenkeel.toml");
        fs::write(&file, text)?;
        Ok(Command::new(binary::evenkeel()?)
            .arg("check")
            .arg(&file)
            .output()?)
    };
    let right = format!("{DATAPATH}{SERVICE}{BACKEND}");
    let output = check(&right)?;
    assert!(output.status.success(), "{}", text(&output));

    let mut wrong = Vec::new();
    for (what, rest, parts) in TABLE {
        let rest = rest.replace("SERVICE ", SERVICE).replace("SERVICE", SERVICE);
        let rest = rest.replace("BACKEND ", BACKEND).replace("BACKEND", BACKEND);
        let output = check(&format!("{DATAPATH}{rest}"))?;
        if let Err(error) = refused(&output, parts) {
            wrong.push(format!("{what}: {error:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let missing = Command::new(binary::evenkeel()?)
        .args(["check", "/nonexistent.toml"])
        .output()?;
    refused(&missing, &["/nonexistent.toml"])?;
    let several = check(&format!(
        "{DATAPATH}{SERVICE}{BACKEND}weight = 0\n[[service.backend]]\naddress = \"198.18.0.1\"\n"
    ))?;
    refused(&several, &["weight", "backend 198.18.0.1"])?;
    Ok(())
}

fn web(lab: &Lab) -> Service {
    Service::new("web", "tcp", VIP4, 80).backends(&lab.backends)
}

/// Whether an XDP program is on an interface, by its id.
fn program_on(lab: &Lab, interface: &str) -> Result<Option<u64>> {
    let output = lab
        .balancer
        .command("ip")?
        .args(["-json", "link", "show", "dev", interface])
        .output()?;
    let links: Value = serde_json::from_slice(&output.stdout)?;
    Ok(links[0]["xdp"]["prog"]["id"].as_u64())
}

/// The daemon refuses to run, says these parts, and leaves neither a program nor pins.
fn run_refused(lab: &Lab, daemon: &Daemon, parts: &[&str]) -> Proof {
    refused(&daemon.run_to_end()?, parts)?;
    assert_eq!(program_on(lab, "eth0")?, None, "attached although refused");
    assert!(!daemon.pins().exists(), "{} was left", daemon.pins().display());
    Ok(())
}

#[test]
fn a_host_that_does_not_fit_is_refused() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let missing = Daemon::prepare(
        &lab.balancer,
        Config::new([web(&lab)]).interfaces(&["eth0", "eth7"]),
    )?;
    run_refused(&lab, &missing, &["eth7"])?;

    let own = Service::new("web", "tcp", VIP4, 80).backend("10.2.0.10".parse()?, 1);
    run_refused(
        &lab,
        &Daemon::prepare(&lab.balancer, Config::new([own]))?,
        &["10.2.0.10", "web"],
    )?;

    let mut elsewhere = Daemon::prepare(&lab.balancer, Config::new([web(&lab)]))?;
    let directory = elsewhere.directory().join("pins");
    elsewhere.set_pins(directory)?;
    refused(&elsewhere.run_to_end()?, &["pins", "bpf", "mount"])?;
    assert_eq!(program_on(&lab, "eth0")?, None);
    Ok(())
}

#[test]
fn loopback_cannot_run_the_program_natively_and_says_so() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let mut config = Config::new([web(&lab)]).interfaces(&["lo"]);
    config.datapath.push("xdp_mode = \"native\"".to_owned());
    let native = Daemon::prepare(&lab.balancer, config)?;
    refused(&native.run_to_end()?, &["lo"])?;
    assert_eq!(program_on(&lab, "lo")?, None);
    Ok(())
}

#[test]
fn too_little_privilege_is_said() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let daemon = Daemon::prepare(&lab.balancer, Config::new([web(&lab)]))?;
    let directory = daemon.directory().to_owned();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
    let copy = directory.join("evenkeel");
    fs::copy(binary::evenkeel()?, &copy)?;
    let config = daemon.config_path();
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let output = privileged(&lab, &nobody, &copy, &config)?;
    refused(&output, &["CAP_BPF"])?;
    let without_net = ["--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    let output = privileged(&lab, &without_net, &copy, &config)?;
    refused(&output, &["CAP_NET_ADMIN"])?;
    assert_eq!(program_on(&lab, "eth0")?, None);
    Ok(())
}

fn privileged(lab: &Lab, switches: &[&str], binary: &PathBuf, config: &Path) -> Result<Output> {
    let mut command = lab.balancer.command("setpriv")?;
    command
        .args(switches)
        .arg(binary)
        .args(["run", "--config"])
        .arg(config);
    command.output().context("starting setpriv (package util-linux)")
}

#[test]
fn a_foreign_program_is_never_replaced_silently() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let mut daemon = Daemon::prepare(
        &lab.balancer,
        Config::new([web(&lab)]).interfaces(&["eth1", "eth0"]),
    )?;
    let stranger = Xdp::pass(&lab.balancer, "eth0")?;
    let id = program_on(&lab, "eth0")?;
    assert!(id.is_some());
    refused(&daemon.run_to_end()?, &["eth0", "replace"])?;
    assert_eq!(program_on(&lab, "eth0")?, id, "the stranger was replaced");
    assert_eq!(
        program_on(&lab, "eth1")?,
        None,
        "attached to one interface although refused at the other"
    );
    drop(stranger);
    daemon.launch()?;
    daemon.wait_ready()?;
    assert!(program_on(&lab, "eth0")?.is_some());
    Ok(())
}

#[test]
fn replace_takes_the_place_of_what_netlink_attached_and_nothing_else() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let mut config = Config::new([web(&lab)]);
    config.datapath.push("replace = true".to_owned());
    let mut daemon = Daemon::prepare(&lab.balancer, config)?;
    let held = Xdp::pass(&lab.balancer, "eth0")?;
    let id = program_on(&lab, "eth0")?;
    refused(&daemon.run_to_end()?, &["eth0", "link"])?;
    assert_eq!(
        program_on(&lab, "eth0")?,
        id,
        "a program held by a link was replaced"
    );
    drop(held);

    Xdp::leave(&lab.balancer, "eth0")?;
    let id = program_on(&lab, "eth0")?;
    assert!(id.is_some());
    daemon.launch()?;
    daemon.wait_ready()?;
    assert_ne!(program_on(&lab, "eth0")?, id);
    Ok(())
}

#[test]
fn exhausted_capacity_is_refused_and_what_runs_goes_on() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let mut config = Config::new([web(&lab)]);
    config.datapath = [
        "max_flows = 1024",
        "max_services = 2",
        "max_backends = 4",
        "max_slots = 4096",
    ]
    .map(str::to_owned)
    .to_vec();
    let daemon = Daemon::start(&lab.balancer, config)?;
    let run = |arguments: &[&str]| daemon.cli(arguments);
    let add = |name: &str, port: &str| {
        run(&[
            "service",
            "add",
            name,
            "--vip",
            "198.18.0.1",
            "--port",
            port,
            "--protocol",
            "udp",
        ])
    };
    assert!(add("second", "1")?.status.success());
    refused(&add("third", "2")?, &["max_services", "2"])?;

    for last in [31, 32] {
        assert!(
            run(&["backend", "add", "second", &format!("10.2.0.{last}")])?
                .status
                .success()
        );
    }
    refused(
        &run(&["backend", "add", "second", "10.2.0.33"])?,
        &["max_backends", "4"],
    )?;
    refused(
        &run(&["service", "set", "web", "--slots", "100003"])?,
        &["max_slots", "4096"],
    )?;

    let services = daemon.json(&["services"])?;
    assert_eq!(services.as_array().map(Vec::len), Some(2));
    assert_eq!(daemon.json(&["backends"])?.as_array().map(Vec::len), Some(4));
    assert_eq!(daemon.json(&["plan"])?["steps"], 0, "something was half applied");
    Ok(())
}
