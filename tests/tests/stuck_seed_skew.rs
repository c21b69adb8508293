//! Promise: under traffic too, a seed that is not as written is noticed at a look, named with its CPU, and put right.

use std::{
    net::{IpAddr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_common::seed::Seed;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, Watched, watched::fit},
    traffic::{Ends, Flood, Held, Servers, Sources, Wire},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// New flows a second from each CPU.
const RATE: f64 = 500.0;
/// Looks at the seeds, one a second, in which a fault may be seen before it is gone.
const LOOKS: u64 = 3;

fn to() -> SocketAddrV4 {
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!("VIP4 is an IPv4 address")
    };
    SocketAddrV4::new(vip, 80)
}

/// Ordinary new flows from every CPU.
fn floods(wire: &Wire) -> Result<Vec<Flood>> {
    let cpus = std::thread::available_parallelism()?.get();
    (0..cpus)
        .map(|cpu| {
            let mut sources = Sources::of(cpu as u8);
            wire.send(cpu, RATE, move || {
                let source = sources.draw();
                Ok(Ends { source, to: to() })
            })
        })
        .collect()
}

/// The fault is seen in few looks, told in these words and with this cause only, and put right; the seeds of other CPUs
/// stay.
fn heals(watched: Watched<'_>, seeds: &[(u32, Seed)], words: &[String]) -> Result<()> {
    let (right, begin) = (watched.seeds()?, watched.mark()?);
    let (_, before) = watched.looks()?;
    for (cpu, seed) in seeds {
        watched.falsify(*cpu, *seed)?;
    }
    watched.wait(PATIENCE, "it is put right", || {
        let found = watched.seeds()?;
        fit(&found)?;
        for (cpu, (found, right)) in (0u32..).zip(found.iter().zip(&right)) {
            let falsified = seeds.iter().any(|(of, _)| *of == cpu);
            // A new one, since whoever wrote the other one may know the old one.
            let as_wanted = match falsified {
                true => found.generation > right.generation,
                false => found == right,
            };
            ensure!(as_wanted, "CPU {cpu}: {found:?}, before {right:?}");
        }
        Ok(())
    })?;
    let over = watched.wait(PATIENCE, "it is named and over", || {
        watched.says(begin, "firing")?;
        watched.says(begin, "cause seed-failure")?;
        for words in words {
            watched.says(begin, words)?;
        }
        watched.says(begin, "resolved")
    })?;
    watched.blames_only(begin, "seed-failure")?;
    let seen = watched.looks()?.1 - before;
    println!(
        "{words:?}: wrong in {seen} looks; {}; generations {:?}",
        over.text,
        watched.seeds()?
    );
    ensure!(
        (1..=LOOKS).contains(&seen),
        "seen in {seen} looks: {:#?}",
        watched.told(begin)?
    );
    Ok(())
}

#[test]
fn under_traffic_is_seen_at_a_look_and_put_right() -> Proof {
    let lab = Lab::new(&[Place::Front; 3])?;
    let _servers = Servers::start(&lab, 80)?;
    let services = [("web", "tcp"), ("names", "udp")];
    let services =
        services.map(|(name, protocol)| Service::new(name, protocol, VIP4, 80).backends(&lab.backends));
    let mut config = Config::new(services);
    // The clock must not heal what the watch should.
    config.seeds.push("interval = \"6h\"".to_owned());
    let daemon = Daemon::start(&lab.balancer, config)?;
    let watched = Watched(&daemon);
    let held = Held::open(&lab, SocketAddr::V4(to()), SocketAddr::V4(to()), 6)?;
    let floods = floods(&Wire::of(&lab)?)?;
    watched.wait(PATIENCE, "the watch looks", || {
        ensure!(watched.looks()?.0 > 2, "{:?}", watched.looks()?);
        Ok(())
    })?;

    // One CPU stuck at the seed before.
    let old = watched.seeds()?[1];
    daemon.ok(&["seeds", "rotate"])?;
    let [first, second] = watched.seeds()?[..2] else {
        Err(anyhow::anyhow!("fewer than two CPUs"))?
    };
    let stale = format!(
        "the seed of CPU 1 is of generation {} instead of {}",
        old.generation, second.generation
    );
    heals(watched, &[(1, old)], &[stale])?;

    // One CPU with the other's key.
    let generation = watched.seeds()?[1].generation;
    let copied = "the seed of CPU 1 is another one than was written".to_owned();
    heals(watched, &[(1, Seed { generation, ..first })], &[copied])?;

    // All of them with one key.
    let one = |(cpu, seed): (u32, Seed)| {
        let (k0, k1) = (!first.k0, !first.k1);
        (cpu, Seed { k0, k1, ..seed })
    };
    let all: Vec<(u32, Seed)> = (0..).zip(watched.seeds()?).map(one).collect();
    let words: Vec<String> = all
        .iter()
        .take(2)
        .map(|(cpu, _)| format!("the seed of CPU {cpu} is another one than was written"))
        .collect();
    heals(watched, &all, &words)?;

    let mut sent = 0;
    for flood in floods {
        sent += flood.stop()?;
    }
    let picked: u64 = watched.picks()?.iter().sum();
    all_picked(sent, picked)?;
    println!("{} rounds of the open flows", held.finish()?);
    Ok(())
}

/// No new flow was lost while seeds were wrong; the open flows are few.
fn all_picked(sent: u64, picked: u64) -> Result<()> {
    ensure!(
        picked >= sent && picked - sent < 100,
        "{sent} flows were sent, {picked} picks were made"
    );
    Ok(())
}
