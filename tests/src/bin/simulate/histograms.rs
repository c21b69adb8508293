//! T7: how long a hash that does not spread on one CPU takes to be seen in that CPU's histogram.

use lb_user::skew::{Shares, StreamSpec, power, shares::histogram_shares, threshold, tilt::Tolerance};
use rand::{RngExt, seq::index::sample};

use crate::{
    chance::{Multinomial, Rng},
    lab::Lab,
    row::{Limit, Row, Unit},
    service::{only, stuck},
    trial::{Delays, Trial},
};

#[derive(Clone, Copy)]
enum Fault {
    /// So large a part of the flows goes to one bucket.
    Stuck(f64),
    /// A bit of the bucket's index is always the same.
    Bit,
    /// 16 of the 256 buckets are left.
    Collapse,
}

impl Fault {
    fn name(self) -> String {
        match self {
            Self::Stuck(1.0) => "stuck".to_owned(),
            Self::Stuck(part) => format!("{} % of its flows stuck", 100.0 * part),
            Self::Bit => "a bit of the slot lost".to_owned(),
            Self::Collapse => "16 of 256 buckets left".to_owned(),
        }
    }

    fn shares(self, p: &[f64], rng: &mut Rng) -> Vec<f64> {
        match self {
            Self::Stuck(part) => stuck(p, rng.random_range(0..p.len()), part),
            Self::Bit => {
                let (bit, value) = (rng.random_range(0..8), rng.random_range(0..2));
                only(p, |bucket| bucket >> bit & 1 == value)
            }
            Self::Collapse => {
                let left = sample(rng, p.len(), 16).into_vec();
                only(p, |bucket| left.contains(&bucket))
            }
        }
    }
}

/// Slots of a service of 20 backends.
pub const SLOTS: u32 = 3203;

/// ln A of a box with 64 CPUs: its histograms and their sum raise one false alarm in a million checks at most.
pub fn ln_arl() -> f64 {
    threshold::ln_arl(65, 1e6)
}

/// Fault, flows a second of the whole box; seconds: at most, and in the study.
const CASES: [(Fault, f64, f64, f64); 7] = [
    (Fault::Stuck(1.0), 10.0, 40.0, 33.7),
    (Fault::Stuck(1.0), 100.0, 6.0, 3.85),
    (Fault::Stuck(1.0), 1000.0, 2.0, 1.0),
    (Fault::Bit, 100.0, 40.0, 29.8),
    (Fault::Collapse, 100.0, 120.0, 36.1),
    (Fault::Collapse, 1000.0, 15.0, 5.55),
    (Fault::Stuck(0.05), 1000.0, 45.0, 20.05),
];

pub fn delays(lab: &mut Lab) {
    let p = histogram_shares(SLOTS);
    for (fault, of_the_box, limit, study) in CASES {
        let rate = of_the_box / 64.0;
        let trial = Trial {
            spec: StreamSpec::new(ln_arl()),
            shares: Shares::of_histogram(SLOTS, Tolerance::DEFAULT),
            clean: Multinomial::new(&p),
            rate,
            run_in: lab.size(65..=460, 20..=60),
            horizon: 20_000,
        };
        let scenario = format!("one CPU of 64: {}, {rate:.2}/s on it: mean delay", fault.name());
        let runs = lab.size(400, 20);
        let found = lab.repeat(&scenario, runs, |rng| {
            let q = fault.shares(&p, rng);
            let bound = (power::lorden(&p, &q, ln_arl()).flows / rate).max(1.0);
            (trial.delay(&Multinomial::new(&q), rng), bound)
        });
        let bound = found.iter().map(|(_, bound)| bound).sum::<f64>() / runs as f64;
        let (mean, error) = Delays(found.into_iter().map(|(delay, _)| delay).collect()).mean();
        lab.push(
            Row::new("T7", scenario, mean, Unit::Seconds, Limit::AtMost(limit))
                .error(error)
                .study(study)
                .bound(bound, Unit::Seconds)
                .seconds(mean)
                .from(runs, "faults"),
        );
    }
}
