//! Promise: pings of VIPs are answered, senders find the MTU of their path in both directions, and what a sender has
//! cut into fragments arrives whole at one backend.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tests::{
    Proof,
    lab::{Config, Daemon, Decap, Lab, Netns, Place, Service, VIP4, VIP6, within},
    traffic::{
        Client, Servers,
        ping::{ping, ping_only},
    },
};

const VIPS: [IpAddr; 2] = [VIP4, VIP6];
/// Long enough to tell a path that works from one on which large packets vanish.
const PATIENCE: Duration = Duration::from_secs(20);

fn verdict(daemon: &Daemon, verdict: &str, reason: &str) -> Result<u64> {
    let labels = [("verdict", verdict), ("reason", reason)];
    daemon.metrics()?.count("evenkeel_verdicts_total", &labels)
}

fn event(daemon: &Daemon, event: &str) -> Result<u64> {
    let labels = [("event", event)];
    daemon.metrics()?.count("evenkeel_datapath_events_total", &labels)
}

fn services(lab: &Lab, mode: &str) -> Vec<Service> {
    let line = format!("mode = {mode:?}");
    let all = Service::all_four(80).into_iter();
    all.map(|service| service.line(&line).backends(&lab.backends))
        .collect()
}

#[test]
fn pings_of_vips_are_answered() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let daemon = Daemon::start(&lab.balancer, Config::new(services(&lab, "dsr")))?;
    let mut sequence = 0;
    for vip in VIPS {
        for octets in [0, 1, 56, 1400] {
            sequence += 1;
            ping(&lab.client, vip, sequence, octets).with_context(|| format!("{octets} octets"))?;
        }
    }
    assert_eq!(verdict(&daemon, "answer", "echo_reply")?, u64::from(sequence));
    assert_eq!(verdict(&daemon, "pass", "icmp")?, 0);
    Ok(())
}

#[test]
fn pings_are_left_to_the_kernel_when_it_is_to_answer() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let mut config = Config::new(services(&lab, "dsr"));
    config.datapath.push("ping = \"kernel\"".to_owned());
    let daemon = Daemon::start(&lab.balancer, config)?;
    for vip in VIPS {
        ping_only(&lab.client, vip)?;
    }
    within(PATIENCE, "two pings pass", || {
        let passed = verdict(&daemon, "pass", "icmp")?;
        ensure!(passed == 2, "{passed} passed");
        Ok(())
    })?;
    assert_eq!(verdict(&daemon, "answer", "echo_reply")?, 0);
    // The VIP is an address of the balancer: its kernel answers.
    let addresses = VIPS.map(|vip| format!("addr add {vip} dev lo"));
    lab.balancer.ip(&addresses.join("\n"))?;
    for (sequence, vip) in (7..).zip(VIPS) {
        // A new IPv6 address is usable a moment later.
        within(PATIENCE, "the kernel answers", || {
            ping(&lab.client, vip, sequence, 56)
        })?;
    }
    Ok(())
}

/// Downloads 400,000 octets, much more than fits a path on which full packets vanish.
fn download(client: &Client, to: SocketAddr) -> Result<()> {
    const OCTETS: usize = 400_000;
    let mut stream = client.connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("download {OCTETS} 0\n").as_bytes())?;
    let mut octets = vec![0; OCTETS];
    stream
        .read_exact(&mut octets)
        .with_context(|| format!("downloading from {to}"))?;
    assert!(octets.iter().all(|octet| *octet == b'x'));
    Ok(())
}

/// The router's link to the client is narrower than what backends send; the router tells the VIP, and the error must
/// find the backend that sent.
fn finds_the_path_down(place: Place, mode: &str) -> Proof {
    let lab = Lab::new(&[place, place, place])?;
    let _servers = Servers::start(&lab, 80)?;
    let daemon = Daemon::start(&lab.balancer, Config::new(services(&lab, mode)))?;
    let _decap = (mode == "ipip").then(|| Decap::everywhere(&lab)).transpose()?;
    lab.router.ip("link set client mtu 1300")?;
    let client = Client::new(&lab);
    for vip in VIPS {
        let before = event(&daemon, "icmp_error_forwarded")?;
        for _ in 0..20 {
            download(&client, SocketAddr::new(vip, 80))?;
        }
        assert!(
            event(&daemon, "icmp_error_forwarded")? > before,
            "no error met the balancer on the way to {vip}"
        );
    }
    assert_eq!(verdict(&daemon, "drop", "icmp_no_flow")?, 0);
    assert_eq!(verdict(&daemon, "pass", "icmp")?, 0);
    Ok(())
}

#[test]
fn a_backend_finds_the_mtu_of_the_path_to_its_client_in_dsr() -> Proof {
    finds_the_path_down(Place::Front, "dsr")
}

#[test]
fn a_backend_finds_the_mtu_of_the_path_to_its_client_behind_a_tunnel() -> Proof {
    finds_the_path_down(Place::Far, "ipip")
}

/// A client's full packets do not fit the tunnel: the balancer tells it what does.
#[test]
fn a_client_finds_the_mtu_of_the_tunnel() -> Proof {
    let lab = Lab::new(&[Place::Far, Place::Far])?;
    lab.balancer.ip("link set eth0 mtu 1500")?;
    let _servers = Servers::start(&lab, 80)?;
    let daemon = Daemon::start(&lab.balancer, Config::new(services(&lab, "ipip")))?;
    let _decap = Decap::everywhere(&lab)?;
    let client = Client::new(&lab);
    for vip in VIPS {
        let before = verdict(&daemon, "answer", "packet_too_big")?;
        let stream = client.connect(SocketAddr::new(vip, 80))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let text = "x".repeat(200_000) + "\n";
        let mut writer = stream.try_clone()?;
        let answer = std::thread::scope(|scope| {
            let upload = scope.spawn(|| writer.write_all(text.as_bytes()));
            let mut answer = String::new();
            BufReader::new(&stream)
                .read_line(&mut answer)
                .with_context(|| format!("uploading to {vip}"))?;
            upload.join().expect("the upload")?;
            anyhow::Ok(answer)
        })?;
        assert!(answer.ends_with(&text), "{} octets came back", answer.len());
        assert!(
            verdict(&daemon, "answer", "packet_too_big")? > before,
            "nothing was too big on the way to {vip}"
        );
    }
    Ok(())
}

/// Datagrams three frames long, each from a port of its own: who answered, and with what.
fn large_datagrams(client: &Netns, to: SocketAddr) -> Result<BTreeSet<String>> {
    client.run(|| {
        let mut names = BTreeSet::new();
        for number in 0..30u8 {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            let datagram: Vec<u8> = (0..4000u32)
                .map(|index| (index as u8).wrapping_mul(number))
                .collect();
            socket.send(&datagram)?;
            let mut answer = vec![0; 1 << 16];
            let length = socket
                .recv(&mut answer)
                .with_context(|| format!("datagram {number} to {to}"))?;
            let name = answer[..length].strip_suffix(datagram.as_slice());
            let name = name.with_context(|| format!("datagram {number} came back as another"))?;
            names.insert(String::from_utf8_lossy(name).trim().to_owned());
        }
        Ok(names)
    })
}

fn fragments_arrive(place: Place, mode: &str) -> Proof {
    let lab = Lab::new(&[place, place, place])?;
    let _servers = Servers::start(&lab, 80)?;
    let daemon = Daemon::start(&lab.balancer, Config::new(services(&lab, mode)))?;
    let _decap = (mode == "ipip").then(|| Decap::everywhere(&lab)).transpose()?;
    // The client's packets fit a tunnel, and the backends' fit the way back: a datagram that is lost while a backend
    // finds the path's MTU does not come again.
    lab.router.ip("link set client mtu 1600")?;
    lab.client.ip("link set eth0 mtu 1600\n\
         route replace default via 10.1.0.1 mtu 1500\n\
         route replace ::/0 via fd00:1::1 mtu 1500")?;
    for vip in VIPS {
        let before = event(&daemon, "fragment_stored")?;
        let names = large_datagrams(&lab.client, SocketAddr::new(vip, 80))?;
        // One of three has all of 30 once in 10^13 runs.
        assert!(names.len() > 1, "only {names:?} answered at {vip}");
        assert_eq!(event(&daemon, "fragment_stored")? - before, 30);
    }
    assert_eq!(verdict(&daemon, "drop", "fragment_unknown")?, 0);
    assert_eq!(verdict(&daemon, "drop", "fragment")?, 0);
    Ok(())
}

#[test]
fn fragments_of_a_datagram_arrive_at_one_backend_in_dsr() -> Proof {
    fragments_arrive(Place::Front, "dsr")
}

#[test]
fn fragments_of_a_datagram_arrive_at_one_backend_through_a_tunnel() -> Proof {
    fragments_arrive(Place::Far, "ipip")
}
