//! How often remedies may be carried out, for the whole box.

use std::{collections::VecDeque, time::Duration};

use super::Withheld;

/// What a budget allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// So many remedies within `window`.
    pub most: u32,
    pub window: Duration,
    /// And each so long after the one before.
    pub cooldown: Duration,
}

impl Limits {
    pub const DEFAULT: Self = Self {
        most: 4,
        window: Duration::from_secs(3600),
        cooldown: Duration::from_secs(60),
    };
}

/// Remedies that were granted within the window.
#[derive(Clone, Debug)]
pub struct Budget {
    limits: Limits,
    spent: VecDeque<Duration>,
}

impl Budget {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            spent: VecDeque::new(),
        }
    }

    pub(super) fn cooldown(&self) -> Duration {
        self.limits.cooldown
    }

    /// Grants one remedy, or says until when there is none.
    pub(super) fn spend(&mut self, at: Duration) -> Result<(), Withheld> {
        let Limits {
            most,
            window,
            cooldown,
        } = self.limits;
        while self
            .spent
            .front()
            .is_some_and(|earliest| at.saturating_sub(*earliest) >= window)
        {
            self.spent.pop_front();
        }
        if let Some(until) = self
            .spent
            .back()
            .map(|last| last.saturating_add(cooldown))
            .filter(|until| at < *until)
        {
            return Err(Withheld::Cooldown { until });
        }
        if self.spent.len() >= most as usize {
            // None is ever granted where none is allowed.
            let until = self
                .spent
                .front()
                .map_or(Duration::MAX, |earliest| earliest.saturating_add(window));
            return Err(Withheld::Budget { until });
        }
        self.spent.push_back(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn remedies_are_spaced_and_counted() {
        let mut budget = Budget::new(Limits {
            most: 2,
            window: at(1000),
            cooldown: at(60),
        });
        assert_eq!(budget.spend(at(100)), Ok(()));
        assert_eq!(budget.spend(at(159)), Err(Withheld::Cooldown { until: at(160) }));
        assert_eq!(budget.spend(at(160)), Ok(()));
        assert_eq!(budget.spend(at(500)), Err(Withheld::Budget { until: at(1100) }));
        assert_eq!(budget.spend(at(1100)), Ok(()));
        assert_eq!(
            budget.spend(at(1159)),
            Err(Withheld::Cooldown { until: at(1160) })
        );
        assert_eq!(budget.spend(at(1160)), Ok(()));
    }

    #[test]
    fn a_budget_of_none_grants_none() {
        let mut budget = Budget::new(Limits {
            most: 0,
            ..Limits::DEFAULT
        });
        assert_eq!(
            budget.spend(at(5)),
            Err(Withheld::Budget { until: Duration::MAX })
        );
    }
}
