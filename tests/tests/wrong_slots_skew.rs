//! Promise: under traffic too, slots that are not as published are noticed, named, and put right, and open flows stay.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lb_common::ids::BackendRef;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, Tamper, VIP4, Watched},
    traffic::{Ends, Flood, Held, Kind, Servers, Sources, Wire},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// New flows a second from each CPU.
const RATE: f64 = 500.0;

fn to() -> SocketAddrV4 {
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!("VIP4 is an IPv4 address")
    };
    SocketAddrV4::new(vip, 80)
}

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

/// The fault is told with this cause only, and all slots are as before.
fn heals(
    watched: Watched<'_>,
    tamper: &mut Tamper,
    wanted: &BTreeMap<BackendRef, usize>,
    fault: impl Fn(usize, BackendRef) -> BackendRef,
) -> Result<()> {
    let begin = watched.mark()?;
    tamper.rewrite_slots(fault)?;
    ensure!(tamper.owned()? != *wanted, "the slots are wrong now");
    // What the flows themselves showed of it takes a minute of even traffic to be taken back: not waited for here.
    let over = watched.wait(PATIENCE, "it is named and put right", || {
        watched.says(begin, "firing")?;
        watched.says(begin, "cause table-mismatch")?;
        watched.says(begin, "wrote the slots of names again")
    })?;
    let found = tamper.owned()?;
    ensure!(found == *wanted, "{found:?} instead of {wanted:?}");
    println!("{}", over.text);
    watched.blames_only(begin, "table-mismatch")
}

#[test]
fn a_hole_double_slots_and_slots_of_a_draining_backend() -> Proof {
    let lab = Lab::new(&[Place::Front; 3])?;
    let _servers = Servers::start(&lab, 80)?;
    let services = [("web", "tcp"), ("names", "udp")];
    let services =
        services.map(|(name, protocol)| Service::new(name, protocol, VIP4, 80).backends(&lab.backends));
    let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let watched = Watched(&daemon);
    let vip = SocketAddr::V4(to());
    let held = Held::open(&lab, vip, vip, 6)?;
    let floods = floods(&Wire::of(&lab)?)?;
    let mut tamper = Tamper::open(daemon.pins(), vip, Kind::Udp)?;
    let wanted = tamper.owned()?;
    let names: Vec<BackendRef> = wanted.keys().copied().collect();
    let [first, second, _] = names[..] else {
        Err(anyhow::anyhow!("{names:?} instead of three backends"))?
    };

    // A fifth of the table names nobody: the next slots are tried, and their owners get more.
    heals(watched, &mut tamper, &wanted, |place, slot| {
        if place < 200 { BackendRef::UNSET } else { slot }
    })?;
    heals(watched, &mut tamper, &wanted, |_, slot| {
        if slot == second { first } else { slot }
    })?;

    let address = lab.backends[0].address(false).to_string();
    daemon.ok(&["backend", "drain", "names", &address])?;
    let without = tamper.owned()?;
    let draining = names.iter().find(|name| !without.contains_key(name));
    let draining = *draining.context("one drains")?;
    heals(watched, &mut tamper, &without, |place, slot| {
        if place % 3 == 0 { draining } else { slot }
    })?;

    for flood in floods {
        flood.stop()?;
    }
    println!("{} rounds of the open flows", held.finish()?);
    Ok(())
}
