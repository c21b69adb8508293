//! How long to wait before a server is asked again.

use std::time::Duration;

/// The first pause is shorter than this, and each bound twice the one before…
const FIRST: Duration = Duration::from_millis(250);
/// …up to this.
const LONGEST: Duration = Duration::from_secs(30);

/// Exponential back-off with full jitter: a pause is uniform between nothing and a bound that doubles, so that many
/// daemons that lost one server together do not come back together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next pause, picked by `chance` (uniform over all of `u64`).
    pub fn pause(&mut self, chance: u64) -> Duration {
        let bound = self.bound().as_nanos() as u64;
        self.failures = self.failures.saturating_add(1);
        Duration::from_nanos(((u128::from(bound) * u128::from(chance)) >> 64) as u64)
    }

    /// Something got through.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    fn bound(&self) -> Duration {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        FIRST.saturating_mul(factor).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = u64::MAX;

    fn milliseconds(pause: Duration) -> u128 {
        // The bound itself is not reached: rounded up.
        pause.as_nanos().div_ceil(1_000_000)
    }

    #[test]
    fn bounds_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let bounds: Vec<_> = (0..9).map(|_| milliseconds(backoff.pause(ALL))).collect();
        assert_eq!(
            bounds,
            [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
        );
    }

    #[test]
    fn the_pause_is_a_share_of_the_bound() {
        for (chance, expected) in [(0, 0), (ALL / 4, 250), (ALL / 2, 500), (ALL, 1_000)] {
            let mut backoff = Backoff { failures: 2 };
            assert_eq!(milliseconds(backoff.pause(chance)), expected);
        }
    }

    #[test]
    fn no_number_of_failures_overflows() {
        let mut backoff = Backoff { failures: u32::MAX };
        assert_eq!(milliseconds(backoff.pause(ALL)), 30_000);
        assert_eq!(milliseconds(backoff.pause(ALL)), 30_000);
    }

    #[test]
    fn an_update_makes_pauses_short_again() {
        let mut backoff = Backoff { failures: 20 };
        backoff.reset();
        assert_eq!(milliseconds(backoff.pause(ALL)), 250);
    }
}
