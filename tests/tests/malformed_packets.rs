//! Promise: no frame, however broken, stops the balancer or leaves without a counted verdict.

use std::net::{IpAddr, SocketAddr};

use etherparse::PacketBuilder;
use tests::{
    Proof,
    capture::RawSocket,
    lab::{Config, Daemon, Decap, Lab, Place, Service, VIP4, VIP6, eventually, topology::BALANCER_PORT},
    traffic::{Client, LongLived, Servers},
};

const FRAMES: u64 = 20_000;

/// SplitMix64 (Steele, Lea, Flood 2014): frames that differ from each other and not from run to run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Right frames to start from: each family and protocol, and one of another kind.
fn seeds(destination_mac: [u8; 6]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for protocol in ["tcp", "udp", "icmp"] {
        for vip in [VIP4, VIP6] {
            let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], destination_mac);
            let ip = match vip {
                IpAddr::V4(v4) => ethernet.ipv4([10, 1, 0, 9], v4.octets(), 64),
                IpAddr::V6(v6) => ethernet.ipv6([0xfd; 16], v6.octets(), 64),
            };
            let mut frame = Vec::new();
            let payload = [0u8; 64];
            match protocol {
                "tcp" => ip.tcp(5000, 80, 1, 1000).syn().write(&mut frame, &payload),
                "udp" => ip.udp(5000, 80).write(&mut frame, &payload),
                _ if vip.is_ipv4() => ip.icmpv4_echo_request(1, 1).write(&mut frame, &payload),
                _ => ip.icmpv6_echo_request(1, 1).write(&mut frame, &payload),
            }
            .expect("a vector takes all");
            frames.push(frame);
        }
    }
    frames
}

/// Flips, overwrites, cuts off, extends, or inserts a tag; MAC addresses stay, so that the frame arrives.
fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = 12 + random.below(frame.len().saturating_sub(12).max(1));
        match random.below(6) {
            0 if at < frame.len() => frame[at] ^= 1 << random.below(8),
            1 if at < frame.len() => frame[at] = random.next() as u8,
            2 => frame.truncate(at.max(14)),
            3 => frame.extend((0..random.below(300)).map(|byte| byte as u8)),
            4 if frame.len() >= 12 => {
                frame.splice(12..12, [0x81, 0x00, 0x00, random.next() as u8]);
            }
            _ if at + 2 <= frame.len() => frame[at..at + 2].copy_from_slice(&[0xff; 2]),
            _ => {}
        }
    }
    frame.truncate(1500);
}

#[test]
fn mutated_frames_are_counted_and_traffic_goes_on() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Side, Place::Far])?;
    let _servers = Servers::start(&lab, 80)?;
    let mut services: Vec<_> = Service::all_four(80)
        .into_iter()
        .map(|service| service.backends(&lab.backends[..2]))
        .collect();
    services.extend(Service::all_four(81).into_iter().map(|mut service| {
        service.name += "-far";
        service.line("mode = \"ipip\"").backends(&lab.backends[2..])
    }));
    let mut daemon = Daemon::start(&lab.balancer, Config::new(services))?;
    let _decap = Decap::attach(&lab.backends[2])?;
    let client = Client::new(&lab);
    let flows = LongLived::open(&client, SocketAddr::new(VIP4, 80), 10)?;

    let verdicts = |daemon: &Daemon| daemon.metrics()?.count("evenkeel_verdicts_total", &[]);
    let before = verdicts(&daemon)?;
    let port = RawSocket::open(&lab.fabric, BALANCER_PORT)?;
    let mac = mac_of(&lab)?;
    let seeds = seeds(mac);
    let mut random = Random(1);
    let mut sent = 0;
    for round in 0..FRAMES {
        let mut frame = seeds[random.below(seeds.len())].clone();
        if round % 2 == 0 && frame.len() > 40 {
            // Half of them for the tunnelling services.
            let port_at = if frame[12] == 0x08 { 37 } else { 57 };
            frame[port_at] = 81;
        }
        mutate(&mut frame, &mut random);
        sent += u64::from(port.send(&frame).is_ok());
    }
    assert!(sent > FRAMES * 9 / 10, "{sent} of {FRAMES} frames could be sent");
    eventually("every frame has a verdict", || {
        verdicts(&daemon).is_ok_and(|now| now >= before + sent)
    })?;

    let metrics = daemon.metrics()?;
    for (verdict, reason) in [
        ("drop", "malformed"),
        ("pass", "malformed_foreign"),
        ("pass", "no_service"),
    ] {
        let labels = [("verdict", verdict), ("reason", reason)];
        assert!(
            metrics.count("evenkeel_verdicts_total", &labels)? > 0,
            "{verdict} {reason} never happened"
        );
    }
    assert_eq!(
        metrics.count("evenkeel_verdicts_total", &[("reason", "map_inconsistent")])?,
        0
    );
    flows.check("malformed frames")?;
    for vip in [VIP4, VIP6] {
        client.tcp(SocketAddr::new(vip, 80))?;
        client.udp(SocketAddr::new(vip, 80))?;
    }
    assert!(daemon.is_running());
    Ok(())
}

fn mac_of(lab: &Lab) -> anyhow::Result<[u8; 6]> {
    let output = lab
        .balancer
        .command("ip")?
        .args(["-json", "link", "show", "dev", "eth0"])
        .output()?;
    let links: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let text = links[0]["address"].as_str().unwrap_or_default().to_owned();
    let bytes: Vec<u8> = text
        .split(':')
        .map(|pair| u8::from_str_radix(pair, 16))
        .collect::<Result<_, _>>()?;
    bytes
        .try_into()
        .map_err(|_| anyhow::anyhow!("{text} is no MAC address"))
}
