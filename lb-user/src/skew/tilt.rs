//! The eight bets of the sparse part, and the tolerance that is part of their null.

/// Bets on one category: how many, and of these how many that it gets too much.
pub const TILTS: usize = 8;
pub const UP_TILTS: usize = 5;

/// θ: ln of the factor on a category's odds. Up 1.2, 1.6, 3, 12, 150; down 0.8, 0.5, 0.1.
pub const THETA: [f64; TILTS] = [
    0.182_321_556_793_954_62,
    0.470_003_629_245_735_6,
    1.098_612_288_668_109_8,
    2.484_906_649_788_000_4,
    5.010_635_294_096_255_5,
    -0.223_143_551_314_209_76,
    -std::f64::consts::LN_2,
    -2.302_585_092_994_045_5,
];

/// e^θ − 1.
const GAIN: [f64; TILTS] = [0.2, 0.6, 2.0, 11.0, 149.0, -0.2, -0.5, -0.9];

/// How far a true share may lie from the expected one without being a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative change of the odds p/(1 − p), up and down.
    pub delta: f64,
    /// Upward bets take a smaller share for this one, so that a drained backend may get a few late flows.
    pub p_floor: f64,
}

impl Tolerance {
    /// Odds within 5 %, and one flow in 10,000 for a backend that owns no slot.
    pub const DEFAULT: Self = Self {
        delta: 0.05,
        p_floor: 1e-4,
    };
}

/// The ends of the tolerated range of one share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerated {
    pub up: f64,
    pub down: f64,
}

/// The range of shares whose odds are within a factor 1 + `delta` of those of `p` (0 to 1).
pub fn tolerated(p: f64, delta: f64) -> Tolerated {
    Tolerated {
        up: p * (1.0 + delta) / (1.0 + p * delta),
        down: p / (1.0 + (1.0 - p) * delta),
    }
}

/// What a category of some expected share costs its bets, in nats a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// ψ of each bet, or ψ − θ for a share close to 1: then bets are counted by the flows that went elsewhere, since
    /// the two large parts of an increment would leave nothing but rounding.
    psi: [f64; TILTS],
    elsewhere: bool,
}

/// Share from which on the flows that went elsewhere count.
const MOST: f64 = 0.9;

impl Cost {
    /// For a category of expected share `p` (0 to 1).
    pub fn new(p: f64, tolerance: Tolerance) -> Self {
        let Tolerance { delta, p_floor } = tolerance;
        let floored = p.max(p_floor);
        let elsewhere = floored > MOST;
        let (up, down) = (tolerated(floored, delta).up, tolerated(p, delta).down);
        // 1 − up and 1 − down, without the cancellation.
        let rest_up = (1.0 - floored) / (1.0 + floored * delta);
        let rest_down = (1.0 - p) * (1.0 + delta) / (1.0 + (1.0 - p) * delta);
        let psi = std::array::from_fn(|tilt| {
            let (share, rest) = if tilt < UP_TILTS {
                (up, rest_up)
            } else {
                (down, rest_down)
            };
            let gain = GAIN[tilt];
            if elsewhere {
                (-rest * gain / (1.0 + gain)).ln_1p()
            } else {
                (share * gain).ln_1p()
            }
        });
        Self { psi, elsewhere }
    }

    /// ψ of each bet.
    pub fn psi(&self) -> [f64; TILTS] {
        let part = if self.elsewhere { 1.0 } else { 0.0 };
        std::array::from_fn(|tilt| self.psi[tilt] + part * THETA[tilt])
    }

    /// ln of each bet's factor on its wealth when `x` of `n` flows went to the category: x·θ − n·ψ.
    #[inline(always)]
    pub fn increments(&self, x: f64, n: f64) -> [f64; TILTS] {
        let counted = if self.elsewhere { x - n } else { x };
        std::array::from_fn(|tilt| counted * THETA[tilt] - n * self.psi[tilt])
    }

    /// The average of several costs, `part` of the flows having had each.
    pub(super) fn average(parts: impl Iterator<Item = (f64, Self)>) -> Self {
        let mut psi = [0.0; TILTS];
        for (part, cost) in parts {
            for (sum, psi) in psi.iter_mut().zip(cost.psi()) {
                *sum += part * psi;
            }
        }
        Self {
            psi,
            elsewhere: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gains_belong_to_their_tilts() {
        for (theta, gain) in THETA.into_iter().zip(GAIN) {
            assert!((theta.exp_m1() - gain).abs() < 1e-13 * gain.abs());
        }
    }

    #[test]
    fn certain_and_impossible_categories_are_tolerated_as_they_are() {
        assert_eq!(tolerated(0.0, 0.05), Tolerated { up: 0.0, down: 0.0 });
        assert_eq!(tolerated(1.0, 0.05), Tolerated { up: 1.0, down: 1.0 });
        let certain = Cost::new(1.0, Tolerance::DEFAULT);
        assert_eq!(certain.psi(), THETA);
        assert_eq!(certain.increments(1e9, 1e9), [0.0; TILTS]);
    }

    proptest! {
        #[test]
        fn both_ways_of_counting_agree(p in 0.85f64..0.95, x in 0u32..1000) {
            let here = Cost::new(p.min(MOST), Tolerance::DEFAULT);
            let elsewhere = Cost::new(p.min(MOST).next_up(), Tolerance::DEFAULT);
            prop_assert!(p < MOST || here.elsewhere != elsewhere.elsewhere);
            let (here, elsewhere) = (here.increments(x.into(), 1000.0), elsewhere.increments(x.into(), 1000.0));
            for (here, elsewhere) in here.into_iter().zip(elsewhere) {
                prop_assert!((here - elsewhere).abs() < 1e-9);
            }
        }

        /// By this, wealth is a supermartingale: the mean factor of one flow is at most 1 for every tolerated share.
        #[test]
        fn no_bet_gains_inside_the_tolerance(p in 0.0f64..=1.0, delta in 0.0f64..0.5, at in 0.0f64..=1.0) {
            let tolerance = Tolerance { delta, p_floor: 1e-4 };
            let range = tolerated(p, delta);
            let truth = range.down + at * (range.up - range.down);
            for (tilt, psi) in Cost::new(p, tolerance).psi().into_iter().enumerate() {
                let mean = (1.0 + truth * GAIN[tilt]) * (-psi).exp();
                prop_assert!(mean <= 1.0 + 1e-12, "tilt {tilt}: {mean}");
            }
        }
    }
}
