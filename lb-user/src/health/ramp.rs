//! How the weight of a backend that came up grows: from a tenth to all of it, in equal steps.

use std::time::Duration;

/// Shares that the weight takes on the way.
pub const STEPS: u32 = 10;

/// Tenths of its weight, from 1 to 10, that a backend gets which came up `age` ago, when growing takes `over`.
pub fn tenths(age: Duration, over: Duration) -> u32 {
    if age >= over {
        return STEPS;
    }
    // `over` is more than `age` here, so it is not zero.
    let steps = age.as_nanos() * u128::from(STEPS - 1) / over.as_nanos();
    1 + u32::try_from(steps).unwrap_or(STEPS - 1)
}

/// The weight of such a backend, of `full`: rounded up, so never 0 unless `full` is.
pub fn weight(full: u32, age: Duration, over: Duration) -> u32 {
    let share = (u64::from(full) * u64::from(tenths(age, over))).div_ceil(u64::from(STEPS));
    u32::try_from(share).unwrap_or(full)
}

/// Age at which the next step is due; `None` when the weight is all that it should be.
pub fn next_step(age: Duration, over: Duration) -> Option<Duration> {
    let taken = tenths(age, over);
    // Rounded up to the next nanosecond: a step that is due has come.
    let nanos = (over.as_nanos() * u128::from(taken)).div_ceil(u128::from(STEPS - 1));
    (taken < STEPS).then(|| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn grows_in_ten_shares() {
        let ages = 0..=10;
        let weights: Vec<u32> = ages.map(|age| weight(100, seconds(age), seconds(9))).collect();
        assert_eq!(weights, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100]);
        let ages = [0, 14, 15, 30, 134, 135, 1000].map(seconds);
        assert_eq!(
            ages.map(|age| next_step(age, seconds(135)).map(|due| due.as_secs())),
            [Some(15), Some(15), Some(30), Some(45), Some(135), None, None]
        );
        assert_eq!(weight(7, seconds(0), seconds(0)), 7);
        assert_eq!(next_step(seconds(0), seconds(0)), None);
        assert_eq!(weight(1, seconds(0), seconds(60)), 1);
        assert_eq!(weight(0, seconds(0), seconds(60)), 0);
        assert_eq!(weight(u32::MAX, seconds(0), seconds(60)), u32::MAX / 10 + 1);
    }

    proptest! {
        #[test]
        fn is_monotone_and_never_zero(full in 1..=u32::MAX, over in 1_u64..100_000_000, age in 0_u64..100_000_000) {
            let (over, age) = (Duration::from_micros(over), Duration::from_micros(age));
            let now = weight(full, age, over);
            prop_assert!((1..=full).contains(&now));
            prop_assert!(weight(full, age + Duration::from_micros(1), over) >= now);
            prop_assert!(age < over || now == full);
            if let Some(due) = next_step(age, over) {
                prop_assert!(due > age && due <= over + Duration::from_nanos(1));
                prop_assert_eq!(tenths(due, over), tenths(age, over) + 1);
            } else {
                prop_assert_eq!(now, full);
            }
        }

        #[test]
        fn takes_nine_steps_to_all_of_it(over in 1_u64..1_000_000) {
            let over = Duration::from_millis(over);
            let mut age = Duration::ZERO;
            let mut steps = 0;
            while let Some(due) = next_step(age, over) {
                age = due;
                steps += 1;
            }
            prop_assert_eq!(steps, STEPS - 1);
            prop_assert!(age.abs_diff(over) <= Duration::from_nanos(1));
        }
    }
}
