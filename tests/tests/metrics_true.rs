//! Promise: metrics are true: to the packet and the octet they say what the backends saw.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use lb_common::map_names;
use lb_ebpf::verdict::Verdict;
use tests::{
    Proof,
    capture::{RawSocket, Tally, Witness},
    lab::{Config, Daemon, Decap, Lab, Place, Service, VIP4, VIP6, topology::BALANCER_PORT, within},
    traffic::{Client, Kind, LongLived, Servers, metrics::Metrics},
};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Connections, and datagrams from fresh ports, to each service.
const FLOWS: u64 = 300;

/// Name, transport, VIP and port.
const SERVICES: [(&str, u8, IpAddr, u16); 6] = [
    ("tcp4", TCP, VIP4, 80),
    ("tcp6", TCP, VIP6, 80),
    ("udp4", UDP, VIP4, 80),
    ("udp6", UDP, VIP6, 80),
    ("tcp4-far", TCP, VIP4, 81),
    ("udp6-far", UDP, VIP6, 81),
];

fn services(lab: &Lab) -> Vec<Service> {
    let service = |(name, protocol, vip, port)| {
        let service = Service::new(name, if protocol == TCP { "tcp" } else { "udp" }, vip, port);
        if port == 80 {
            service.backends(&lab.backends[..3])
        } else {
            service.line("mode = \"ipip\"").backends(&lab.backends[3..])
        }
    };
    SERVICES.map(service).to_vec()
}

#[test]
fn counters_equal_what_the_backends_saw() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front, Place::Side, Place::Far, Place::Far])?;
    let servers = [Servers::start(&lab, 80)?, Servers::start(&lab, 81)?];
    let daemon = Daemon::start(&lab.balancer, Config::new(services(&lab)))?;
    // XDP comes before packet sockets: a backend's witness sees packets without their tunnel.
    let _decap = Decap::everywhere(&lab)?;
    let witnesses: Vec<_> = lab
        .backends
        .iter()
        .map(|b| Witness::watch(&b.netns, &b.interface))
        .collect::<Result<_>>()?;
    let client = Client::new(&lab);
    for (_, protocol, vip, port) in SERVICES {
        let kind = if protocol == TCP { Kind::Tcp } else { Kind::Udp };
        client.many(kind, SocketAddr::new(vip, port), FLOWS)?;
    }
    // Late FINs and ACKs may still be on their way.
    within(
        std::time::Duration::from_secs(5),
        "metrics equal the witnesses",
        || {
            let metrics = daemon.metrics()?;
            let tallies: Vec<Tally> = witnesses.iter().map(Witness::tally).collect();
            backends_agree(&lab, &metrics, &tallies)?;
            verdicts_agree(&metrics, &tallies)
        },
    )?;
    witnesses.iter().try_for_each(Witness::verify)?;

    let metrics = daemon.metrics()?;
    for (name, protocol, _, port) in SERVICES {
        assert_eq!(
            metrics.count("evenkeel_backend_flows_total", &[("service", name)])?,
            FLOWS,
            "{name}"
        );
        let servers = &servers[usize::from(port) - 80];
        let answered = if protocol == TCP {
            servers.connections()
        } else {
            servers.datagrams()
        };
        assert!(answered.iter().sum::<u64>() >= FLOWS);
    }
    let picked = metrics.count("evenkeel_datapath_events_total", &[("event", "flow_picked")])?;
    assert_eq!(picked, FLOWS * SERVICES.len() as u64);
    Ok(())
}

fn backends_agree(lab: &Lab, metrics: &Metrics, tallies: &[Tally]) -> Result<()> {
    for (name, protocol, vip, port) in SERVICES {
        for (backend, tally) in lab.backends.iter().zip(tallies) {
            let seen = tally.of(vip, port, protocol);
            let address = backend.address(vip.is_ipv6()).to_string();
            let labels = [("service", name), ("backend", address.as_str())];
            let belongs = (port == 80) == (backend.place != Place::Far);
            if !belongs {
                ensure!(seen.packets == 0, "{} got packets of {name}", backend.name);
                continue;
            }
            let packets = metrics.count("evenkeel_backend_packets_total", &labels)?;
            let bytes = metrics.count("evenkeel_backend_bytes_total", &labels)?;
            ensure!(seen.packets > 0, "{} got nothing of {name}", backend.name);
            ensure!(
                (packets, bytes) == (seen.packets, seen.bytes),
                "{name} at {}: metrics say {packets} packets and {bytes} octets, it saw {seen:?}",
                backend.name
            );
        }
    }
    Ok(())
}

fn verdicts_agree(metrics: &Metrics, tallies: &[Tally]) -> Result<()> {
    let seen = |far: bool| -> u64 {
        let tallies = if far { &tallies[3..] } else { &tallies[..3] };
        let to_vips = tallies.iter().flat_map(|tally| &tally.0);
        to_vips
            .filter(|((address, ..), _)| [VIP4, VIP6].contains(address))
            .map(|(_, count)| count.packets)
            .sum()
    };
    for (reason, far) in [("dsr", false), ("ipip", true)] {
        let counted = metrics.count(
            "evenkeel_verdicts_total",
            &[("verdict", "forward"), ("reason", reason)],
        )?;
        ensure!(
            counted == seen(far),
            "{counted} frames forwarded by {reason}, {} seen",
            seen(far)
        );
    }
    let dropped = metrics.count("evenkeel_verdicts_total", &[("verdict", "drop")])?;
    ensure!(dropped == 0, "{dropped} frames dropped");
    Ok(())
}

#[test]
fn every_verdict_map_seed_and_state_has_its_series() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let service = Service::new("web", "tcp", VIP4, 80)
        .backend(lab.backends[0].v4, 1)
        .backend(lab.backends[1].v4, 3);
    let daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
    let flows = LongLived::open(&Client::new(&lab), SocketAddr::new(VIP4, 80), 12)?;
    let metrics = daemon.metrics()?;
    for verdict in Verdict::all() {
        let (verdict, reason) = verdict.names();
        metrics.count(
            "evenkeel_verdicts_total",
            &[("verdict", verdict), ("reason", reason)],
        )?;
    }
    let cpus = std::thread::available_parallelism()?.get();
    for cpu in (0..cpus).map(|cpu| cpu.to_string()).chain(["shared".to_owned()]) {
        assert!(
            metrics.count("evenkeel_seed_generation", &[("cpu", &cpu)])? >= 1,
            "seed of {cpu}"
        );
    }
    for map in [map_names::SERVICES, map_names::BACKENDS, map_names::SLOTS] {
        let name = map.name.to_ascii_lowercase();
        let used = metrics.count("evenkeel_map_used", &[("map", &name)])?;
        assert!(
            used > 0 && used <= metrics.count("evenkeel_map_capacity", &[("map", &name)])?,
            "{name}: {used}"
        );
    }
    assert_eq!(metrics.count("evenkeel_ready", &[])?, 1);
    assert_eq!(metrics.count("evenkeel_build_info", &[])?, 1);
    for (backend, share) in lab.backends.iter().zip([0.25, 0.75]) {
        let address = backend.v4.to_string();
        let labels = [("service", "web"), ("backend", address.as_str())];
        let expected = metrics.sum("evenkeel_backend_expected_share", &labels)?;
        assert!((expected / share - 1.0).abs() < 0.01, "{expected} for {share}");
        within(
            std::time::Duration::from_secs(15),
            "active flows are counted",
            || {
                let active = daemon
                    .metrics()?
                    .count("evenkeel_backend_active_flows", &labels)?;
                ensure!(
                    active == flows.at(&backend.name) as u64,
                    "{active} for {}",
                    backend.name
                );
                Ok(())
            },
        )?;
    }
    // A command that is accepted moves the revision, and its way into the datapath is timed.
    daemon.ok(&[
        "backend",
        "set",
        "web",
        &lab.backends[0].v4.to_string(),
        "--weight",
        "2",
    ])?;
    let metrics = daemon.metrics()?;
    assert!(metrics.count("evenkeel_change_latency_seconds_count", &[])? >= 1);
    Ok(())
}

#[test]
fn drops_are_told_apart() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let service = Service::new("empty", "udp", VIP4, 80);
    let daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
    let port = RawSocket::open(&lab.fabric, BALANCER_PORT)?;
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!("VIP4 is IPv4")
    };
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 1, 0, 2], vip.octets(), 64)
        .udp(4000, 80)
        .write(&mut frame, b"nobody is there")?;
    for _ in 0..7 {
        port.send(&frame)?;
    }
    within(std::time::Duration::from_secs(5), "drops are counted", || {
        let labels = [("verdict", "drop"), ("reason", "no_backend")];
        let dropped = daemon.metrics()?.count("evenkeel_verdicts_total", &labels)?;
        ensure!(dropped == 7, "{dropped} of 7");
        Ok(())
    })?;
    Ok(())
}
