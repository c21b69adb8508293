//! Bets from one seed rotation to the next: slow, but valid whatever the traffic.
//!
//! However uneven the keys, a backend's part of the flows (or packets, or bytes) under one seed has its expected share as
//! the mean over seeds. So the seed's life is the observation, not the flow: no fresh keys are needed, and elephants
//! do no harm.

use std::collections::BTreeMap;

use super::{
    shares::Shares,
    threshold::next_power_of_two,
    tilt::{Tolerance, Tolerated, tolerated},
};

/// Bets on one category: three sizes up, three down.
pub const BETS: usize = 6;
pub(super) const SIZES: [f64; BETS / 2] = [0.1, 0.4, 0.9];

/// CUSUMs over epochs; an epoch is one seed's life.
#[derive(Clone, Debug)]
pub struct RotationBets {
    tolerance: Tolerance,
    ln_arl: f64,
    ids: Box<[u32]>,
    /// By category: the ends of the tolerated range.
    range: Vec<Tolerated>,
    s: Vec<[f64; BETS]>,
    threshold: f64,
    epochs: u32,
    first_alarm: Option<u32>,
}

/// What an epoch came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochResult {
    /// Number of the epoch, from 1.
    pub epoch: u32,
    /// Largest S, and whose.
    pub max_s: f64,
    pub category: usize,
    pub alarm: bool,
}

impl RotationBets {
    /// `ln_arl` is in epochs: on average at least A of them pass to a false alarm. Virtual categories are not bet on.
    pub fn new(shares: &Shares, tolerance: Tolerance, ln_arl: f64) -> Self {
        let mut bets = Self {
            tolerance,
            ln_arl,
            ids: Box::default(),
            range: Vec::new(),
            s: Vec::new(),
            threshold: f64::INFINITY,
            epochs: 0,
            first_alarm: None,
        };
        bets.set_shares(shares);
        bets
    }

    /// Other expected shares from the next epoch on. S stays with its id. The epoch in which shares changed has no one
    /// expected share and must not be closed.
    pub fn set_shares(&mut self, shares: &Shares) {
        let old: BTreeMap<u32, [f64; BETS]> = self.ids.iter().copied().zip(self.s.iter().copied()).collect();
        let kept = |id: &u32| old.get(id).copied().unwrap_or_default();
        self.s = shares.ids().iter().map(kept).collect();
        self.ids = shares.ids().into();
        let Tolerance { delta, p_floor } = self.tolerance;
        let range = |share: f64| Tolerated {
            up: tolerated(share.max(p_floor), delta).up,
            down: tolerated(share, delta).down,
        };
        self.range = shares.to_vec().into_iter().map(range).collect();
        self.threshold = self.ln_arl + ((BETS * next_power_of_two(self.s.len())) as f64).ln();
    }

    /// Takes the counts of an epoch that has ended: one row of counts by category for each seed, several where CPUs have
    /// seeds of their own. Rows without any count, or of another length, say nothing. `None` if no row says anything.
    pub fn close(&mut self, rows: &[&[u64]]) -> Option<EpochResult> {
        let shares: Vec<Vec<f64>> = rows.iter().filter_map(|row| shares_of(row)).collect();
        self.close_shares(&shares)
    }

    /// Like [`RotationBets::close`], of each category's part of the whole.
    pub fn close_shares(&mut self, rows: &[Vec<f64>]) -> Option<EpochResult> {
        let fits = |row: &&Vec<f64>| row.len() == self.s.len() && row.iter().all(|x| (0.0..=1.0).contains(x));
        let rows: Vec<&Vec<f64>> = rows.iter().filter(fits).collect();
        if rows.is_empty() || self.s.is_empty() {
            return None;
        }
        self.epochs = self.epochs.saturating_add(1);
        for (category, (s, range)) in self.s.iter_mut().zip(&self.range).enumerate() {
            for (bet, s) in s.iter_mut().enumerate() {
                let size = SIZES[bet % SIZES.len()];
                let gain = |row: &&Vec<f64>| match bet < SIZES.len() {
                    true => ln_gain(size, row[category] - range.up, range.up),
                    false => ln_gain(size, range.down - row[category], 1.0 - range.down),
                };
                *s = s.max(0.0) + rows.iter().map(gain).sum::<f64>();
            }
        }
        let (category, max_s) = self.top();
        let alarm = max_s >= self.threshold;
        if alarm {
            self.first_alarm.get_or_insert(self.epochs);
        }
        Some(EpochResult {
            epoch: self.epochs,
            max_s,
            category,
            alarm,
        })
    }

    fn top(&self) -> (usize, f64) {
        let best = |s: &[f64; BETS]| s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let all = self.s.iter().map(best).enumerate();
        all.fold(
            (0, f64::NEG_INFINITY),
            |top, next| if next.1 > top.1 { next } else { top },
        )
    }

    pub fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Epoch of the first alarm, from 1.
    pub fn first_alarm(&self) -> Option<u32> {
        self.first_alarm
    }

    /// S by category; bets up with rising size, then down.
    pub fn s(&self) -> &[[f64; BETS]] {
        &self.s
    }
}

/// ln of what a bet of `size` on a deviation `above` the tolerated end returns, the most that can be lost being `stake`.
/// Where nothing can be lost there is nothing to bet on.
fn ln_gain(size: f64, above: f64, stake: f64) -> f64 {
    if stake > 0.0 {
        (size * above / stake).ln_1p()
    } else {
        0.0
    }
}

fn shares_of(row: &[u64]) -> Option<Vec<f64>> {
    let total = row.iter().map(|count| u128::from(*count)).sum::<u128>() as f64;
    (total > 0.0).then(|| row.iter().map(|count| *count as f64 / total).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bets_on(p: &[f64], ln_arl: f64) -> RotationBets {
        let shares = Shares::of_probabilities(p, 0, Tolerance::DEFAULT).unwrap();
        RotationBets::new(&shares, Tolerance::DEFAULT, ln_arl)
    }

    #[test]
    fn a_backend_that_always_gets_double_is_found_in_few_epochs() {
        let mut bets = bets_on(&[0.1; 10], 1e4f64.ln());
        let mut row = [89; 10];
        row[3] = 200;
        let mut last = None;
        for _ in 0..60 {
            last = bets.close(&[&row]);
        }
        let (first, last) = (bets.first_alarm().unwrap(), last.unwrap());
        assert!((10..=30).contains(&first), "{first}");
        assert_eq!((last.epoch, last.category, last.alarm), (60, 3, true));
    }

    #[test]
    fn rows_that_say_nothing_are_left_out() {
        let mut bets = bets_on(&[0.5, 0.5], 10.0);
        assert_eq!(bets.close(&[]), None);
        assert_eq!(bets.close(&[&[0, 0], &[1, 2, 3]]), None);
        assert_eq!(bets.close_shares(&[vec![f64::NAN, 0.5]]), None);
        assert_eq!(bets.close(&[&[0, 0], &[1, 1]]).unwrap().epoch, 1);
        assert_eq!(bets_on(&[], 10.0).close(&[&[]]), None);
    }

    #[test]
    fn certain_and_impossible_shares_give_numbers() {
        let mut bets = bets_on(&[1.0, 0.0], 10.0);
        for _ in 0..3 {
            assert!(bets.close(&[&[10, 0]]).unwrap().max_s <= 0.0);
        }
        let stray = bets.close(&[&[9, 1]]).unwrap();
        assert_eq!(stray.category, 1);
        assert!(stray.max_s.is_finite() && stray.max_s > 3.0);
    }

    #[test]
    fn evidence_stays_with_its_backend_when_shares_change() {
        let of = |owned: &[(u32, u32)]| Shares::of_slots(owned, 100, Tolerance::DEFAULT);
        let mut bets = RotationBets::new(&of(&[(7, 50), (8, 50)]), Tolerance::DEFAULT, 10.0);
        bets.close(&[&[80, 20]]);
        let of_seven = bets.s()[0];
        bets.set_shares(&of(&[(9, 30), (7, 70)]));
        assert_eq!(bets.s(), [[0.0; BETS], of_seven]);
    }

    proptest! {
        /// A mixture over seeds whose mean is the expected share gains nothing on average.
        #[test]
        fn no_bet_gains_by_fair_seeds(p in 0.001f64..0.999, delta in 0.0f64..0.3) {
            // One key: it is all here with probability p, else all elsewhere.
            let range = tolerated(p, delta);
            for size in SIZES {
                let up = p * ln_gain(size, 1.0 - range.up, range.up).exp() + (1.0 - p) * ln_gain(size, -range.up, range.up).exp();
                let rest = 1.0 - range.down;
                let down = p * ln_gain(size, range.down - 1.0, rest).exp() + (1.0 - p) * ln_gain(size, range.down, rest).exp();
                prop_assert!(up <= 1.0 + 1e-9 && down <= 1.0 + 1e-9, "{up} {down}");
            }
        }
    }
}
