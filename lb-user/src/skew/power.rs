//! How many flows a fault takes to be seen.

use super::{
    numeric::{root, stable},
    threshold::next_power_of_two,
};

/// How far shares `q` are from expected shares `p`, and how soon the best possible detector would see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Kullback-Leibler divergence of q from p, in nats a flow.
    pub kl: f64,
    /// Total variation.
    pub tv: f64,
    /// Lorden's bound: ln A / KL, in flows. Asymptotic: no detector with an average run length A is faster on average.
    pub flows: f64,
}

/// Lorden, "Procedures for reacting to a change in distribution" (1971).
pub fn lorden(p: &[f64], q: &[f64], ln_arl: f64) -> Bound {
    let pairs = || q.iter().copied().zip(p.iter().copied());
    let deviances: f64 = pairs().map(|(q, p)| stable::deviance(q, p)).sum();
    // Deviances hold Σ (p − q), which is not quite 0 when the shares are rounded.
    let kl = deviances + stable::complement_of_sum(p) - stable::complement_of_sum(q);
    Bound {
        kl,
        tv: pairs().map(|(q, p)| (q - p).abs()).sum::<f64>() / 2.0,
        flows: ln_arl / kl,
    }
}

/// What the detector takes above Lorden's bound, at most, for one category (measured).
const OVERHEAD: f64 = 2.5;

/// Flows until a double share of the median category is seen. Infinite where no category can get more.
pub fn flows_required(p: &[f64], ln_arl: f64) -> f64 {
    match median(p) {
        Some(share) => flows_for(share, double(share), p.len(), ln_arl),
        None => f64::INFINITY,
    }
}

/// The smallest factor on the median category's share that `flows` flows would show, if any would.
pub fn detectable_ratio(p: &[f64], ln_arl: f64, flows: f64) -> Option<f64> {
    let share = median(p).filter(|share| *share < 1.0)?;
    let excess = |q: f64| flows - flows_for(share, q, p.len(), ln_arl);
    if !flows.is_finite() || excess(1.0) < 0.0 {
        return None;
    }
    Some(root::between(excess, share, 1.0) / share)
}

fn flows_for(p: f64, q: f64, categories: usize, ln_arl: f64) -> f64 {
    let kl = stable::deviance(q, p) + stable::deviance(1.0 - q, 1.0 - p);
    let evidence = ln_arl + (16.0 * next_power_of_two(categories) as f64).ln();
    OVERHEAD * evidence / kl
}

/// Twice the share, or where that is too much, halfway to everything.
fn double(share: f64) -> f64 {
    (2.0 * share).min((1.0 + share) / 2.0)
}

/// Upper median of the categories with a share.
fn median(p: &[f64]) -> Option<f64> {
    let mut shares: Vec<f64> = p.iter().copied().filter(|share| *share > 0.0).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_flows_show_smaller_faults() {
        let p = [0.1; 10];
        let ln_a = 1e6f64.ln();
        let flows = flows_required(&p, ln_a);
        assert!((detectable_ratio(&p, ln_a, flows).unwrap() - 2.0).abs() < 1e-9);
        let more = detectable_ratio(&p, ln_a, 10.0 * flows).unwrap();
        assert!(1.0 < more && more < 1.4, "{more}");
        assert_eq!(detectable_ratio(&p, ln_a, 1.0), None);
    }

    #[test]
    fn where_nothing_can_be_uneven_nothing_is_seen() {
        assert_eq!(flows_required(&[1.0], 10.0), f64::INFINITY);
        assert_eq!(flows_required(&[], 10.0), f64::INFINITY);
        assert_eq!(flows_required(&[0.0, 0.0], 10.0), f64::INFINITY);
        assert_eq!(detectable_ratio(&[1.0], 10.0, 1e9), None);
        assert_eq!(lorden(&[0.5, 0.5], &[0.5, 0.5], 10.0).flows, f64::INFINITY);
        assert_eq!(lorden(&[1.0, 0.0], &[0.5, 0.5], 10.0).flows, 0.0);
    }
}
