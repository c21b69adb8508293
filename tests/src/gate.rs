//! The distribution gate: new flows on every CPU, in every way of picking, until `evenkeel bench distribution` has judged
//! enough of them.

pub mod verdict;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    process::Stdio,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    lab::{Config, Daemon, Lab, Place, Service, VIP4},
    traffic::{Aim, Ends, Flood, Sources, Wire},
};

pub use verdict::Verdict;

const BACKENDS: usize = 4;
/// One for each way of picking.
pub const SERVICES: usize = 3;

/// A way of picking: its service, what that has in the file, and the weights of its backends.
struct Way {
    name: &'static str,
    port: u16,
    line: &'static str,
    weights: [u32; BACKENDS],
}

const PER_CPU: u16 = 80;
const CLIENT: u16 = 82;
const WAYS: [Way; SERVICES] = [
    Way {
        name: "per-cpu",
        port: PER_CPU,
        line: "selection = \"per-cpu\"",
        weights: [1, 1, 2, 4],
    },
    Way {
        name: "fleet",
        port: 81,
        line: "selection = \"fleet\"",
        weights: [4, 3, 2, 1],
    },
    Way {
        name: "affinity-client",
        port: CLIENT,
        line: "affinity = \"client\"",
        weights: [1, 1, 1, 1],
    },
];

/// Senders on each CPU, and flows a second that each of them would send if it could.
const SENDERS: usize = 2;
const RATE: f64 = 20_000.0;
/// Clients with affinity: all of 10.9.0.0/16.
const CLIENTS: usize = 1 << 16;
/// The filter of the shared seed's fresh keys is emptied only with a new seed, which has to be asked for. From here on it
/// hides too many.
const FULL: f64 = 0.5;
const PAUSE: Duration = Duration::from_millis(200);

/// A balancer with a service for each way of picking.
pub struct Gate {
    pub daemon: Daemon,
    lab: Lab,
    cpus: usize,
}

/// How sources of flows to the service that picks by CPU are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// As they come.
    Blind,
    /// Only those that fall into so many of the 256 buckets, by someone who reads the seeds: as if the hash had collapsed.
    Aimed { buckets: u32 },
}

impl Gate {
    /// Starts the balancer. `lines` are added to the end of `[seeds]`.
    pub fn set(lines: &[&str]) -> Result<Self> {
        let lab = Lab::new(&[Place::Front; BACKENDS])?;
        let mut config = Config::new(WAYS.iter().map(|way| way.service(&lab)));
        config.seeds.extend(lines.iter().map(|line| (*line).to_owned()));
        let mut sizes = config.datapath.iter_mut();
        let flows = sizes.find(|line| line.starts_with("max_flows"));
        // Half a minute of new flows: the time after which one that was never heard of again is forgotten.
        *flows.context("the file has no max_flows")? = "max_flows = 1048576".to_owned();
        Ok(Self {
            daemon: Daemon::start(&lab.balancer, config)?,
            lab,
            cpus: thread::available_parallelism()?.get(),
        })
    }

    /// Where flows are picked by CPU, and the addresses of two of its backends.
    pub fn per_cpu(&self) -> (SocketAddrV4, [IpAddr; 2]) {
        (to(PER_CPU), [self.lab.backends[2].v4, self.lab.backends[3].v4])
    }

    /// Sends and judges so many flows. Answers lines about them; an error if they are not shown to be spread
    /// evenly.
    pub fn pass(&self, flows: u64) -> Result<Vec<String>> {
        let floods = self.traffic(Draw::Blind)?;
        let lines = self.judge(flows)?.passes(SERVICES)?;
        self.every_cpu_picked()?;
        for flood in floods {
            flood.stop()?;
        }
        Ok(lines)
    }

    /// New flows to all services from all CPUs, until dropped.
    pub fn traffic(&self, draw: Draw) -> Result<Vec<Flood>> {
        let wire = Wire::of(&self.lab)?;
        let senders = 0..self.cpus * SENDERS;
        senders.map(|number| self.sender(&wire, number, draw)).collect()
    }

    fn sender(&self, wire: &Wire, number: usize, draw: Draw) -> Result<Flood> {
        let (cpu, all) = (number / SENDERS, self.cpus * SENDERS);
        let mut sources = Sources::of(u8::try_from(number).context("too many CPUs for the gate")?);
        let aim = match draw {
            Draw::Blind => None,
            Draw::Aimed { buckets } => {
                let pins = self.daemon.pins();
                Some(Aim::always(pins, to(PER_CPU), cpu as u32, buckets)?)
            }
        };
        let mut count = 0;
        wire.send(cpu, RATE, move || {
            count += 1;
            let way = &WAYS[count % WAYS.len()];
            let source = match (way.port, &aim) {
                (CLIENT, _) => client((count / WAYS.len()) * all + number),
                (PER_CPU, Some(aim)) => aim.draw(&mut sources)?,
                _ => sources.draw(),
            };
            Ok(Ends {
                source,
                to: to(way.port),
            })
        })
    }

    /// Has `evenkeel bench distribution` judge so many flows.
    pub fn judge(&self, flows: u64) -> Result<Verdict> {
        let wanted = flows.to_string();
        let arguments = [
            "bench",
            "distribution",
            "--timeout",
            "10m",
            "--json",
            "--flows",
            &wanted,
        ];
        let mut gate = self
            .daemon
            .cli_command(&arguments)?
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        while gate.try_wait()?.is_none() {
            self.renew_shared_seed()?;
            thread::sleep(PAUSE);
        }
        Verdict::of(gate.wait_with_output()?)
    }

    fn renew_shared_seed(&self) -> Result<()> {
        let seeds = self.daemon.json(&["seeds"])?;
        let all = seeds.as_array().context("`evenkeel seeds --json` is no list")?;
        let shared = all.iter().find(|seed| seed["cpu"].is_null());
        let fill = shared.and_then(|seed| seed["fresh_fill"].as_f64());
        if fill.context("the shared seed has no filter")? > FULL {
            self.daemon.ok(&["seeds", "rotate", "--shared"])?;
        }
        Ok(())
    }

    /// Each CPU has picked its part of the flows that were counted lately.
    fn every_cpu_picked(&self) -> Result<()> {
        let report = self.daemon.json(&["skew"])?;
        let all = report["cpus"].as_array().context("no CPUs in the report")?;
        let each = all.iter().filter(|cpu| !cpu["cpu"].is_null());
        let fresh: Vec<u64> = each
            .filter_map(|cpu| cpu["fresh_flows"].as_u64())
            .take(self.cpus)
            .collect();
        let least = fresh.iter().sum::<u64>() / (4 * self.cpus as u64);
        ensure!(
            fresh.len() == self.cpus && fresh.iter().all(|fresh| *fresh > least),
            "not every CPU had its part of the flows: {fresh:?}"
        );
        Ok(())
    }
}

impl Way {
    fn service(&self, lab: &Lab) -> Service {
        let service = Service::new(self.name, "udp", VIP4, self.port).line(self.line);
        let backends = lab.backends.iter().zip(self.weights);
        backends.fold(service, |service, (backend, weight)| {
            service.backend(backend.v4, weight)
        })
    }
}

fn to(port: u16) -> SocketAddrV4 {
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!("VIP4 is an IPv4 address")
    };
    SocketAddrV4::new(vip, port)
}

/// Client number `number` of [`CLIENTS`], from a port that it had not before for a while.
fn client(number: usize) -> SocketAddrV4 {
    let [.., high, low] = (number % CLIENTS).to_be_bytes();
    let port = 1024 + number / CLIENTS % 60_000;
    SocketAddrV4::new(Ipv4Addr::new(10, 9, high, low), port as u16)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_client_has_its_turn_and_no_flow_comes_twice() {
        let flows: Vec<SocketAddrV4> = (0..2 * CLIENTS).map(client).collect();
        let addresses: BTreeSet<_> = flows[..CLIENTS].iter().map(|flow| flow.ip()).collect();
        assert_eq!(addresses.len(), CLIENTS);
        assert_eq!(flows.iter().collect::<BTreeSet<_>>().len(), flows.len());
    }
}
