//! Whether the filter that lets each key count once still does its work.
//!
//! A bitmap, indexed by a witness hash that shares neither code nor key with the hash that selects, tells a key's first
//! sight. It is cleared with each new seed only, after the seed was switched.

/// Part of the bitmap that is set from which on new keys are too often taken for known ones.
pub const FULL: f64 = 0.9;
/// Part of the new flows that were fresh, below which, with many distinct keys, the filter itself is in doubt.
const STARVED: f64 = 0.01;
/// Flows and distinct keys from which on that is judged.
const ENOUGH_FLOWS: u64 = 1000;
const ENOUGH_KEYS: f64 = 100.0;

/// The filter since its last clearing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filter {
    /// New flows that moved the fresh counters, and all new flows.
    pub fresh: u64,
    pub flows: u64,
    /// Bits set, and bits.
    pub set: u64,
    pub bits: u64,
    /// Distinct keys by a count that does not rest on this bitmap (a sketch of sampled flows), where there is one.
    pub distinct: Option<f64>,
}

/// What to do about a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    Fine,
    /// Rotate the seed early; never clear the bitmap alone, which would count keys twice.
    RotateEarly,
    /// Many distinct keys and hardly one of them fresh: the witness is stuck, so that the streams of fresh keys, and with
    /// them the alarms, have dried up. An alarm of its own.
    Starved,
}

impl Filter {
    /// Part of the bits that is set.
    pub fn fill(&self) -> f64 {
        if self.bits == 0 {
            0.0
        } else {
            self.set as f64 / self.bits as f64
        }
    }

    /// Distinct keys by linear counting: −m·ln(1 − fill) (Whang, Vander-Zanden and Taylor 1990). Infinite when full.
    pub fn distinct_by_fill(&self) -> f64 {
        -(self.bits as f64) * (-self.fill().min(1.0)).ln_1p()
    }

    pub fn advice(&self) -> Advice {
        let fresh = self.fresh as f64;
        // Up to 90 % full a bitmap loses at most 61 % of the keys; three in four are never lost by filling alone.
        let many = |keys: &f64| *keys >= ENOUGH_KEYS && fresh < keys / 4.0;
        let rare = self.flows >= ENOUGH_FLOWS && fresh < STARVED * self.flows as f64;
        if self.fill() > FULL {
            Advice::RotateEarly
        } else if rare && self.distinct.as_ref().is_some_and(many) {
            Advice::Starved
        } else {
            Advice::Fine
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Filter = Filter {
        fresh: 0,
        flows: 0,
        set: 0,
        bits: 65_536,
        distinct: None,
    };

    #[test]
    fn few_keys_are_no_fault_and_a_stuck_witness_is() {
        let cases = [
            ("no traffic", IDLE, Advice::Fine),
            (
                "50 clients behind NAT, of whom each was seen",
                Filter {
                    fresh: 50,
                    flows: 1_000_000,
                    set: 50,
                    distinct: Some(50.0),
                    ..IDLE
                },
                Advice::Fine,
            ),
            (
                "2,000 clients, of whom each was seen",
                Filter {
                    fresh: 1950,
                    flows: 1_000_000,
                    set: 1950,
                    distinct: Some(2000.0),
                    ..IDLE
                },
                Advice::Fine,
            ),
            (
                "every key is the same to the witness",
                Filter {
                    fresh: 1,
                    flows: 1_000_000,
                    set: 1,
                    distinct: Some(900_000.0),
                    ..IDLE
                },
                Advice::Starved,
            ),
            (
                "the same, but nobody counts distinct keys",
                Filter {
                    fresh: 1,
                    flows: 1_000_000,
                    set: 1,
                    distinct: None,
                    ..IDLE
                },
                Advice::Fine,
            ),
            (
                "too little traffic to tell",
                Filter {
                    fresh: 1,
                    flows: 500,
                    set: 1,
                    distinct: Some(500.0),
                    ..IDLE
                },
                Advice::Fine,
            ),
            (
                "nearly full",
                Filter {
                    fresh: 58_983,
                    flows: 1_000_000,
                    set: 58_983,
                    distinct: Some(150_000.0),
                    ..IDLE
                },
                Advice::RotateEarly,
            ),
        ];
        for (name, filter, wanted) in cases {
            assert_eq!(filter.advice(), wanted, "{name}");
        }
    }

    #[test]
    fn distinct_keys_by_fill() {
        let half = Filter { set: 32_768, ..IDLE };
        assert!((half.distinct_by_fill() - 65_536.0 * std::f64::consts::LN_2).abs() < 1e-6);
        assert_eq!(Filter { set: 65_536, ..IDLE }.distinct_by_fill(), f64::INFINITY);
        assert_eq!(Filter { bits: 0, ..IDLE }.fill(), 0.0);
        assert_eq!(Filter { bits: 0, ..IDLE }.distinct_by_fill(), 0.0);
    }
}
