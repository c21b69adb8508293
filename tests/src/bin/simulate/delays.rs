//! T6: how long faults of a service take to be seen, beside Lorden's bound.

use lb_user::skew::{StreamSpec, power, threshold, tilt::Tolerance};

use crate::{
    chance::{self, Multinomial, Rng, rng},
    lab::Lab,
    row::{Limit, Row, Unit},
    service::{Service, equal, mild, one},
    trial::{Delays, Trial},
};

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// One backend gets so many times its share.
    Times(f64),
    Equal,
    Mild,
}

impl Fault {
    fn name(self) -> String {
        match self {
            Self::Times(0.0) => "a backend gets nothing".to_owned(),
            Self::Times(factor) => format!("a backend gets {factor} times its share"),
            Self::Equal => "weights are ignored".to_owned(),
            Self::Mild => "± 20 % on every backend".to_owned(),
        }
    }

    fn shares(self, p: &[f64], backend: usize, rng: &mut Rng) -> Vec<f64> {
        match self {
            Self::Times(factor) => one(p, backend, factor),
            Self::Equal => equal(p),
            Self::Mild => mild(p, 0.2, rng),
        }
    }
}

/// Fault, flows a check; mean delay over the bound: at most, and in the study.
type Case = (Fault, f64, f64, f64);

const TWO: Fault = Fault::Times(2.0);
const HOLE: Fault = Fault::Times(0.0);
const THIRD: Fault = Fault::Times(1.3);

/// By number of backends: the faulty one's share (as in the study), runs, cases.
const CASES: [(u32, f64, u64, &[Case]); 3] = [
    (
        10,
        0.097,
        200,
        &[
            (TWO, 10.0, 2.6, 1.7),
            (TWO, 100.0, 2.6, 2.0),
            (TWO, 1000.0, 2.6, 1.0),
            (HOLE, 10.0, 2.6, 1.6),
            (HOLE, 100.0, 2.6, 2.2),
            (THIRD, 100.0, 3.2, 2.1),
            (THIRD, 10_000.0, 3.2, 1.0),
            (Fault::Equal, 100.0, 5.0, 3.8),
            (Fault::Mild, 100.0, 5.0, 3.3),
            (Fault::Mild, 1000.0, 5.0, 3.5),
        ],
    ),
    (
        100,
        0.00485,
        120,
        &[
            (TWO, 100.0, 2.6, 2.0),
            (TWO, 1000.0, 2.6, 2.0),
            (HOLE, 1000.0, 2.6, 2.1),
            (HOLE, 10_000.0, 2.6, 1.0),
            (THIRD, 1000.0, 3.2, 2.2),
            (Fault::Equal, 100.0, 10.0, 8.7),
            (Fault::Equal, 1000.0, 10.0, 2.2),
            (Fault::Mild, 100.0, 10.0, 8.0),
            (Fault::Mild, 10_000.0, 10.0, 2.0),
        ],
    ),
    (
        1000,
        0.00105,
        60,
        &[
            (TWO, 10_000.0, 2.6, 2.3),
            (HOLE, 10_000.0, 2.6, 2.3),
            (THIRD, 10_000.0, 3.2, 2.4),
            (Fault::Equal, 1000.0, 30.0, 6.6),
        ],
    ),
];

fn ln_arl() -> f64 {
    threshold::ln_arl(1, 1e6)
}

pub fn delays(lab: &mut Lab) {
    for (n, share, runs, cases) in CASES {
        let service = Service::random(n, &mut rng(lab.seed, "T6 weights", n.into()));
        // A quick run has one rate of each fault, and no table of thousands.
        if lab.quick && n > 100 {
            continue;
        }
        for case in cases {
            if !lab.quick || case.1 <= 1000.0 {
                measure(lab, &service, share, lab.size(runs, 12), *case);
            }
        }
    }
}

fn measure(lab: &mut Lab, service: &Service, share: f64, runs: u64, case: Case) {
    let (fault, rate, limit, study) = case;
    let (p, n) = (service.p(), service.count());
    let backend = service.nearest(share);
    let bound = |q: &[f64]| (power::lorden(&p, q, ln_arl()).flows / rate).max(1.0);
    // Which backends are off by chance hardly moves the bound: any pattern does for the horizon.
    let example = bound(&fault.shares(&p, backend, &mut rng(lab.seed, "T6 bound", n as u64)));
    let trial = Trial {
        spec: StreamSpec::new(ln_arl()),
        shares: service.shares(Tolerance::DEFAULT),
        clean: Multinomial::new(&p),
        rate,
        run_in: lab.size(65..=460, 20..=60),
        horizon: (40.0 * example) as u32 + 40,
    };
    let scenario = format!("{}, n = {n}, {rate}/s: mean delay / bound", fault.name());
    let found = lab.repeat(&scenario, runs, |rng| {
        let q = fault.shares(&p, backend, rng);
        (trial.delay(&Multinomial::new(&q), rng), bound(&q))
    });
    let (delays, bounds): (Vec<_>, Vec<f64>) = found.into_iter().unzip();
    let ((mean, error), (bound, _)) = (Delays(delays).mean(), chance::mean(&bounds));
    lab.push(
        Row::new("T6", scenario, mean / bound, Unit::Ratio, Limit::AtMost(limit))
            .error(error / bound)
            .study(study)
            .bound(bound, Unit::Seconds)
            .seconds(mean)
            .from(runs, "faults"),
    );
}
