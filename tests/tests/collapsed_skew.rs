//! Promise: a hash that does not spread is noticed within seconds, named with its CPU, and put right if new seeds can do that.
//!
//! The harness knows the seed of a CPU and sends flows from there that its hash puts into few buckets: what someone does who
//! aims at one backend, and what a collapsed hash looks like.

use std::{
    net::{IpAddr, SocketAddr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    lab::{
        Config, Daemon, Lab, Mark, Place, Service, Told, VIP4, Watched,
        watched::{EVEN, UNEVEN},
    },
    traffic::{Aim, Ends, Flood, Held, Servers, Sources, Wire},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// An alarm is taken back a minute of even checks later, and the last minute must be even too.
const OVER: Duration = Duration::from_secs(95);
/// New flows a second from each CPU.
const RATE: f64 = 500.0;
/// Of 256.
const BUCKETS: u32 = 4;

fn to() -> SocketAddrV4 {
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!("VIP4 is an IPv4 address")
    };
    SocketAddrV4::new(vip, 80)
}

struct Scene {
    held: Held,
    wire: Wire,
    daemon: Daemon,
    _servers: Servers,
    _lab: Lab,
}

impl Scene {
    fn set(skew: &[&str]) -> Result<Self> {
        let lab = Lab::new(&[Place::Front; 3])?;
        let servers = Servers::start(&lab, 80)?;
        let services = [("web", "tcp"), ("names", "udp")];
        let mut config = Config::new(
            services.map(|(name, protocol)| Service::new(name, protocol, VIP4, 80).backends(&lab.backends)),
        );
        // The clock must not heal what the watch should.
        config.seeds.push("interval = \"6h\"\n[skew]".to_owned());
        config.seeds.extend(skew.iter().map(|line| (*line).to_owned()));
        let daemon = Daemon::start(&lab.balancer, config)?;
        let to = SocketAddr::V4(to());
        Ok(Self {
            held: Held::open(&lab, to, to, 6)?,
            wire: Wire::of(&lab)?,
            daemon,
            _servers: servers,
            _lab: lab,
        })
    }

    fn watched(&self) -> Watched<'_> {
        Watched(&self.daemon)
    }

    /// New flows of a CPU, of which every one of `part`s is aimed as long as that is not 0.
    fn flood(&self, cpu: u32, aim: Aim, part: &Arc<AtomicU64>) -> Result<Flood> {
        let (mut plain, mut chosen) = (Sources::of(cpu as u8), Sources::of(128 + cpu as u8));
        let part = Arc::clone(part);
        let mut count = 0u64;
        self.wire.send(cpu as usize, RATE, move || {
            count += 1;
            let part = part.load(Ordering::Relaxed);
            let source = match part > 0 && count.is_multiple_of(part) {
                true => aim.draw(&mut chosen)?,
                false => plain.draw(),
            };
            Ok(Ends { source, to: to() })
        })
    }

    /// Someone who learns each new seed at once.
    fn follower(&self, cpu: u32) -> Result<Aim> {
        Aim::always(self.daemon.pins(), to(), cpu, BUCKETS)
    }

    /// The first alarm of the box's hash, and the cause that was named.
    fn alarm(&self, since: Mark) -> Result<[Told; 2]> {
        self.watched()
            .wait(PATIENCE, "the collapse is noticed and named", || {
                Ok([
                    self.watched().says(since, "firing")?,
                    self.watched().says(since, "cause hash-failure")?,
                ])
            })
    }
}

fn whole() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(1))
}

fn none() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(0))
}

#[test]
fn on_one_cpu_is_noticed_in_seconds_and_healed_by_a_new_seed() -> Proof {
    let scene = Scene::set(&[])?;
    let watched = scene.watched();
    let plain = scene.flood(0, scene.follower(0)?, &none())?;
    // An event of the daemon itself, right before.
    scene.daemon.ok(&["seeds", "rotate"])?;
    let begin = watched.mark()?;
    let (picks, before) = (watched.picks()?, watched.seeds()?);
    let aim = Aim::once(scene.daemon.pins(), to(), 1, BUCKETS)?;
    let aimed = scene.flood(1, aim, &whole())?;

    let [fired, explained] = scene.alarm(begin)?;
    println!(
        "{} ms: {}: {}",
        fired.time_ms - begin.time_ms,
        fired.object,
        fired.text
    );
    println!("{} ms: {}", explained.time_ms - begin.time_ms, explained.text);
    assert!(
        fired.time_ms - begin.time_ms <= 5000,
        "noticed {} ms after the daemon's seeds were new",
        fired.time_ms - begin.time_ms
    );
    assert!(explained.text.contains("on CPU 1:"), "{explained:?}");
    let healed = watched.wait(PATIENCE, "the seed is rotated", || {
        watched.says(begin, "rotated the seeds of CPU 1")
    })?;
    println!("{} ms: {}", healed.time_ms - begin.time_ms, healed.text);
    let after = watched.seeds()?;
    assert_eq!(
        after[1].generation,
        before[1].generation + 1,
        "one new seed for CPU 1"
    );
    assert_eq!(after[0], before[0], "CPU 0 keeps its own");

    let over = watched.wait(OVER, "the alarm is over", || watched.says(begin, "resolved"))?;
    println!("{} ms: {}", over.time_ms - begin.time_ms, over.text);
    assert!(over.text.contains("clients had aimed at it"), "{over:?}");
    watched.blames_only(begin, "hash-failure")?;
    let (report, code) = watched.report(None)?;
    let states = report["services"]
        .as_array()
        .context("services")?
        .iter()
        .map(|service| &service["state"]);
    ensure_over(&states.collect::<Vec<_>>(), code)?;
    let told = watched.told(begin)?;
    told.iter().for_each(|told| {
        println!(
            "  {} {}: {}",
            told.time_ms - begin.time_ms,
            told.object,
            told.text
        )
    });
    let times = |text: &str| told.iter().filter(|told| told.text.contains(text)).count();
    assert_eq!(times("rotated the seeds"), 1, "{told:#?}");
    assert_eq!(times("did not help"), 0, "{told:#?}");
    // Each CPU picked for the flows that were sent from it.
    let sent = [plain.stop()?, aimed.stop()?];
    let picked = watched.picks()?;
    println!("sent {sent:?}, picked {picked:?} less {picks:?}");
    assert!(
        (picked[1] - picks[1]).abs_diff(sent[1]) <= sent[1] / 50,
        "sent {sent:?}, picked {picked:?}"
    );
    scene.held.finish()?;
    Ok(())
}

#[test]
fn that_follows_every_new_seed_is_left_firing_with_what_to_do() -> Proof {
    let mut scene = Scene::set(&["rotations_per_hour = 0"])?;
    let begin = scene.watched().mark()?;
    let before = scene.watched().seeds()?;
    let _plain = scene.flood(0, scene.follower(0)?, &none())?;
    let aimed = scene.flood(1, scene.follower(1)?, &whole())?;
    let [_, explained] = scene.alarm(begin)?;
    assert!(explained.text.contains("on CPU 1:"), "{explained:?}");
    let names = |scene: &Scene, state: &str, todo: [&str; 2]| {
        scene.watched().wait(PATIENCE, state, || {
            let (report, code) = scene.watched().report(Some("names"))?;
            let names = &report["services"][0];
            let says = names["todo"].to_string();
            ensure!(
                names["state"] == state && names["cause"] == "hash-failure",
                "{names:#}"
            );
            ensure!(names["scope"] == "CPU 1", "{names:#}");
            ensure!(todo.iter().all(|text| says.contains(text)), "{names:#}");
            ensure!(code == UNEVEN, "`evenkeel skew names` ends with {code}");
            Ok(())
        })
    };
    names(
        &scene,
        "firing",
        ["the budget of remedies is 0", "evenkeel seeds rotate --all"],
    )?;
    assert_eq!(scene.watched().seeds()?, before, "no budget, no rotation");

    // One rotation, which does not help.
    let allowed = scene.watched().mark()?;
    let lines = &mut scene.daemon.config.seeds;
    lines
        .iter_mut()
        .for_each(|line| *line = line.replace("hour = 0", "hour = 1"));
    scene.daemon.write_config()?;
    scene.daemon.ok(&["reload"])?;
    let watched = scene.watched();
    watched.wait(PATIENCE, "the seed is rotated", || {
        watched.says(allowed, "rotated the seeds of CPU 1")
    })?;
    let useless = watched.wait(PATIENCE, "it is seen that this did not help", || {
        watched.says(allowed, "did not help")
    })?;
    println!("{}: {}", useless.object, useless.text);
    names(&scene, "firing", ["no remedy left", "the program is broken"])?;
    // And so it stays.
    let (looks, _) = watched.looks()?;
    watched.wait(PATIENCE, "more checks", || {
        ensure!(watched.looks()?.0 >= looks + 8, "{:?}", watched.looks()?);
        Ok(())
    })?;
    names(&scene, "firing", ["no remedy left", "the program is broken"])?;
    let after = watched.seeds()?;
    assert_eq!(
        after[1].generation,
        before[1].generation + 1,
        "one rotation, no more"
    );
    assert_eq!(after[0], before[0], "CPU 0 keeps its own");
    watched.blames_only(begin, "hash-failure")?;
    aimed.stop()?;
    scene.held.finish()?;
    Ok(())
}

fn ensure_over(states: &[&Value], code: i32) -> Result<()> {
    let over = states
        .iter()
        .all(|state| **state == "resolved" || **state == "quiet");
    ensure!(over && code == EVEN, "{states:?}, exit code {code}");
    Ok(())
}

/// First a tenth of one CPU's flows, then all of them, then the other CPU's too.
#[test]
fn that_grows_is_noticed_while_it_is_small() -> Proof {
    const CHECKS: u64 = 20;
    let scene = Scene::set(&["auto_heal = false"])?;
    let watched = scene.watched();
    let parts = [none(), none()];
    let floods = [
        scene.flood(0, scene.follower(0)?, &parts[0])?,
        scene.flood(1, scene.follower(1)?, &parts[1])?,
    ];
    let even = watched.looks()?.0;
    watched.wait(PATIENCE, "some even checks", || {
        ensure!(watched.looks()?.0 >= even + 3, "{:?}", watched.looks()?);
        Ok(())
    })?;
    watched.nothing_happened()?;

    let begin = watched.mark()?;
    let mut noticed = None;
    for (step, cpu, part) in [(1, 1usize, 10), (2, 1, 1)] {
        let first = watched.looks()?.0;
        parts[cpu].store(part, Ordering::Relaxed);
        watched.wait(PATIENCE, "so many checks, or an alarm", || {
            let looks = watched.looks()?.0;
            if noticed.is_none() && watched.says(begin, "cause hash-failure").is_ok() {
                println!("noticed in step {step} after at most {} checks", looks - first);
                noticed = Some(step);
            }
            ensure!(noticed.is_some() || looks >= first + CHECKS, "{looks}");
            Ok(())
        })?;
    }
    let noticed = noticed.context("a whole CPU had collapsed and nobody noticed")?;
    let [fired, explained] = scene.alarm(begin)?;
    println!("step {noticed}: {} {}", fired.text, explained.text);
    assert!(explained.text.contains("on CPU 1:"), "{explained:?}");

    parts[0].store(1, Ordering::Relaxed);
    watched.wait(
        PATIENCE,
        "all CPUs are named, and it is worth waking someone",
        || {
            let names = watched.service("names")?;
            ensure!(
                names["scope"] == "all CPUs" && names["severity"] == "page",
                "{names:#}"
            );
            ensure!(
                names["state"] == "firing" && names["cause"] == "hash-failure",
                "{names:#}"
            );
            Ok(())
        },
    )?;
    watched.blames_only(begin, "hash-failure")?;
    for flood in floods {
        flood.stop()?;
    }
    scene.held.finish()?;
    Ok(())
}
