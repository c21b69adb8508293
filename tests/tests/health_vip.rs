//! Promise: a check with `via = "vip"` takes the clients' way to its backend, so that one without the VIP, or without the
//! end of the tunnel, fails; it is told apart from checks that could not take this way; and nothing of it stays behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;
use lb_common::check::{CHECKS, CheckEntry, CheckKey};
use lb_user::{
    health::{
        HealthSpec,
        probe::{Failure, Prober, Target, Through},
    },
    program::CheckPath,
    state::desired::Mode,
};
use serde_json::Value;
use tests::{
    Proof,
    health::{
        Nginx,
        grpc::{Answer, GrpcServer},
    },
    lab::{Backend, Config, Daemon, Decap, Lab, Netns, Place, Service, Tcx, VIP4, VIP6, eventually, tcx},
    traffic::Servers,
};
use tokio::runtime::Runtime;

const QUICK: &str = "interval = \"100ms\"\ntimeout = \"300ms\"\nfall = 2\n";
const VIPS: [(&str, IpAddr); 2] = [("4", VIP4), ("6", VIP6)];
const PORT: u16 = 9000;

/// Accepts connections at a port of every address that a backend has, VIPs included, until it is dropped.
struct Open {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Open {
    fn start(backend: &Backend, port: u16) -> Result<Self> {
        let listener = backend
            .netns
            .run(|| anyhow::Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?))?;
        listener.set_nonblocking(true)?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if listener.accept().is_err() {
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    fn everywhere(lab: &Lab, port: u16) -> Result<Vec<Self>> {
        lab.backends
            .iter()
            .map(|backend| Self::start(backend, port))
            .collect()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A service with checks; `check` is the rest of the table, via excluded.
fn service(name: &str, vip: IpAddr, port: u16, check: &str, via: &str) -> Service {
    let health = format!("[service.health]\n{check}\n{QUICK}via = {via:?}\n");
    Service::new(name, "tcp", vip, port).line(&health)
}

/// Both families, by connections: `vip4` and `vip6` at the port.
fn connecting(lab: &Lab, mode: &str) -> Vec<Service> {
    let of = |(family, vip): (&str, IpAddr)| {
        let name = format!("vip{family}");
        Service::new(&name, "tcp", vip, PORT)
            .line(&format!("mode = {mode:?}"))
            .line(&format!(
                "[service.health]\ntype = \"tcp\"\n{QUICK}via = \"vip\"\n"
            ))
            .backends(&lab.backends)
    };
    VIPS.map(of).to_vec()
}

/// Backends in a state, by service.
fn count(daemon: &Daemon, state: &str) -> BTreeMap<String, u64> {
    let Ok(Value::Array(services)) = daemon.json(&["services"]) else {
        return BTreeMap::new();
    };
    let counts = services.iter().filter_map(|service| {
        let name = service["name"].as_str()?;
        Some((name.to_owned(), service[state].as_u64()?))
    });
    counts.collect()
}

/// Waits until every service has so many backends that serve.
fn all_serve(daemon: &Daemon, what: &str, backends: u64) -> Result<()> {
    eventually(what, || {
        let counts = count(daemon, "serving");
        !counts.is_empty() && counts.values().all(|count| *count == backends)
    })
}

/// Results of a service's checks so far.
fn results(daemon: &Daemon, service: &str, result: &str) -> Result<u64> {
    let labels = [("service", service), ("result", result)];
    daemon.metrics()?.count("evenkeel_health_checks_total", &labels)
}

/// Waits until so many more checks of a service have this result.
fn more(daemon: &Daemon, service: &str, result: &str, count: u64) -> Result<()> {
    let before = results(daemon, service, result)?;
    eventually(&format!("{count} more checks of {service} have {result}"), || {
        results(daemon, service, result).is_ok_and(|now| now >= before + count)
    })
}

/// Takes the VIPs off a backend, or puts them back.
fn vips(backend: &Backend, verb: &str) -> Result<()> {
    backend.netns.ip(&format!(
        "route {verb} local 198.18.0.0/24 dev lo\nroute {verb} local fd00:ff::/64 dev lo"
    ))
}

#[test]
fn a_backend_without_the_vip_goes_down_and_comes_back() -> Proof {
    // One is reached by an interface that the datapath is not on.
    let lab = Lab::new(&[Place::Front, Place::Front, Place::Side])?;
    // As on real machines: the last word on checksums is the card's.
    lab.balancer.offloads("eth0", &["tx", "on"])?;
    let _open = Open::everywhere(&lab, PORT)?;
    let mut services = connecting(&lab, "dsr");
    services
        .push(service("direct", VIP4, 9001, "type = \"tcp\"\nport = 9000", "direct").backends(&lab.backends));
    let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    all_serve(&daemon, "all serve", 3)?;
    for index in [1, 2] {
        vips(&lab.backends[index], "del")?;
        eventually(
            "it is down for those who ask by the VIP, and for them alone",
            || {
                let down = count(&daemon, "down");
                down == [
                    ("direct".to_owned(), 0),
                    ("vip4".to_owned(), 1),
                    ("vip6".to_owned(), 1),
                ]
                .into()
            },
        )?;
        let told = daemon.ok(&["backends", "vip4"])?;
        let reason = format!("vip4/{}: no connection within 300ms", lab.backends[index].v4);
        assert!(told.contains(&reason), "{told}");
        vips(&lab.backends[index], "add")?;
        all_serve(&daemon, "it serves again", 3)?;
    }
    for name in ["vip4", "vip6", "direct"] {
        assert_eq!(results(&daemon, name, "unable")?, 0, "{name}");
    }
    Ok(())
}

#[test]
fn a_backend_without_the_end_of_the_tunnel_goes_down_and_comes_back() -> Proof {
    let lab = Lab::new(&[Place::Far, Place::Far, Place::Front])?;
    let mut decaps: Vec<_> = Decap::everywhere(&lab)?.into_iter().map(Some).collect();
    let _open = Open::everywhere(&lab, PORT)?;
    let daemon = Daemon::start(&lab.balancer, Config::new(connecting(&lab, "ipip")))?;
    all_serve(&daemon, "all serve", 3)?;
    decaps[0] = None;
    eventually("it is down", || count(&daemon, "down").values().eq(&[1, 1]))?;
    decaps[0] = Some(Decap::attach(&lab.backends[0])?);
    all_serve(&daemon, "it serves again", 3)?;
    Ok(())
}

#[test]
fn every_kind_of_check_goes_through_the_vip_in_each_mode_and_family() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let backend = &lab.backends[0];
    let _decap = Decap::attach(backend)?;
    // All of them at the VIPs alone: at the backend's own address nobody answers.
    let servers = Servers::start(&lab, PORT)?;
    let mut web = Vec::new();
    let mut grpc = Vec::new();
    for (_, vip) in VIPS {
        let at = |port| SocketAddr::new(vip, port);
        web.push(backend.netns.run(|| Nginx::start_at(at(8001), at(8002)))?);
        grpc.push(
            backend
                .netns
                .run(|| GrpcServer::start_at(at(8003), Answer::Status(1)))?,
        );
    }
    let mut services = Vec::new();
    for (family, vip) in VIPS {
        let checks = [
            ("tcp", PORT, "type = \"tcp\"".to_owned()),
            ("http", 8001, "type = \"http\"\nbody = \"all is ok\"".to_owned()),
            (
                "https",
                8002,
                "type = \"https\"\nhost = \"health.test\"".to_owned(),
            ),
            ("grpc", 8003, "type = \"grpc\"\nservice = \"shop\"".to_owned()),
            (
                "udp",
                PORT,
                "type = \"udp\"\npayload = \"ping\"\nexpect = \"b0 ping\"".to_owned(),
            ),
        ];
        for (mode, first) in [("dsr", 100), ("ipip", 200)] {
            for (index, (kind, port, check)) in checks.iter().enumerate() {
                let name = format!("{kind}-{mode}-{family}");
                // A service's own port counts for nothing when the check has one.
                let check = format!("{check}\nport = {port}");
                let service = service(&name, vip, first + index as u16, &check, "vip")
                    .backend(backend.address(vip.is_ipv6()), 1);
                let mut lines = service.lines.clone();
                lines.insert(0, format!("mode = {mode:?}\nannounce = \"address\""));
                services.push(Service { lines, ..service });
            }
        }
    }
    let names: Vec<String> = services.iter().map(|service| service.name.clone()).collect();
    let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    all_serve(&daemon, "all serve", 1)?;
    // The VIPs are the balancer's own addresses by now.
    let addresses = lab
        .balancer
        .command("ip")?
        .args(["address", "show", "dev", "lo"])
        .output()?;
    let addresses = String::from_utf8_lossy(&addresses.stdout).into_owned();
    for (_, vip) in VIPS {
        assert!(
            addresses.contains(&format!("inet{} {vip}/", if vip.is_ipv6() { "6" } else { "" })),
            "{addresses}"
        );
    }
    for name in &names {
        more(&daemon, name, "passed", 10)?;
        assert_eq!(
            (
                results(&daemon, name, "failed")?,
                results(&daemon, name, "unable")?
            ),
            (0, 0),
            "{name}"
        );
    }
    drop(servers);
    drop(web);
    drop(grpc);
    eventually("all are down", || {
        // Of each service its only backend, so all of them panic; but they are told.
        names.iter().all(|name| {
            let told = daemon.json(&["backends", name]);
            told.is_ok_and(|told| told[0]["health"] == "fails")
        })
    })?;
    let told = daemon.ok(&["backends", "tcp-ipip-6"])?;
    assert!(told.contains("connection refused"), "{told}");
    Ok(())
}

#[test]
fn nothing_is_attached_but_while_it_is_asked_for() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Side])?;
    let _open = Open::everywhere(&lab, PORT)?;
    let mut daemon = Daemon::start(&lab.balancer, Config::new(connecting(&lab, "dsr")))?;
    all_serve(&daemon, "all serve", 2)?;
    let there =
        || ["eth0", "eth1"].map(|interface| tcx::programs(&lab.balancer, interface).unwrap_or_default());
    let ours = || [vec!["check_ingress".to_owned()], vec!["check_egress".to_owned()]];
    let nothing = || [Vec::<String>::new(), Vec::new()];
    assert_eq!(there(), [ours(), ours()]);
    // Without `via` nobody asks for it; with it they come back.
    let before = daemon.config.services.clone();
    for service in &mut daemon.config.services {
        service.lines = service
            .lines
            .iter()
            .map(|line| line.replace("via = \"vip\"", ""))
            .collect();
    }
    daemon.write_config()?;
    daemon.ok(&["reload"])?;
    assert_eq!(there(), [nothing(), nothing()]);
    more(&daemon, "vip4", "passed", 5)?;
    daemon.config.services = before;
    daemon.write_config()?;
    daemon.ok(&["reload"])?;
    assert_eq!(there(), [ours(), ours()]);
    more(&daemon, "vip4", "passed", 5)?;
    all_serve(&daemon, "nobody noticed", 2)?;

    // A program of others that keeps all packets: the check goes to the backend's own address, and says nothing.
    let stranger = Tcx::keep_all(&lab.balancer, "eth0")?;
    more(&daemon, "vip4", "unable", 5)?;
    all_serve(&daemon, "nobody is blamed", 2)?;
    assert_eq!(results(&daemon, "vip4", "failed")?, 0);
    assert_eq!(there()[0][1].len(), 2, "{:?}", there());
    // Killed, it takes its own programs along, and no others.
    daemon.kill()?;
    eventually("only the other's is left", || {
        let [front, side] = there();
        side == nothing() && front[0].is_empty() && front[1].len() == 1 && front[1][0] != "check_egress"
    })?;
    drop(stranger);
    daemon.launch()?;
    daemon.wait_ready()?;
    more(&daemon, "vip4", "passed", 5)?;
    Ok(())
}

#[test]
fn answers_of_backends_to_checks_of_one_vip_do_not_mix() -> Proof {
    let lab = Lab::new(&[Place::Front; 5])?;
    let _servers = Servers::start(&lab, PORT)?;
    let (name, vip) = ("udp", VIP4);
    // Only one of the five answers with this name.
    let check = "type = \"udp\"\npayload = \"ping\"\nexpect = \"b3 ping\"\npanic_threshold = 0.0";
    let health =
        format!("[service.health]\n{check}\ninterval = \"20ms\"\ntimeout = \"150ms\"\nvia = \"vip\"\n");
    let udp = Service::new(name, "udp", vip, PORT)
        .line(&health)
        .backends(&lab.backends);
    let daemon = Daemon::start(&lab.balancer, Config::new([udp]))?;
    more(&daemon, name, "passed", 200)?;
    let Value::Array(backends) = daemon.json(&["backends", name])? else {
        panic!("no list");
    };
    let states = backends.iter().map(|backend| {
        let address = backend["address"].as_str().unwrap_or_default();
        (address.to_owned(), backend["health"].clone())
    });
    for (address, health) in states {
        let right = lab.backends[3].v4.to_string() == address;
        assert_eq!(health, if right { "passes" } else { "fails" }, "{address}");
    }
    let events = daemon.ok(&["events"])?;
    assert!(!events.contains("passes its checks again"), "{events}");
    let told = daemon.ok(&["backends", name])?;
    assert!(
        told.contains("answers came, but none that contains \"b3 ping\""),
        "{told}"
    );
    Ok(())
}

/// Answers datagrams at a VIP after a while.
struct Late {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Late {
    fn start(backend: &Backend, after: Duration) -> Result<Self> {
        let socket = backend.netns.run(|| anyhow::Ok(UdpSocket::bind((VIP4, PORT))?))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = thread::spawn(move || {
            let mut asked = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut asked) {
                    thread::sleep(after);
                    if socket.send_to(&asked[..length], from).is_ok() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        Ok(Self {
            stop,
            answered,
            thread: Some(thread),
        })
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_late_answer_is_not_taken_for_another_backends() -> Proof {
    const LATE: Duration = Duration::from_millis(500);
    let lab = Lab::new(&[Place::Front; 2])?;
    let late = Late::start(&lab.backends[0], LATE)?;
    // So few ports that one which is given up comes again at once.
    lab.balancer
        .sysctl(&[("ipv4/ip_local_port_range", "40000 40005")])?;
    let eth0 = lab.balancer.interface("eth0")?;
    let spec = |timeout: &str| -> Result<HealthSpec> {
        let spec = serde_json::json!({"type": "udp", "payload": "ping", "timeout": timeout});
        Ok(serde_json::from_value(spec)?)
    };
    let (soon, long) = (spec("200ms")?, spec("2s")?);
    let [first, second] = [0, 1].map(|index| SocketAddr::new(lab.backends[index].v4, PORT));
    let results = lab.balancer.run(|| -> Result<Vec<Result<(), Failure>>> {
        let path = Arc::<CheckPath>::default();
        path.follow(&[eth0].into())?;
        let target = |address| {
            let path = Arc::clone(&path);
            let (vip, mode) = (VIP4, Mode::Dsr);
            Target::new(address, Some(Through { vip, mode, path }))
        };
        let prober = Prober::new(&soon.check);
        Runtime::new()?.block_on(async {
            let gone = prober.probe(&target(first), soon.timeout).await;
            // Nobody answers these.
            let silent = target(second);
            let probe = || prober.probe(&silent, long.timeout);
            let (one, two, three) = tokio::join!(probe(), probe(), probe());
            let heard = prober.probe(&target(first), long.timeout).await;
            Ok(vec![gone, one, two, three, heard])
        })
    })?;
    let told = results
        .iter()
        .map(|result| result.as_ref().map_err(ToString::to_string).copied());
    let told: Vec<Result<(), String>> = told.collect();
    let none = |within: &str| Err(format!("no answer within {within}"));
    assert_eq!(told, [none("200ms"), none("2s"), none("2s"), none("2s"), Ok(())]);
    assert_eq!(late.answered.load(Ordering::Relaxed), 2, "it did answer late");
    Ok(())
}

#[test]
fn more_checks_than_there_is_room_for_are_not_made() -> Proof {
    let netns = Netns::new("full")?;
    netns.run(|| -> Result<()> {
        let path = Arc::<CheckPath>::default();
        let key = |number: usize| CheckKey {
            address: [number as u64 >> 16, 0],
            port: number as u16,
            protocol: 6,
            family: 4,
            reserved: 0,
        };
        let enter = |number| path.enter(key(number), CheckEntry::default());
        let said = |number| enter(number).map(|entered| entered.is_some());
        assert_eq!(
            said(0),
            Err("checks through the VIP are not prepared yet".to_owned())
        );
        // The loopback interface.
        path.follow(&[1].into())?;
        let mut all = Vec::new();
        for number in 0..CHECKS.capacity {
            all.push(enter(number).map_err(anyhow::Error::msg)?);
        }
        assert!(all.iter().all(Option::is_some));
        let full = "65536 checks through VIPs are under way, and no more can be";
        assert_eq!(said(CHECKS.capacity), Err(full.to_owned()));
        all.pop();
        assert_eq!(said(0), Ok(false), "its port is another check's");
        assert_eq!(said(CHECKS.capacity), Ok(true));
        path.follow(&BTreeSet::new())?;
        Ok(())
    })?;
    Ok(())
}
