//! T1, T2, T4, T5: what must raise no alarm, or hardly ever one.

use lb_user::skew::{Shares, Stream, StreamSpec, classical, tilt::Tolerance};
use rand::RngExt;

use crate::{
    chance::{Multinomial, Rng, poisson, rng},
    lab::Lab,
    row::{Limit, Row, Unit},
    service::{Service, mild, one, random_weight},
    trial::{crossed, crosses},
};

/// No deviation is tolerated: the guarantee at its edge.
const NO_TOLERANCE: Tolerance = Tolerance {
    delta: 0.0,
    p_floor: Tolerance::DEFAULT.p_floor,
};

fn specs(ln_arl: f64) -> [(&'static str, StreamSpec, Tolerance); 2] {
    let usual = StreamSpec::new(ln_arl);
    [
        ("no tolerance", StreamSpec { tau: 0.0, ..usual }, NO_TOLERANCE),
        ("as shipped", usual, Tolerance::DEFAULT),
    ]
}

/// A service as it is expected, for so many checks.
struct Null {
    spec: StreamSpec,
    shares: Shares,
    flows: Multinomial,
    rate: f64,
    checks: u32,
}

impl Null {
    fn alarms(&self, rng: &mut Rng) -> u64 {
        let mut stream = Stream::new(self.spec, self.shares.clone());
        let mut counts = Vec::new();
        let mut alarm = || crosses(&mut stream, &self.flows, self.rate, &mut counts, rng);
        (0..self.checks).filter(|_| alarm()).count() as u64
    }
}

/// Backends, flows a check, checks of a run, runs; the study's figures without and with tolerance.
type Cell = (u32, f64, u32, u64, [f64; 2]);

const CELLS: [Cell; 5] = [
    (2, 10.0, 10_000, 375, [0.335, 0.177]),
    (10, 100.0, 10_000, 130, [0.203, 0.007]),
    (10, 10_000.0, 10_000, 130, [0.015, 0.0]),
    (100, 1000.0, 5000, 60, [0.050, 0.0]),
    (1000, 10_000.0, 2500, 24, [0.250, 0.0]),
];

/// T1: alarms · A / checks.
pub fn run_length(lab: &mut Lab) {
    for cell in CELLS {
        // A quick run leaves the large table out.
        if !lab.quick || cell.0 < 1000 {
            run_length_of(lab, cell);
        }
    }
}

fn run_length_of(lab: &mut Lab, (n, rate, checks, runs, study): Cell) {
    let (checks, runs) = (
        lab.size(checks, 1000),
        lab.size(runs, u64::from(200 / n).clamp(4, 20)),
    );
    let service = Service::random(n, &mut rng(lab.seed, "T1 weights", n.into()));
    let cases = specs(1e3f64.ln()).into_iter().zip(study).zip([0.6, 0.3]);
    for (((name, spec, tolerance), study), limit) in cases {
        let null = Null {
            spec,
            shares: service.shares(tolerance),
            flows: Multinomial::new(&service.p()),
            rate,
            checks,
        };
        let scenario = format!("nothing wrong, n = {n}, {rate}/s, {name}: alarms · A / checks");
        let alarms: u64 = lab.repeat(&scenario, runs, |rng| null.alarms(rng)).iter().sum();
        let all = u64::from(checks) * runs;
        let scale = 1e3 / all as f64;
        let part = alarms as f64 * scale;
        lab.push(
            Row::new("T1", scenario, part, Unit::Ratio, Limit::AtMost(limit))
                .error((alarms as f64).sqrt() * scale)
                .study(study)
                .bound(1.0, Unit::Ratio)
                .from(all, "checks"),
        );
    }
}

/// T2: alarms in five times A checks.
pub fn long_run_length(lab: &mut Lab) {
    let (checks, runs) = (lab.size(1_250_000, 10_000), 4);
    let service = Service::random(10, &mut rng(lab.seed, "T2 weights", 0));
    for (((name, spec, tolerance), study), limit) in
        specs(1e6f64.ln()).into_iter().zip([2.0, 0.0]).zip([5.0, 1.0])
    {
        let null = Null {
            spec,
            shares: service.shares(tolerance),
            flows: Multinomial::new(&service.p()),
            rate: 100.0,
            checks,
        };
        let scenario = format!("nothing wrong, n = 10, 100/s, A = 1e6, {name}: alarms");
        let alarms: u64 = lab.repeat(&scenario, runs, |rng| null.alarms(rng)).iter().sum();
        let all = u64::from(checks) * runs;
        lab.push(
            Row::new("T2", scenario, alarms as f64, Unit::Count, Limit::AtMost(limit))
                .study(study)
                .bound(all as f64 / 1e6, Unit::Ratio)
                .from(all, "checks"),
        );
    }
}

/// T4: every backend is off by 2 %, which is tolerated.
pub fn tolerance(lab: &mut Lab) {
    let runs = 4;
    for n in [10, 100] {
        let service = Service::random(n, &mut rng(lab.seed, "T4 weights", n.into()));
        let (p, checks) = (service.p(), lab.size(5000, 300));
        let scenario = format!("± 2 % on every backend, n = {n}, 100,000/s, A = 1e4: alarms");
        let found = lab.repeat(&scenario, runs, |rng| {
            let null = Null {
                spec: StreamSpec::new(1e4f64.ln()),
                shares: service.shares(Tolerance::DEFAULT),
                flows: Multinomial::new(&mild(&p, 0.02, rng)),
                rate: 1e5,
                checks,
            };
            (null.alarms(rng), windows(&null, &p, rng))
        });
        let alarms: u64 = found.iter().map(|(alarms, _)| alarms).sum();
        let alike = found.iter().map(|(_, part)| part).sum::<f64>() / runs as f64;
        let all = u64::from(checks) * runs;
        lab.push(
            Row::new("T4", scenario, alarms as f64, Unit::Count, Limit::AtMost(0.0))
                .study(0.0)
                .from(all, "checks"),
        );
        let scenario = format!("  the same by Pearson's test of a minute, n = {n}: minutes with an alarm");
        lab.push(
            Row::new("T4", scenario, alike, Unit::Part, Limit::AtLeast(0.9))
                .study(1.0)
                .from(20 * runs, "minutes"),
        );
    }
}

/// The part of 20 minutes in which a chi-square test at the same rate of false alarms sees the deviation.
fn windows(null: &Null, p: &[f64], rng: &mut Rng) -> f64 {
    let mut counts = Vec::new();
    let alarms = (0..20).filter(|_| {
        null.flows.draw(poisson(60.0 * null.rate, rng), &mut counts, rng);
        classical::ln_p(classical::chi2(&counts, p), classical::degrees(p)) < (60.0f64 / 1e4).ln()
    });
    alarms.count() as f64 / 20.0
}

/// T5: shares change again and again; a hole right after the last change is found.
pub fn changes(lab: &mut Lab) {
    let (runs, changes) = (8, lab.size(50, 10));
    let all = runs * u64::from(changes);
    let alarms = |found: &[(u64, Option<u32>)]| found.iter().map(|(alarms, _)| alarms).sum::<u64>() as f64;
    let scenario = "weights, joins, leaves and drains every 50 checks, 1000/s, A = 1e4: alarms";
    let found = lab.repeat(scenario, runs, |rng| Changing::new(2, rng).run(changes, rng));
    lab.push(
        Row::new("T5", scenario, alarms(&found), Unit::Count, Limit::AtMost(0.0))
            .study(0.0)
            .from(all, "changes"),
    );
    let slowest = found
        .iter()
        .map(|(_, delay)| delay.map_or(f64::INFINITY, f64::from));
    let slowest = slowest.fold(0.0, f64::max);
    let scenario = "  a hole right after the last of them: checks until it is found, at most";
    lab.push(
        Row::new("T5", scenario, slowest, Unit::Count, Limit::AtMost(2.0))
            .study(1.0)
            .seconds(slowest)
            .from(runs, "holes"),
    );
    let scenario = "  the same without leaving checks out: alarms a change";
    let found = lab.repeat(scenario, runs, |rng| Changing::new(0, rng).run(changes, rng));
    let part = alarms(&found) / all as f64;
    lab.push(
        Row::new("T5", scenario, part, Unit::Ratio, Limit::AtLeast(0.3))
            .study(1.0)
            .from(all, "changes"),
    );
}

/// A service whose backends change.
struct Changing {
    backends: Vec<(u32, u32)>,
    next: u32,
    service: Service,
    stream: Stream,
    alarms: u64,
}

const CHANGING_RATE: f64 = 1000.0;

impl Changing {
    fn new(blank: u32, rng: &mut Rng) -> Self {
        let service = Service::random(10, rng);
        let spec = StreamSpec {
            blank,
            ..StreamSpec::new(1e4f64.ln())
        };
        Self {
            backends: service.backends.clone(),
            next: 10,
            stream: Stream::new(spec, service.shares(Tolerance::DEFAULT)),
            service,
            alarms: 0,
        }
    }

    /// Alarms, and how long the hole at the end took to be found.
    fn run(mut self, changes: u32, rng: &mut Rng) -> (u64, Option<u32>) {
        for _ in 0..changes {
            for _ in 0..48 {
                let (part, service) = (1.0, self.service.clone());
                self.check(&[(part, &service)], rng);
            }
            let before = self.service.clone();
            self.change(rng);
            let after = self.service.clone();
            // The table is switched within the check, and a few flows go by the old one for a little longer.
            let part = rng.random_range(0.0..1.0);
            self.check(&[(part, &before), (1.0 - part, &after)], rng);
            self.check(&[(0.1, &before), (0.9, &after)], rng);
        }
        let p = self.service.p();
        let hole = Multinomial::new(&one(&p, self.service.nearest(0.1), 0.0));
        let mut counts = Vec::new();
        let delay = (1..=100).find(|_| crosses(&mut self.stream, &hole, CHANGING_RATE, &mut counts, rng));
        (self.alarms, delay)
    }

    fn change(&mut self, rng: &mut Rng) {
        let any = rng.random_range(0..self.backends.len());
        match rng.random_range(0..4) {
            0 => self
                .backends
                .iter_mut()
                .for_each(|(_, weight)| *weight = random_weight(rng)),
            1 if self.backends.len() < 14 => {
                self.backends.push((self.next, random_weight(rng)));
                self.next += 1;
            }
            2 if self.backends.len() > 6 => _ = self.backends.remove(any),
            // A backend drains, and one that did comes back.
            _ => {
                self.backends
                    .iter_mut()
                    .filter(|(_, weight)| *weight == 0)
                    .for_each(|(_, weight)| *weight = 100);
                self.backends[any].1 = 0;
            }
        }
        if self.backends.iter().all(|(_, weight)| *weight == 0) {
            self.backends[0].1 = 100;
        }
        self.service = Service::new(&self.backends, None);
        self.stream.set_shares(self.service.shares(Tolerance::DEFAULT));
    }

    /// One check, parts of its flows by different tables; counted by the ids of the present one.
    fn check(&mut self, parts: &[(f64, &Service)], rng: &mut Rng) {
        let mut counts = vec![0; self.service.count()];
        for (part, service) in parts {
            let mut drawn = Vec::new();
            Multinomial::new(&service.p()).draw(poisson(part * CHANGING_RATE, rng), &mut drawn, rng);
            for ((id, _), drawn) in service.backends.iter().zip(drawn) {
                let place = self.service.backends.iter().position(|(own, _)| own == id);
                if let Some(place) = place {
                    counts[place] += drawn;
                }
            }
        }
        self.alarms += u64::from(crossed(&mut self.stream, &counts));
    }
}
