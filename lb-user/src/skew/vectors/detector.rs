//! Kinds of vectors that are a detector's walk through many checks.

use serde::Deserialize;

use super::{
    Computed,
    compare::{Found, numbers, option},
    text::{Count, plain},
};
use crate::skew::{
    outcome::Outcome, rotation::RotationBets, shares::Shares, spec::StreamSpec, stream::Stream,
    tilt::Tolerance,
};

/// A detector's parameters. Where A is not given no threshold is compared.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    delta: f64,
    tau: Option<f64>,
    p_floor: f64,
    #[serde(rename = "A")]
    arl: Option<f64>,
}

impl Parameters {
    fn tolerance(self) -> Tolerance {
        Tolerance {
            delta: self.delta,
            p_floor: self.p_floor,
        }
    }

    /// The vectors' evidence piles up.
    fn stream(self, shares: Shares) -> Stream {
        let spec = StreamSpec {
            tau: self.tau.unwrap_or(0.0),
            dense: self.tau.is_some(),
            restart: false,
            blank: 0,
            ..StreamSpec::new(self.arl.unwrap_or(f64::INFINITY).ln())
        };
        Stream::new(spec, shares)
    }

    fn shares(self, p: &[f64], bits: u32) -> Result<Shares, String> {
        Shares::of_probabilities(p, bits, self.tolerance()).map_err(|error| error.to_string())
    }
}

/// A stream on its way through the checks of a case.
struct Walk {
    stream: Stream,
    /// Largest S so far.
    largest: f64,
    /// First check in which the sparse part's evidence passed its threshold.
    first_sparse: Option<u32>,
    steps: Vec<Found>,
}

impl Walk {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            largest: 0.0,
            first_sparse: None,
            steps: Vec::new(),
        }
    }

    fn check(&mut self, counts: &[Count]) {
        let outcome = self.stream.check(&plain(counts));
        let found = match outcome {
            Outcome::Skipped(_) => Found::Nothing,
            Outcome::Measured(measure) => {
                self.largest = self.largest.max(measure.peak.value);
                if measure.peak.value >= self.stream.sparse_threshold() {
                    self.first_sparse.get_or_insert(measure.check);
                }
                let at = [measure.peak.category, measure.peak.tilt];
                Found::Map(vec![
                    ("max_s", self.s(measure.peak.value)),
                    ("argmax", Found::Place { at, s: self.all_s() }),
                    ("ln_dense", Found::Number(measure.ln_dense)),
                ])
            }
        };
        self.steps.push(found);
    }

    fn s(&self, value: f64) -> Found {
        let largest = self.largest;
        Found::S { value, largest }
    }

    fn all_s(&self) -> Vec<Vec<f64>> {
        let categories = (0..).map_while(|category| self.stream.s(category));
        categories
            .map(|s| s.into_iter().map(f64::from).collect())
            .collect()
    }

    /// Every output of a walk; a case has some of them.
    fn outputs(self) -> Computed {
        let first = self.stream.alarm().map(|alarm| {
            Found::Map(vec![
                ("check", Found::Count(alarm.check.into())),
                ("sparse", Found::Flag(alarm.sparse)),
                ("dense", Found::Flag(alarm.dense)),
            ])
        });
        let final_s = self.final_s();
        Ok(vec![
            ("h_sparse", Found::Number(self.stream.sparse_threshold())),
            ("h_dense", Found::Number(self.stream.dense_threshold())),
            ("steps", Found::List(self.steps)),
            ("first_alarm", option(first, |first| first)),
            (
                "first_sparse_alarm",
                option(self.first_sparse, |check| Found::Count(check.into())),
            ),
            ("final_s", final_s),
        ])
    }

    fn final_s(&self) -> Found {
        let row = |row: Vec<f64>| Found::List(row.into_iter().map(|value| self.s(value)).collect());
        Found::List(self.all_s().into_iter().map(row).collect())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SkewDet {
    p: Vec<f64>,
    cfg: Parameters,
    xs: Vec<Vec<Count>>,
    /// What the generator did; the detector must not know.
    #[serde(rename = "fault")]
    _fault: Option<String>,
    #[serde(rename = "fault_from_check")]
    _fault_from_check: Option<u64>,
}

pub(super) fn skewdet(input: SkewDet) -> Computed {
    let mut walk = Walk::new(input.cfg.stream(input.cfg.shares(&input.p, 0)?));
    input.xs.iter().for_each(|counts| walk.check(counts));
    walk.outputs()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Histogram {
    p: Vec<f64>,
    bits: u32,
    cfg: Parameters,
    xs: Vec<Vec<Count>>,
}

pub(super) fn histogram(input: Histogram) -> Computed {
    let mut walk = Walk::new(input.cfg.stream(input.cfg.shares(&input.p, input.bits)?));
    input.xs.iter().for_each(|counts| walk.check(counts));
    walk.outputs()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Piecewise {
    p_before: Vec<f64>,
    p_after: Vec<f64>,
    /// Number of the first check under the new shares, from 1.
    swap_in_check: usize,
    blank_checks: Vec<usize>,
    cfg: Parameters,
    xs: Vec<Vec<Count>>,
}

pub(super) fn piecewise(input: Piecewise) -> Computed {
    let mut walk = Walk::new(input.cfg.stream(input.cfg.shares(&input.p_before, 0)?));
    for (check, counts) in (1..).zip(&input.xs) {
        if check == input.swap_in_check {
            walk.stream.set_shares(input.cfg.shares(&input.p_after, 0)?);
        }
        if input.blank_checks.contains(&check) {
            walk.stream.leave_out(1);
        }
        walk.check(counts);
    }
    walk.outputs()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rotation {
    p: Vec<f64>,
    delta: f64,
    #[serde(rename = "A")]
    arl: f64,
    lambdas: Vec<f64>,
    epochs: Vec<Vec<Vec<f64>>>,
}

pub(super) fn rotation(input: Rotation) -> Computed {
    if input.lambdas != crate::skew::rotation::SIZES {
        return Err(format!("lambdas {:?} are not the product's", input.lambdas));
    }
    let tolerance = Tolerance {
        delta: input.delta,
        p_floor: 0.0,
    };
    let shares = Shares::of_probabilities(&input.p, 0, tolerance).map_err(|error| error.to_string())?;
    let mut bets = RotationBets::new(&shares, tolerance, input.arl.ln());
    let epochs = input
        .epochs
        .iter()
        .map(|rows| option(bets.close_shares(rows), |result| Found::Number(result.max_s)));
    let max_s = epochs.collect();
    Ok(vec![
        ("h", Found::Number(bets.threshold())),
        ("max_s", Found::List(max_s)),
        (
            "first_alarm",
            option(bets.first_alarm(), |epoch| Found::Count(epoch.into())),
        ),
        (
            "final_s",
            Found::List(bets.s().iter().map(|s| numbers(*s)).collect()),
        ),
    ])
}
