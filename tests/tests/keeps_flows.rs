//! Promise: an established connection keeps its backend through everything that happens to the balancer.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    capture::Witness,
    lab::{Config, Daemon, Decap, Lab, Place, Service, VIP4, VIP6, eventually},
    traffic::{Client, Download, Kind, LongLived, Server, Servers, Ticking},
};

const CONNECTIONS: usize = 40;
const RST: u8 = 4;
const TCP: u8 = 6;

/// A lab with open connections to a `dsr` service (IPv4) and an `ipip` service (IPv6).
struct Scene {
    client: Client,
    resets: Witness,
    flows: Vec<LongLived>,
    daemon: Daemon,
    servers: Servers,
    _decap: Vec<Decap>,
    lab: Lab,
}

fn to4() -> SocketAddr {
    SocketAddr::new(VIP4, 80)
}

fn to6() -> SocketAddr {
    SocketAddr::new(VIP6, 80)
}

impl Scene {
    fn set() -> Result<Self> {
        let lab = Lab::new(&[Place::Front, Place::Side, Place::Front])?;
        let servers = Servers::start(&lab, 80)?;
        let services = [
            Service::new("plain", "tcp", VIP4, 80).backends(&lab.backends),
            Service::new("tunnel", "tcp", VIP6, 80)
                .line("mode = \"ipip\"")
                .backends(&lab.backends),
            Service::new("datagrams", "udp", VIP4, 80).backends(&lab.backends),
        ];
        let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
        let decap = Decap::everywhere(&lab)?;
        let client = Client::new(&lab);
        let resets = Witness::watch(&lab.client, "eth0")?;
        let flows = [to4(), to6()].map(|to| LongLived::open(&client, to, CONNECTIONS));
        let flows: Vec<_> = flows.into_iter().collect::<Result<_>>()?;
        Ok(Self {
            client,
            resets,
            flows,
            daemon,
            servers,
            _decap: decap,
            lab,
        })
    }

    /// Every open connection goes on, and nobody was sent a reset.
    fn check(&self, after: &str) -> Result<()> {
        self.flows.iter().try_for_each(|flows| flows.check(after))?;
        let resets = self.resets.frames(|seen| {
            let transport = seen
                .inner()
                .filter(|packet| packet.protocol == TCP)
                .and_then(|p| p.transport);
            transport
                .and_then(|transport| transport.tcp_flags)
                .is_some_and(|flags| flags & RST != 0)
        });
        ensure!(resets.is_empty(), "resets after {after}: {resets:?}");
        self.resets.verify()
    }

    fn address(&self, index: usize, service: &str) -> String {
        self.lab.backends[index].address(service == "tunnel").to_string()
    }

    /// Backends that new connections reach.
    fn new_flows(&self) -> Result<Vec<String>> {
        let mut spread = self.client.many(Kind::Tcp, to4(), 60)?;
        spread.append(&mut self.client.many(Kind::Tcp, to6(), 60)?);
        Ok(spread.into_keys().collect())
    }

    /// Runs a backend verb for both services.
    fn both(&self, verb: &str, index: usize, rest: &[&str]) -> Result<()> {
        for service in ["plain", "tunnel"] {
            let address = self.address(index, service);
            self.daemon
                .ok(&[&["backend", verb, service, &address], rest].concat())?;
        }
        Ok(())
    }
}

#[test]
fn through_rotation_weights_drain_and_scaling() -> Proof {
    let mut scene = Scene::set()?;
    scene.check("nothing")?;
    for _ in 0..3 {
        scene.daemon.ok(&["seeds", "rotate", "--all"])?;
        scene.check("rotation")?;
    }
    scene.both("set", 1, &["--weight", "7"])?;
    scene.check("a change of weight")?;

    scene.both("drain", 0, &[])?;
    scene.check("drain")?;
    assert_eq!(scene.new_flows()?, ["b1", "b2"]);

    scene.lab.add_backend(Place::Front)?;
    let added = &scene.lab.backends[3];
    let _decap = Decap::attach(added)?;
    let server = Server::start(added, 80)?;
    scene.servers.0.push(server);
    scene.both("add", 3, &[])?;
    scene.check("scale-up")?;
    eventually("the new backend gets flows", || {
        scene
            .new_flows()
            .is_ok_and(|names| names.iter().any(|name| name == "b3"))
    })?;

    scene.both("set", 1, &["--weight", "1"])?;
    for to in [to4(), to6()] {
        let later = LongLived::open(&scene.client, to, CONNECTIONS)?;
        assert!(later.at("b3") > 0, "the new backend has some of the connections");
        scene.flows.push(later);
    }

    // Removing a backend ends its own flows and no others: one of the command line, then one of the file.
    scene.flows.iter_mut().for_each(|flows| flows.close("b3"));
    scene.both("remove", 3, &[])?;
    scene.check("scale-down")?;
    assert_eq!(scene.new_flows()?, ["b1", "b2"]);
    scene.flows.iter_mut().for_each(|flows| flows.close("b1"));
    let gone = [scene.lab.backends[1].v4, scene.lab.backends[1].v6];
    for service in &mut scene.daemon.config.services {
        service.backends.retain(|(address, _)| !gone.contains(address));
    }
    scene.daemon.write_config()?;
    scene.daemon.ok(&["reload"])?;
    scene.check("scale-down in the file")?;
    assert_eq!(scene.new_flows()?, ["b2"]);

    scene.both("undrain", 0, &[])?;
    scene.check("undrain")?;
    assert_eq!(scene.new_flows()?, ["b0", "b2"]);
    Ok(())
}

#[test]
fn through_kill_restart_and_replacement_of_the_program() -> Proof {
    let mut scene = Scene::set()?;
    let downloads =
        [to4(), to6()].map(|to| Download::start(&scene.client, to, 4 << 20, Duration::from_secs(3)));
    // Single datagrams from fresh ports: nobody would send a lost one again.
    let client = scene.client.clone();
    let ticking = Ticking::start("a datagram while the daemon came and went", move || {
        client.udp(to4())
    });

    let first = programs(&scene)?;
    scene.daemon.kill()?;
    scene.check("kill -9")?;
    assert_eq!(scene.new_flows()?, ["b0", "b1", "b2"], "without a daemon");
    assert_eq!(programs(&scene)?, first, "the program stays attached");

    scene.daemon.launch()?;
    scene.daemon.wait_ready()?;
    scene.check("a start after kill -9")?;
    let second = programs(&scene)?;
    assert_ne!(second, first, "a start replaces the program");

    scene.daemon.restart()?;
    scene.check("a restart")?;
    assert_eq!(scene.new_flows()?, ["b0", "b1", "b2"]);
    scene.daemon.signal(rustix::process::Signal::HUP)?;
    scene.check("SIGHUP")?;
    scene.daemon.ok(&["reload"])?;
    scene.check("reload")?;

    assert!(ticking.finish()? > 20, "datagrams were answered all the while");
    for download in downloads {
        let download = download?;
        let backend = download.backend.clone();
        let pause = download.finish().context(backend)?;
        assert!(pause < Duration::from_secs(2), "a pause of {pause:?}");
    }
    scene.check("all of it")?;
    Ok(())
}

/// What the kernel says is attached to the balancer's interface.
fn programs(scene: &Scene) -> Result<Value> {
    let output = scene
        .lab
        .balancer
        .command("ip")?
        .args(["-json", "link", "show", "dev", "eth0"])
        .output()?;
    let links: Value = serde_json::from_slice(&output.stdout)?;
    let program = links[0]["xdp"].clone();
    ensure!(!program.is_null(), "no XDP program on eth0: {links}");
    Ok(program)
}
