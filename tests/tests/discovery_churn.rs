//! Promise: however often the configuration and the backends change, new connections are answered, nothing of a service
//! reaches another's backends, and nothing is used up.

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use tempfile::TempDir;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Netns, Place, Service, Slots, VIP4, within},
    sources::{
        Traffic,
        scene::{dropped, list, replace},
    },
    traffic::{Client, LongLived, Rush, Servers, client},
};

const FIRST: SocketAddr = SocketAddr::new(VIP4, 80);
const NOTHING: [(String, u64); 0] = [];
const SECOND: SocketAddr = SocketAddr::new(VIP4, 81);

/// A daemon whose backends stand in its file; they serve both ports.
struct World {
    // Stopped before the namespaces go.
    daemon: Daemon,
    _servers: [Servers; 2],
    lab: Lab,
}

impl World {
    fn new(backends: usize, services: impl FnOnce(&Lab) -> Vec<Service>) -> Result<Self> {
        let lab = Lab::new(&vec![Place::Front; backends])?;
        let servers = [Servers::start(&lab, 80)?, Servers::start(&lab, 81)?];
        let daemon = Daemon::start(&lab.balancer, Config::new(services(&lab)))?;
        Ok(Self {
            daemon,
            _servers: servers,
            lab,
        })
    }

    fn reload(&mut self, services: Vec<Service>) -> Result<()> {
        self.daemon.config.services = services;
        self.daemon.write_config()?;
        self.daemon.ok(&["reload"])?;
        Ok(())
    }
}

fn service(lab: &Lab, name: &str, protocol: &'static str, port: u16, backends: &[usize]) -> Service {
    let service = Service::new(name, protocol, VIP4, port);
    backends.iter().fold(service, |service, index| {
        service.backend(lab.backends[*index].address(false), 1)
    })
}

/// At no moment does either port lead nowhere, or to a backend that is not one of the two services'.
#[test]
fn two_services_swap_their_ports() -> Proof {
    const PAIRS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
    let services = |lab: &Lab, ports: [u16; 2]| {
        vec![
            service(lab, "left", "tcp", ports[0], &PAIRS[0]),
            service(lab, "right", "tcp", ports[1], &PAIRS[1]),
        ]
    };
    let mut world = World::new(4, |lab| services(lab, [80, 81]))?;
    let rushes = [
        Rush::start(&world.lab, FIRST, 200)?,
        Rush::start(&world.lab, SECOND, 200)?,
    ];
    let client = Client::new(&world.lab);
    for turn in 1..=10 {
        let (ports, pairs) = match turn % 2 {
            0 => ([80, 81], PAIRS),
            _ => ([81, 80], [PAIRS[1], PAIRS[0]]),
        };
        let said = Instant::now();
        let wanted = services(&world.lab, ports);
        world.reload(wanted)?;
        for ((rush, to), pair) in rushes.iter().zip([FIRST, SECOND]).zip(pairs) {
            rush.excuse(said);
            let name = client.tcp(to)?;
            assert!(
                pair.map(|index| format!("b{index}")).contains(&name),
                "{to}: {name}"
            );
        }
        rushes.iter().try_for_each(|rush| rush.go_on(30))?;
    }
    assert_eq!(dropped(&world.daemon)?, NOTHING);
    for (rush, port) in rushes.into_iter().zip([80, 81]) {
        let rushed = rush.finish()?;
        rushed.print(&format!("port {port} in ten swaps"));
        assert_eq!(rushed.answers.len(), 4, "{rushed:?}");
    }
    Ok(())
}

/// Flows that a service had are nothing to the services that get its backends' ids later.
#[test]
fn a_service_that_was_removed_and_made_again_with_other_backends() -> Proof {
    const PORTS: std::ops::Range<u16> = 5000..5040;
    let old = |lab: &Lab| vec![service(lab, "web", "udp", 80, &[0, 1])];
    let other = |lab: &Lab| vec![service(lab, "other", "udp", 81, &[2, 3])];
    let again = |lab: &Lab| {
        vec![
            service(lab, "other", "udp", 81, &[2, 3]),
            service(lab, "web", "udp", 80, &[1, 4]),
        ]
    };
    let mut world = World::new(5, old)?;
    let client = Client::new(&world.lab);
    // The few ids there are must be used again and again.
    for round in 0..3 {
        for port in PORTS {
            let name = client.udp_from(port, FIRST)?;
            assert!(
                ["b0", "b1"].contains(&name.as_str()),
                "round {round}, port {port}: {name}"
            );
        }
        let services = other(&world.lab);
        world.reload(services)?;
        assert!(
            client.udp_from(4999, FIRST).is_err(),
            "a service that is gone answers"
        );
        for port in PORTS {
            let name = client.udp_from(port, SECOND)?;
            assert!(
                ["b2", "b3"].contains(&name.as_str()),
                "round {round}, port {port}: {name}"
            );
        }
        let services = again(&world.lab);
        world.reload(services)?;
        for port in PORTS {
            let name = client.udp_from(port, FIRST)?;
            assert!(
                ["b1", "b4"].contains(&name.as_str()),
                "round {round}, port {port}: {name}"
            );
            let name = client.udp_from(port, SECOND)?;
            assert!(
                ["b2", "b3"].contains(&name.as_str()),
                "round {round}, port {port}: {name}"
            );
        }
        let services = old(&world.lab);
        world.reload(services)?;
    }
    Ok(())
}

/// A connection from a given port, which may have been another's a moment ago.
fn connect_from(client: &Netns, port: u16, to: SocketAddr) -> Result<(std::net::TcpStream, String)> {
    client.run(|| {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddr::from(([0, 0, 0, 0], port)))?;
        connect(&socket, &to).with_context(|| format!("connecting from port {port}"))?;
        let stream = std::net::TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let name = client::line(&stream, "who")?;
        Ok((stream, name))
    })
}

/// Forgets a connection without a word to anybody, as a host does that crashes (`TCP_REPAIR`, tcp(7)).
fn forget(stream: std::net::TcpStream) -> Result<()> {
    use std::os::fd::AsRawFd;
    const ON: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the value is an integer of the length that is given.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            std::ptr::from_ref(&ON).cast(),
            size_of_val(&ON) as libc::socklen_t,
        )
    };
    ensure!(result == 0, "TCP_REPAIR: {}", std::io::Error::last_os_error());
    drop(stream);
    Ok(())
}

/// The flow table still knows the port's old connection to the drained backend; a SYN is a new one.
#[test]
fn a_new_connection_from_an_old_port_does_not_follow_a_drained_backend() -> Proof {
    const PORTS: std::ops::Range<u16> = 6000..6024;
    let world = World::new(2, |lab| vec![service(lab, "web", "tcp", 80, &[0, 1])])?;
    let mut open = Vec::new();
    for port in PORTS {
        open.push((port, connect_from(&world.lab.client, port, FIRST)?));
    }
    let drained = world.lab.backends[0].address(false).to_string();
    world.daemon.ok(&["backend", "drain", "web", &drained])?;
    let mut at_drained = 0;
    for (port, (stream, name)) in open {
        // Open connections go on.
        assert_eq!(client::line(&stream, "draining")?, name);
        at_drained += usize::from(name == "b0");
        forget(stream)?;
        let (new, name) = connect_from(&world.lab.client, port, FIRST)?;
        assert_eq!(name, "b1", "port {port}");
        assert_eq!(client::line(&new, "again")?, "b1");
    }
    println!(
        "{at_drained} of {} ports had a connection to the drained backend",
        PORTS.len()
    );
    assert!(at_drained > 0, "no port had a connection to the drained backend");
    Ok(())
}

/// The file changes to and fro.
#[test]
fn reloads_in_a_loop() -> Proof {
    const LENGTH: Duration = Duration::from_secs(60);
    let forms = |lab: &Lab| {
        let one = vec![service(lab, "web", "tcp", 80, &[0, 1, 2])];
        let mut two = vec![
            service(lab, "web", "tcp", 80, &[0, 1, 2]),
            service(lab, "more", "tcp", 81, &[0, 3]),
        ];
        for (index, (_, weight)) in two[0].backends.iter_mut().enumerate() {
            *weight = 1 + 2 * index as u32;
        }
        [one, two]
    };
    let mut world = World::new(4, |lab| forms(lab)[0].clone())?;
    let used = |world: &World| {
        let metrics = world.daemon.metrics()?;
        ["services", "backends", "slots"]
            .into_iter()
            .map(|map| metrics.count("evenkeel_map_used", &[("map", map)]))
            .collect::<Result<Vec<u64>>>()
    };
    let before = used(&world)?;
    let traffic = Traffic::start(&world.lab, FIRST, 300)?;
    let begin = Instant::now();
    let mut reloads = 0;
    while begin.elapsed() < LENGTH {
        reloads += 1;
        let [one, two] = forms(&world.lab);
        world.reload(if reloads % 2 == 0 { one } else { two })?;
        if reloads % 20 == 0 {
            traffic.go_on("a reload")?;
        }
    }
    let [one, _] = forms(&world.lab);
    world.reload(one)?;
    println!("{reloads} reloads in {:?}", begin.elapsed());
    within(Duration::from_secs(20), "nothing is used up", || {
        let after = used(&world)?;
        ensure!(after == before, "{after:?} used, {before:?} before");
        Ok(())
    })?;
    assert_eq!(dropped(&world.daemon)?, NOTHING);
    assert!(reloads > 20, "{reloads} reloads");
    let rushed = traffic.finish("reloads in a loop")?;
    assert_eq!(rushed.answers.len(), 3, "{rushed:?}");
    Ok(())
}

/// Services of one daemon whose backends all stand in one file.
struct Crowd {
    // Stopped before the namespaces go.
    daemon: Daemon,
    _servers: [Servers; 2],
    lab: Lab,
    slots: Slots,
    file: PathBuf,
    _directory: TempDir,
}

impl Crowd {
    const SERVICES: u16 = 10;

    fn new(lab: Lab, first: &str) -> Result<Self> {
        let servers = [Servers::start(&lab, 80)?, Servers::start(&lab, 81)?];
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("backends.json");
        replace(&file, first)?;
        let lines = format!("[[service.source]]\ntype = \"file\"\npath = {file:?}\nmax_removal = 1.0\n");
        let services = (0..Self::SERVICES)
            .map(|number| Service::new(&format!("s{number}"), "tcp", VIP4, 80 + number).line(&lines));
        let mut config = Config::new(services);
        config.datapath = [
            "max_flows = 65536",
            "max_services = 64",
            "max_backends = 2048",
            "max_slots = 600000",
        ]
        .map(str::to_owned)
        .to_vec();
        let daemon = Daemon::start(&lab.balancer, config)?;
        Ok(Self {
            slots: Slots::open(&daemon)?,
            daemon,
            _servers: servers,
            lab,
            file,
            _directory: directory,
        })
    }

    /// Names these, and waits until every service has just so many backends.
    fn name(&self, text: &str, each: usize) -> Result<()> {
        replace(&self.file, text)?;
        let wanted = each * usize::from(Self::SERVICES);
        within(Duration::from_secs(20), "they are the backends", || {
            let (used, owners) = self.slots.used();
            ensure!(
                (used, owners) == (wanted, wanted),
                "{used} entries are in use and {owners} own slots, wanted {wanted}"
            );
            Ok(())
        })
    }

    /// Services and slots in use as the daemon counts them.
    fn counted(&self) -> Result<[u64; 3]> {
        let metrics = self.daemon.metrics()?;
        let [services, backends, slots] =
            ["services", "backends", "slots"].map(|map| metrics.count("evenkeel_map_used", &[("map", map)]));
        Ok([services?, backends?, slots?])
    }
}

/// A hundred backends that come and go for ten services seventy times are seventy thousand, in a table for 2,047.
#[test]
fn seventy_thousand_backends_one_after_the_other() -> Proof {
    const MANY: u8 = 100;
    const ROUNDS: usize = 70;
    let lab = Lab::new(&[Place::Front; 2])?;
    // All of them are addresses of the second backend.
    let mut batch = String::new();
    let mut many = Vec::new();
    for host in (0..=u8::MAX).skip(50).take(usize::from(MANY) * 2) {
        let address = IpAddr::from([10, 2, 0, host]);
        writeln!(
            batch,
            "address add {address}/24 dev {}",
            lab.backends[1].interface
        )?;
        many.push(address);
    }
    lab.backends[1].netns.ip(batch.trim_end())?;
    let keeps = lab.backends[0].address(false);
    let few = list([keeps]);
    let lists =
        [&many[..MANY.into()], &many[MANY.into()..]].map(|some| list(some.iter().copied().chain([keeps])));
    let crowd = Crowd::new(lab, &few)?;
    crowd.name(&few, 1)?;
    let before = crowd.counted()?;
    let held = [FIRST, SECOND].map(|to| LongLived::open(&Client::new(&crowd.lab), to, 40));
    let [held_first, held_second] = held;
    let held = [held_first?, held_second?];
    let rushes = [
        Rush::start(&crowd.lab, FIRST, 100)?,
        Rush::start(&crowd.lab, SECOND, 100)?,
    ];
    let begin = Instant::now();
    for round in 0..ROUNDS {
        crowd
            .name(&lists[round % 2], usize::from(MANY) + 1)
            .with_context(|| format!("round {round}"))?;
        let said = Instant::now();
        crowd.name(&few, 1).with_context(|| format!("round {round}"))?;
        rushes.iter().for_each(|rush| rush.excuse(said));
        if round % 10 == 9 {
            rushes.iter().try_for_each(|rush| rush.go_on(20))?;
            held.iter()
                .try_for_each(|held| held.check("backends came and went"))?;
        }
    }
    let cycles = ROUNDS * usize::from(MANY) * usize::from(Crowd::SERVICES);
    println!("{cycles} backends came and went in {:?}", begin.elapsed());
    within(Duration::from_secs(20), "nothing is used up", || {
        let after = crowd.counted()?;
        ensure!(after == before, "{after:?} used, {before:?} before");
        Ok(())
    })?;
    // And there is room for as many as the table holds.
    crowd.name(&list(many.iter().copied().chain([keeps])), 201)?;
    for (rush, held) in rushes.into_iter().zip(held) {
        let rushed = rush.finish()?;
        rushed.print("seventy thousand backends");
        assert_eq!(rushed.answers.len(), 2, "{rushed:?}");
        held.check("all came")?;
    }
    Ok(())
}
