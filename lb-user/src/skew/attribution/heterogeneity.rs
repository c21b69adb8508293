//! Whether something has the same part of every CPU's flows: a backend's share, mistakes.

use crate::skew::{classical, numeric::gamma::ln_poisson_at_least};

/// ln of the p-value below which CPUs differ.
pub(super) const LN_DIFFER: f64 = -6.907_755_278_982_137;

/// A chi-square test of "the share is the same on every CPU".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heterogeneity {
    pub chi2: f64,
    pub degrees: usize,
    /// ln of the p-value.
    pub ln_p: f64,
}

/// `pairs` are by CPU: flows to the backend, and all flows. CPUs that are expected to have less than half a flow to it are
/// left out.
pub fn across_cpus(pairs: &[(u64, u64)]) -> Heterogeneity {
    let sum = |values: &mut dyn Iterator<Item = u64>| values.map(u128::from).sum::<u128>() as f64;
    let hits = sum(&mut pairs.iter().map(|(x, _)| *x));
    let all = sum(&mut pairs.iter().map(|(_, n)| *n));
    let p = if all > 0.0 { hits / all } else { 0.0 };
    let used = pairs.iter().filter(|(_, n)| *n as f64 * p >= 0.5);
    let term = |(x, n): &(u64, u64)| {
        let (x, n) = (*x as f64, *n as f64);
        (x - n * p).powi(2) / (n * p * (1.0 - p))
    };
    let degrees = used.clone().count().saturating_sub(1);
    // Everything here, or nothing: the same everywhere.
    let chi2 = if p > 0.0 && p < 1.0 {
        used.map(term).sum()
    } else {
        0.0
    };
    Heterogeneity {
        chi2,
        degrees,
        ln_p: classical::ln_p(chi2, degrees),
    }
}

/// ln of the probability of at least as many pairs of flows on one CPU, if `hits` flows fell on CPUs by chance as all
/// flows do. Sensitive where a backend has few flows, too few for the chi-square test.
pub fn ln_p_of_pairs(pairs: &[(u64, u64)]) -> f64 {
    let two = |count: u64| count as f64 * count.saturating_sub(1) as f64 / 2.0;
    let all = pairs.iter().map(|(_, n)| u128::from(*n)).sum::<u128>() as f64;
    let hits = pairs.iter().fold(0u64, |sum, (x, _)| sum.saturating_add(*x));
    if all <= 0.0 {
        return 0.0;
    }
    let alike: f64 = pairs.iter().map(|(_, n)| (*n as f64 / all).powi(2)).sum();
    let observed: f64 = pairs.iter().map(|(x, _)| two(*x)).sum();
    ln_poisson_at_least(observed as u64, two(hits) * alike)
}

/// Checks without a mistake from which on a CPU counts as one that makes none.
const FEWEST: u64 = 3;
/// Mistakes from which on CPUs that do not differ make the same ones.
const ALIKE: u64 = 30;

/// Whether mistakes that were found are made on every CPU; `pairs` are by CPU: mistakes, and choices checked.
///
/// A rare mistake of all CPUs takes long to be found on each of them. It is everywhere when most CPUs made it, or when
/// there are many and CPUs do not differ in their part; but not when a CPU made none in so many choices that it must
/// have made one if it made them like the others.
pub(super) fn is_everywhere(pairs: &[(u64, u64)]) -> bool {
    let bad = || pairs.iter().filter(|(wrong, _)| *wrong > 0);
    let sum = |values: &mut dyn Iterator<Item = u64>| values.map(u128::from).sum::<u128>() as f64;
    let mistakes = sum(&mut bad().map(|(wrong, _)| *wrong));
    // One more choice without a mistake, since few choices do not tell a rate of 1.
    let rate = mistakes / (sum(&mut bad().map(|(_, checked)| *checked)) + 1.0);
    let ln_p_of_none = |checked: u64| checked as f64 * (-rate).ln_1p();
    let sure = LN_DIFFER - (pairs.len() as f64).ln();
    let makes_none = |(wrong, checked): &(u64, u64)| *wrong == 0 && ln_p_of_none(*checked) < sure;
    let judged = pairs
        .iter()
        .filter(|(wrong, checked)| *wrong > 0 || *checked >= FEWEST);
    let most = 2 * bad().count() > judged.count();
    let differ = || across_cpus(pairs).ln_p < LN_DIFFER || ln_p_of_pairs(pairs) < LN_DIFFER;
    !pairs.iter().any(makes_none) && (most || (mistakes >= ALIKE as f64 && !differ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_everywhere_unless_a_cpu_makes_none() {
        let of = |bad: usize, each: (u64, u64), good: usize, checked: u64| {
            let pairs = [vec![each; bad], vec![(0, checked); good]].concat();
            is_everywhere(&pairs)
        };
        assert!(of(2, (9, 100), 0, 0));
        assert!(of(1, (1, 1), 0, 0));
        // One of two, two of three, and the others are known to be right.
        assert!(!of(1, (100, 100), 1, 100));
        assert!(!of(2, (100, 100), 1, 20));
        // They have not been asked yet.
        assert!(of(2, (100, 100), 1, 0));
        // Three mistakes in a hundred choices of each CPU: six CPUs of 64 had none so far.
        assert!(of(58, (3, 47), 6, 47));
        // Half of the CPUs had one each, and all are alike.
        assert!(of(31, (1, 47), 33, 47));
        // Eight CPUs of 64 make as many as half of theirs.
        assert!(!of(8, (23, 47), 56, 47));
        // Too little to tell: where it was seen.
        assert!(!of(1, (1, 47), 63, 47));
        assert!(!of(2, (1, 47), 62, 47));
    }
}
