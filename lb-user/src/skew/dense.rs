//! The dense part: bets on a group of categories that the past picked, for faults that move many a little.

use super::{numeric::stable, shares::Shares};

/// How far back a group's choice looks: half-lives of the averages.
const SPANS: usize = 3;
/// How far above its expectation a category must be to join the group, in standard deviations.
pub(super) const CUTS: [f64; 2] = [0.0, 2.0];
/// Tilts on the group's share.
pub const DENSE_THETA: [f64; 4] = [0.12, 0.5, 2.0, 6.0];
/// e^θ − 1.
const DENSE_GAIN: [f64; 4] = [
    0.127_496_851_579_375_67,
    0.648_721_270_700_128_2,
    6.389_056_098_930_65,
    402.428_793_492_735_1,
];
const RECURSIONS: usize = SPANS * CUTS.len() * DENSE_THETA.len();

/// The averages by which groups are chosen, and the 24 Shiryaev-Roberts recursions.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    /// By category and span: averaged flows above expectation, E − F·p. Only its sign and size against its own noise
    /// are used, for which f32 is exact enough.
    above: Vec<[f32; SPANS]>,
    /// By span: averaged flows of all categories, F.
    flows: [f64; SPANS],
    /// ln R, by span, cut and tilt.
    ln_r: [f64; RECURSIONS],
}

/// A group that a bet names.
#[derive(Clone, Copy, Default)]
struct Group {
    /// Expected share.
    p: f64,
    /// Flows in this check.
    x: f64,
}

impl Dense {
    pub(super) fn new(categories: usize) -> Self {
        Self {
            above: vec![[0.0; SPANS]; categories],
            flows: [0.0; SPANS],
            ln_r: [f64::NEG_INFINITY; RECURSIONS],
        }
    }

    /// Takes one check's counts, `n` > 0 flows in all, and returns ln of the mean of R. `tau` is the part of the flows
    /// that may be misplaced.
    pub(super) fn step(&mut self, counts: &[u64], n: f64, shares: &Shares, tau: f64) -> f64 {
        let groups = self.choose_and_average(counts, n, shares);
        let bets_of_a_span = CUTS.len() * DENSE_THETA.len();
        for (bets, span) in self.ln_r.chunks_exact_mut(bets_of_a_span).zip(0..) {
            for (bets, group) in bets.chunks_exact_mut(DENSE_THETA.len()).zip(groups[span]) {
                let bound = (group.p + tau).min(1.0);
                let plays = group.p > 0.0 && bound < 1.0 && self.flows[span] > 0.0;
                for ((ln_r, theta), gain) in bets.iter_mut().zip(DENSE_THETA).zip(DENSE_GAIN) {
                    let gained = if plays {
                        group.x * theta - n * (bound * gain).ln_1p()
                    } else {
                        0.0
                    };
                    *ln_r = stable::softplus(*ln_r) + gained;
                }
            }
        }
        for (flows, decay) in self.flows.iter_mut().zip(decays(n, counts.len())) {
            *flows = *flows * decay + n;
        }
        self.ln_mean()
    }

    /// Groups from the averages as they were before this check; then the averages with it.
    fn choose_and_average(
        &mut self,
        counts: &[u64],
        n: f64,
        shares: &Shares,
    ) -> [[Group; CUTS.len()]; SPANS] {
        let decays = decays(n, counts.len());
        let flows = self.flows;
        let mut groups = [[Group::default(); CUTS.len()]; SPANS];
        for ((above, row), count) in self.above.iter_mut().zip(shares.row_of.iter()).zip(counts) {
            let p = shares.rows[*row as usize].p;
            let x = *count as f64;
            let noise = p * (1.0 - p);
            for span in 0..SPANS {
                let held = f64::from(above[span]);
                for (group, cut) in groups[span].iter_mut().zip(CUTS) {
                    let joins =
                        held > 0.0 && (cut == 0.0 || held * held > cut * cut * (flows[span] * noise + 1e-12));
                    group.p += if joins { p } else { 0.0 };
                    group.x += if joins { x } else { 0.0 };
                }
                above[span] = (held * decays[span] + (x - n * p)) as f32;
            }
        }
        groups
    }

    /// R from 0 on. The averages go on: they only choose bets.
    pub(super) fn restart(&mut self) {
        self.ln_r = [f64::NEG_INFINITY; RECURSIONS];
    }

    /// The averages only choose bets: they start afresh for other shares or categories, R goes on.
    pub(super) fn forget_averages(&mut self, categories: usize) {
        self.above.clear();
        self.above.resize(categories, [0.0; SPANS]);
        self.above.shrink_to_fit();
        self.flows = [0.0; SPANS];
    }

    pub(super) fn ln_mean(&self) -> f64 {
        stable::ln_mean_exp(&self.ln_r)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.above.capacity() * size_of::<[f32; SPANS]>()
    }
}

/// What is left of an average after `n` more flows, by span. Half-lives grow with the number of categories.
fn decays(n: f64, categories: usize) -> [f64; SPANS] {
    let categories = categories as f64;
    let half_lives = [
        (4.0 * categories).max(64.0),
        (64.0 * categories).max(1024.0),
        (1024.0 * categories).max(16_384.0),
    ];
    half_lives.map(|half_life| (-n / half_life).exp2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skew::tilt::Tolerance;

    #[test]
    fn gains_belong_to_their_tilts() {
        for (theta, gain) in DENSE_THETA.into_iter().zip(DENSE_GAIN) {
            assert!((theta.exp_m1() / gain - 1.0).abs() < 1e-15);
        }
    }

    #[test]
    fn the_first_check_bets_on_nothing() {
        let shares = Shares::of_slots(&[(0, 1), (1, 1)], 2, Tolerance::DEFAULT);
        let mut dense = Dense::new(2);
        // R goes from 0 to 1 in every recursion, whatever the counts.
        assert_eq!(dense.step(&[1_000_000, 0], 1e6, &shares, 0.02), 0.0);
        assert!(dense.step(&[1_000_000, 0], 1e6, &shares, 0.02) > 1e5);
    }

    #[test]
    fn a_group_of_everything_is_no_bet() {
        // One category: it is never above its expectation.
        let shares = Shares::of_slots(&[(0, 5)], 5, Tolerance::DEFAULT);
        let mut dense = Dense::new(1);
        for step in 1..50 {
            let ln_mean = dense.step(&[100], 100.0, &shares, 0.0);
            assert!((ln_mean - f64::from(step).ln()).abs() < 1e-12);
        }
    }

    #[test]
    fn a_restart_forgets_the_evidence_alone() {
        let shares = Shares::of_slots(&[(0, 1), (1, 1)], 2, Tolerance::DEFAULT);
        let mut dense = Dense::new(2);
        for _ in 0..10 {
            dense.step(&[700, 300], 1000.0, &shares, 0.02);
        }
        dense.restart();
        assert_eq!(dense.ln_mean(), f64::NEG_INFINITY);
        // The group is known, so that one check is much evidence again.
        assert!(dense.step(&[700, 300], 1000.0, &shares, 0.02) > 30.0);
    }
}
