//! Promise: routers send traffic to a VIP here exactly while it can be served, by way of BIRD with the configuration that
//! `deploy/` ships; a daemon that dies takes no route with it, and one that takes its datapath along takes the route first.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::{
    Proof,
    lab::{
        Config, Daemon, Lab, Netns, Place, Service, VIP4, VIP6, eventually, netns::unique, process::Process,
        within,
    },
    traffic::{Client, Kind, LongLived, Servers},
};

const VIPS: [IpAddr; 2] = [VIP4, VIP6];
const PORT: u16 = 80;
/// Where backends answer checks.
const CHECKED: u16 = 9000;
/// Sessions that come up, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the router runs: it takes what the balancer tells, and routes by it.
const ROUTER: &str = r#"
    router id 10.2.0.1;
    log stderr { warning, error, fatal, bug };
    protocol device { }
    protocol kernel { ipv4 { import none; export all; }; }
    protocol kernel { ipv6 { import none; export all; }; }
    protocol bgp BALANCER4 {
        local 10.2.0.1 as 64513;
        neighbor 10.2.0.10 as 64512;
        passive yes;
        ipv4 { import all; export none; };
    }
    protocol bgp BALANCER6 {
        local fd00:2::1 as 64513;
        neighbor fd00:2::10 as 64512;
        passive yes;
        ipv6 { import all; export none; };
    }
"#;

/// `deploy/bird.conf`, with the values that it says are to be changed.
fn balancer() -> Result<String> {
    let mut text = include_str!("../../deploy/bird.conf").to_owned();
    for (name, value) in [
        ("LOCAL4", "10.2.0.10"),
        ("LOCAL6", "fd00:2::10"),
        ("PEER4", "10.2.0.1"),
        ("PEER6", "fd00:2::1"),
        ("VIPS4", "[ 198.18.0.0/24{32,32} ]"),
        ("VIPS6", "[ fd00:ff::/64{128,128} ]"),
    ] {
        let start = format!("define {name} = ");
        let (before, rest) = text.split_once(&start).with_context(|| format!("no {start}"))?;
        let (_, after) = rest.split_once(';').context("a value ends with ;")?;
        text = format!("{before}{start}{value};{after}");
    }
    Ok(text)
}

/// A running BIRD; ended on drop.
struct Bird {
    netns: Netns,
    // Stopped before its directory goes.
    _process: Process,
    directory: TempDir,
}

impl Bird {
    fn start(netns: &Netns, config: &str) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("{}-bird-", unique()))
            .tempdir()?;
        let path = |name: &str| directory.path().join(name);
        fs::write(path("bird.conf"), config)?;
        let log = fs::File::create(path("log"))?;
        let child = netns
            .command("/usr/sbin/bird")?
            .arg("-f")
            .arg("-c")
            .arg(path("bird.conf"))
            .arg("-s")
            .arg(path("bird.ctl"))
            .arg("-P")
            .arg(path("bird.pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting bird (package bird2)")?;
        Ok(Self {
            netns: netns.clone(),
            _process: Process::new(child),
            directory,
        })
    }

    fn ask(&self, question: &[&str]) -> Result<String> {
        let output = self
            .netns
            .command("/usr/sbin/birdc")?
            .arg("-s")
            .arg(self.path("bird.ctl"))
            .args(question)
            .output()
            .context("starting birdc (package bird2)")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
        ensure!(output.status.success(), "birdc {question:?}: {said}\n{}", log());
        Ok(said)
    }

    /// Both sessions are up.
    fn wait_established(&self) -> Result<()> {
        within(PATIENCE, "BIRD's sessions are up", || {
            let said = self.ask(&["show", "protocols"])?;
            ensure!(said.matches("Established").count() == 2, "{said}");
            Ok(())
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Services of both VIPs, announced to a router that knows no other way to them.
struct World {
    lab: Lab,
    _servers: Servers,
    /// Connections of checks wait here for ever; that is enough for them to pass.
    checked: Vec<Option<TcpListener>>,
    daemon: Daemon,
    _balancer: Bird,
    router: Bird,
}

impl World {
    /// The sessions are up; no backend passes its checks, and the daemon is made and not started.
    fn new() -> Result<Self> {
        let lab = Lab::new(&[Place::Front, Place::Front])?;
        lab.router.ip("route del 198.18.0.0/24\nroute del fd00:ff::/64")?;
        let servers = Servers::start(&lab, PORT)?;
        let health = format!(
            "announce = \"address\"\n[service.health]\ntype = \"tcp\"\nport = {CHECKED}\ninterval = \"100ms\"\n\
             timeout = \"1s\"\nfall = 2\non_panic = \"withdraw\""
        );
        let services = VIPS.map(|vip| {
            let name = if vip.is_ipv4() { "web4" } else { "web6" };
            Service::new(name, "tcp", vip, PORT)
                .backends(&lab.backends)
                .line(&health)
        });
        let daemon = Daemon::prepare(&lab.balancer, Config::new(services))?;
        let router = Bird::start(&lab.router, ROUTER)?;
        let balancer = Bird::start(&lab.balancer, &self::balancer()?)?;
        router.wait_established()?;
        Ok(Self {
            lab,
            _servers: servers,
            checked: Vec::new(),
            daemon,
            _balancer: balancer,
            router,
        })
    }

    /// The daemon runs, the router knows the way, and it leads to the backends.
    fn started() -> Result<Self> {
        let mut world = Self::new()?;
        world.pass_checks()?;
        world.daemon.launch()?;
        world.daemon.wait_ready()?;
        world.wait_routes("it is ready", 2)?;
        world.reach()?;
        Ok(world)
    }

    fn pass_checks(&mut self) -> Result<()> {
        for backend in &self.lab.backends {
            for v6 in [false, true] {
                let at = SocketAddr::new(backend.address(v6), CHECKED);
                let listener = backend.netns.run(|| TcpListener::bind(at))?;
                self.checked.push(Some(listener));
            }
        }
        Ok(())
    }

    fn fail_checks(&mut self) {
        self.checked.clear();
    }

    /// VIPs that the router has a route for.
    fn routes(&self) -> Result<usize> {
        let found = VIPS.into_iter().map(|vip| {
            let (family, length) = if vip.is_ipv4() { ("-4", 32) } else { ("-6", 128) };
            let exact = format!("{vip}/{length}");
            let routes = json(
                &self.lab.router,
                &["-json", family, "route", "show", "exact", &exact],
            )?;
            Ok(usize::from(
                routes.as_array().is_some_and(|routes| !routes.is_empty()),
            ))
        });
        found.sum()
    }

    fn wait_routes(&self, after: &str, count: usize) -> Result<()> {
        within(PATIENCE, &format!("{after}: {count} routes to VIPs"), || {
            let routes = self.routes()?;
            ensure!(
                routes == count,
                "{routes} routes; {}",
                self.router.ask(&["show", "route"])?
            );
            Ok(())
        })
    }

    fn is_attached(&self) -> Result<bool> {
        let links = json(&self.lab.balancer, &["-json", "link", "show", "dev", "eth0"])?;
        Ok(links[0].get("xdp").is_some())
    }

    /// Both backends answer at both VIPs.
    fn reach(&self) -> Result<()> {
        for vip in VIPS {
            let spread = Client::new(&self.lab).many(Kind::Tcp, SocketAddr::new(vip, PORT), 100)?;
            let named: Vec<_> = spread.into_keys().collect();
            ensure!(named == ["b0", "b1"], "{vip} is answered by {named:?}");
        }
        Ok(())
    }

    fn is_unreachable(&self) -> bool {
        let client = Client::new(&self.lab);
        VIPS.iter()
            .all(|vip| client.connect(SocketAddr::new(*vip, PORT)).is_err())
    }
}

fn json(netns: &Netns, arguments: &[&str]) -> Result<Value> {
    let mut ip: Command = netns.command("ip")?;
    let output = ip.args(arguments).output()?;
    ensure!(
        output.status.success(),
        "ip {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Nothing at all is printed for an empty list by some versions.
    match output.stdout.trim_ascii() {
        b"" => Ok(Value::Array(Vec::new())),
        text => Ok(serde_json::from_slice(text)?),
    }
}

#[test]
fn traffic_comes_here_exactly_while_it_can_be_served() -> Proof {
    let mut world = World::new()?;
    world.daemon.launch()?;
    eventually("it runs and is not ready", || {
        world.daemon.http("/readyz").is_ok_and(|(code, _)| code == 503)
            && world
                .daemon
                .ok(&["events"])
                .is_ok_and(|events| events.contains("fails its checks"))
    })?;
    assert_eq!(world.routes()?, 0, "nothing was ready");
    assert!(world.is_unreachable());
    world.pass_checks()?;
    world.daemon.wait_ready()?;
    world.wait_routes("it is ready", 2)?;
    world.reach()?;
    world.fail_checks();
    world.wait_routes("no backend passes its checks", 0)?;
    assert!(world.is_unreachable());
    world.pass_checks()?;
    world.wait_routes("backends are back", 2)?;
    eventually("both serve", || world.reach().is_ok())?;
    Ok(())
}

#[test]
fn a_daemon_that_is_killed_takes_no_route_with_it() -> Proof {
    let mut world = World::started()?;
    let connections = LongLived::open(&Client::new(&world.lab), SocketAddr::new(VIP4, PORT), 20)?;
    world.daemon.kill()?;
    world.reach()?;
    // BIRD answers, its sessions are up, and what it told stands.
    world.router.wait_established()?;
    assert_eq!(world.routes()?, 2);
    world.reach()?;
    connections.check("the daemon was killed")?;
    // The next one changes nothing about it either.
    world.daemon.launch()?;
    world.daemon.wait_ready()?;
    assert_eq!(world.routes()?, 2);
    world.reach()?;
    connections.check("another daemon was started")?;
    Ok(())
}

#[test]
fn the_routes_go_before_the_datapath_does() -> Proof {
    let mut world = World::new()?;
    world.pass_checks()?;
    let child = world.daemon.run_command()?.arg("--detach-on-exit").spawn()?;
    let mut process = Process::new(child);
    world.wait_routes("it is ready", 2)?;
    eventually("both serve", || world.reach().is_ok())?;
    process.signal(Signal::TERM)?;
    // Whoever finds a route gone finds the datapath there, until both are gone.
    let mut gone_while_attached = false;
    within(PATIENCE, "it ends", || {
        let attached = world.is_attached()?;
        let routes = world.routes()?;
        // Looked at after the datapath: a route that is there now was there when the datapath was looked at.
        assert!(attached || routes == 0, "{routes} routes lead to no datapath");
        gone_while_attached |= routes == 0 && world.is_attached()?;
        ensure!(!process.is_running(), "it runs");
        Ok(())
    })?;
    assert!(gone_while_attached);
    assert_eq!((world.routes()?, world.is_attached()?), (0, false));
    let status = process.stop(Duration::from_secs(1))?.context("it has ended")?;
    assert!(status.success(), "{status}\n{}", world.daemon.log());
    Ok(())
}
