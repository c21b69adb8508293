//! Answers over time → up or down.

use std::time::Duration;

/// What checks say of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It starts down and was not checked yet.
    Unknown,
    Up,
    Down,
}

impl Standing {
    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// What a check came to that says something about the standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub up: bool,
    /// Why the check failed that led here; `None` when it passed.
    pub reason: Option<String>,
}

/// One backend's checks, in a row.
///
/// ```text
///                 passes                        fails `fall` times in a row
///   ┌─────────┐ ─────────▶ ┌────┐ ◀──────────── ┌──────┐
///   │ unknown │            │ up │ ────────────▶ │ down │
///   └─────────┘            └────┘ `rise` passes └──────┘
///        └──────────────── fails ──────────────────▲
/// ```
///
/// A passing check forgets the failures before it, and the other way round: one failure in ten never takes a backend
/// down with `fall` = 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracker {
    rise: u32,
    fall: u32,
    standing: Standing,
    /// Checks in a row that spoke against the standing.
    against: u32,
    checked: bool,
}

impl Tracker {
    /// A backend before its first check; `up` for one that serves already, or is presumed to answer. `rise` and
    /// `fall` below 1 count as 1.
    pub fn new(rise: u32, fall: u32, up: bool) -> Self {
        Self {
            rise: rise.max(1),
            fall: fall.max(1),
            standing: if up { Standing::Up } else { Standing::Unknown },
            against: 0,
            checked: false,
        }
    }

    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether it is up and its last checks failed; then, how much of what such a check took is taken off the interval
    /// after it.
    ///
    /// A backend that is silent costs each check its timeout. Shared out over the intervals between the checks that it
    /// fails, the last result is there `fall` intervals after the last check that passed, as it is when the backend
    /// refuses at once; and from the begin of the first failing check to the end of the last one it is `fall` - 1
    /// intervals either way, so that an outage shorter than that takes nobody down.
    pub fn hastens(&self, took: Duration) -> Option<Duration> {
        let wavers = self.standing == Standing::Up && self.against > 0;
        wavers.then(|| took / (self.fall - 1).max(1))
    }

    /// Whether any check came to an end yet; one that starts up is up without.
    pub const fn checked(&self) -> bool {
        self.checked
    }

    /// Takes in the next check. Says what is to be told: that the standing changed, or, at the first check, what it is.
    pub fn take(&mut self, result: Result<(), String>) -> Option<Transition> {
        let first = !std::mem::replace(&mut self.checked, true);
        let before = self.standing;
        let passed = result.is_ok();
        self.standing = self.after(passed);
        (first || self.standing != before).then(|| Transition {
            up: self.standing == Standing::Up,
            reason: result.err(),
        })
    }

    fn after(&mut self, passed: bool) -> Standing {
        let (agreed, needed, other) = match self.standing {
            Standing::Unknown if passed => return Standing::Up,
            Standing::Unknown => return Standing::Down,
            Standing::Up => (passed, self.fall, Standing::Down),
            Standing::Down => (!passed, self.rise, Standing::Up),
        };
        self.against = if agreed { 0 } else { self.against + 1 };
        if self.against < needed {
            return self.standing;
        }
        self.against = 0;
        other
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::{
        super::schedule::{Random, Schedule},
        *,
    };

    fn result(passed: bool) -> Result<(), String> {
        passed.then_some(()).ok_or_else(|| "refused".to_owned())
    }

    /// The standings after each check; `+` passes, `-` fails.
    fn course(up: bool, (rise, fall): (u32, u32), checks: &str) -> String {
        let mut tracker = Tracker::new(rise, fall, up);
        let letter = |check| {
            tracker.take(result(check == '+'));
            match tracker.standing() {
                Standing::Up => 'U',
                Standing::Down => 'd',
                Standing::Unknown => '?',
            }
        };
        checks.chars().map(letter).collect()
    }

    #[test]
    fn checks_in_a_row_decide() {
        for (up, limits, checks, standings) in [
            // The first check decides for one that starts down; afterwards `rise` counts.
            (false, (2, 3), "+---++", "UUUddU"),
            (false, (2, 3), "-+", "dd"),
            (false, (2, 3), "-++", "ddU"),
            (false, (2, 3), "-+-+-+", "dddddd"),
            // One that serves is down only after `fall` failures, the first included.
            (true, (2, 3), "---", "UUd"),
            (true, (2, 3), "--+--+--", "UUUUUUUU"),
            (true, (2, 3), "---+-++", "UUddddU"),
            (true, (1, 1), "-+-+", "dUdU"),
            (true, (0, 0), "-+", "dU"),
            (true, (2, 3), "+++++++++-+++++++++-+++++++++-", &"U".repeat(30)),
        ] {
            assert_eq!(course(up, limits, checks), standings, "{up} {limits:?} {checks}");
        }
    }

    #[test]
    fn transitions_and_the_first_result_are_told_with_the_last_reason() {
        let told = |up, passed| {
            Some(Transition {
                up,
                reason: result(passed).err(),
            })
        };
        let mut serving = Tracker::new(2, 2, true);
        assert!(!serving.checked());
        assert_eq!(serving.take(result(false)), told(true, false));
        assert!(serving.checked());
        assert_eq!(
            serving.take(Err("late".to_owned())),
            Some(Transition {
                up: false,
                reason: Some("late".to_owned())
            })
        );
        assert_eq!(serving.take(result(true)), None);
        assert_eq!(serving.take(result(true)), told(true, true));
        assert_eq!(serving.take(result(true)), None);
        let mut new = Tracker::new(2, 2, false);
        assert_eq!(new.standing(), Standing::Unknown);
        assert_eq!(new.take(result(true)), told(true, true));
        assert_eq!(Tracker::new(2, 2, false).take(result(false)), told(false, false));
    }

    /// The rules read off the whole history: a run of equal results at its end that is long enough.
    fn reference(up: bool, rise: usize, fall: usize, history: &[bool]) -> Standing {
        let mut standing = if up { Standing::Up } else { Standing::Unknown };
        let mut since = 0;
        for end in 1..=history.len() {
            let run = |passed| {
                let equal = history[since..end].iter().rev().take_while(|&&p| p == passed);
                equal.count()
            };
            let next = match standing {
                Standing::Unknown if history[0] => Standing::Up,
                Standing::Unknown => Standing::Down,
                Standing::Up if run(false) >= fall => Standing::Down,
                Standing::Down if run(true) >= rise => Standing::Up,
                same => same,
            };
            if next != standing {
                since = end;
            }
            standing = next;
        }
        standing
    }

    proptest! {
        #[test]
        fn follows_the_reference(
            up: bool,
            rise in 1_u32..5,
            fall in 1_u32..5,
            history in prop::collection::vec(any::<bool>(), 0..60),
        ) {
            let mut tracker = Tracker::new(rise, fall, up);
            let mut told = tracker.standing();
            for (count, &passed) in history.iter().enumerate() {
                let before = tracker.standing();
                let transition = tracker.take(result(passed));
                prop_assert_eq!(transition.is_some(), count == 0 || tracker.standing() != before);
                if let Some(transition) = transition {
                    told = if transition.up { Standing::Up } else { Standing::Down };
                    prop_assert_eq!(transition.reason.is_none(), passed);
                }
                prop_assert_eq!(tracker.standing(), told);
            }
            prop_assert_eq!(tracker.standing(), reference(up, rise as usize, fall as usize, &history));
        }

        /// From the last check that passed until it is out, and from the first that failed: what the README promises.
        #[test]
        fn a_backend_that_dies_is_down_after_fall_intervals_and_not_much_sooner(
            seed: u64,
            fall in 2_u32..6,
            share in 0.0_f64..=1.0,
            jitter in 0.0_f64..=0.5,
        ) {
            let interval = Duration::from_secs(2);
            let timeout = (interval * (fall - 1) / fall).mul_f64(share);
            let start = Instant::now();
            let mut tracker = Tracker::new(2, fall, true);
            let mut schedule = Schedule::new(start, interval, jitter, Random::new(seed));
            tracker.take(result(true));
            prop_assert_eq!(tracker.hastens(timeout), None);
            schedule.advance(start);
            let first = schedule.due();
            let end = loop {
                let end = schedule.due() + timeout;
                tracker.take(result(false));
                match tracker.hastens(timeout) {
                    Some(sooner) => schedule.hasten(end, sooner),
                    None => break end,
                }
            };
            prop_assert_eq!(tracker.standing(), Standing::Down);
            let slack = Duration::from_millis(1);
            prop_assert!(end - start <= interval * fall + slack);
            prop_assert!(end - first + slack >= (interval * (fall - 1)).mul_f64(1.0 - jitter));
        }
    }
}
