//! Whether one backend's share differs between CPUs.

use crate::skew::{classical, numeric::gamma::ln_poisson_at_least};

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
