//! A stream under traffic: clean for a while, then faulty, and how long until the alarm.

use std::ops::RangeInclusive;

use lb_user::skew::{Outcome, Shares, Stream, StreamSpec};
use rand::RngExt;

use crate::chance::{Multinomial, Rng, poisson};

/// One kind of trial.
pub struct Trial {
    pub spec: StreamSpec,
    pub shares: Shares,
    pub clean: Multinomial,
    /// Flows a check.
    pub rate: f64,
    /// Clean checks before the fault.
    pub run_in: RangeInclusive<u32>,
    /// Faulty checks after which it counts as missed.
    pub horizon: u32,
}

impl Trial {
    /// Checks from the fault to the alarm, the alarm's included. `None`: missed, or an alarm before there was a fault.
    pub fn delay(&self, faulty: &Multinomial, rng: &mut Rng) -> Option<u32> {
        let mut stream = Stream::new(self.spec, self.shares.clone());
        let mut counts = Vec::new();
        for _ in 0..rng.random_range(self.run_in.clone()) {
            if crosses(&mut stream, &self.clean, self.rate, &mut counts, rng) {
                return None;
            }
        }
        (1..=self.horizon).find(|_| crosses(&mut stream, faulty, self.rate, &mut counts, rng))
    }
}

/// One check of `rate` flows on average; whether evidence passed a threshold.
pub fn crosses(
    stream: &mut Stream,
    flows: &Multinomial,
    rate: f64,
    counts: &mut Vec<u64>,
    rng: &mut Rng,
) -> bool {
    flows.draw(poisson(rate, rng), counts, rng);
    crossed(stream, counts)
}

/// Whether evidence passed a threshold in this check. It then starts from zero, so that each time is an alarm of its own.
pub fn crossed(stream: &mut Stream, counts: &[u64]) -> bool {
    match stream.check(counts) {
        Outcome::Measured(measure) => measure.crossed,
        Outcome::Skipped(_) => false,
    }
}

/// Delays of trials, `None` where a fault was missed.
pub struct Delays(pub Vec<Option<u32>>);

impl Delays {
    /// Of delays in checks: mean and standard error; infinite if any was missed.
    pub fn mean(&self) -> (f64, f64) {
        let found: Vec<f64> = self.0.iter().flatten().map(|delay| f64::from(*delay)).collect();
        match found.len() == self.0.len() {
            true => crate::chance::mean(&found),
            false => (f64::INFINITY, 0.0),
        }
    }
}
