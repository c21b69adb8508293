//! How large the unevenness is: variation, extremes and misplaced flows, each with its interval.

pub mod interval;
mod severity;
mod window;

use std::collections::BTreeMap;

pub use severity::{Severity, Watched, severity};
pub use window::Window;

use super::{classical, numeric::noncentral};
use interval::clopper_pearson;

/// Ratios of a backend's flows to its expected flows that need no attention.
pub const CALM_RATIOS: std::ops::RangeInclusive<f64> = 0.85..=1.15;
/// Part of the flows misplaced that needs no attention.
pub const CALM_TV: f64 = 0.02;

/// Effect sizes of one window of counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    pub flows: u64,
    /// Flows to categories that should get none. Part of the misplaced ones, not of the variation.
    pub stray: u64,
    /// Pearson's chi-square against the expected shares.
    pub chi2: f64,
    /// Coefficient of variation of flows over expected flows ("percentage variance" is 100 times this), as seen.
    pub cv_raw: f64,
    /// The same less what chance alone gives at so few flows; 0 if that is all.
    pub cv: f64,
    pub cv_interval: [f64; 2],
    /// Noncentrality of the chi-square: flows · CV².
    pub lambda_interval: [f64; 2],
    /// Total variation: part of the flows that is misplaced. Its value as seen has a floor of chance of about
    /// 0.4·√(categories/flows): show the interval with it.
    pub tv: f64,
    pub tv_interval: [f64; 2],
    /// Of categories with an expected share: flows over expected flows.
    pub ratios: Vec<Ratio>,
}

/// One category's flows over its expected flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Index of the category.
    pub category: usize,
    pub seen: f64,
    /// Simultaneous over all categories.
    pub interval: [f64; 2],
}

impl Effect {
    /// Effect sizes of `counts` where the shares `p` were expected; intervals are missed with probability `alpha`, each
    /// side of that for the misplaced part. No flows: nothing seen and the widest intervals.
    pub fn measure(counts: &[u64], p: &[f64], alpha: f64) -> Self {
        let total: u128 = counts.iter().map(|count| u128::from(*count)).sum();
        let n = total as f64;
        let expected = p.iter().filter(|share| **share > 0.0).count();
        let strays = counts.iter().zip(p).filter(|(_, share)| **share <= 0.0);
        let stray: u128 = strays.map(|(count, _)| u128::from(*count)).sum();
        let chi2 = classical::chi2(counts, p);
        let degrees = expected.saturating_sub(1) as f64;
        let lambda_interval = noncentral::lambda_interval(chi2, degrees, alpha);
        let cv_of = |lambda: f64| if n > 0.0 { (lambda / n).sqrt() } else { 0.0 };
        let unseen = [0.0, f64::INFINITY];
        let (tv, tv_interval) = misplaced(counts, p, n, alpha);
        Self {
            flows: u64::try_from(total).unwrap_or(u64::MAX),
            stray: u64::try_from(stray).unwrap_or(u64::MAX),
            chi2,
            cv_raw: cv_of(chi2),
            cv: cv_of((chi2 - degrees).max(0.0)),
            cv_interval: if n > 0.0 {
                lambda_interval.map(cv_of)
            } else {
                unseen
            },
            lambda_interval,
            tv,
            tv_interval,
            ratios: ratios(counts, p, alpha),
        }
    }

    /// The category with the largest ratio.
    pub fn most(&self) -> Option<Ratio> {
        self.ratios
            .iter()
            .copied()
            .max_by(|a, b| a.seen.total_cmp(&b.seen))
    }

    /// The category with the smallest ratio.
    pub fn least(&self) -> Option<Ratio> {
        self.ratios
            .iter()
            .copied()
            .min_by(|a, b| a.seen.total_cmp(&b.seen))
    }

    /// Whether the effect is shown to be small: few flows misplaced, every ratio near 1.
    pub fn is_small(&self) -> bool {
        let near = |ratio: &Ratio| ratio.interval.iter().all(|end| CALM_RATIOS.contains(end));
        self.tv_interval[0] < CALM_TV && self.ratios.iter().all(near)
    }

    /// Whether the effect is shown to need attention. Few flows show neither this nor [`Effect::is_small`].
    pub fn exceeds_tolerance(&self) -> bool {
        let (low, high) = (*CALM_RATIOS.start(), *CALM_RATIOS.end());
        let far = |ratio: &Ratio| ratio.interval[0] > high || ratio.interval[1] < low;
        self.tv_interval[0] >= CALM_TV || self.ratios.iter().any(far)
    }
}

/// Total variation with its interval: bias at most ½·√((n − 1)/N), deviation by McDiarmid's inequality. Conservative.
fn misplaced(counts: &[u64], p: &[f64], n: f64, alpha: f64) -> (f64, [f64; 2]) {
    if n <= 0.0 {
        return (0.0, [0.0, 1.0]);
    }
    let parts = counts.iter().zip(p);
    let tv = parts
        .map(|(count, share)| (*count as f64 / n - share).abs())
        .sum::<f64>()
        / 2.0;
    let floor = noise_floor(counts.len(), n);
    let reach = ((1.0 / alpha.clamp(0.0, 1.0)).ln() / (2.0 * n)).sqrt();
    (tv, [(tv - floor - reach).max(0.0), (tv + reach).min(1.0)])
}

/// The most that chance adds to the total variation on average: ½·√((categories − 1)/flows).
pub fn noise_floor(categories: usize, flows: f64) -> f64 {
    (categories.saturating_sub(1) as f64 / flows).sqrt() / 2.0
}

fn ratios(counts: &[u64], p: &[f64], alpha: f64) -> Vec<Ratio> {
    let n = counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
    let shares = p.iter().enumerate().filter(|(_, share)| **share > 0.0);
    let each = alpha / shares.clone().count().max(1) as f64;
    // Many backends have the same count.
    let mut known = BTreeMap::new();
    let ratio = |(category, share): (usize, &f64)| {
        let x = counts.get(category).copied().unwrap_or(0);
        let interval = *known.entry(x).or_insert_with(|| clopper_pearson(x, n, each));
        let seen = if n > 0 { x as f64 / n as f64 } else { 0.0 };
        Ratio {
            category,
            seen: seen / share,
            interval: interval.map(|end| end / share),
        }
    };
    shares.map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_seen_shows_nothing() {
        let effect = Effect::measure(&[0, 0, 0], &[0.5, 0.5, 0.0], 0.01);
        assert_eq!((effect.cv_raw, effect.cv, effect.tv), (0.0, 0.0, 0.0));
        assert_eq!(effect.tv_interval, [0.0, 1.0]);
        assert_eq!(effect.ratios[0].interval, [0.0, 2.0]);
        assert!(!effect.is_small() && !effect.exceeds_tolerance());
    }

    #[test]
    fn a_single_backend_cannot_be_uneven() {
        let effect = Effect::measure(&[1_000_000], &[1.0], 0.01);
        assert_eq!((effect.chi2, effect.cv, effect.tv), (0.0, 0.0, 0.0));
        assert_eq!(effect.cv_interval, [0.0, 0.0]);
        assert!(effect.is_small());
    }

    #[test]
    fn flows_to_a_drained_backend_are_stray_and_misplaced() {
        let effect = Effect::measure(&[4500, 4500, 1000], &[0.5, 0.5, 0.0], 0.01);
        assert_eq!((effect.stray, effect.ratios.len()), (1000, 2));
        assert!((effect.tv - 0.1).abs() < 1e-15);
        assert!(effect.exceeds_tolerance());
        // Each of the two has 90 % of what it should get.
        assert!((effect.cv_raw - 0.1).abs() < 1e-12);
    }

    #[test]
    fn extremes_are_named() {
        let effect = Effect::measure(&[100, 300, 0], &[0.25, 0.25, 0.5], 0.01);
        let (most, least) = (effect.most().unwrap(), effect.least().unwrap());
        assert_eq!((most.category, most.seen), (1, 3.0));
        assert_eq!((least.category, least.seen), (2, 0.0));
        assert!(most.interval[0] > 2.0 && least.interval[1] < 0.1);
        assert_eq!(Effect::measure(&[], &[], 0.01).most(), None);
    }

    fn any_counts() -> impl Strategy<Value = Vec<u64>> {
        let count = prop_oneof![Just(0), 0u64..100, 0u64..2_000_000_000, Just(u64::MAX)];
        proptest::collection::vec(count, 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn effects_are_numbers_in_order(counts in any_counts(), owned in proptest::collection::vec(0u32..5, 12)) {
            let owned = &owned[..counts.len()];
            let slots: u32 = owned.iter().sum();
            let p: Vec<f64> = owned.iter().map(|owned| f64::from(*owned) / f64::from(slots.max(1))).collect();
            let effect = Effect::measure(&counts, &p, 0.01);
            prop_assert!(effect.chi2 >= 0.0 && effect.cv_raw >= effect.cv && effect.cv >= 0.0);
            prop_assert!(effect.cv_interval[0] <= effect.cv_interval[1]);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&effect.tv));
            prop_assert!(effect.tv_interval[0] <= effect.tv && effect.tv <= effect.tv_interval[1] + 1e-9);
            for ratio in &effect.ratios {
                prop_assert!(ratio.interval[0] <= ratio.seen * (1.0 + 1e-9), "{:?}", ratio);
                prop_assert!(ratio.seen <= ratio.interval[1] * (1.0 + 1e-9), "{:?}", ratio);
            }
        }
    }
}
