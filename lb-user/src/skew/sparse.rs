//! The sparse part: for every category, CUSUMs of bets that it alone gets too much or too little.

use super::{
    shares::{Row, Shares},
    tilt::TILTS,
};

/// S of every bet, and since when a category's best S is above 0.
#[derive(Clone, Debug)]
pub(super) struct Sparse {
    /// By category, real ones first, then bits. Kept as f32: an error below 1e-5 a check, for half the memory.
    s: Vec<[f32; TILTS]>,
    /// Check in which the best S rose above 0 for the last time; 0 while it is not above.
    since: Vec<u32>,
}

/// The largest S of a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// In nats.
    pub value: f64,
    /// Index of the category: real ones first, then the bits of a histogram's index.
    pub category: usize,
    /// Index into [`super::tilt::THETA`].
    pub tilt: usize,
}

impl Sparse {
    pub(super) fn new(categories: usize) -> Self {
        Self {
            s: vec![[0.0; TILTS]; categories],
            since: vec![0; categories],
        }
    }

    /// Takes one check's counts of the real categories, `n` > 0 flows in all. `None` without categories.
    pub(super) fn step(&mut self, counts: &[u64], n: f64, shares: &Shares, check: u32) -> Option<Peak> {
        let mut best = None;
        let mut top = f64::NEG_INFINITY;
        let real = counts.iter().map(|count| *count as f64);
        let bits = (0..shares.bits()).map(|bit| with_bit(counts, bit));
        let state = self.s.iter_mut().zip(&mut self.since);
        let categories = state.zip(shares.row_of.iter()).zip(real.chain(bits)).enumerate();
        for (category, (((s, since), row), x)) in categories {
            let values = advance(s, x, n, &shares.rows[*row as usize]);
            let value = largest(&values);
            *since = match (value > 0.0, *since) {
                (false, _) => 0,
                (true, 0) => check,
                (true, earlier) => earlier,
            };
            if value > top {
                top = value;
                best = Some((category, values));
            }
        }
        best.map(|(category, values)| Peak {
            value: top,
            category,
            tilt: values.iter().position(|value| *value == top).unwrap_or(0),
        })
    }

    /// Every S from 0 on.
    pub(super) fn restart(&mut self) {
        self.s.fill([0.0; TILTS]);
        self.since.fill(0);
    }

    /// Keeps state by position: new category i takes over the old category `from[i]`, or starts at 0.
    pub(super) fn carry(&mut self, from: &[Option<usize>]) {
        let s = |old: &Option<usize>| old.and_then(|old| self.s.get(old).copied()).unwrap_or_default();
        let since = |old: &Option<usize>| old.and_then(|old| self.since.get(old).copied()).unwrap_or(0);
        *self = Self {
            s: from.iter().map(s).collect(),
            since: from.iter().map(since).collect(),
        };
    }

    pub(super) fn s(&self, category: usize) -> [f32; TILTS] {
        self.s[category]
    }

    pub(super) fn since(&self, category: usize) -> Option<u32> {
        Some(self.since[category]).filter(|check| *check > 0)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.s.capacity() * size_of::<[f32; TILTS]>() + self.since.capacity() * size_of::<u32>()
    }
}

/// One category's next S, before they are rounded to f32.
#[inline(always)]
fn advance(s: &mut [f32; TILTS], x: f64, n: f64, row: &Row) -> [f64; TILTS] {
    let increments = row.cost.increments(x, n);
    let mut next = [0.0; TILTS];
    for tilt in 0..TILTS {
        let held = f64::from(s[tilt]);
        // A comparison, since max does not become a vector instruction.
        let held = if held > 0.0 { held } else { 0.0 };
        next[tilt] = held + increments[tilt];
        s[tilt] = next[tilt] as f32;
    }
    next
}

#[inline(always)]
fn largest(values: &[f64; TILTS]) -> f64 {
    values.iter().copied().fold(
        f64::NEG_INFINITY,
        |top, value| if value > top { value } else { top },
    )
}

/// Flows to categories whose index has the bit.
fn with_bit(counts: &[u64], bit: u32) -> f64 {
    let chosen = counts
        .iter()
        .enumerate()
        .filter(|(index, _)| index >> bit & 1 == 1);
    chosen.map(|(_, count)| u128::from(*count)).sum::<u128>() as f64
}
