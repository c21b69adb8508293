//! What part of the new flows each category should get: from the slots that it owns, not from weights.

use std::{collections::BTreeMap, sync::Arc};

use lb_common::slot_table::HISTOGRAM_BUCKETS;

use super::{
    threshold::next_power_of_two,
    tilt::{Cost, Tolerance},
};

/// Virtual categories of a hash histogram: one for each bit of the bucket's index.
pub const HISTOGRAM_BITS: u32 = HISTOGRAM_BUCKETS.trailing_zeros();

/// Expected shares of a stream's categories, with the cost of every bet on them.
///
/// Categories with one share (backends with as many slots) have one row together: ten thousand backends have tens
/// of rows. After the real categories come `bits` virtual ones, number j being "bit j of the index is 1".
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    pub(super) rows: Arc<[Row]>,
    /// By category, then by bit: its row.
    pub(super) row_of: Arc<[u32]>,
    /// By real category: by what name it is known when shares change.
    ids: Arc<[u32]>,
    bits: u32,
}

/// One expected share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) p: f64,
    pub(super) cost: Cost,
}

/// Why numbers are no shares.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ShareError {
    #[error(
        "share {share} of category {category} is not between 0 and 1; give owned slots divided by all slots"
    )]
    OutOfRange { category: usize, share: f64 },
    #[error("the shares add up to {sum}, which is more than 1; give owned slots divided by all slots")]
    Sum { sum: f64 },
}

impl Shares {
    /// Of backends: pairs of id and owned slots, of `slots` slots in all. No slots give every backend share 0.
    ///
    /// Owned slots are counted in the table that the controller built and published, never in what it reads back: a wrong
    /// table in the datapath must stay visible. Backends that are draining belong here with 0 slots. More owned slots
    /// than there are count as all of them.
    pub fn of_slots(owned: &[(u32, u32)], slots: u32, tolerance: Tolerance) -> Self {
        let share = |(_, owned): &(u32, u32)| match slots {
            0 => 0.0,
            _ => f64::from((*owned).min(slots)) / f64::from(slots),
        };
        let p: Vec<f64> = owned.iter().map(share).collect();
        Self::build(owned.iter().map(|(id, _)| *id).collect(), &p, 0, tolerance)
    }

    /// Of the 256 buckets of the hash histogram, for a table of `slots` slots: what [`slots_in_bucket`] counts.
    pub fn of_histogram(slots: u32, tolerance: Tolerance) -> Self {
        let ids = (0..HISTOGRAM_BUCKETS).collect();
        Self::build(ids, &histogram_shares(slots), HISTOGRAM_BITS, tolerance)
    }

    /// Any shares, each 0 to 1 and together at most 1, and virtual categories for `bits` bits of the index. Ids are
    /// 0, 1, 2, …
    pub fn of_probabilities(p: &[f64], bits: u32, tolerance: Tolerance) -> Result<Self, ShareError> {
        let odd = p.iter().position(|share| !(0.0..=1.0).contains(share));
        if let Some(category) = odd {
            let share = p[category];
            return Err(ShareError::OutOfRange { category, share });
        }
        let sum: f64 = p.iter().sum();
        if sum > 1.0 + 1e-6 {
            return Err(ShareError::Sum { sum });
        }
        Ok(Self::build((0..p.len() as u32).collect(), p, bits, tolerance))
    }

    fn build(ids: Arc<[u32]>, p: &[f64], bits: u32, tolerance: Tolerance) -> Self {
        let virtual_shares = (0..bits).map(|bit| {
            let with_bit = p.iter().enumerate().filter(|(index, _)| index >> bit & 1 == 1);
            with_bit.map(|(_, share)| share).sum::<f64>().min(1.0)
        });
        let mut rows = Vec::new();
        let mut known = BTreeMap::new();
        let row_of = p.iter().copied().chain(virtual_shares).map(|share| {
            *known.entry(share.to_bits()).or_insert_with(|| {
                let cost = Cost::new(share, tolerance);
                rows.push(Row { p: share, cost });
                rows.len() as u32 - 1
            })
        });
        let row_of = row_of.collect();
        Self {
            rows: rows.into(),
            row_of,
            ids,
            bits,
        }
    }

    /// Real categories.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Ids of the real categories, in order.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Virtual categories.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Expected share of a real category.
    pub fn share(&self, category: usize) -> f64 {
        self.rows[self.row_of[category] as usize].p
    }

    /// Expected shares of the real categories, in order.
    pub fn to_vec(&self) -> Vec<f64> {
        (0..self.len()).map(|category| self.share(category)).collect()
    }

    /// K of the threshold: how many categories are bet on. For backends the next power of two, so that the threshold
    /// does not move with each one that joins or leaves.
    pub fn threshold_categories(&self) -> usize {
        match self.bits {
            0 => next_power_of_two(self.len()),
            bits => self.len() + bits as usize,
        }
    }

    /// The average of several tables' shares, weighted by the flows that each got.
    ///
    /// A CPU's histogram counts the picks of all services, whose tables differ in size. Counts that come from several
    /// multinomials are spread no wider than those of one with the average shares (ln(1 + p·g) is concave in p), and
    /// averaging ψ itself keeps the bets' guarantee as it is. `None` without any flows, or when the tables differ in
    /// their categories.
    pub fn mixture(parts: &[(f64, &Self)]) -> Option<Self> {
        let total: f64 = parts.iter().map(|(weight, _)| weight).sum();
        let (_, first) = parts.first()?;
        let fits = |(weight, part): &(f64, &Self)| *weight >= 0.0 && part.is_like(first);
        if !(total > 0.0 && total.is_finite() && parts.iter().all(fits)) {
            return None;
        }
        let count = first.row_of.len();
        let average = |category: usize| {
            let at = |part: &Self| part.rows[part.row_of[category] as usize];
            let rows = || parts.iter().map(|(weight, part)| (weight / total, at(part)));
            Row {
                p: rows().map(|(part, row)| part * row.p).sum(),
                cost: Cost::average(rows().map(|(part, row)| (part, row.cost))),
            }
        };
        let rows: Vec<Row> = (0..count).map(average).collect();
        Some(Self {
            rows: rows.into(),
            row_of: (0..count as u32).collect(),
            ids: Arc::clone(&first.ids),
            bits: first.bits,
        })
    }

    /// Whether the categories are the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.ids == other.ids && self.bits == other.bits
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.rows) + size_of_val(&*self.row_of) + size_of_val(&*self.ids)
    }
}

/// How many of `slots` slots the datapath counts in a bucket: those s with s·256/slots = bucket.
pub fn slots_in_bucket(bucket: u32, slots: u32) -> u32 {
    let first = |bucket: u32| (u64::from(bucket) * u64::from(slots)).div_ceil(u64::from(HISTOGRAM_BUCKETS));
    (first(bucket + 1) - first(bucket)) as u32
}

/// Expected shares of the 256 buckets of the hash histogram; all 0 without slots.
pub fn histogram_shares(slots: u32) -> Vec<f64> {
    let share = |bucket| f64::from(slots_in_bucket(bucket, slots)) / f64::from(slots.max(1));
    (0..HISTOGRAM_BUCKETS).map(share).collect()
}

/// A backend whose owned slots do not stand for its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotMismatch {
    pub backend: usize,
    /// Share by slots.
    pub owned: f64,
    /// Share by weight.
    pub wanted: f64,
}

/// How far a share by slots may lie from the share by weight, as a ratio.
pub const SLOT_RATIO: std::ops::RangeInclusive<f64> = 0.95..=1.05;

/// Backends whose share of the slots is not within [`SLOT_RATIO`] of their share of the weights: the table is too
/// small for these weights, or was built for others. This needs no traffic, and the traffic's statistics do not see
/// it, since they expect what the slots say.
///
/// Weight 0 is a backend that takes no new flows: any slot is a mismatch.
pub fn check_slots(owned: &[u32], weights: &[u32]) -> Vec<SlotMismatch> {
    let sum = |values: &[u32]| values.iter().map(|value| f64::from(*value)).sum::<f64>();
    let part = |value: u32, sum: f64| if sum > 0.0 { f64::from(value) / sum } else { 0.0 };
    let (slots, weight) = (sum(owned), sum(weights));
    let pairs = owned.iter().zip(weights).enumerate();
    pairs
        .map(|(backend, (owned, wanted))| SlotMismatch {
            backend,
            owned: part(*owned, slots),
            wanted: part(*wanted, weight),
        })
        .filter(|found| match found.wanted {
            0.0 => found.owned > 0.0,
            wanted => !SLOT_RATIO.contains(&(found.owned / wanted)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use lb_common::slot_table::{MAX_SLOTS, MIN_SLOTS, bucket_of, bucket_scale};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_hold_the_slots_that_the_datapath_counts_there() {
        for slots in [1021, 1031, 4099, 65_537] {
            let mut counted = [0; HISTOGRAM_BUCKETS as usize];
            for slot in 0..slots {
                counted[bucket_of(slot, bucket_scale(slots)) as usize] += 1;
            }
            for (bucket, counted) in (0..).zip(counted) {
                assert_eq!(
                    slots_in_bucket(bucket, slots),
                    counted,
                    "bucket {bucket} of {slots}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn buckets_share_out_every_slot(slots in MIN_SLOTS..=MAX_SLOTS) {
            let total: u32 = (0..HISTOGRAM_BUCKETS).map(|bucket| slots_in_bucket(bucket, slots)).sum();
            prop_assert_eq!(total, slots);
        }
    }

    #[test]
    fn backends_with_as_many_slots_share_a_row() {
        let shares = Shares::of_slots(
            &[(7, 10), (3, 11), (9, 10), (4, 0), (5, 10)],
            41,
            Tolerance::DEFAULT,
        );
        assert_eq!(shares.rows.len(), 3);
        assert_eq!(shares.ids(), [7, 3, 9, 4, 5]);
        assert_eq!(
            shares.to_vec(),
            [10.0 / 41.0, 11.0 / 41.0, 10.0 / 41.0, 0.0, 10.0 / 41.0]
        );
        assert_eq!(shares.threshold_categories(), 8);
    }

    #[test]
    fn a_table_without_slots_expects_nothing() {
        assert_eq!(
            Shares::of_slots(&[(1, 0), (2, 7)], 0, Tolerance::DEFAULT).to_vec(),
            [0.0, 0.0]
        );
        assert_eq!(histogram_shares(0), vec![0.0; 256]);
        assert!(Shares::of_slots(&[], 0, Tolerance::DEFAULT).is_empty());
    }

    #[test]
    fn what_is_no_share_is_refused() {
        let refused = |p: &[f64]| Shares::of_probabilities(p, 0, Tolerance::DEFAULT).unwrap_err();
        assert_eq!(
            refused(&[0.5, -0.1]),
            ShareError::OutOfRange {
                category: 1,
                share: -0.1
            }
        );
        assert!(matches!(
            refused(&[f64::NAN]),
            ShareError::OutOfRange { category: 0, .. }
        ));
        assert_eq!(refused(&[0.8, 0.7]), ShareError::Sum { sum: 1.5 });
    }

    #[test]
    fn a_histogram_bets_on_every_bit_too() {
        let shares = Shares::of_histogram(65_537, Tolerance::DEFAULT);
        assert_eq!(
            (shares.len(), shares.bits(), shares.threshold_categories()),
            (256, 8, 264)
        );
        let lowest = shares.rows[shares.row_of[256] as usize].p;
        let odd: f64 = (0..256)
            .filter(|bucket| bucket % 2 == 1)
            .map(|bucket| shares.share(bucket))
            .sum();
        assert_eq!(lowest, odd);
    }

    #[test]
    fn a_mixture_lies_between_its_parts() {
        let (small, large) = (
            Shares::of_histogram(1021, Tolerance::DEFAULT),
            Shares::of_histogram(65_537, Tolerance::DEFAULT),
        );
        let even = Shares::mixture(&[(3.0, &small), (3.0, &large)]).unwrap();
        for bucket in 0..256 {
            let middle = (small.share(bucket) + large.share(bucket)) / 2.0;
            assert!((even.share(bucket) - middle).abs() < 1e-15);
        }
        let one = Shares::mixture(&[(7.0, &small), (0.0, &large)]).unwrap();
        assert_eq!(one.to_vec(), small.to_vec());
        assert_eq!(Shares::mixture(&[]), None);
        assert_eq!(Shares::mixture(&[(0.0, &small)]), None);
        assert_eq!(Shares::mixture(&[(f64::NAN, &small)]), None);
        let other = Shares::of_slots(&[(1, 1)], 1, Tolerance::DEFAULT);
        assert_eq!(Shares::mixture(&[(1.0, &small), (1.0, &other)]), None);
    }

    #[test]
    fn slots_that_belie_the_weights_are_named() {
        assert_eq!(check_slots(&[100, 102, 204], &[1, 1, 2]), []);
        let found = check_slots(&[100, 100, 100], &[1, 1, 2]);
        assert_eq!(found.len(), 3);
        assert_eq!((found[2].backend, found[2].wanted), (2, 0.5));
        // A drained backend may own none.
        assert_eq!(check_slots(&[50, 50, 0], &[1, 1, 0]), []);
        assert_eq!(check_slots(&[49, 50, 1], &[1, 1, 0])[0].backend, 2);
        assert_eq!(check_slots(&[0, 0], &[0, 0]), []);
    }
}
