//! When checks are not believed any more: too few of a service's backends pass them.

use std::time::{Duration, Instant};

use super::{OnPanic, Standing};

/// A share of backends up this far above the threshold ends a panic at once.
const MARGIN: f64 = 0.1;
/// A smaller one ends it when it was not below the threshold for this long.
const HOLD: Duration = Duration::from_secs(30);

/// How many of a service's backends are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub up: usize,
    pub down: usize,
    /// Not checked yet, whether they serve or not.
    pub unknown: usize,
}

impl Counts {
    /// Counts one more; `checked` is whether any check of it came to an end.
    pub const fn add(&mut self, standing: Standing, checked: bool) {
        match standing {
            Standing::Up if checked => self.up += 1,
            Standing::Down => self.down += 1,
            Standing::Up | Standing::Unknown => self.unknown += 1,
        }
    }

    /// Backends up of those that were checked, from 0 to 1; `None` when none was.
    pub fn share(self) -> Option<f64> {
        let checked = self.up + self.down;
        (checked > 0).then(|| self.up as f64 / checked as f64)
    }

    /// Whether at least half of the backends were checked: the first answers of a thousand say nothing yet.
    const fn enough(self) -> bool {
        self.up + self.down >= self.unknown
    }
}

/// What is made of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are followed.
    Normal,
    /// They are not.
    Panic(OnPanic),
}

/// One service, over time.
///
/// ```text
///             share < threshold, and at least half were checked
///   ┌────────┐ ──────────────────────────────────────────────▶ ┌───────┐
///   │ normal │                                                 │ panic │
///   └────────┘ ◀────────────────────────────────────────────── └───────┘
///     share ≥ threshold + 0.1, or all up, or share ≥ threshold for 30 s; no backends
/// ```
#[derive(Clone, Debug, Default)]
pub struct PanicGauge {
    panic: bool,
    /// Since when the share is not below the threshold while in panic.
    well_since: Option<Instant>,
}

impl PanicGauge {
    /// Takes in the counts as they are now, and says what follows. Without any backend checked, nothing changes.
    pub fn update(&mut self, counts: Counts, threshold: f64, on_panic: OnPanic, now: Instant) -> Mode {
        let none = counts == Counts::default();
        let share = counts.share();
        if !self.panic {
            self.panic = share.is_some_and(|share| share < threshold) && counts.enough();
            self.well_since = None;
        } else if none || share.is_some_and(|share| self.over(share, threshold, now)) {
            *self = Self::default();
        }
        if self.panic {
            Mode::Panic(on_panic)
        } else {
            Mode::Normal
        }
    }

    /// When a panic ends unless the counts change; `update` is due then.
    pub fn due(&self) -> Option<Instant> {
        self.well_since.map(|since| since + HOLD)
    }

    fn over(&mut self, share: f64, threshold: f64, now: Instant) -> bool {
        if share < threshold {
            self.well_since = None;
            return false;
        }
        let since = *self.well_since.get_or_insert(now);
        share >= (threshold + MARGIN).min(1.0) || now.duration_since(since) >= HOLD
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn counts(up: usize, down: usize, unknown: usize) -> Counts {
        Counts { up, down, unknown }
    }

    #[test]
    fn panics_below_the_threshold() {
        for (up, down, unknown, threshold, panics) in [
            (1, 0, 0, 0.5, false),
            (0, 1, 0, 0.5, true),
            (1, 1, 0, 0.5, false),
            (0, 2, 0, 0.5, true),
            (5, 5, 0, 0.5, false),
            (4, 6, 0, 0.5, true),
            (0, 10, 0, 0.0, false),
            (9, 1, 0, 1.0, true),
            (10, 0, 0, 1.0, false),
            // Backends not yet checked are neither up nor down …
            (0, 0, 7, 0.5, false),
            (0, 0, 0, 0.5, false),
            (2, 2, 4, 0.5, false),
            (1, 3, 4, 0.5, true),
            // … and while they are most, nothing is known.
            (0, 1, 999, 0.5, false),
            (0, 499, 501, 0.5, false),
            (0, 500, 500, 0.5, true),
        ] {
            for on_panic in [OnPanic::Serve, OnPanic::Withdraw] {
                let mode = PanicGauge::default().update(
                    counts(up, down, unknown),
                    threshold,
                    on_panic,
                    Instant::now(),
                );
                let expected = if panics {
                    Mode::Panic(on_panic)
                } else {
                    Mode::Normal
                };
                assert_eq!(
                    mode, expected,
                    "{up} up, {down} down, {unknown} unknown, {threshold}"
                );
            }
        }
    }

    #[test]
    fn backends_that_serve_unchecked_are_unknown() {
        let mut sum = Counts::default();
        for (standing, checked) in [
            (Standing::Up, true),
            (Standing::Up, false),
            (Standing::Down, true),
            (Standing::Unknown, false),
        ] {
            sum.add(standing, checked);
        }
        assert_eq!(sum, counts(1, 1, 2));
    }

    #[test]
    fn ends_well_above_the_threshold_or_after_a_while() {
        let start = Instant::now();
        let mut gauge = PanicGauge::default();
        let mut panics = |seconds, counts| {
            let now = start + Duration::from_secs(seconds);
            let mode = gauge.update(counts, 0.5, OnPanic::Serve, now);
            (
                mode != Mode::Normal,
                gauge.due().map(|due| (due - start).as_secs()),
            )
        };
        assert_eq!(panics(0, counts(4, 6, 0)), (true, None));
        assert_eq!(panics(1, counts(5, 5, 0)), (true, Some(31)));
        assert_eq!(panics(20, counts(5, 5, 0)), (true, Some(31)));
        // Back below: the wait begins again.
        assert_eq!(panics(21, counts(4, 6, 0)), (true, None));
        assert_eq!(panics(22, counts(5, 5, 0)), (true, Some(52)));
        // Nothing known changes nothing.
        assert_eq!(panics(23, counts(0, 0, 10)), (true, Some(52)));
        assert_eq!(panics(52, counts(5, 5, 0)), (false, None));
        assert_eq!(panics(53, counts(4, 6, 0)), (true, None));
        assert_eq!(panics(54, counts(6, 4, 0)), (false, None));
        assert_eq!(panics(55, counts(0, 1, 0)), (true, None));
        assert_eq!(panics(56, counts(1, 0, 0)), (false, None));
        assert_eq!(panics(57, counts(0, 1, 0)), (true, None));
        assert_eq!(panics(58, Counts::default()), (false, None));
    }

    proptest! {
        #[test]
        fn does_not_flap_at_the_border(
            threshold in 0.05_f64..0.85,
            backends in 10_usize..1000,
            steps in prop::collection::vec(0_usize..2, 1..100),
        ) {
            // One backend comes and goes across the border, once a second: at most one panic in half a minute.
            let border = (threshold * backends as f64).ceil() as usize;
            let start = Instant::now();
            let mut gauge = PanicGauge::default();
            let mut begun = 0;
            let mut before = Mode::Normal;
            for (second, above) in (0..29).zip(steps) {
                let up = border - 1 + above;
                let now = start + Duration::from_secs(second);
                let mode = gauge.update(counts(up, backends - up, 0), threshold, OnPanic::Serve, now);
                // One backend of ten is the whole margin.
                prop_assume!((up as f64) < (threshold + MARGIN) * backends as f64);
                begun += usize::from(before == Mode::Normal && mode != before);
                before = mode;
            }
            prop_assert!(begun <= 1);
        }
    }
}
