//! Chance that can be had again: generators by seed, scenario and run, and samplers that are exact.

use std::hash::Hasher;

use rand::{SeedableRng, distr::Distribution};
use rand_distr::{Binomial, Poisson, weighted::WeightedAliasIndex};
use rand_pcg::Pcg64;
use siphasher::sip::SipHasher13;

/// The generator that every draw comes from; its numbers are the same on every platform.
pub type Rng = Pcg64;

/// The generator of one run of a scenario: which thread runs it, and after what, makes no difference.
pub fn rng(seed: u64, scenario: &str, run: u64) -> Rng {
    let mut hasher = SipHasher13::new_with_keys(seed, 0);
    hasher.write(scenario.as_bytes());
    hasher.write(&run.to_le_bytes());
    Rng::seed_from_u64(hasher.finish())
}

/// A Poisson number; 0 for a mean that is not positive.
pub fn poisson(mean: f64, rng: &mut Rng) -> u64 {
    Poisson::new(mean).map_or(0, |poisson| poisson.sample(rng) as u64)
}

/// How often something of probability `p` happens in `n` trials. `p` beyond 0 and 1 by rounding counts as these.
pub fn binomial(n: u64, p: f64, rng: &mut Rng) -> u64 {
    Binomial::new(n, p.clamp(0.0, 1.0)).map_or(0, |binomial| binomial.sample(rng))
}

/// An index, by weights that need not add up to 1.
pub type Choice = WeightedAliasIndex<f64>;

/// A chooser of indices by `weights`.
///
/// # Panics
/// If no weight is positive: a scenario is wrong.
pub fn choice(weights: &[f64]) -> Choice {
    WeightedAliasIndex::new(weights.to_vec()).expect("some weight is positive")
}

/// Counts by category of flows that choose independently.
#[derive(Clone)]
pub struct Multinomial {
    each: Choice,
    /// Of a flow that is in this category or a later one: the probability that it is in this one.
    conditional: Vec<f64>,
}

/// Flows a category up to which each flow is drawn by itself; more are drawn by category.
const FEW: u64 = 8;

impl Multinomial {
    pub fn new(shares: &[f64]) -> Self {
        let mut rest = 0.0;
        let mut conditional: Vec<f64> = shares
            .iter()
            .rev()
            .map(|share| {
                rest += share;
                if rest > 0.0 { share / rest } else { 0.0 }
            })
            .collect();
        conditional.reverse();
        Self {
            each: choice(shares),
            conditional,
        }
    }

    /// Draws `n` flows into `counts`, which is set anew.
    pub fn draw(&self, n: u64, counts: &mut Vec<u64>, rng: &mut Rng) {
        counts.clear();
        counts.resize(self.conditional.len(), 0);
        self.add(n, counts, rng);
    }

    /// Draws `n` flows on top of `counts`.
    pub fn add(&self, n: u64, counts: &mut [u64], rng: &mut Rng) {
        if n < FEW * self.conditional.len() as u64 {
            for _ in 0..n {
                counts[self.each.sample(rng)] += 1;
            }
            return;
        }
        let mut left = n;
        for (count, conditional) in counts.iter_mut().zip(&self.conditional) {
            let here = binomial(left, *conditional, rng);
            *count += here;
            left -= here;
            if left == 0 {
                return;
            }
        }
    }
}

/// Mean and its standard error.
pub fn mean(values: &[f64]) -> (f64, f64) {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (square / (n - 1.0).max(1.0) / n).sqrt())
}

/// The value that a part `part` of the values do not exceed; NaN of none.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1) as f64;
    sorted
        .get((part * last).round() as usize)
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use lb_user::skew::classical;

    use super::*;

    const SHARES: [f64; 6] = [0.02, 0.38, 0.0, 0.1, 0.45, 0.05];

    /// Sums over many draws, and the variance of one category's count, are those of a multinomial.
    fn agrees(n: u64, draws: u64) {
        let multinomial = Multinomial::new(&SHARES);
        let mut rng = rng(1, "multinomial", n);
        let (mut sums, mut counts) = ([0; 6], Vec::new());
        let mut of_one = Vec::new();
        for _ in 0..draws {
            multinomial.draw(n, &mut counts, &mut rng);
            assert_eq!(counts.iter().sum::<u64>(), n);
            sums.iter_mut()
                .zip(&counts)
                .for_each(|(sum, count)| *sum += count);
            of_one.push(counts[1] as f64);
        }
        let ln_p = classical::ln_p(classical::chi2(&sums, &SHARES), classical::degrees(&SHARES));
        assert!(ln_p > -7.0, "{sums:?} at {n} flows: ln p = {ln_p}");
        assert_eq!(sums[2], 0);
        let (mean, _) = mean(&of_one);
        let variance = of_one.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / draws as f64;
        let expected = n as f64 * 0.38 * 0.62;
        assert!(
            (variance / expected - 1.0).abs() < 0.1,
            "{variance} is not {expected}"
        );
    }

    #[test]
    fn both_ways_of_drawing_are_multinomial() {
        agrees(20, 5000);
        agrees(2000, 5000);
    }

    #[test]
    fn small_and_large_means_are_poisson() {
        for mean_wanted in [0.16, 3.0, 40.0, 1e4] {
            let mut rng = rng(1, "poisson", mean_wanted as u64);
            let drawn: Vec<f64> = (0..20_000)
                .map(|_| poisson(mean_wanted, &mut rng) as f64)
                .collect();
            let (found, error) = mean(&drawn);
            assert!(
                (found - mean_wanted).abs() < 4.5 * error,
                "{found} is not {mean_wanted}"
            );
            let variance = error.powi(2) * drawn.len() as f64;
            assert!(
                (variance / mean_wanted - 1.0).abs() < 0.08,
                "{variance} is not {mean_wanted}"
            );
        }
        assert_eq!(poisson(0.0, &mut rng(1, "poisson", 0)), 0);
    }

    #[test]
    fn runs_differ_and_come_again() {
        use rand::RngExt;
        let first = |seed, name, run| rng(seed, name, run).random::<u64>();
        assert_eq!(first(1, "a", 2), first(1, "a", 2));
        let others = [first(2, "a", 2), first(1, "b", 2), first(1, "a", 3)];
        assert!(!others.contains(&first(1, "a", 2)));
        // Fixed, so that a generator that was exchanged cannot pass unseen.
        assert_eq!(first(1, "a", 2), 0x9915_f31c_02b9_bfe0);
    }

    #[test]
    fn quantiles() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
