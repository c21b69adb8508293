//! Promise: neighbours, links and routes that change are followed without anybody asking.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use tests::{
    Proof,
    lab::{Config, Daemon, Decap, Lab, Place, Service, VIP4, VIP6, within},
    traffic::{Client, Servers},
};

/// Longer than the daemon's own interval of confirming neighbours.
const SOON: Duration = Duration::from_secs(20);

/// Waits until the service has so many backends in use and so many without a next hop.
fn settles(daemon: &Daemon, service: &str, serving: u64, unresolved: u64) -> Result<()> {
    within(
        SOON,
        &format!("{service} has {serving} serving and {unresolved} unresolved"),
        || {
            let services = daemon.json(&["services"])?;
            let list = services.as_array().into_iter().flatten();
            let found = list
                .into_iter()
                .find(|item| item["name"] == service)
                .cloned()
                .unwrap_or_default();
            ensure!(
                found["serving"] == serving && found["unresolved"] == unresolved,
                "{found}"
            );
            Ok(())
        },
    )
}

#[test]
fn a_backend_serves_when_it_appears_and_gives_way_when_its_link_goes() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Side])?;
    let _servers = Servers::start(&lab, 80)?;
    let late = &lab.backends[1];
    late.netns.ip(&format!("link set {} down", late.interface))?;
    let services = [
        Service::new("four", "tcp", VIP4, 80).backends(&lab.backends),
        Service::new("six", "tcp", VIP6, 80).backends(&lab.backends),
    ];
    let mut daemon = Daemon::prepare(&lab.balancer, Config::new(services))?;
    daemon.launch()?;
    let client = Client::new(&lab);
    let everyone = |wanted: &[&str]| -> Result<()> {
        for vip in [VIP4, VIP6] {
            let spread = client.many(tests::traffic::Kind::Tcp, SocketAddr::new(vip, 80), 40)?;
            let names: Vec<_> = spread.keys().map(String::as_str).collect();
            ensure!(names == wanted, "{spread:?}");
        }
        Ok(())
    };
    for service in ["four", "six"] {
        settles(&daemon, service, 1, 1)?;
    }
    everyone(&["b0"])?;

    late.netns.ip(&format!(
        "link set {0} up\nroute replace default via 10.4.0.1\naddr replace {1}/64 dev {0} nodad\n\
         route replace ::/0 via fd00:4::1",
        late.interface, late.v6
    ))?;
    for service in ["four", "six"] {
        settles(&daemon, service, 2, 0)?;
    }
    everyone(&["b0", "b1"])?;

    // What is left is the default route: through a router, which would send the packets back.
    lab.balancer.ip("link set eth1 down")?;
    for service in ["four", "six"] {
        settles(&daemon, service, 1, 1)?;
    }
    everyone(&["b0"])?;
    Ok(())
}

#[test]
fn a_new_mac_address_reaches_the_datapath() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Far])?;
    let _servers = [Servers::start(&lab, 80)?, Servers::start(&lab, 81)?];
    let services = [
        Service::new("near", "udp", VIP4, 80).backend(lab.backends[0].v4, 1),
        Service::new("far", "udp", VIP4, 81)
            .line("mode = \"ipip\"")
            .backend(lab.backends[1].v4, 1),
    ];
    let daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let _decap = Decap::attach(&lab.backends[1])?;
    let client = Client::new(&lab);
    let near = &lab.backends[0];
    near.netns
        .ip(&format!("link set {} address 02:00:00:00:77:01", near.interface))?;
    lab.router.ip("link set front address 02:00:00:00:77:02")?;
    // Both are heard as ARP is: a host that moved speaks to its neighbours.
    for (address, service) in [("10.2.0.21", "near"), ("10.2.0.1", "far")] {
        let mac = if service == "near" {
            "02:00:00:00:77:01"
        } else {
            "02:00:00:00:77:02"
        };
        lab.balancer.ip(&format!(
            "neigh replace {address} lladdr {mac} dev eth0 nud reachable"
        ))?;
        within(SOON, "the new MAC address is used", || {
            let backends = daemon.json(&["backends", service])?;
            ensure!(backends[0]["next_hop"]["mac"] == mac, "{backends}");
            Ok(())
        })?;
    }
    for (port, name) in [(80, "b0"), (81, "b1")] {
        let answer = within(SOON, "the backend answers", || {
            client.udp(SocketAddr::new(VIP4, port))
        })?;
        assert_eq!(answer, name);
    }
    Ok(())
}
