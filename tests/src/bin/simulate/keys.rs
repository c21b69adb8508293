//! T3: traffic in which keys come again and again: fresh keys raise no alarm, all flows would.

use lb_user::skew::{Shares, Stream, StreamSpec, tilt::Tolerance};

use crate::{
    chance::{Rng, poisson, rng},
    datapath::Datapath,
    lab::Lab,
    row::{Limit, Row, Unit},
    service::Service,
    traffic::{Source, Traffic},
    trial::crossed,
};

const CPUS: u32 = 8;
/// Checks between two rotations of all seeds.
const ROTATION: u32 = 60;

/// Traffic; alarms of all flows in 20,000 checks in the study, at 10 backends and at 100.
const CASES: [(&str, Traffic, [f64; 2]); 6] = [
    ("5-tuples, all distinct", Traffic::Unique, [0.0, 0.0]),
    (
        "5-tuples, 20 % of them from a pool of 200",
        Traffic::Again { pool: 200, part: 0.2 },
        [57.0, 4916.0],
    ),
    (
        "affinity, 100,000 clients, Zipf 0.9",
        Traffic::Clients {
            count: 100_000,
            exponent: 0.9,
        },
        [4111.0, 20_000.0],
    ),
    (
        "affinity, 1000 clients, Zipf 1.1",
        Traffic::Clients {
            count: 1000,
            exponent: 1.1,
        },
        [19_117.0, 20_000.0],
    ),
    (
        "affinity, 50 clients behind NAT, Zipf 1.0",
        Traffic::Clients {
            count: 50,
            exponent: 1.0,
        },
        [19_949.0, 20_000.0],
    ),
    (
        "affinity, one client has 30 %",
        Traffic::OneClient { part: 0.3 },
        [20_000.0, 20_000.0],
    ),
];

pub fn concentration(lab: &mut Lab) {
    for (n, rate) in [(10, 500.0), (100, 2000.0)] {
        let service = Service::random(n, &mut rng(lab.seed, "T3 weights", n.into()));
        for (name, traffic, study) in &CASES {
            let scenario = format!("{name}, n = {n}, {rate}/s: alarms of fresh keys");
            let (runs, checks) = (lab.size(4, 2), lab.size(5000, 130));
            let alarms = lab.repeat(&scenario, runs, |rng| {
                Watched::new(traffic, &service, rng).run(rate, checks, rng)
            });
            let sum = |part: fn(&Alarms) -> u64| alarms.iter().map(part).sum::<u64>() as f64;
            let all = runs * u64::from(checks);
            let streams = f64::from(CPUS + 1);
            let fresh = sum(|alarms| alarms.fresh);
            lab.push(
                Row::new("T3", scenario, fresh, Unit::Count, Limit::AtMost(2.0))
                    .study(0.0)
                    .bound(streams * all as f64 / 1e4, Unit::Count)
                    .from(all, "checks"),
            );
            let study = study[usize::from(n != 10)] * all as f64 / 20_000.0;
            // All flows must alarm where the study's did on a good part of the checks, or the traffic is no test.
            let limit = match study / all as f64 {
                0.2.. => Limit::AtLeast(0.02 * all as f64),
                _ => Limit::None,
            };
            let scenario = format!(
                "  the same, all flows counted (fresh: {:.0} %)",
                100.0 * sum(|alarms| alarms.kept) / sum(|alarms| alarms.flows)
            );
            lab.push(
                Row::new("T3", scenario, sum(|alarms| alarms.all), Unit::Count, limit)
                    .study(study)
                    .from(all, "checks"),
            );
        }
    }
}

#[derive(Default)]
struct Alarms {
    /// Of the backends and the CPUs' histograms.
    fresh: u64,
    /// Of the backends if all flows were counted.
    all: u64,
    flows: u64,
    kept: u64,
}

/// A box with its streams.
struct Watched<'a> {
    service: &'a Service,
    source: Source,
    datapath: Datapath,
    fresh: Stream,
    all: Stream,
    cpus: Vec<Stream>,
}

impl<'a> Watched<'a> {
    fn new(traffic: &Traffic, service: &'a Service, rng: &mut Rng) -> Self {
        let spec = StreamSpec::new(1e4f64.ln());
        let backends = || Stream::new(spec, service.shares(Tolerance::DEFAULT));
        let buckets = Shares::of_histogram(service.size(), Tolerance::DEFAULT);
        Self {
            service,
            datapath: Datapath::new(CPUS, traffic.by_client(), service.size(), rng),
            source: Source::new(traffic.clone(), rng),
            fresh: backends(),
            all: backends(),
            cpus: (0..CPUS).map(|_| Stream::new(spec, buckets.clone())).collect(),
        }
    }

    fn run(mut self, rate: f64, checks: u32, rng: &mut Rng) -> Alarms {
        let mut alarms = Alarms::default();
        for check in 1..=checks {
            let (mut fresh, mut all) = (vec![0; self.service.count()], vec![0; self.service.count()]);
            let mut cpus = vec![vec![0; 256]; CPUS as usize];
            for _ in 0..poisson(rate, rng) {
                let pick = self.datapath.pick(&self.source.next(rng).tuple, |_, hash| hash);
                let backend = self.service.slots[pick.slot as usize] as usize;
                all[backend] += 1;
                if pick.fresh {
                    fresh[backend] += 1;
                    cpus[pick.cpu as usize][pick.bucket as usize] += 1;
                }
            }
            alarms.flows += all.iter().sum::<u64>();
            alarms.kept += fresh.iter().sum::<u64>();
            alarms.all += u64::from(crossed(&mut self.all, &all));
            alarms.fresh += u64::from(crossed(&mut self.fresh, &fresh));
            for (stream, counts) in self.cpus.iter_mut().zip(&cpus) {
                alarms.fresh += u64::from(crossed(stream, counts));
            }
            if check % ROTATION == 0 {
                self.datapath.rotate(|_| true, rng);
            }
        }
        alarms
    }
}
