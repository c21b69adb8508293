//! T8: the incident of July 2025 again: entropy that breaks one CPU after another, or a little more every hour.
//!
//! The real growth is not public; these are four models of it. All flows that go astray go to one slot.

use lb_user::skew::{Shares, Stream, StreamSpec, power, shares::histogram_shares, tilt::Tolerance};
use rand::{RngExt, distr::Distribution};

use crate::{
    chance::{Choice, Multinomial, Rng, choice, poisson, quantile},
    histograms::{SLOTS, ln_arl},
    lab::Lab,
    row::{INCIDENT, Limit, Row, Unit},
    service::{Service, cv, stuck},
    trial::{crossed, crosses},
};

const CPUS: usize = 64;
const BACKENDS: u32 = 20;
const HOUR: f64 = 3600.0;

/// How the fault grows.
#[derive(Clone, Copy, PartialEq)]
enum Growth {
    /// One more CPU every hour and a half, so large a part of its flows astray.
    CpuByCpu(f64),
    /// All CPUs, to 30 % in 96 hours.
    Everywhere,
    /// One CPU, to all of its flows in 96 hours.
    OneCpu,
}

impl Growth {
    fn name(self) -> &'static str {
        match self {
            Self::CpuByCpu(1.0) => "V1 a CPU more stuck every 1.5 h",
            Self::CpuByCpu(_) => "V2 a CPU more 10 % stuck every 1.5 h",
            Self::Everywhere => "V3 all CPUs, 0 to 30 % in 96 h",
            Self::OneCpu => "V4 one CPU, 0 to 100 % in 96 h",
        }
    }

    /// Part of a CPU's flows that is astray at a time in seconds.
    fn part(self, cpu: usize, at: f64) -> f64 {
        let grown = (at / (96.0 * HOUR)).min(1.0);
        match self {
            Self::CpuByCpu(part) if at >= 1.5 * HOUR * cpu as f64 => part,
            Self::Everywhere => 0.3 * grown,
            Self::OneCpu if cpu == 0 => grown,
            Self::CpuByCpu(_) | Self::OneCpu => 0.0,
        }
    }

    /// Part of the whole box's flows that is astray.
    fn mean_part(self, at: f64) -> f64 {
        (0..CPUS).map(|cpu| self.part(cpu, at)).sum::<f64>() / CPUS as f64
    }

    /// What finds it: a single CPU's histogram, or the sum of all.
    fn finder(self) -> Finder {
        match self {
            Self::Everywhere => Finder::Sum,
            Self::CpuByCpu(_) | Self::OneCpu => Finder::Cpu,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Finder {
    Cpu,
    Sum,
}

impl Finder {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "a CPU's histogram",
            Self::Sum => "all CPUs' histogram",
        }
    }
}

const RATES: [f64; 4] = [10.0, 100.0, 1000.0, 10_000.0];

/// Growth; by rate: seconds at most, largest of nine runs in the study, and what a service's backends alone took there
/// (median).
type Variant = (Growth, [f64; 4], [f64; 4], [f64; 4]);

const VARIANTS: [Variant; 4] = [
    (
        Growth::CpuByCpu(1.0),
        [90.0, 15.0, 3.0, 2.0],
        [58.0, 8.0, 1.0, 1.0],
        [1620.0, 180.0, 18.0, 2.0],
    ),
    (
        Growth::CpuByCpu(0.1),
        [1500.0, 180.0, 20.0, 5.0],
        [1194.0, 118.0, 10.0, 2.0],
        [8.7 * HOUR, 6.6 * HOUR, 6.1 * HOUR, 5.3 * HOUR],
    ),
    (
        Growth::Everywhere,
        [7200.0, 3600.0, 1800.0, 1200.0],
        [5760.0, 2880.0, 1320.0, 960.0],
        [3.7 * HOUR, 2.8 * HOUR, 2.3 * HOUR, 2.2 * HOUR],
    ),
    (
        Growth::OneCpu,
        [4.5 * HOUR, 6000.0, 2700.0, 1500.0],
        [3.7 * HOUR, 4980.0, 2220.0, 1080.0],
        [51.2 * HOUR, 45.3 * HOUR, 39.5 * HOUR, 38.4 * HOUR],
    ),
];

/// Runs of which the slowest counts: in a full simulation, in a quick one.
const RUNS: [u64; 2] = [9, 3];

pub fn growth(lab: &mut Lab) {
    for (growth, limits, study, alone) in VARIANTS {
        for (((rate, limit), study), alone) in RATES.into_iter().zip(limits).zip(study).zip(alone) {
            // A quick run has what ends within a few minutes of checks, and what takes one histogram at one rate.
            let short = limit <= 200.0 || (growth.finder() == Finder::Sum && rate == 100.0);
            if !lab.quick || short {
                by_histogram(lab, growth, rate, limit, study);
            }
            if !lab.quick {
                by_backends(lab, growth, rate, alone);
            }
        }
    }
}

fn by_histogram(lab: &mut Lab, growth: Growth, rate: f64, limit: f64, study: f64) {
    let (finder, runs) = (growth.finder(), lab.size(RUNS[0], RUNS[1]));
    let name = format!("{}, {rate}/s: {}, slowest run", growth.name(), finder.name());
    let found = lab.repeat(&name, runs, |rng| {
        f64::from(Box::new().until(growth, rate, finder, rng))
    });
    let slowest = found.iter().copied().fold(0.0, f64::max);
    let mut row = Row::new("T8", name, slowest, Unit::Seconds, Limit::AtMost(limit))
        .study(study)
        .seconds(slowest);
    if let Growth::CpuByCpu(part) = growth {
        let p = histogram_shares(SLOTS);
        let flows = power::lorden(&p, &stuck(&p, 0, part), ln_arl()).flows;
        row = row.bound((flows * CPUS as f64 / rate).max(1.0), Unit::Seconds);
    }
    lab.push(row.from(runs, "runs"));
    let median = quantile(&found, 0.5);
    let p = Service::even(BACKENDS).p();
    let uneven = cv(&p, &stuck(&p, 0, growth.mean_part(slowest)));
    let name = format!(
        "  the same: median; unevenness of backends (CV) by the slowest run: {:.1} %",
        100.0 * uneven
    );
    lab.push(
        Row::new("T8", name, median, Unit::Seconds, Limit::None)
            .seconds(median)
            .from(runs, "runs"),
    );
}

/// The streams of a box.
struct Box {
    cpus: Vec<Stream>,
    sum: Stream,
    bucket: Choice,
}

impl Box {
    fn new() -> Self {
        let shares = Shares::of_histogram(SLOTS, Tolerance::DEFAULT);
        let stream = || Stream::new(StreamSpec::new(ln_arl()), shares.clone());
        Self {
            cpus: (0..CPUS).map(|_| stream()).collect(),
            sum: stream(),
            bucket: choice(&histogram_shares(SLOTS)),
        }
    }

    /// Seconds until the finder has an alarm.
    fn until(&mut self, growth: Growth, rate: f64, finder: Finder, rng: &mut Rng) -> u32 {
        let astray = rng.random_range(0..256);
        let mut counts = vec![vec![0; 256]; CPUS];
        for second in 1.. {
            let parts: Vec<f64> = (0..CPUS)
                .map(|cpu| growth.part(cpu, f64::from(second - 1)))
                .collect();
            counts.iter_mut().for_each(|counts| counts.fill(0));
            for _ in 0..poisson(rate, rng) {
                let cpu = rng.random_range(0..CPUS);
                let stuck = rng.random::<f64>() < parts[cpu];
                let bucket = if stuck { astray } else { self.bucket.sample(rng) };
                counts[cpu][bucket] += 1;
            }
            let found = match finder {
                Finder::Cpu => self.cpu_crosses(&counts),
                Finder::Sum => {
                    let sum: Vec<u64> = (0..256)
                        .map(|bucket| counts.iter().map(|counts| counts[bucket]).sum())
                        .collect();
                    crossed(&mut self.sum, &sum)
                }
            };
            if found || f64::from(second) > INCIDENT {
                return second;
            }
        }
        unreachable!("seconds do not end")
    }

    /// Every CPU takes its check, whether another one has an alarm or not.
    fn cpu_crosses(&mut self, counts: &[Vec<u64>]) -> bool {
        let streams = self.cpus.iter_mut().zip(counts);
        streams
            .filter_map(|(stream, counts)| crossed(stream, counts).then_some(()))
            .count()
            > 0
    }
}

/// What a service's backends alone would have shown, without any histogram.
fn by_backends(lab: &mut Lab, growth: Growth, rate: f64, study: f64) {
    let name = "  the same by the backends of a service alone: median";
    let service = Service::even(BACKENDS);
    let p = service.p();
    let found = lab.repeat(&format!("{} {rate} {name}", growth.name()), RUNS[0], |rng| {
        let mut stream = Stream::new(StreamSpec::new(ln_arl()), service.shares(Tolerance::DEFAULT));
        let mut counts = Vec::new();
        let (mut part, mut flows) = (f64::NAN, Multinomial::new(&p));
        let last = (96.0 * HOUR) as u32;
        let crosses = |second: &u32| {
            let now = growth.mean_part(f64::from(second - 1));
            // Shares that move by a thousandth of a thousandth are the same.
            if (now - part).abs() > 1e-6 || part.is_nan() {
                (part, flows) = (now, Multinomial::new(&stuck(&p, 0, now)));
            }
            crosses(&mut stream, &flows, rate, &mut counts, rng)
        };
        (1..=last).find(crosses).map_or(f64::INFINITY, f64::from)
    });
    let median = quantile(&found, 0.5);
    lab.push(
        Row::new("T8", name, median, Unit::Seconds, Limit::None)
            .study(study)
            .seconds(median)
            .from(RUNS[0], "runs"),
    );
}
