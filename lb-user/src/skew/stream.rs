//! One stream of counts under watch: its evidence, its alarm, and what resets which.

use std::collections::BTreeMap;

use super::{
    dense::Dense,
    effect::Effect,
    outcome::{Alarm, Category, Measure, Outcome, Reading, Skip},
    shares::Shares,
    sparse::{Peak, Sparse},
    spec::StreamSpec,
    threshold,
    tilt::TILTS,
};

/// In nats.
const CALM_MARGIN: f64 = 3.0;
/// An alarm need not be disproved for longer than so many times [`StreamSpec::clear_after`].
const LONGEST_PROOF: u32 = 60;

/// A stream of counts under watch.
///
/// Feed [`Stream::check`] the flows that each category got since the last call. The false-alarm guarantee holds for any
/// number of flows a check, any intervals, and shares that change, provided each key counts once (fresh keys).
#[derive(Clone, Debug)]
pub struct Stream {
    spec: StreamSpec,
    shares: Shares,
    sparse: Sparse,
    dense: Option<Box<Dense>>,
    /// Calls of `check`.
    checks: u32,
    /// Those that were evidence, since evidence started from zero.
    steps: u32,
    restart_due: bool,
    blank: u32,
    /// Checks in a row with little evidence.
    calm: u32,
    max_s: f64,
    ln_dense: f64,
    alarm: Option<Alarm>,
}

impl Stream {
    pub fn new(spec: StreamSpec, shares: Shares) -> Self {
        Self {
            spec,
            sparse: Sparse::new(shares.row_of.len()),
            dense: spec.dense.then(|| Box::new(Dense::new(shares.len()))),
            shares,
            checks: 0,
            steps: 0,
            restart_due: false,
            blank: 0,
            calm: 0,
            max_s: f64::NEG_INFINITY,
            ln_dense: f64::NEG_INFINITY,
            alarm: None,
        }
    }

    /// Takes the flows that each category got since the last check.
    pub fn check(&mut self, counts: &[u64]) -> Outcome {
        let shares = self.shares.clone();
        self.check_against(counts, &shares)
    }

    /// Like [`Stream::check`], for a histogram of picks from several tables: `parts` has the flows of each table size and
    /// the shares for it. Falls back to the stream's own shares when `parts` says nothing.
    pub fn check_mixed(&mut self, counts: &[u64], parts: &[(f64, &Shares)]) -> Outcome {
        match Shares::mixture(parts) {
            Some(shares) if shares.is_like(&self.shares) => self.check_against(counts, &shares),
            _ => self.check(counts),
        }
    }

    fn check_against(&mut self, counts: &[u64], shares: &Shares) -> Outcome {
        self.checks = self.checks.saturating_add(1);
        if counts.len() != shares.len() {
            return Outcome::Skipped(Skip::Length);
        }
        if self.blank > 0 {
            self.blank -= 1;
            return Outcome::Skipped(Skip::Blanked);
        }
        // Counters can add up to more than 2^64.
        let flows: u128 = counts.iter().map(|count| u128::from(*count)).sum();
        if flows == 0 || shares.is_empty() {
            return Outcome::Skipped(Skip::Empty);
        }
        if self.restart_due {
            self.restart();
        }
        let n = flows as f64;
        let Some(peak) = self.sparse.step(counts, n, shares, self.checks) else {
            return Outcome::Skipped(Skip::Empty);
        };
        if let Some(dense) = &mut self.dense {
            self.ln_dense = dense.step(counts, n, shares, self.spec.tau);
        }
        self.max_s = peak.value;
        self.steps = self.steps.saturating_add(1);
        self.calm = if self.is_calm() {
            self.calm.saturating_add(1)
        } else {
            0
        };
        let flows = u64::try_from(flows).unwrap_or(u64::MAX);
        Outcome::Measured(self.judge(peak, flows))
    }

    /// Raises the alarm, or renews it, if evidence passed a threshold.
    fn judge(&mut self, peak: Peak, flows: u64) -> Measure {
        let sparse = self.max_s >= self.sparse_threshold();
        let dense = self.ln_dense >= self.dense_threshold();
        let crossed = sparse || dense;
        let mut raised = None;
        if crossed {
            self.restart_due = self.spec.restart;
            match &mut self.alarm {
                Some(alarm) => alarm.last = self.checks,
                None => {
                    raised = Some(self.alarm_of(peak, sparse, dense));
                    self.alarm = raised;
                }
            }
        }
        Measure {
            check: self.checks,
            flows,
            peak,
            ln_dense: self.ln_dense,
            crossed,
            raised,
        }
    }

    fn alarm_of(&self, peak: Peak, sparse: bool, dense: bool) -> Alarm {
        Alarm {
            check: self.checks,
            sparse,
            dense,
            max_s: self.max_s,
            ln_dense: self.ln_dense,
            category: self.category(peak.category),
            tilt: peak.tilt,
            since: self.sparse.since(peak.category).unwrap_or(self.checks),
            last: self.checks,
        }
    }

    /// Starts evidence from zero. A standing alarm stays, and holds only on what comes. For after a remedy: what then
    /// passes a threshold is evidence that it did not help.
    pub fn restart(&mut self) {
        self.restart_due = false;
        self.sparse.restart();
        if let Some(dense) = &mut self.dense {
            dense.restart();
        }
        (self.max_s, self.ln_dense) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        (self.steps, self.calm) = (0, 0);
    }

    /// Other expected shares from now on: other weights, backends that join, leave or drain.
    ///
    /// Evidence of a backend stays with its id, a new one starts at 0, a removed one's is dropped; the dense part's
    /// stays. The averages that choose its groups start afresh, and the next [`StreamSpec::blank`] checks are left out.
    pub fn set_shares(&mut self, shares: Shares) {
        let old: BTreeMap<u32, usize> = self.shares.ids().iter().copied().zip(0..).collect();
        let members = shares.ids().iter().map(|id| old.get(id).copied());
        let bits = (0..shares.bits()).map(|bit| self.bit(bit));
        let from: Vec<Option<usize>> = members.chain(bits).collect();
        self.sparse.carry(&from);
        if let Some(dense) = &mut self.dense {
            dense.forget_averages(shares.len());
        }
        self.shares = shares;
        self.leave_out(self.spec.blank);
    }

    /// Leaves out the next `checks` checks: their counts are known to mix what must not be mixed.
    pub fn leave_out(&mut self, checks: u32) {
        self.blank = self.blank.max(checks);
    }

    /// Another guarantee from now on, since the number of streams changed. A standing alarm stays.
    pub fn set_ln_arl(&mut self, ln_arl: f64) {
        self.spec.ln_arl = ln_arl;
    }

    /// Takes the alarm back if evidence was low for long enough, and no effect outside the limits of a warning is shown
    /// by the last minute's counts. Evidence itself goes on.
    ///
    /// Long enough: [`StreamSpec::clear_after`] checks, and as many as it took to raise the alarm, since a fault that took
    /// longer to be seen takes as long to be missed.
    pub fn clear(&mut self, recent: &Effect) -> bool {
        let Some(alarm) = &self.alarm else {
            return false;
        };
        let least = self.spec.clear_after;
        let seen_in = alarm.check.saturating_sub(alarm.since).saturating_add(1);
        let needed = seen_in.clamp(least, least.saturating_mul(LONGEST_PROOF));
        let clears = self.calm >= needed && !recent.exceeds_tolerance();
        if clears {
            self.alarm = None;
        }
        clears
    }

    pub fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Calls of [`Stream::check`] so far.
    pub fn checks(&self) -> u32 {
        self.checks
    }

    /// How much of an alarm's evidence there is: 0 at what chance gives, 1 at an alarm, in between on the scale of nats.
    /// While an alarm stands: of one more.
    pub fn level(&self) -> f64 {
        let part = |value: f64, chance: f64, threshold: f64| (value - chance) / (threshold - chance).max(1.0);
        // R has the mean t after t checks.
        let chance =
            (f64::from(self.steps.max(1)).ln() + threshold::dense(0.0)).min(self.dense_threshold() - 1.0);
        let dense = part(self.ln_dense, chance, self.dense_threshold());
        let sparse = part(self.max_s, self.price(), self.sparse_threshold());
        sparse.max(dense).max(0.0)
    }

    pub fn reading(&self) -> Reading {
        let mean = 20.0 * f64::from(self.steps);
        let sparse = self.max_s >= mean.ln() + self.price() - std::f64::consts::LN_2;
        let dense = self.ln_dense >= mean.ln();
        Reading {
            alarmed: self.alarm.is_some(),
            significant: self.steps > 0 && (sparse || dense),
            max_s: self.max_s,
            ln_dense: self.ln_dense,
        }
    }

    /// S of every bet on a category (real ones first, then bits), by tilt. `None` outside.
    pub fn s(&self, category: usize) -> Option<[f32; TILTS]> {
        (category < self.shares.row_of.len()).then(|| self.sparse.s(category))
    }

    pub fn sparse_threshold(&self) -> f64 {
        threshold::sparse(self.spec.ln_arl, self.shares.threshold_categories())
    }

    pub fn dense_threshold(&self) -> f64 {
        threshold::dense(self.spec.ln_arl)
    }

    /// Bytes on the heap, for the shares too.
    pub fn heap_bytes(&self) -> usize {
        let dense = self
            .dense
            .as_ref()
            .map_or(0, |dense| size_of::<Dense>() + dense.heap_bytes());
        self.sparse.heap_bytes() + dense + self.shares.heap_bytes()
    }

    fn price(&self) -> f64 {
        self.sparse_threshold() - self.spec.ln_arl
    }

    /// Evidence as low as chance gives: e^3 above the mean of the sparse part's bets, and of the dense part's, whose R has
    /// the mean t after t checks.
    fn is_calm(&self) -> bool {
        let checks = f64::from(self.spec.clear_after.max(1));
        let sparse = (self.price() + CALM_MARGIN).min(self.sparse_threshold());
        let dense = (threshold::dense(CALM_MARGIN) + checks.ln()).min(self.dense_threshold());
        self.max_s < sparse && self.ln_dense < dense
    }

    fn category(&self, index: usize) -> Category {
        match self.shares.ids().get(index) {
            Some(id) => Category::Member(*id),
            None => Category::Bit((index - self.shares.len()) as u32),
        }
    }

    /// Index of a bit's virtual category, if this stream has it.
    fn bit(&self, bit: u32) -> Option<usize> {
        (bit < self.shares.bits()).then(|| self.shares.len() + bit as usize)
    }
}

#[cfg(test)]
mod tests;
