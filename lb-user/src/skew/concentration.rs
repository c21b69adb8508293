//! Heavy keys: how many independent choices so many flows amount to, and what unevenness that explains.

/// Effective number of choices: N²/(Σ w² + rest), w being the heaviest keys' flows and the rest one flow a key.
/// 0 without flows.
pub fn effective_flows(all: u64, top_keys: &[u64]) -> f64 {
    let squares: f64 = top_keys.iter().map(|flows| (*flows as f64).powi(2)).sum();
    let top: u128 = top_keys.iter().map(|flows| u128::from(*flows)).sum();
    let n = all as f64;
    // A sketch may count a key a little too high.
    let rest = u128::from(all).saturating_sub(top) as f64;
    if all == 0 {
        0.0
    } else {
        (n * n / (squares + rest)).clamp(1.0, n)
    }
}

/// Total variation to be expected by chance of `effective` independent choices: ½·Σ √(2·p·(1 − p)/(π·m)).
pub fn expected_tv(p: &[f64], effective: f64) -> f64 {
    let sum: f64 = p
        .iter()
        .map(|share| {
            (2.0 * share * (1.0 - share) / std::f64::consts::PI)
                .max(0.0)
                .sqrt()
        })
        .sum();
    if effective > 0.0 {
        sum / (2.0 * effective.sqrt())
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_is_one_choice_and_distinct_keys_are_as_many() {
        assert_eq!(effective_flows(1000, &[1000]), 1.0);
        assert_eq!(effective_flows(1000, &[]), 1000.0);
        assert_eq!(effective_flows(1000, &[1; 64]), 1000.0);
        assert_eq!(effective_flows(0, &[]), 0.0);
        // Counted too high by the sketch: still one choice at least.
        assert_eq!(effective_flows(10, &[12]), 1.0);
        assert!(effective_flows(u64::MAX, &[u64::MAX, u64::MAX]).is_finite());
    }

    #[test]
    fn fewer_choices_are_more_uneven() {
        let p = [0.25; 4];
        assert!((expected_tv(&p, 400.0) * 2.0 - expected_tv(&p, 100.0)).abs() < 1e-15);
        assert_eq!(expected_tv(&p, 0.0), f64::INFINITY);
        assert_eq!(expected_tv(&[1.0], 5.0), 0.0);
    }
}
