//! The lab: client – router – balancer, and backends in the balancer's segments or behind the router.
//!
//! ```text
//!  client ── router ── fabric(front) ── balancer eth0      front: 10.2.0.0/24, backends `Place::Front`
//!              │ └──── fabric(side) ─── balancer eth1      side:  10.4.0.0/24, backends `Place::Side`
//!              └── 10.3.i.0/24 ── backend                  far:   backends `Place::Far`
//! ```
//!
//! Traps of veth:
//! * A frame sent by XDP_TX waits for ever in the ring of a receiving end that runs no XDP program itself
//!   (`veth_xdp_flush` in drivers/net/veth.c); for redirect, GRO at that end would do. So the balancer's ports in the
//!   fabric run a program that passes everything. Attaching it switches GRO on (5.10 has GRO on anyway), which merges
//!   segments into frames of up to 64 KiB whose checksum is left open; switched off afterwards, so that the witness
//!   sees what was emitted. (Linux before 5.19 takes `gro_max_size 1` and ignores it.)
//! * veth hands XDP partial checksums: senders compute theirs in software (`tx off`).
//! * VLAN tags stay in the frame with `txvlan off`.
//! * A CPU handles what it sends, to the far end, so two segments of a connection may meet a server on two CPUs at
//!   once. The data that follow the end of the handshake by some 4 µs are then answered with a reset, once in some
//!   500,000 connections: Linux before 6.19 takes the request out of its table before it puts the connection in
//!   (`inet_ehash_insert` in net/ipv4/inet_hashtables.c), and the look-up between the two finds the listening socket.
//!   So a backend handles each flow on one CPU.
//! * Links inside are 1600 octets wide, so that a full client packet fits a tunnel.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::Result;

use super::{
    netns::{Netns, unique},
    xdp::Xdp,
};

/// The VIPs that the router leads to the balancer are `VIP4..+255` and `VIP6..+255`.
pub const VIP4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
pub const VIP6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xff, 0, 0, 0, 0, 0, 1));

/// Where a backend is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the segment of the balancer's first interface: reached by XDP_TX.
    Front,
    /// In the segment of the balancer's second interface: reached by redirect.
    Side,
    /// Behind the router: reached through a tunnel.
    Far,
}

/// A backend's namespace.
pub struct Backend {
    pub name: String,
    /// Unlike the other hosts' `eth0` a name of its own: the pin of `evenkeel decap` carries it.
    pub interface: String,
    pub place: Place,
    pub netns: Netns,
    pub v4: IpAddr,
    pub v6: IpAddr,
}

/// The namespaces; the cables go with them.
pub struct Lab {
    pub client: Netns,
    pub router: Netns,
    pub fabric: Netns,
    pub balancer: Netns,
    pub backends: Vec<Backend>,
    ports: Vec<Xdp>,
}

/// The balancer's end in a segment, as the fabric names it.
pub const BALANCER_PORT: &str = "lb";

impl Lab {
    /// One backend a place, named `b0`, `b1`, … in that order.
    pub fn new(places: &[Place]) -> Result<Self> {
        let mut lab = Self {
            client: Netns::new("client")?,
            router: Netns::new("router")?,
            fabric: Netns::new("fabric")?,
            balancer: Netns::new("balancer")?,
            backends: Vec::new(),
            ports: Vec::new(),
        };
        for netns in [&lab.client, &lab.router, &lab.fabric, &lab.balancer] {
            quiet(netns)?;
        }
        lab.wire_router()?;
        lab.wire_balancer()?;
        places.iter().try_fold(lab, |mut lab, place| {
            lab.add_backend(*place)?;
            Ok(lab)
        })
    }

    fn wire_router(&self) -> Result<()> {
        self.router.sysctl(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
        ])?;
        self.fabric.ip("link add front type bridge mcast_snooping 0\n\
             link add side type bridge mcast_snooping 0\n\
             link set front mtu 1600 up\nlink set side mtu 1600 up")?;
        let (client, fabric) = (self.client.name(), self.fabric.name());
        self.router.ip(&format!(
            "link add client type veth peer name eth0 netns {client}\n\
             link add front mtu 1600 type veth peer name router netns {fabric} mtu 1600\n\
             link add side mtu 1600 type veth peer name router1 netns {fabric} mtu 1600\n\
             {}{}{}\
             route add 198.18.0.0/24 via 10.2.0.10\n\
             route add fd00:ff::/64 via fd00:2::10",
            addresses("client", "10.1.0.1/16", "fd00:1::1/64"),
            addresses("front", "10.2.0.1/24", "fd00:2::1/64"),
            addresses("side", "10.4.0.1/24", "fd00:4::1/64"),
        ))?;
        self.client.ip(&format!(
            "{}route add default via 10.1.0.1\nroute add ::/0 via fd00:1::1",
            addresses("eth0", "10.1.0.2/16", "fd00:1::2/64")
        ))?;
        self.fabric
            .ip("link set router master front up\nlink set router1 master side up")?;
        plain(&self.router, &["client", "front", "side"])?;
        plain(&self.client, &["eth0"])?;
        plain(&self.fabric, &["router", "router1"])
    }

    fn wire_balancer(&mut self) -> Result<()> {
        let fabric = self.fabric.name().to_owned();
        let mut wires = String::new();
        for (own, port) in [("eth0", "lb"), ("eth1", "lb1")] {
            writeln!(
                wires,
                "link add {own} mtu 1600 numtxqueues 2 numrxqueues 2 type veth \
                 peer name {port} netns {fabric} mtu 1600 numtxqueues 2 numrxqueues 2"
            )?;
        }
        self.balancer.ip(&format!(
            "{wires}{}{}route add default via 10.2.0.1\nroute add ::/0 via fd00:2::1",
            addresses("eth0", "10.2.0.10/24", "fd00:2::10/64"),
            addresses("eth1", "10.4.0.10/24", "fd00:4::10/64"),
        ))?;
        self.fabric
            .ip("link set lb master front up\nlink set lb1 master side up")?;
        plain(&self.balancer, &["eth0", "eth1"])?;
        plain(&self.fabric, &["lb", "lb1"])?;
        for port in ["lb", "lb1"] {
            self.ports.push(Xdp::pass(&self.fabric, port)?);
            self.fabric.offloads(port, &["gro", "off"])?;
        }
        Ok(())
    }

    /// Adds a backend while the lab runs; its name is `b<number>`.
    pub fn add_backend(&mut self, place: Place) -> Result<&Backend> {
        let index = self.backends.len();
        let host = 21 + index;
        let name = format!("b{index}");
        let netns = Netns::new(&name)?;
        quiet(&netns)?;
        // The VIPs are local by route; for IPv6, bind looks for an address and must be told not to.
        netns.sysctl(&[("ipv6/ip_nonlocal_bind", "1")])?;
        let own = netns.name();
        let interface = unique();
        let (net4, net6) = match place {
            Place::Front => ("10.2.0".to_owned(), "fd00:2".to_owned()),
            Place::Side => ("10.4.0".to_owned(), "fd00:4".to_owned()),
            Place::Far => (format!("10.3.{index}"), format!("fd00:3:{index:x}")),
        };
        match place {
            Place::Front | Place::Side => {
                let bridge = if place == Place::Front { "front" } else { "side" };
                self.fabric.ip(&format!(
                    "link add {name} mtu 1600 type veth peer name {interface} netns {own} mtu 1600\n\
                     link set {name} master {bridge} up"
                ))?;
                plain(&self.fabric, &[&name])?;
            }
            Place::Far => {
                self.router.ip(&format!(
                    "link add {name} mtu 1600 type veth peer name {interface} netns {own} mtu 1600\n{}",
                    addresses(&name, &format!("{net4}.1/24"), &format!("{net6}::1/64"))
                ))?;
                plain(&self.router, &[&name])?;
            }
        }
        netns.ip(&format!(
            "{}route add default via {net4}.1\nroute add ::/0 via {net6}::1\n\
             route add local 198.18.0.0/24 dev lo\nroute add local fd00:ff::/64 dev lo",
            addresses(
                &interface,
                &format!("{net4}.{host}/24"),
                &format!("{net6}::{host:x}/64")
            )
        ))?;
        plain(&netns, &[&interface])?;
        netns.one_cpu_a_flow(&interface)?;
        let v4 = format!("{net4}.{host}").parse()?;
        let v6 = format!("{net6}::{host:x}").parse()?;
        self.backends.push(Backend {
            name,
            interface,
            place,
            netns,
            v4,
            v6,
        });
        Ok(&self.backends[index])
    }
}

impl Backend {
    /// The backend's own address of a family.
    pub fn address(&self, v6: bool) -> IpAddr {
        if v6 { self.v6 } else { self.v4 }
    }
}

fn addresses(interface: &str, v4: &str, v6: &str) -> String {
    format!(
        "addr add {v4} dev {interface}\n\
         link set {interface} up\n\
         addr add {v6} dev {interface} nodad\n"
    )
}

/// What every host of the lab has in common: no reverse path filter, ARP only for an interface's own addresses, no
/// waiting for duplicate address detection.
fn quiet(netns: &Netns) -> Result<()> {
    netns.sysctl(&[
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/all/arp_ignore", "1"),
        ("ipv4/conf/all/arp_announce", "2"),
        ("ipv6/conf/all/accept_dad", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
    ])
}

/// Frames as on a wire: checksums filled in, tags in place.
fn plain(netns: &Netns, interfaces: &[&str]) -> Result<()> {
    interfaces
        .iter()
        .try_for_each(|interface| netns.offloads(interface, &["tx", "off", "txvlan", "off"]))
}
