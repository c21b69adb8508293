//! A service's new flows under one seed after the other, for the bets that hold whatever the traffic.
//!
//! Only new flows are bet on. Packets and octets would count flows that older seeds placed: one long transfer would be on
//! one backend for many seeds, which no fair seed does.

use std::collections::BTreeMap;

use crate::skew::{Shares, rotation::RotationBets, tilt::Tolerance};

/// An alarm stands until this many times as many seeds as it took have ended without evidence for another.
const PATIENCE: u32 = 2;

/// The bets of one service, and its flows under the seeds that are in use.
#[derive(Debug)]
pub(super) struct Epochs {
    shares: Shares,
    bets: RotationBets,
    /// What `bets` was made for.
    made_for: f64,
    ln_arl: f64,
    /// By index into `SEEDS`.
    rows: BTreeMap<u32, Row>,
    /// Rows that ended since the bets began, and the sums of each backend's part of them.
    ended: u32,
    parts: Vec<f64>,
    evidence: f64,
    alarm: Option<EpochAlarm>,
}

/// A seed's flows so far.
#[derive(Debug)]
struct Row {
    generation: u32,
    last: Vec<u64>,
    counts: Vec<u64>,
}

/// What an alarm says: one backend's mean part of the new flows over so many seeds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EpochAlarm {
    pub backend: usize,
    pub part: f64,
    pub expected: f64,
    pub seeds: u32,
}

impl Epochs {
    pub fn new(shares: &Shares, ln_arl: f64) -> Self {
        Self {
            bets: RotationBets::new(shares, Tolerance::DEFAULT, ln_arl),
            shares: shares.clone(),
            made_for: ln_arl,
            ln_arl,
            rows: BTreeMap::new(),
            ended: 0,
            parts: vec![0.0; shares.len()],
            evidence: 0.0,
            alarm: None,
        }
    }

    pub fn set_ln_arl(&mut self, ln_arl: f64) {
        self.ln_arl = ln_arl;
    }

    /// Other shares: seeds under which both held say nothing. Evidence stays with its backend.
    pub fn set_shares(&mut self, shares: &Shares) {
        let same = self.shares.ids() == shares.ids();
        self.rows.clear();
        self.bets.set_shares(shares);
        self.shares = shares.clone();
        if !same {
            // An index would name another backend.
            self.alarm = None;
        }
        self.ended = 0;
        self.parts = vec![0.0; shares.len()];
    }

    /// What is under way is no fair epoch: it was ended because of what it showed, or its counters are others.
    pub fn forget(&mut self) {
        self.rows.clear();
    }

    /// Takes the cumulative new flows by backend under a seed; answers the counts of the seed before, if it has ended.
    pub fn read(&mut self, index: u32, generation: u32, flows: &[u64]) -> Option<Vec<u64>> {
        let row = self
            .rows
            .entry(index)
            .or_insert_with(|| Row::new(generation, flows));
        if row.last.len() != flows.len() {
            *row = Row::new(generation, flows);
            return None;
        }
        let since: Vec<u64> = flows
            .iter()
            .zip(&row.last)
            .map(|(now, before)| now.wrapping_sub(*before))
            .collect();
        // No counter moves by 2^63 in a check: it went down, and what was counted is of no one knows what.
        if since.iter().any(|count| *count > u64::MAX / 2) {
            *row = Row::new(generation, flows);
            return None;
        }
        if row.generation != generation {
            // Flows of this check are of both seeds, and count for neither.
            let ended = std::mem::replace(row, Row::new(generation, flows));
            return Some(ended.counts);
        }
        row.last.copy_from_slice(flows);
        for (count, since) in row.counts.iter_mut().zip(&since) {
            *count = count.wrapping_add(*since);
        }
        None
    }

    /// Bets on the seeds that ended in a check.
    pub fn close(&mut self, ended: &[Vec<u64>]) {
        let rows: Vec<&[u64]> = ended.iter().map(Vec::as_slice).collect();
        let Some(result) = self.bets.close(&rows) else {
            return;
        };
        for row in ended {
            let total = row.iter().map(|count| *count as f64).sum::<f64>();
            if total > 0.0 && row.len() == self.parts.len() {
                self.ended = self.ended.saturating_add(1);
                for (part, count) in self.parts.iter_mut().zip(row) {
                    *part += *count as f64 / total;
                }
            }
        }
        self.evidence = result.max_s.max(0.0);
        if self.evidence >= self.threshold() && self.ended > 0 {
            self.alarm = Some(EpochAlarm {
                backend: result.category,
                part: self.parts[result.category] / f64::from(self.ended),
                expected: self.shares.share(result.category),
                seeds: self.ended,
            });
            self.restart();
        } else if let Some(alarm) = &self.alarm
            && self.ended >= alarm.seeds.saturating_mul(PATIENCE)
        {
            self.alarm = None;
        }
    }

    /// Evidence that has been told of is not told again.
    fn restart(&mut self) {
        self.bets = RotationBets::new(&self.shares, Tolerance::DEFAULT, self.ln_arl);
        self.made_for = self.ln_arl;
        self.ended = 0;
        self.parts.fill(0.0);
    }

    /// Of the strongest bet, in nats, when the last seed ended.
    pub fn evidence(&self) -> f64 {
        self.evidence
    }

    pub fn threshold(&self) -> f64 {
        self.bets.threshold() - self.made_for + self.ln_arl
    }

    /// Seeds that have ended since the bets began or the last alarm was raised.
    pub fn ended(&self) -> u32 {
        self.ended
    }

    pub fn alarm(&self) -> Option<&EpochAlarm> {
        self.alarm.as_ref()
    }
}

impl Row {
    fn new(generation: u32, flows: &[u64]) -> Self {
        Self {
            generation,
            last: flows.to_vec(),
            counts: vec![0; flows.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs() -> Epochs {
        let owned = [(1, 25), (2, 25), (3, 50)];
        Epochs::new(&Shares::of_slots(&owned, 100, Tolerance::DEFAULT), 1e6f64.ln())
    }

    /// A seed's life of three checks with so many new flows each.
    fn live(epochs: &mut Epochs, total: &mut [u64; 3], generation: u32, each: [u64; 3]) {
        for _ in 0..3 {
            for (total, new) in total.iter_mut().zip(each) {
                *total = total.wrapping_add(new);
            }
            let ended: Vec<_> = epochs.read(1, generation, total).into_iter().collect();
            epochs.close(&ended);
        }
    }

    #[test]
    fn one_heavy_key_that_fair_seeds_move_is_no_alarm_and_one_that_stays_is() {
        let (mut fair, mut stuck) = (epochs(), epochs());
        let mut totals = [[0; 3]; 2];
        let mut random = 7u64;
        for generation in 1..400 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let mut moved = [0; 3];
            moved[[0, 1, 2, 2][(random >> 33) as usize % 4]] = 1000;
            live(&mut fair, &mut totals[0], generation, moved);
            if stuck.alarm().is_none() {
                live(&mut stuck, &mut totals[1], generation, [1000, 0, 0]);
            }
        }
        assert_eq!(fair.alarm(), None, "evidence {}", fair.evidence());
        let alarm = stuck.alarm().unwrap();
        assert_eq!((alarm.backend, alarm.expected, alarm.part), (0, 0.25, 1.0));
        assert!((3..=30).contains(&alarm.seeds), "{alarm:?}");
    }

    #[test]
    fn an_alarm_is_over_when_twice_as_many_seeds_were_fair() {
        let (mut epochs, mut total) = (epochs(), [0; 3]);
        let mut generation = 1;
        while epochs.alarm().is_none() {
            live(&mut epochs, &mut total, generation, [0, 500, 500]);
            generation += 1;
        }
        let took = epochs.alarm().unwrap().seeds;
        for _ in 0..PATIENCE * took - 1 {
            live(&mut epochs, &mut total, generation, [250, 250, 500]);
            generation += 1;
        }
        assert!(epochs.alarm().is_some());
        live(&mut epochs, &mut total, generation, [250, 250, 500]);
        assert_eq!(epochs.alarm(), None);
    }

    #[test]
    fn a_seed_without_flows_and_counters_that_go_back_say_nothing() {
        let (mut epochs, mut total) = (epochs(), [u64::MAX - 10, 5, 5]);
        live(&mut epochs, &mut total, 1, [0; 3]);
        live(&mut epochs, &mut total, 2, [0; 3]);
        assert_eq!((epochs.ended(), epochs.evidence()), (0, 0.0));
        // A counter that passes 2^64 goes on counting.
        live(&mut epochs, &mut total, 3, [7, 7, 14]);
        live(&mut epochs, &mut total, 4, [0; 3]);
        assert_eq!((epochs.ended(), total[0] < 100), (1, true));
        // A reset in the middle: what was counted under this seed is not used.
        live(&mut epochs, &mut total, 5, [1000, 0, 0]);
        let mut reset = [0; 3];
        live(&mut epochs, &mut reset, 5, [0; 3]);
        live(&mut epochs, &mut reset, 6, [0; 3]);
        assert_eq!(epochs.ended(), 1);
        // Another number of backends.
        assert_eq!(epochs.read(1, 7, &[9, 9]), None);
    }

    #[test]
    fn flows_from_both_sides_of_another_table_belong_to_neither() {
        let (mut epochs, mut total) = (epochs(), [0; 3]);
        live(&mut epochs, &mut total, 1, [900, 0, 0]);
        let owned = [(1, 100), (2, 0), (3, 0)];
        epochs.set_shares(&Shares::of_slots(&owned, 100, Tolerance::DEFAULT));
        live(&mut epochs, &mut total, 2, [0; 3]);
        assert_eq!(epochs.ended(), 0);
    }
}
