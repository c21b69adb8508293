//! Promise: TCP and UDP over IPv4 and IPv6 reach the backends in every mode, and every frame on the way is right.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, UdpSocket},
};

use anyhow::{Context, Result};
use etherparse::PacketBuilder;
use tests::{
    Proof,
    capture::{Packet, RawSocket, Seen, Witness, inspect},
    lab::{Config, Daemon, Decap, Lab, Place, Service, VIP4, VIP6, topology::BALANCER_PORT},
    traffic::{Client, Kind, Servers, WebServer, curl, web},
};

/// With three equal backends, one of them gets none of 60 flows once in 10^10 runs.
const FLOWS: u64 = 60;

const KINDS: [(Kind, &str); 2] = [(Kind::Tcp, "tcp"), (Kind::Udp, "udp")];

fn families(port: u16) -> [SocketAddr; 2] {
    [VIP4, VIP6].map(|vip| SocketAddr::new(vip, port))
}

fn everyone_answers(lab: &Lab, client: &Client, to: SocketAddr) -> Result<()> {
    let wanted: BTreeSet<_> = lab.backends.iter().map(|backend| backend.name.clone()).collect();
    for (kind, name) in KINDS {
        let spread = client
            .many(kind, to, FLOWS)
            .with_context(|| format!("{name} to {to}"))?;
        let answered: BTreeSet<_> = spread.keys().cloned().collect();
        assert_eq!(answered, wanted, "{name} to {to}: {spread:?}");
    }
    Ok(())
}

/// Segments of full size: a line of 100,000 octets there and back.
fn large_upload(client: &Client, to: SocketAddr) -> Result<()> {
    let stream = client.connect(to)?;
    let text = "x".repeat(100_000) + "\n";
    let mut writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| writer.write_all(text.as_bytes()));
        let mut answer = String::new();
        BufReader::new(&stream)
            .read_line(&mut answer)
            .context("a large line")?;
        assert!(answer.ends_with(&text), "{} octets came back", answer.len());
        Ok(upload.join().expect("the upload")?)
    })
}

#[test]
fn dsr_by_the_same_and_by_another_interface() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front, Place::Side])?;
    let _servers = Servers::start(&lab, 80)?;
    let services = Service::all_four(80)
        .into_iter()
        .map(|service| service.backends(&lab.backends));
    let _daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let same = Witness::watch(&lab.fabric, "lb")?;
    let other = Witness::watch(&lab.fabric, "lb1")?;
    let client = Client::new(&lab);
    for to in families(80) {
        everyone_answers(&lab, &client, to)?;
        large_upload(&client, to)?;
    }
    for witness in [&same, &other] {
        witness.verify()?;
        let to_vips = witness.frames(to_vip);
        assert!(!to_vips.is_empty(), "nothing left by one of the interfaces");
        assert!(
            to_vips
                .iter()
                .all(|seen| seen.outer().is_none() && seen.source_mac != [0; 6])
        );
    }
    Ok(())
}

fn to_vip(seen: &Seen) -> bool {
    seen.inner()
        .is_some_and(|packet| packet.destination == VIP4 || packet.destination == VIP6)
}

#[test]
fn ipip_in_all_four_nestings() -> Proof {
    const SAME: u16 = 80;
    const CROSS: u16 = 81;
    let lab = Lab::new(&[Place::Far, Place::Far, Place::Far])?;
    let _same = Servers::start(&lab, SAME)?;
    let _cross = Servers::start(&lab, CROSS)?;
    let mut services = Vec::new();
    for mut service in Service::all_four(SAME) {
        service = service.line("mode = \"ipip\"");
        services.push(service.clone().backends(&lab.backends));
        let outer_v6 = service.vip.is_ipv4();
        service.name += "-cross";
        service.port = CROSS;
        service.backends = lab.backends.iter().map(|b| (b.address(outer_v6), 1)).collect();
        services.push(service);
    }
    let _daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let _decap = Decap::everywhere(&lab)?;
    let witness = Witness::watch(&lab.fabric, BALANCER_PORT)?;
    let client = Client::new(&lab);
    for to in [families(SAME), families(CROSS)].concat() {
        everyone_answers(&lab, &client, to)?;
        large_upload(&client, to)?;
        marked_datagram(&lab, to)?;
    }
    witness.verify()?;
    let tunnelled = witness.frames(to_vip);
    let mut nestings = BTreeSet::new();
    for seen in &tunnelled {
        let (outer, inner) = (
            seen.outer().expect("an outer header"),
            seen.inner().expect("an inner one"),
        );
        outer_header_is_right(outer, inner);
        nestings.insert((outer.source.is_ipv4(), inner.source.is_ipv4(), inner.protocol));
    }
    assert_eq!(nestings.len(), 8, "{nestings:?}");
    assert!(
        tunnelled.iter().any(|seen| seen.packets[0].traffic_class == MARK),
        "no marked datagram"
    );
    assert!(
        tunnelled.iter().any(|seen| seen.packets[0].length > 1500),
        "no packet of full size"
    );
    Ok(())
}

/// RFC 2003 3.1 and RFC 2473 6: the outer header's fields.
fn outer_header_is_right(outer: &Packet, inner: &Packet) {
    let source: IpAddr = if outer.source.is_ipv4() {
        "10.2.0.10".parse().expect("an address")
    } else {
        "fd00:2::10".parse().expect("an address")
    };
    assert_eq!(outer.source, source);
    assert_eq!(outer.ttl, 64);
    assert!(outer.dont_fragment);
    assert_eq!(outer.traffic_class, inner.traffic_class);
    let header = if outer.source.is_ipv4() { 20 } else { 40 };
    assert_eq!(outer.length, inner.length + header);
}

/// A differentiated services code point that must be copied outwards: expedited forwarding.
const MARK: u8 = 0xb8;

fn marked_datagram(lab: &Lab, to: SocketAddr) -> Result<()> {
    use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};
    lab.client.run(|| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        if to.is_ipv4() {
            set_ip_tos(&socket, MARK)?;
        } else {
            set_ipv6_tclass(&socket, u32::from(MARK))?;
        }
        socket.set_read_timeout(Some(std::time::Duration::from_secs(3)))?;
        socket.send_to(b"marked", to)?;
        socket
            .recv(&mut [0; 64])
            .context("no answer to a marked datagram")?;
        Ok(())
    })
}

#[test]
fn a_web_client_reaches_web_servers_in_every_mode() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Side, Place::Far])?;
    let _web: Vec<_> = lab
        .backends
        .iter()
        .map(|b| WebServer::start(b, 80))
        .collect::<Result<_>>()?;
    let mut services = Vec::new();
    for (vip, family) in [(VIP4, 4), (VIP6, 6)] {
        let [front, side, far] = [0, 1, 2].map(|index| lab.backends[index].address(family == 6));
        let dsr = Service::new(&format!("dsr{family}"), "tcp", vip, 80)
            .backend(front, 1)
            .backend(side, 1);
        services.push(dsr);
        // nginx listens on port 80 of every address; another VIP tells the services apart.
        let ipip = Service::new(&format!("ipip{family}"), "tcp", second(vip), 80);
        services.push(ipip.line("mode = \"ipip\"").backend(far, 1));
    }
    let _daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let _decap = Decap::attach(&lab.backends[2])?;
    for vip in [VIP4, VIP6] {
        let mut names = BTreeSet::new();
        for _ in 0..40 {
            names.insert(String::from_utf8(curl(&lab, SocketAddr::new(vip, 80), "name")?)?);
            if names.len() == 2 {
                break;
            }
        }
        assert_eq!(names, BTreeSet::from(["b0".to_owned(), "b1".to_owned()]));
        assert_eq!(curl(&lab, SocketAddr::new(vip, 80), "large")?.len(), web::LARGE);
        let tunnelled = SocketAddr::new(second(vip), 80);
        assert_eq!(curl(&lab, tunnelled, "name")?, b"b2");
        assert_eq!(curl(&lab, tunnelled, "large")?.len(), web::LARGE);
    }
    Ok(())
}

/// The VIP after that one.
fn second(vip: IpAddr) -> IpAddr {
    match vip {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) + 1).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) + 1).into()),
    }
}

#[test]
fn vlan_tags_are_kept() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Far])?;
    let services = [
        Service::new("dsr", "udp", VIP4, 80).backend(lab.backends[0].v4, 1),
        Service::new("ipip", "udp", VIP4, 81)
            .line("mode = \"ipip\"")
            .backend(lab.backends[1].v4, 1),
    ];
    let _daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let witness = Witness::watch(&lab.fabric, BALANCER_PORT)?;
    let port = RawSocket::open(&lab.fabric, BALANCER_PORT)?;
    for destination in [80, 81] {
        for tags in [&[][..], &[7], &[7, 300]] {
            port.send(&tagged_datagram(tags, destination))?;
            let seen = witness.expect(&format!("port {destination} with tags {tags:?}"), |seen| {
                seen.vlan_tags == tags
                    && seen
                        .inner()
                        .and_then(|p| p.transport)
                        .is_some_and(|t| t.destination == destination)
            })?;
            assert_eq!(seen.packets.len(), usize::from(destination - 79));
        }
    }
    witness.verify()?;
    Ok(())
}

fn tagged_datagram(tags: &[u16], port: u16) -> Vec<u8> {
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!("VIP4 is IPv4")
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 1, 0, 2], vip.octets(), 64)
        .udp(4000, port)
        .write(&mut frame, b"tagged")
        .expect("a vector takes all");
    inspect(&frame).expect("a right frame");
    for tag in tags.iter().rev() {
        let [high, low] = tag.to_be_bytes();
        frame.splice(12..12, [0x81, 0, high, low]);
    }
    frame
}
