//! Promise: what is uneven without a fault of the balancer raises no alarm, changes nothing, and is named for what it is.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    lab::{
        Config, Daemon, Lab, Place, Service, VIP4, Watched,
        netns::unique,
        watched::{EVEN, self_check},
        within,
    },
    traffic::{Client, Ends, Held, Kind, Servers, Sources, Wire},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn to(port: u16) -> SocketAddrV4 {
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!("VIP4 is an IPv4 address")
    };
    SocketAddrV4::new(vip, port)
}

fn at_least(service: &Value, key: &str, least: u64) -> Result<()> {
    let found = service[key]
        .as_u64()
        .with_context(|| format!("{key} of {service:#}"))?;
    ensure!(found >= least, "{found} {key}, {least} wanted: {service:#}");
    Ok(())
}

#[test]
fn one_client_elephants_and_hardly_any_traffic_are_no_faults() -> Proof {
    const STICKY: u16 = 80;
    const HERD: u16 = 81;
    const THIN: u16 = 82;
    let lab = Lab::new(&[Place::Front; 3])?;
    let _servers = [STICKY, HERD, THIN].map(|port| Servers::start(&lab, port));
    let service = |name, port| Service::new(name, "udp", VIP4, port).backends(&lab.backends);
    let services = [
        service("sticky", STICKY).line("affinity = \"client\""),
        service("herd", HERD),
        service("thin", THIN),
    ];
    let mut config = Config::new(services);
    config.seeds.push("interval = \"6h\"".to_owned());
    let mut daemon = Daemon::prepare(&lab.balancer, config)?;

    // The traffic is there before the daemon, so that its first conclusions are about this.
    let wire = Wire::of(&lab)?;
    let (mut one, mut many) = (Sources::of(200), Sources::of(0));
    let mut count = 0u64;
    let sticky = wire.send(0, 500.0, move || {
        count += 1;
        // Four of five flows are one client's, each from another port; 200 clients have the fifth.
        let source = match count.is_multiple_of(5) {
            true => many.draw_of(200),
            false => one.draw(),
        };
        Ok(Ends {
            source,
            to: to(STICKY),
        })
    })?;
    let mut new = Sources::of(201);
    let few: Vec<SocketAddrV4> = (0..3).map(|_| new.draw()).collect();
    let elephant = few[0];
    let mut count = 0usize;
    let herd = wire.send(1, 800.0, move || {
        count += 1;
        // Of twenty packets one is a flow of its own, and the others are of three flows.
        let source = match count.is_multiple_of(20) {
            true => new.draw(),
            false => few[if count % 20 < 16 { 0 } else { 1 + count % 2 }],
        };
        Ok(Ends { source, to: to(HERD) })
    })?;
    let mut rare = Sources::of(202);
    let thin = wire.send(0, 3.0, move || {
        let source = rare.draw();
        Ok(Ends { source, to: to(THIN) })
    })?;
    daemon.launch()?;
    daemon.wait_ready()?;
    let watched = Watched(&daemon);
    let seeds = watched.seeds()?;

    let [sticky_now, herd_now, thin_now] = watched.wait(PATIENCE, "the watch has seen all of it", || {
        let [sticky, herd, thin] = ["sticky", "herd", "thin"].map(|name| watched.service(name));
        let [sticky, herd, thin] = [sticky?, herd?, thin?];
        at_least(&sticky, "flows", 5000)?;
        ensure!(sticky["cause"] == "key-concentration", "{sticky:#}");
        at_least(&herd, "packets", 8000)?;
        at_least(&herd, "flows", 300)?;
        at_least(&thin, "flows", 20)?;
        ensure!(thin["cause"] == "too-little-data", "{thin:#}");
        ensure!(herd["cause"] == "elephant-flows", "{herd:#}");
        Ok([sticky, herd, thin])
    })?;
    for service in [&sticky_now, &herd_now, &thin_now] {
        println!(
            "{}: {} {}: {} ({} flows, {} fresh, {} packets)",
            service["service"],
            service["state"],
            service["cause"],
            service["explanation"],
            service["flows"],
            service["fresh_flows"],
            service["packets"]
        );
    }
    // They are as uneven as was meant.
    let most = |service: &Value, key: &str| {
        let counts: Vec<u64> = service["backends"]
            .as_array()
            .map(|all| all.iter().filter_map(|backend| backend[key].as_u64()).collect())
            .unwrap_or_default();
        counts.iter().copied().max().unwrap_or(0) as f64 / counts.iter().sum::<u64>().max(1) as f64
    };
    assert!(most(&sticky_now, "flows") > 0.7, "{sticky_now:#}");
    assert!(most(&herd_now, "packets") > 0.7, "{herd_now:#}");
    let heaviest = &herd_now["heavy_flows"][0];
    assert_eq!(heaviest["client"], elephant.to_string(), "{herd_now:#}");
    assert!(heaviest["packets"].as_f64() > Some(0.6), "{herd_now:#}");
    watched.nothing_happened()?;
    for name in ["sticky", "herd", "thin"] {
        let (report, code) = watched.report(Some(name))?;
        assert_eq!(code, EVEN, "{report:#}");
        assert_eq!(report["services"][0]["state"], "quiet", "{report:#}");
    }
    assert_eq!(watched.seeds()?, seeds, "no seed was rotated");
    for flood in [sticky, herd, thin] {
        flood.stop()?;
    }
    Ok(())
}

/// A minute of even traffic: weights, both modes of selection, affinity with many clients.
#[test]
fn a_minute_of_even_traffic_raises_nothing() -> Proof {
    const CHECKS: u64 = 60;
    const RATE: f64 = 1500.0;
    const CLIENTS: u64 = 30_000;
    let lab = Lab::new(&[Place::Front; 3])?;
    let ports = [80, 81, 82];
    let _servers = ports.map(|port| Servers::start(&lab, port));
    let weighted = |name, protocol, port| {
        let backends = lab.backends.iter().zip([1, 1, 2]);
        backends.fold(
            Service::new(name, protocol, VIP4, port),
            |service, (backend, weight)| service.backend(backend.v4, weight),
        )
    };
    let mut config = Config::new([
        weighted("web", "tcp", 80),
        weighted("local", "udp", 80),
        weighted("fleet", "udp", 81).line("selection = \"fleet\""),
        weighted("sticky", "udp", 82).line("affinity = \"client\""),
    ]);
    let secret = tempfile::NamedTempFile::with_prefix(format!("{}-", unique()))?;
    std::fs::write(secret.path(), "a secret that the nodes of this fleet were given")?;
    let secret = format!("interval = \"6h\"\nfleet_secret_file = {:?}", secret.path());
    config.seeds.push(secret);
    let flows = config
        .datapath
        .iter_mut()
        .find(|line| line.starts_with("max_flows"));
    // Half a minute of new flows, the time after which one that was never heard of again is forgotten.
    *flows.context("max_flows")? = "max_flows = 262144".to_owned();
    let daemon = Daemon::start(&lab.balancer, config)?;
    let watched = Watched(&daemon);
    let held = Held::open(&lab, to(80).into(), to(80).into(), 6)?;
    let (seeds, wire) = (watched.seeds()?, Wire::of(&lab)?);
    let floods: Vec<_> = [0usize, 1]
        .into_iter()
        .map(|cpu| {
            let (mut sources, mut clients) = (Sources::of(200 + cpu as u8), Sources::of(cpu as u8));
            let mut count = 0usize;
            wire.send(cpu, RATE, move || {
                count += 1;
                let to = to(ports[count % ports.len()]);
                let source = match to.port() {
                    82 => clients.draw_of(CLIENTS),
                    _ => sources.draw(),
                };
                Ok(Ends { source, to })
            })
        })
        .collect::<Result<_>>()?;
    let (first, _) = watched.looks()?;
    watched.wait(Duration::from_secs(100), "a minute of checks", || {
        let (looks, failed) = watched.looks()?;
        ensure!(failed == 0, "a seed differed");
        ensure!(looks >= first + CHECKS, "{looks}");
        Ok(())
    })?;
    watched.nothing_happened()?;
    assert_eq!(watched.seeds()?, seeds, "no seed was rotated");
    let (report, _) = watched.report(None)?;
    let sent: u64 = floods.iter().map(tests::traffic::Flood::sent).sum();
    for name in ["local", "fleet", "sticky"] {
        let services = report["services"].as_array().context("services")?;
        let service = services.iter().find(|service| service["service"] == name);
        let service = service.with_context(|| format!("no {name}: {report:#}"))?;
        println!(
            "{name}: {} flows, {} fresh, {}, evidence {:.1} of {:.1}",
            service["flows"],
            service["fresh_flows"],
            service["cause"],
            service["evidence"].as_f64().unwrap_or(f64::NAN),
            service["threshold"].as_f64().unwrap_or(f64::NAN)
        );
        assert_eq!(service["cause"], "healthy", "{service:#}");
        at_least(service, "flows", sent / 4)?;
        at_least(
            service,
            "fresh_flows",
            if name == "sticky" { CLIENTS / 2 } else { sent / 5 },
        )?;
    }
    let picks = watched.picks()?;
    println!(
        "{sent} sent, {picks:?} picked by CPU, {} told",
        watched.all()?.len()
    );
    for flood in floods {
        flood.stop()?;
    }
    println!("{} rounds of the open flows", held.finish()?);
    Ok(())
}

/// Real exchanges; one client with affinity opens most flows, and seeds are rotated meanwhile.
#[test]
fn a_busy_client_and_a_rotation_raise_nothing() -> Proof {
    const CLIENTS: u8 = 40;
    let lab = Lab::new(&[Place::Front; 3])?;
    let addresses: Vec<IpAddr> = (0..CLIENTS).map(|n| Ipv4Addr::new(10, 1, 1, n).into()).collect();
    let batch: String = addresses
        .iter()
        .map(|address| format!("addr add {address}/16 dev eth0\n"))
        .collect();
    lab.client.ip(&batch)?;
    let _servers = Servers::start(&lab, 80)?;
    let services = [
        Service::new("sticky", "udp", VIP4, 80)
            .line("affinity = \"client\"")
            .backends(&lab.backends),
        Service::new("web", "tcp", VIP4, 80).backends(&lab.backends),
    ];
    let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let (client, to) = (Client::new(&lab), SocketAddr::V4(to(80)));
    for address in &addresses {
        client.from(*address, to, 4)?;
    }
    // One client opens most of the flows.
    client.from(addresses[0], to, 3000)?;
    client.many(Kind::Tcp, to, 2000)?;
    daemon.ok(&["seeds", "rotate"])?;
    client.many(Kind::Tcp, to, 2000)?;
    let seen = |report: &Value, name: &str| {
        let services = report["services"].as_array().cloned().unwrap_or_default();
        services.into_iter().find(|service| service["service"] == name)
    };
    within(PATIENCE, "the watch has seen all of it", || {
        let report = daemon.json(&["skew"])?;
        let sticky = seen(&report, "sticky").context("sticky")?;
        let web = seen(&report, "web").context("web")?;
        ensure!(sticky["flows"].as_u64() >= Some(3160), "{sticky}");
        ensure!(web["fresh_flows"].as_u64() >= Some(3800), "{web}");
        // A client counts once however many flows it opens.
        ensure!(sticky["fresh_flows"].as_u64() <= Some(60), "{sticky}");
        let samples = self_check(&report, "samples")?;
        ensure!(samples["ok"] == true, "{samples}");
        let hash = self_check(&report, "hash")?;
        ensure!(
            hash["ok"] == true && hash["checked_seconds_ago"].is_number(),
            "{hash}"
        );
        Ok(())
    })?;
    Watched(&daemon).nothing_happened()?;
    let checks = daemon.metrics()?.by_label(
        "evenkeel_skew_self_checks_total",
        "result",
        &[("check", "samples")],
    );
    assert!(checks.contains_key("ok"), "{checks:?}");
    assert_eq!(
        checks.get("failed"),
        None,
        "every sample was computed again with the same result"
    );
    Ok(())
}
