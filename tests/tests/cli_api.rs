//! Promise: the command line and the interface behind it say and do what they should to a running daemon.

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    process::{Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, VIP6, eventually},
    traffic::{Client, LongLived, Servers},
};

const OK: i32 = 0;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;
const CONFLICT: i32 = 4;
const DEADLINE: i32 = 5;
const FORBIDDEN: i32 = 6;
const NOT_FOUND: i32 = 7;
const EXISTS: i32 = 8;

fn start(lab: &Lab) -> Result<Daemon> {
    let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends[..2]);
    Daemon::start(&lab.balancer, Config::new([service]))
}

/// Runs a command and checks its exit code; what it said on either stream.
fn run(daemon: &Daemon, arguments: &[&str], code: i32) -> Result<String> {
    said(&daemon.cli(arguments)?, arguments, code)
}

fn said(output: &Output, arguments: &[&str], code: i32) -> Result<String> {
    let text = [&output.stdout, &output.stderr]
        .map(|stream| String::from_utf8_lossy(stream))
        .join("");
    ensure!(
        output.status.code() == Some(code),
        "{arguments:?} ended with {}:\n{text}",
        output.status
    );
    Ok(text)
}

fn find<'a>(list: &'a Value, key: &str, value: &str) -> Result<&'a Value> {
    let items = list.as_array().with_context(|| format!("{list} is no list"))?;
    items
        .iter()
        .find(|item| item[key] == value)
        .with_context(|| format!("no {key} {value} in {list}"))
}

#[test]
fn every_noun_reads_as_text_and_as_json() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let daemon = start(&lab)?;
    let _flows = LongLived::open(&Client::new(&lab), SocketAddr::new(VIP4, 80), 10)?;
    let addresses = [0, 1].map(|index| lab.backends[index].v4.to_string());

    let status = daemon.json(&["status"])?;
    assert_eq!(status["ready"], true);
    assert_eq!(status["pid"].as_u64(), daemon.pid().map(u64::from));
    assert!(run(&daemon, &["status"], OK)?.contains("READY"));

    let services = daemon.json(&["services"])?;
    let web = find(&services, "name", "web")?;
    assert_eq!(
        (web["vip"].as_str(), web["port"].as_u64()),
        (Some("198.18.0.1"), Some(80))
    );
    assert_eq!(web["serving"], 2);
    assert!(run(&daemon, &["services"], OK)?.contains("198.18.0.1"));

    let backends = daemon.json(&["backends", "web"])?;
    for address in &addresses {
        let backend = find(&backends, "address", address)?;
        let share = backend["expected_share"].as_f64().context("a share")?;
        assert!((share - 0.5).abs() < 0.01, "{share}");
        assert!(!backend["next_hop"].is_null());
        assert!(run(&daemon, &["backends"], OK)?.contains(address.as_str()));
    }
    assert_eq!(backends.as_array().map(Vec::len), Some(2));

    let seeds = daemon.json(&["seeds"])?;
    let cpus = std::thread::available_parallelism()?.get();
    assert!(
        seeds.as_array().is_some_and(|seeds| seeds.len() > cpus),
        "one a CPU and the shared one"
    );
    assert!(run(&daemon, &["seeds"], OK)?.contains("cpu 0"));

    let flows = daemon.json(&["flows", "--list"])?;
    let established: u64 = flows["counts"]
        .as_array()
        .context("counts")?
        .iter()
        .map(|count| count["established"].as_u64().unwrap_or(0))
        .sum();
    assert_eq!(established, 10, "{flows}");
    assert_eq!(flows["flows"].as_array().map(Vec::len), Some(10));
    run(&daemon, &["flows"], OK)?;

    let events = daemon.json(&["events"])?;
    assert!(events.as_array().is_some_and(|events| !events.is_empty()));
    run(&daemon, &["events"], OK)?;

    assert_eq!(daemon.json(&["plan"])?["steps"], 0, "nothing is left to do");
    run(&daemon, &["plan"], OK)?;
    Ok(())
}

#[test]
fn explain_says_what_really_happens() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let daemon = start(&lab)?;
    let client = Client::new(&lab);
    for _ in 0..8 {
        let stream = client.connect(SocketAddr::new(VIP4, 80))?;
        let name = tests::traffic::client::line(&stream, "who")?;
        let from = stream.local_addr()?.to_string();
        let explained = daemon.json(&["explain", "tcp", &from, "198.18.0.1:80"])?;
        let owner = lab
            .backends
            .iter()
            .find(|backend| backend.name == name)
            .context("a backend")?;
        for answer in explained["answers"].as_array().context("answers")? {
            assert_eq!(
                (answer["verdict"].as_str(), answer["reason"].as_str()),
                (Some("forward"), Some("dsr"))
            );
            assert_eq!(
                answer["backend"].as_str(),
                Some(owner.v4.to_string().as_str()),
                "{explained}"
            );
        }
    }
    let foreign = daemon.json(&["explain", "udp", "10.1.0.2:5000", "198.18.0.1:53"])?;
    assert_eq!(foreign["answers"][0]["verdict"], "pass", "{foreign}");
    let text = run(
        &daemon,
        &["explain", "tcp", "10.1.0.2:5000", "198.18.0.1:80", "--syn"],
        OK,
    )?;
    assert!(text.contains("forward"), "{text}");
    run(&daemon, &["explain", "tcp", "10.1.0.2", "198.18.0.1:80"], USAGE)?;
    Ok(())
}

#[test]
fn verbs_change_the_datapath_and_survive_a_restart() -> Proof {
    let mut lab = Lab::new(&[Place::Front, Place::Front])?;
    lab.add_backend(Place::Side)?;
    let _servers = Servers::start(&lab, 80)?;
    let mut daemon = start(&lab)?;
    let client = Client::new(&lab);
    let [b0, b1, b2] = [0, 1, 2].map(|index| lab.backends[index].v4.to_string());

    daemon.ok(&[
        "service",
        "add",
        "dns",
        "--vip",
        &VIP4.to_string(),
        "--port",
        "80",
        "--protocol",
        "udp",
    ])?;
    daemon.ok(&["backend", "add", "dns", &b2, "--weight", "3"])?;
    eventually("the new service answers", || {
        client.udp(SocketAddr::new(VIP4, 80)).is_ok()
    })?;
    daemon.ok(&[
        "service",
        "set",
        "dns",
        "--selection",
        "fleet",
        "--udp-idle",
        "30s",
    ])?;
    daemon.ok(&["backend", "add", "web", &b2])?;
    daemon.ok(&["backend", "set", "web", &b2, "--weight", "2"])?;
    daemon.ok(&["backend", "drain", "web", &b0])?;
    daemon.ok(&["backend", "drain", "web", &b1])?;
    daemon.ok(&["backend", "undrain", "web", &b1])?;
    eventually("only serving backends answer", || {
        (0..30).all(|_| {
            client
                .tcp(SocketAddr::new(VIP4, 80))
                .is_ok_and(|name| name != "b0")
        })
    })?;
    daemon.ok(&["backend", "add", "dns", &b1])?;
    daemon.ok(&["backend", "remove", "dns", &b1])?;
    for _ in 0..10 {
        assert_eq!(client.udp(SocketAddr::new(VIP4, 80))?, "b2");
    }

    let revision = daemon.json(&["status"])?["revision"]
        .as_u64()
        .context("a revision")?;
    daemon.kill()?;
    daemon.launch()?;
    daemon.wait_ready()?;
    assert_eq!(daemon.json(&["status"])?["revision"].as_u64(), Some(revision));
    let services = daemon.json(&["services"])?;
    assert_eq!(find(&services, "name", "dns")?["selection"], "fleet");
    let web = daemon.json(&["backends", "web"])?;
    assert_eq!(find(&web, "address", &b0)?["state"], "draining");
    assert_eq!(find(&web, "address", &b2)?["weight"], 2);
    assert!(
        find(&daemon.json(&["backends", "dns"])?, "address", &b1).is_err(),
        "removed for good"
    );
    assert_eq!(daemon.json(&["plan"])?["steps"], 0);

    daemon.ok(&["service", "remove", "dns"])?;
    assert!(
        client.udp(SocketAddr::new(VIP4, 80)).is_err(),
        "nobody answers for a removed service"
    );
    Ok(())
}

#[test]
fn refusals_have_their_exit_codes_and_next_steps() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let mut daemon = start(&lab)?;
    let [b0, vip] = [lab.backends[0].v4.to_string(), VIP4.to_string()];
    let before = daemon.json(&["backends"])?.as_array().map(Vec::len);
    let table: &[(&[&str], i32, &str)] = &[
        (&["backend", "add", "web", &b0], EXISTS, "10.2.0.21"),
        (&["backend", "add", "nowhere", &b0], NOT_FOUND, "nowhere"),
        (
            &["backend", "set", "web", "10.2.0.77", "--weight", "2"],
            NOT_FOUND,
            "10.2.0.77",
        ),
        (&["backend", "remove", "web", "10.2.0.77"], NOT_FOUND, "10.2.0.77"),
        (
            &["backend", "add", "web", "10.2.0.77", "--weight", "0"],
            FAILED,
            "weight",
        ),
        (
            &["backend", "add", "web", "10.2.0.77", "--weight", "70000"],
            FAILED,
            "weight",
        ),
        (&["backend", "add", "web", "fd00:2::99"], FAILED, "fd00:2::99"),
        (&["backend", "add", "web", &vip], FAILED, &vip),
        (&["backend", "add", "web", "10.2.0.10"], FAILED, "10.2.0.10"),
        (
            &[
                "service",
                "add",
                "web",
                "--vip",
                "198.18.0.9",
                "--port",
                "1",
                "--protocol",
                "tcp",
            ],
            EXISTS,
            "web",
        ),
        (
            &[
                "service",
                "add",
                "twin",
                "--vip",
                &vip,
                "--port",
                "80",
                "--protocol",
                "tcp",
            ],
            FAILED,
            "web",
        ),
        (&["backend", "remove", "web", &b0], CONFLICT, "configuration file"),
        (&["service", "remove", "nowhere"], NOT_FOUND, "nowhere"),
        (
            &[
                "backend",
                "set",
                "web",
                &b0,
                "--weight",
                "2",
                "--if-revision",
                "99999",
            ],
            CONFLICT,
            "revision",
        ),
        (
            &["backend", "add", "web", "not-an-address"],
            USAGE,
            "not-an-address",
        ),
        (
            &[
                "service",
                "add",
                "x",
                "--vip",
                &vip,
                "--port",
                "70000",
                "--protocol",
                "tcp",
            ],
            USAGE,
            "70000",
        ),
        (&["frobnicate"], USAGE, "frobnicate"),
        (&["backends", "nowhere"], NOT_FOUND, "nowhere"),
        (&["seeds", "rotate", "--cpu", "4095"], NOT_FOUND, "4095"),
    ];
    for (arguments, code, part) in table {
        let text = run(&daemon, arguments, *code)?;
        assert!(text.contains(part), "{arguments:?} does not name {part}:\n{text}");
        if *code != USAGE {
            let as_json = daemon.cli(&[*arguments, &["--json"]].concat())?;
            let error: Value = serde_json::from_slice(&as_json.stderr).context("an error in JSON")?;
            assert_eq!(error["exit_code"].as_i64(), Some(i64::from(*code)), "{error}");
            assert!(
                error["next_step"].as_str().is_some_and(|step| !step.is_empty()),
                "{arguments:?} has no next step: {error}"
            );
            let reason = match *code {
                CONFLICT => "conflict",
                NOT_FOUND => "not_found",
                EXISTS => "exists",
                _ => "invalid",
            };
            assert_eq!(error["reason"], reason, "{arguments:?}: {error}");
        }
    }
    assert_eq!(
        daemon.json(&["backends"])?.as_array().map(Vec::len),
        before,
        "nothing half applied"
    );
    assert_eq!(daemon.json(&["plan"])?["steps"], 0);

    let revision = daemon.json(&["status"])?["revision"].to_string();
    run(
        &daemon,
        &[
            "backend",
            "set",
            "web",
            &b0,
            "--weight",
            "2",
            "--if-revision",
            &revision,
        ],
        OK,
    )?;
    daemon.stop()?;
    let text = run(&daemon, &["status"], UNREACHABLE)?;
    assert!(text.contains("api.sock"), "{text}");
    Ok(())
}

#[test]
fn drain_waits_until_the_flows_are_gone() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let daemon = start(&lab)?;
    let mut flows = LongLived::open(&Client::new(&lab), SocketAddr::new(VIP4, 80), 20)?;
    let address = lab.backends[0].v4.to_string();
    let drain = ["backend", "drain", "web", &address, "--wait", "--deadline"];
    run(&daemon, &[&drain[..], &["1s"]].concat(), DEADLINE)?;
    flows.check("a drain that gave up waiting")?;
    let waiting = daemon
        .cli_command(&[&drain[..], &["20s"]].concat())?
        .stdout(Stdio::piped())
        .spawn()?;
    flows.close("b0");
    let output = waiting.wait_with_output()?;
    let text = said(&output, &drain, OK)?;
    assert!(text.contains("no flows left"), "{text}");
    flows.check("a drain to the end")?;
    Ok(())
}

#[test]
fn apply_takes_all_of_a_file_or_nothing() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let daemon = start(&lab)?;
    let six = Service::new("six", "tcp", VIP6, 80).backends(&lab.backends);
    let wrong = Service::new("bad", "tcp", VIP6, 81).backend(VIP6, 1);
    let file = daemon.directory().join("more.toml");
    let path = file.to_str().context("a path of letters")?.to_owned();
    fs::write(&file, six.text() + &wrong.text())?;
    run(&daemon, &["apply", "-f", &path], FAILED)?;
    assert!(
        find(&daemon.json(&["services"])?, "name", "six").is_err(),
        "half a file was applied"
    );

    fs::write(&file, six.text())?;
    daemon.ok(&["apply", "-f", &path])?;
    let client = Client::new(&lab);
    eventually("the new service answers", || {
        client.tcp(SocketAddr::new(VIP6, 80)).is_ok()
    })?;

    let udp = Service::new("piped", "udp", VIP6, 80)
        .backends(&lab.backends)
        .text();
    let mut apply = daemon
        .cli_command(&["apply", "-f", "-"])?
        .stdin(Stdio::piped())
        .spawn()?;
    apply
        .stdin
        .take()
        .context("standard input")?
        .write_all(udp.as_bytes())?;
    assert!(apply.wait()?.success());
    assert_eq!(
        find(&daemon.json(&["services"])?, "name", "piped")?["source"],
        "cli"
    );
    Ok(())
}

#[test]
fn reload_takes_a_right_file_and_refuses_a_wrong_one() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let mut daemon = start(&lab)?;
    let client = Client::new(&lab);
    let right = daemon.config.clone();

    daemon
        .config
        .services
        .push(Service::new("six", "tcp", VIP6, 80).backends(&lab.backends));
    daemon.write_config()?;
    daemon.ok(&["reload"])?;
    eventually("the new service answers", || {
        client.tcp(SocketAddr::new(VIP6, 80)).is_ok()
    })?;

    daemon.config.services[1]
        .lines
        .push("colour = \"red\"".to_owned());
    daemon.config.services.remove(0);
    daemon.write_config()?;
    let text = run(&daemon, &["reload"], FAILED)?;
    assert!(text.contains("colour"), "{text}");
    client.tcp(SocketAddr::new(VIP4, 80))?;
    daemon.signal(rustix::process::Signal::HUP)?;
    eventually("the refusal is an event", || {
        daemon
            .ok(&["events"])
            .is_ok_and(|events| events.contains("colour"))
    })?;
    client.tcp(SocketAddr::new(VIP4, 80))?;

    daemon.config = right;
    daemon.write_config()?;
    daemon.ok(&["reload"])?;
    assert!(find(&daemon.json(&["services"])?, "name", "six").is_err());
    Ok(())
}

#[test]
fn seeds_rotate_one_by_one_and_together() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let daemon = Daemon::start(&lab.balancer, Config::new([]))?;
    let generations = |daemon: &Daemon| -> Result<Vec<u64>> {
        let seeds = daemon.json(&["seeds"])?;
        // The shared seed first, then one a CPU.
        Ok(seeds
            .as_array()
            .context("a list")?
            .iter()
            .map(|seed| seed["generation"].as_u64().unwrap_or(0))
            .collect())
    };
    let mut wanted = generations(&daemon)?;
    assert!(wanted.iter().all(|generation| *generation >= 1));
    daemon.ok(&["seeds", "rotate", "--cpu", "0"])?;
    wanted[1] += 1;
    assert_eq!(generations(&daemon)?, wanted);
    daemon.ok(&["seeds", "rotate"])?;
    wanted[1..].iter_mut().for_each(|generation| *generation += 1);
    assert_eq!(generations(&daemon)?, wanted);
    daemon.ok(&["seeds", "rotate", "--shared"])?;
    wanted[0] += 1;
    assert_eq!(generations(&daemon)?, wanted);
    daemon.ok(&["seeds", "rotate", "--all"])?;
    wanted.iter_mut().for_each(|generation| *generation += 1);
    assert_eq!(generations(&daemon)?, wanted);
    Ok(())
}

#[test]
fn the_socket_is_for_root_and_the_group_only() -> Proof {
    let lab = Lab::new(&[])?;
    let daemon = Daemon::start(&lab.balancer, Config::new([]))?;
    let data = fs::metadata(daemon.socket())?;
    assert!(data.file_type().is_socket());
    assert_eq!(data.permissions().mode() & 0o777, 0o660);
    // Even with a socket that anybody may open, the peer's user is checked.
    fs::set_permissions(daemon.directory(), fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o666))?;
    let binary = tests::lab::binary::evenkeel()?;
    let copy = daemon.directory().join("evenkeel");
    fs::copy(binary, &copy)?;
    let output = lab
        .balancer
        .command("setpriv")?
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .arg("--socket")
        .arg(daemon.socket())
        .arg("status")
        .output()?;
    said(&output, &["status"], FORBIDDEN)?;
    Ok(())
}

#[test]
fn a_second_daemon_refuses() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends);
    let mut daemon = Daemon::start(&lab.balancer, Config::new([service.clone()]))?;
    let mut second = Daemon::prepare(&lab.balancer, Config::new([service]))?;
    second.set_pins(daemon.pins().to_owned())?;
    let output = second.run_to_end()?;
    let text = said(&output, &["run"], FAILED)?;
    let pid = daemon.pid().context("a process")?.to_string();
    assert!(text.contains(&pid), "the refusal names process {pid}:\n{text}");
    let pins = daemon.pins().to_str().context("a path of letters")?.to_owned();
    run(&daemon, &["detach", "--pin-directory", &pins], FAILED)?;
    assert!(daemon.is_running());
    Client::new(&lab).tcp(SocketAddr::new(VIP4, 80))?;
    // What the second's guard would take away is the first's.
    second.set_pins("/sys/fs/bpf/ek-none".into())?;
    Ok(())
}
