//! Promise: a backend that does not answer gets no flows, one that does keeps them, and checks that find everything dead are
//! not believed; a VIP is announced only while it can be served.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, eventually},
    traffic::{Client, Kind, LongLived, Servers},
};

const TO: SocketAddr = SocketAddr::new(VIP4, 80);

/// A service whose backends answer checks on a port of their own.
struct World {
    lab: Lab,
    _servers: Servers,
    answering: Vec<Option<Answering>>,
    daemon: Daemon,
}

/// Something that accepts connections at a backend's own address, on drop no more.
struct Answering {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Answering {
    fn start(lab: &Lab, backend: usize) -> Result<Self> {
        let backend = &lab.backends[backend];
        let at = SocketAddr::new(backend.address(false), 9000);
        let listener = backend
            .netns
            .run(|| anyhow::Ok(std::net::TcpListener::bind(at)?))?;
        listener.set_nonblocking(true)?;
        let stop = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                if listener.accept().is_err() {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl World {
    /// All backends answer, and the daemon is made and not started.
    fn new(backends: usize, lines: &str) -> Result<Self> {
        let lab = Lab::new(&vec![Place::Front; backends])?;
        let servers = Servers::start(&lab, 80)?;
        let answering = (0..backends).map(|index| Answering::start(&lab, index).map(Some));
        let answering = answering.collect::<Result<_>>()?;
        let service = Service::new("web", "tcp", VIP4, 80)
            .line("announce = \"address\"")
            .backends(&lab.backends);
        let health = format!(
            "[service.health]\ntype = \"tcp\"\nport = 9000\ninterval = \"100ms\"\ntimeout = \"200ms\"\n{lines}"
        );
        let daemon = Daemon::prepare(&lab.balancer, Config::new([service.line(&health)]))?;
        Ok(Self {
            lab,
            _servers: servers,
            answering,
            daemon,
        })
    }

    fn start(&mut self) -> Result<()> {
        self.daemon.launch()?;
        self.daemon.wait_ready()
    }

    fn count(&self, state: &str) -> Option<u64> {
        self.daemon.json(&["services"]).ok()?[0][state].as_u64()
    }

    fn has_vip(&self) -> bool {
        let output = self
            .lab
            .balancer
            .command("ip")
            .and_then(|mut ip| Ok(ip.args(["-json", "address", "show", "dev", "lo"]).output()?));
        let Ok(output) = output else { return false };
        let Ok(links) = serde_json::from_slice::<Value>(&output.stdout) else {
            return false;
        };
        let vip = VIP4.to_string();
        links[0]["addr_info"]
            .as_array()
            .is_some_and(|addresses| addresses.iter().any(|address| address["local"] == vip.as_str()))
    }

    fn reached(&self) -> Result<Vec<String>> {
        let spread = Client::new(&self.lab).many(Kind::Tcp, TO, 200)?;
        Ok(spread.into_keys().collect())
    }
}

#[test]
fn who_does_not_answer_gets_no_flows_until_it_does() -> Proof {
    let mut world = World::new(3, "fall = 3\nrise = 2\n")?;
    world.start()?;
    eventually("all serve", || world.count("serving") == Some(3))?;
    let connections = LongLived::open(&Client::new(&world.lab), TO, 60)?;
    world.answering[1] = None;
    eventually("one is down", || world.count("down") == Some(1))?;
    assert_eq!(world.reached()?, ["b0", "b2"]);
    let backends = world.daemon.ok(&["backends", "web"])?;
    assert!(
        backends.contains("fails its checks:") && backends.contains("refused"),
        "{backends}"
    );
    world.answering[1] = Some(Answering::start(&world.lab, 1)?);
    eventually("it serves again", || world.count("serving") == Some(3))?;
    assert_eq!(world.reached()?, ["b0", "b1", "b2"]);
    // Those of the backends that served all the time were never touched.
    let mut connections = connections;
    connections.close("b1");
    connections.check("a backend went down and came back")?;
    Ok(())
}

#[test]
fn checks_that_find_everything_dead_are_not_believed() -> Proof {
    let mut world = World::new(3, "fall = 2\n")?;
    world.start()?;
    eventually("all serve", || world.count("serving") == Some(3))?;
    let connections = LongLived::open(&Client::new(&world.lab), TO, 60)?;
    world.answering.iter_mut().for_each(|answering| *answering = None);
    eventually("it says that it panics", || {
        world
            .daemon
            .ok(&["events"])
            .is_ok_and(|events| events.contains("too few backends pass their checks"))
    })?;
    eventually("all serve all the same", || world.count("serving") == Some(3))?;
    let status = world.daemon.ok(&["status"])?;
    assert!(
        status.contains("READY, WITH PROBLEMS") && status.contains("all are picked as if they did"),
        "{status}"
    );
    assert_eq!(world.reached()?, ["b0", "b1", "b2"]);
    connections.check("all checks failed")?;
    assert!(world.has_vip(), "it serves, so it is announced");
    Ok(())
}

#[test]
fn a_vip_is_announced_while_it_can_be_served_and_withdrawn_in_a_panic() -> Proof {
    let mut world = World::new(2, "fall = 2\non_panic = \"withdraw\"\n")?;
    assert!(!world.has_vip());
    world.start()?;
    eventually("it is announced", || world.has_vip())?;
    world.answering.iter_mut().for_each(|answering| *answering = None);
    eventually("it is withdrawn", || !world.has_vip())?;
    eventually("and that is told", || {
        let status = world.daemon.ok(&["status"]);
        status.is_ok_and(|status| status.contains(&format!("VIP {VIP4}: it is not announced")))
    })?;
    for index in 0..2 {
        world.answering[index] = Some(Answering::start(&world.lab, index)?);
    }
    eventually("it is announced again", || world.has_vip())?;
    // Killed and started again it stays where it is; a service that is no longer configured takes it away.
    world.daemon.kill()?;
    assert!(world.has_vip());
    world.daemon.config.services.clear();
    world.daemon.write_config()?;
    world.daemon.launch()?;
    eventually("nobody asks for it", || !world.has_vip())?;
    Ok(())
}

#[test]
fn a_backend_that_was_never_checked_takes_no_flow_before_its_first_check() -> Proof {
    let mut world = World::new(2, "")?;
    world.answering[1] = None;
    world.start()?;
    eventually("one serves", || world.count("serving") == Some(1))?;
    assert_eq!(world.reached()?, ["b0"]);
    let flows = world.daemon.json(&["backends", "web"])?;
    let silent = &flows[1];
    assert_eq!(silent["flows"], 0, "{silent}");
    // A daemon that is killed and started again goes on with those that served, whatever their checks would say first.
    world.daemon.restart()?;
    assert_eq!(world.reached()?, ["b0"]);
    Ok(())
}
