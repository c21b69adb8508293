//! Promise: new flows are spread as the weights say, on every CPU and whatever their seeds.

use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, Result};
use lb_common::{counters::CpuCounters, map_names::CPU_COUNTERS, slot_table::HISTOGRAM_BUCKETS};
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, VIP6},
    statistics::spread_as,
    traffic::{Client, Kind, Servers, Spread},
};

const WEIGHTS: [u64; 3] = [1, 1, 2];

fn weighted(name: &str, protocol: &'static str, vip: IpAddr, lab: &Lab) -> Service {
    let backends = lab.backends.iter().zip(WEIGHTS);
    backends.fold(
        Service::new(name, protocol, vip, 80),
        |service, (backend, weight)| service.backend(backend.address(vip.is_ipv6()), weight as u32),
    )
}

fn counts(spread: &Spread) -> Vec<u64> {
    ["b0", "b1", "b2"]
        .iter()
        .map(|name| spread.get(*name).copied().unwrap_or(0))
        .collect()
}

#[test]
fn as_the_weights_say_on_every_cpu() -> Proof {
    let lab = Lab::new(&[Place::Front; 3])?;
    let _servers = Servers::start(&lab, 80)?;
    let services = [
        weighted("four", "udp", VIP4, &lab),
        weighted("six", "tcp", VIP6, &lab),
    ];
    let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let client = Client::new(&lab);
    for _ in 0..2 {
        spread_as(
            &counts(&client.many(Kind::Udp, SocketAddr::new(VIP4, 80), 6000)?),
            &WEIGHTS,
        )?;
        spread_as(
            &counts(&client.many(Kind::Tcp, SocketAddr::new(VIP6, 80), 1500)?),
            &WEIGHTS,
        )?;
        daemon.ok(&["seeds", "rotate"])?;
    }
    every_cpu_picked(&daemon)
}

/// Read from the pinned map itself: each CPU's histogram must have its part of the picks.
fn every_cpu_picked(daemon: &Daemon) -> Proof {
    const WORDS: usize = size_of::<CpuCounters>() / 8;
    const PICKS: usize = offset_of!(CpuCounters, histogram) / 8;
    let map = aya::maps::MapData::from_pin(daemon.pins().join(CPU_COUNTERS.name))?;
    let map = aya::maps::Map::from_map_data(map)?;
    let counters: aya::maps::Array<_, [u64; WORDS]> = map.try_into()?;
    let picks: Vec<u64> = (0..std::thread::available_parallelism()?.get() as u32)
        .map(|cpu| {
            let picks = &counters.get(&cpu, 0)?[PICKS..][..HISTOGRAM_BUCKETS as usize];
            Ok(picks.iter().sum())
        })
        .collect::<Result<_>>()?;
    let total: u64 = picks.iter().sum();
    assert_eq!(total, 15_000, "one pick a flow");
    assert!(picks.iter().all(|picks| picks * 10 > total), "{picks:?}");
    Ok(())
}

#[test]
fn client_affinity_keeps_a_client_at_one_backend() -> Proof {
    const CLIENTS: u8 = 48;
    let lab = Lab::new(&[Place::Front; 3])?;
    let addresses: Vec<IpAddr> = (0..CLIENTS).map(|n| Ipv4Addr::new(10, 1, 1, n).into()).collect();
    let batch: String = addresses
        .iter()
        .map(|a| format!("addr add {a}/16 dev eth0\n"))
        .collect();
    lab.client.ip(&batch)?;
    let _servers = Servers::start(&lab, 80)?;
    let service = Service::new("sticky", "udp", VIP4, 80).line("affinity = \"client\"");
    let daemon = Daemon::start(&lab.balancer, Config::new([service.backends(&lab.backends)]))?;
    let client = Client::new(&lab);
    let to = SocketAddr::new(VIP4, 80);
    let homes = |round: &str| -> Result<Vec<String>> {
        addresses
            .iter()
            .map(|address| {
                let spread = client.from(*address, to, 8)?;
                assert_eq!(spread.len(), 1, "{address} in round {round}: {spread:?}");
                spread.into_keys().next().context("an answer")
            })
            .collect()
    };
    let first = homes("one")?;
    for name in ["b0", "b1", "b2"] {
        assert!(
            first.iter().any(|home| home == name),
            "{name} has no client of {CLIENTS}: {first:?}"
        );
    }
    daemon.ok(&["seeds", "rotate"])?;
    assert_eq!(homes("two")?, first, "seeds of CPUs do not move clients");
    daemon.ok(&["seeds", "rotate", "--shared"])?;
    assert_ne!(homes("three")?, first, "the shared seed does");
    Ok(())
}

#[test]
fn fleet_selection_picks_alike_on_two_nodes() -> Proof {
    let first = Lab::new(&[Place::Front; 3])?;
    let second = Lab::new(&[Place::Front; 3])?;
    let mut answers = Vec::new();
    let secret = tempfile::NamedTempFile::with_prefix(format!("{}-", tests::lab::netns::unique()))?;
    std::fs::write(secret.path(), "a secret that both nodes of this fleet were given")?;
    for lab in [&first, &second] {
        let _servers = Servers::start(lab, 80)?;
        let service = Service::new("fleet", "udp", VIP4, 80).line("selection = \"fleet\"");
        let mut config = Config::new([service.backends(&lab.backends)]);
        config
            .seeds
            .push(format!("fleet_secret_file = {:?}", secret.path()));
        let _daemon = Daemon::start(&lab.balancer, config)?;
        answers.push(picks(lab)?);
    }
    assert!(
        answers[0].iter().any(|name| *name != answers[0][0]),
        "{:?}",
        answers[0]
    );
    assert_eq!(answers[0], answers[1]);
    Ok(())
}

/// Who answers source ports 3000 to 3199, from alternating CPUs.
fn picks(lab: &Lab) -> Result<Vec<String>> {
    let client = Client::new(lab);
    (3000..3200)
        .map(|port| client.udp_from(port, SocketAddr::new(VIP4, 80)))
        .collect()
}
