//! Promise: a change that is cut short – the daemon killed, the kernel unwilling – costs no connection and leaves nothing behind.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    process::Output,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lb_common::{
    backend::state,
    map_names::{self, MapName},
};
use lb_user::{
    maps::{MapReader, MapWriter, PinnedMaps, Scope},
    plan::soundness::unsound,
    state::desired::{Protocol, address_from, service_key},
};
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, within},
    traffic::{Client, LongLived, Servers, Ticking},
};

const FAILED: i32 = 1;
const UNREACHABLE: i32 = 3;

/// The service whose backends stay, and the one whose backends come and go, over TCP and UDP.
const STEADY: u16 = 80;
const CHURN: u16 = 81;
const GUEST: u16 = 82;
/// Addresses of the last backend besides its own, each a backend of the churning services.
const ALIASES: u8 = 160;
const FIRST_ALIAS: u8 = 90;
/// Large tables take long to write, so that a kill finds them half written.
const SLOTS: &str = "slots = 65537";

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(VIP4, port)
}

fn alias(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 2, 0, FIRST_ALIAS + number).into()
}

/// When a daemon is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// This part of an undisturbed apply after its start.
    Part(f64),
    /// As soon as some of the new entries are in the map, out of eight.
    Entries(usize),
    /// As soon as the first service has its new table.
    Switch,
    /// As soon as entries go.
    Removal,
}

const MOMENTS: [Moment; 26] = [
    Moment::Part(0.3),
    Moment::Part(0.5),
    Moment::Part(0.6),
    Moment::Part(0.7),
    Moment::Part(0.75),
    Moment::Part(0.8),
    Moment::Part(0.85),
    Moment::Part(0.9),
    Moment::Part(0.95),
    Moment::Part(1.0),
    Moment::Part(1.3),
    Moment::Part(1.8),
    Moment::Entries(0),
    Moment::Entries(1),
    Moment::Entries(2),
    Moment::Entries(4),
    Moment::Entries(6),
    Moment::Entries(7),
    Moment::Entries(8),
    Moment::Switch,
    Moment::Switch,
    Moment::Switch,
    Moment::Removal,
    Moment::Removal,
    Moment::Removal,
    Moment::Removal,
];

/// A file for `apply -f`, and the backends that the services have when it is in force.
struct Set {
    file: PathBuf,
    wanted: BTreeSet<(String, IpAddr)>,
}

struct Scene {
    client: Client,
    steady: LongLived,
    churn: LongLived,
    daemon: Daemon,
    sets: [Set; 2],
    /// Which set is in force.
    current: usize,
    _servers: Vec<Servers>,
    lab: Lab,
}

impl Scene {
    fn set() -> Result<Self> {
        let lab = Lab::new(&[Place::Front, Place::Front, Place::Front, Place::Front])?;
        let host = &lab.backends[3];
        let addresses: Vec<String> = (0..ALIASES)
            .map(|number| format!("addr add {}/24 dev {}", alias(number), host.interface))
            .collect();
        host.netns.ip(&addresses.join("\n"))?;
        let servers = [STEADY, CHURN, GUEST].map(|port| Servers::start(&lab, port));
        let mut config =
            Config::new([Service::new("steady", "tcp", VIP4, STEADY).backends(&lab.backends[..3])]);
        // One set takes some 210 entries, one on its way to the other some 330: a leak of a few a kill is soon noticed.
        config.datapath = [
            "max_flows = 65536",
            "max_services = 8",
            "max_backends = 400",
            "max_slots = 300000",
        ]
        .map(str::to_owned)
        .to_vec();
        let daemon = Daemon::start(&lab.balancer, config)?;
        let sets = [
            Set::write(&lab, daemon.directory(), "a", 0..100, false)?,
            Set::write(&lab, daemon.directory(), "b", 60..160, true)?,
        ];
        daemon.ok(&["apply", "-f", &sets[0].file()])?;
        let client = Client::new(&lab);
        let mut scene = Self {
            steady: LongLived::open(&client, at(STEADY), 30)?,
            churn: LongLived::open(&client, at(CHURN), 40)?,
            client,
            daemon,
            sets,
            current: 0,
            _servers: servers.into_iter().collect::<Result<_>>()?,
            lab,
        };
        // Flows at backends that go are theirs to lose.
        scene.churn.close("b3");
        Ok(scene)
    }

    fn maps(&self) -> Result<PinnedMaps> {
        Ok(PinnedMaps::open_read_only(self.daemon.pins())?)
    }

    fn check(&self, after: &str) -> Result<()> {
        self.steady.check(after)?;
        self.churn.check(after)
    }

    /// Applies the other set and kills the daemon meanwhile; whether the maps were caught between the two.
    fn kill_during_apply(&mut self, moment: Moment, undisturbed: Duration) -> Result<bool> {
        let other = 1 - self.current;
        let maps = self.maps()?;
        let steps = self.steps(other, &maps, undisturbed)?;
        let applying = Applying::start(&self.daemon, &self.sets[other])?;
        applying.wait_for(moment, &maps, &steps)?;
        self.daemon.kill()?;
        let output = applying.finish()?;

        let between = self.look_at_maps(&maps)?;
        self.check("the kill")?;
        self.daemon.launch()?;
        self.daemon.wait_ready()?;
        self.check("the next start")?;
        self.settle(other, &output)?;
        Ok(between)
    }

    fn steps(&self, other: usize, maps: &PinnedMaps, undisturbed: Duration) -> Result<Steps> {
        let [now, then] = [self.current, other].map(|set| &self.sets[set].wanted);
        let goes = |id: &u32| {
            let entry = maps.backend(*id).filter(|entry| entry.state != state::UNSET);
            entry.is_some_and(|entry| {
                let address = address_from(&entry.address, entry.family);
                !then.iter().any(|(_, stays)| *stays == address)
            })
        };
        Ok(Steps {
            undisturbed,
            new: then.difference(now).count(),
            first_to_go: (1..maps.capacity().backends).find(goes).context("nothing goes")?,
        })
    }

    /// What packets find while there is no daemon.
    fn look_at_maps(&self, maps: &PinnedMaps) -> Result<bool> {
        let observed = maps.observe(&Scope::All)?;
        let notes = unsound(&observed);
        ensure!(notes.is_empty(), "unsound maps:\n{}", notes.join("\n"));
        let tables = observed
            .services
            .values()
            .filter(|service| service.slots_count > 0)
            .count();
        let used = used(maps);
        let whole = self.sets.iter().any(|set| {
            let services: BTreeSet<&String> = set.wanted.iter().map(|(service, _)| service).collect();
            set.wanted.len() == used && services.len() == tables
        });
        Ok(!whole)
    }

    /// One of the two sets is in force, whole: the new one if the command said so. Nothing else is left in the maps.
    fn settle(&mut self, other: usize, output: &Output) -> Result<()> {
        let text = || String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code().context("the command was killed")?;
        ensure!(
            code == 0 || code == UNREACHABLE,
            "apply ended with {code}: {}",
            text()
        );
        let shown = backends(&self.daemon)?;
        let found = self.sets.iter().position(|set| set.wanted == shown);
        let found = found.with_context(|| format!("neither set is in force: {shown:?}"))?;
        ensure!(code != 0 || found == other, "an acknowledged change is lost");
        self.current = found;
        within(Duration::from_secs(5), "the maps are as planned", || {
            let plan = self.daemon.json(&["plan"])?;
            ensure!(plan["steps"] == 0, "{}", plan["text"]);
            Ok(())
        })?;
        let (used, wanted) = (used(&self.maps()?), shown.len());
        ensure!(used == wanted, "{used} entries in use for {wanted} backends");
        Ok(())
    }
}

impl Set {
    /// The steady service with another weight, and the churning ones with these aliases.
    fn write(
        lab: &Lab,
        directory: &Path,
        name: &str,
        aliases: std::ops::Range<u8>,
        guest: bool,
    ) -> Result<Self> {
        let [b0, b1, b2] = [0, 1, 2].map(|index| lab.backends[index].v4);
        let weight = if guest { 3 } else { 1 };
        let steady = Service::new("steady", "tcp", VIP4, STEADY)
            .backend(b0, weight)
            .backend(b1, 1)
            .backend(b2, 2);
        let mut services = vec![steady];
        for protocol in ["tcp", "udp"] {
            let mut service = Service::new(&format!("churn-{protocol}"), protocol, VIP4, CHURN)
                .line(SLOTS)
                .backend(b0, 40)
                .backend(b1, 40);
            for number in aliases.clone() {
                service = service.backend(alias(number), 1);
            }
            services.push(service);
        }
        if guest {
            services.push(
                Service::new("guest", "tcp", VIP4, GUEST)
                    .backend(b2, 1)
                    .backend(alias(0), 1),
            );
        }
        let file = directory.join(name);
        fs::write(&file, services.iter().map(Service::text).collect::<String>())?;
        let wanted = services.iter().flat_map(|service| {
            service
                .backends
                .iter()
                .map(|(address, _)| (service.name.clone(), *address))
        });
        Ok(Self {
            wanted: wanted.collect(),
            file,
        })
    }

    fn file(&self) -> String {
        self.file.display().to_string()
    }
}

/// `evenkeel apply` in the background.
struct Applying {
    thread: JoinHandle<std::io::Result<Output>>,
    since: Instant,
}

impl Applying {
    fn start(daemon: &Daemon, set: &Set) -> Result<Self> {
        let mut command = daemon.cli_command(&["apply", "-f", &set.file()])?;
        Ok(Self {
            since: Instant::now(),
            thread: thread::spawn(move || command.output()),
        })
    }

    /// Returns at the moment, or when the command has ended without it.
    fn wait_for(&self, moment: Moment, maps: &PinnedMaps, steps: &Steps) -> Result<()> {
        let before = used(maps);
        let table = generation(maps)?;
        while !self.thread.is_finished() {
            let come = match moment {
                Moment::Part(part) => self.since.elapsed() >= steps.undisturbed.mul_f64(part),
                Moment::Entries(eighths) => used(maps) >= before + (steps.new * eighths / 8).max(1),
                Moment::Switch => generation(maps)? != table,
                Moment::Removal => is_unset(maps, steps.first_to_go),
            };
            if come {
                break;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Output> {
        Ok(self.thread.join().expect("the thread of a command")?)
    }
}

/// What there is to see of an apply.
struct Steps {
    undisturbed: Duration,
    /// Entries that come.
    new: usize,
    /// An entry that goes.
    first_to_go: u32,
}

fn is_unset(maps: &PinnedMaps, id: u32) -> bool {
    maps.backend(id).is_none_or(|entry| entry.state == state::UNSET)
}

/// Entries in use.
fn used(maps: &PinnedMaps) -> usize {
    (1..maps.capacity().backends)
        .filter(|id| !is_unset(maps, *id))
        .count()
}

/// The generation of the first churning service's table.
fn generation(maps: &PinnedMaps) -> Result<u32> {
    let key = service_key(VIP4, Some(CHURN), Protocol::Tcp);
    Ok(maps
        .read_service(&key)?
        .context("no churning service")?
        .table_generation)
}

fn backends(daemon: &Daemon) -> Result<BTreeSet<(String, IpAddr)>> {
    let shown = daemon.json(&["backends"])?;
    let pair = |backend: &Value| {
        let service = backend["service"].as_str().context("a service")?.to_owned();
        Ok((
            service,
            backend["address"].as_str().context("an address")?.parse()?,
        ))
    };
    shown.as_array().context("a list")?.iter().map(pair).collect()
}

#[test]
fn killed_at_any_moment_of_an_apply_it_goes_on_from_there() -> Proof {
    let mut scene = Scene::set()?;
    scene.check("nothing")?;
    assert!(
        scene.churn.at("b0") + scene.churn.at("b1") > 0,
        "flows at backends that stay"
    );
    let client = scene.client.clone();
    let connections = Ticking::start("a connection to backends that stay", move || {
        client.tcp(at(STEADY))
    });
    let client = scene.client.clone();
    let datagrams = Ticking::start("a datagram to backends that come and go", move || {
        client.udp(at(CHURN))
    });

    let mut undisturbed = Duration::ZERO;
    for _ in 0..2 {
        let since = Instant::now();
        let other = 1 - scene.current;
        let output = Applying::start(&scene.daemon, &scene.sets[other])?.finish()?;
        undisturbed = since.elapsed();
        scene.settle(other, &output)?;
        scene.check("an apply")?;
    }
    let mut caught = 0;
    for moment in MOMENTS {
        let between = scene
            .kill_during_apply(moment, undisturbed)
            .with_context(|| format!("killed at {moment:?}"))?;
        caught += usize::from(between);
    }
    println!(
        "{caught} of {} kills caught the maps between two sets",
        MOMENTS.len()
    );
    assert!(caught > 0, "no kill caught the maps between two sets");

    let answered = (connections.finish()?, datagrams.finish()?);
    println!(
        "{} connections and {} datagrams, all answered",
        answered.0, answered.1
    );
    assert!(answered.0 > 100 && answered.1 > 100, "{answered:?}");
    scene.check("all of it")?;
    let fresh = LongLived::open(&scene.client, at(STEADY), 30)?;
    for name in ["b0", "b1", "b2"] {
        assert!(fresh.at(name) > 0, "{name} gets no new flows");
    }
    assert_eq!(scene.lab.backends.len(), 4);
    Ok(())
}

/// Makes the kernel refuse to map a map for writing from now on: `BPF_MAP_FREEZE` of bpf(2), for good.
fn freeze(daemon: &Daemon, map: MapName) -> Result<()> {
    const BPF_MAP_FREEZE: libc::c_int = 22;
    let map = aya::maps::MapData::from_pin(daemon.pins().join(map.name))?;
    let fd = map.fd().as_fd().as_raw_fd();
    // SAFETY: the command reads the map's descriptor, the first four bytes of its attributes, and nothing else.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_FREEZE, &raw const fd, size_of_val(&fd)) };
    ensure!(result == 0, "freezing a map: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Once the daemon runs, it writes to the maps in memory, where the kernel has no say.
#[test]
fn a_start_that_the_kernel_refuses_leaves_the_traffic_alone() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, STEADY)?;
    let service = Service::new("web", "tcp", VIP4, STEADY).backends(&lab.backends);
    let mut daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
    let client = Client::new(&lab);
    let flows = LongLived::open(&client, at(STEADY), 30)?;
    daemon.kill()?;
    freeze(&daemon, map_names::SERVICES)?;
    for _ in 0..2 {
        let refused = daemon.run_to_end()?;
        assert_eq!(refused.status.code(), Some(FAILED));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("cannot map SERVICES into memory"), "{said}");
        flows.check("a start that the kernel refused")?;
        LongLived::open(&client, at(STEADY), 10)?.check("new connections")?;
    }
    let pins = daemon.pins().to_str().context("a path of letters")?.to_owned();
    daemon.ok(&["detach", "--pin-directory", &pins])?;
    daemon.launch()?;
    daemon.wait_ready()?;
    LongLived::open(&client, at(STEADY), 10)?.check("maps made anew")?;
    Ok(())
}
