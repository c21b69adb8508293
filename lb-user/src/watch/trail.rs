//! Counts of the last minute, in steps of ten checks: as good as check by check for what is shown, at a sixth of the memory.

use crate::skew::effect::Window;

/// Checks that are added up to one step.
const STEP: u32 = 10;
/// Whole steps that are kept.
const STEPS: usize = 6;

/// Sums by category over the last 60 to 70 checks.
#[derive(Clone, Debug)]
pub struct Trail {
    steps: Window,
    step: Vec<u64>,
    checks: u32,
}

impl Trail {
    pub fn new(categories: usize) -> Self {
        Self {
            steps: Window::new(categories, STEPS),
            step: vec![0; categories],
            checks: 0,
        }
    }

    /// Takes one check's counts; another number of categories starts anew.
    pub fn push(&mut self, counts: &[u64]) {
        if counts.len() != self.step.len() {
            *self = Self::new(counts.len());
        }
        for (sum, count) in self.step.iter_mut().zip(counts) {
            *sum = sum.wrapping_add(*count);
        }
        self.checks += 1;
        if self.checks == STEP {
            self.steps.push(&self.step);
            self.step.fill(0);
            self.checks = 0;
        }
    }

    /// Checks that the sums are over.
    pub fn checks(&self) -> u32 {
        STEP * self.steps.len() as u32 + self.checks
    }

    /// Sums by category.
    pub fn totals(&self) -> Vec<u64> {
        let pairs = self.steps.totals().iter().zip(&self.step);
        pairs.map(|(old, new)| old.wrapping_add(*new)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a trail covers at most.
    const LONGEST: u32 = STEP * (STEPS as u32 + 1);

    #[test]
    fn the_last_sixty_checks_count_and_older_ones_do_not() {
        let mut trail = Trail::new(2);
        assert_eq!(trail.checks(), 0);
        for _ in 0..65 {
            trail.push(&[1, 2]);
        }
        assert_eq!((trail.totals(), trail.checks()), (vec![65, 130], 65));
        for _ in 0..LONGEST {
            trail.push(&[0, 1]);
        }
        assert_eq!(trail.totals()[0], 0);
        assert!((LONGEST - STEP..=LONGEST).contains(&trail.checks()));
        trail.push(&[7]);
        assert_eq!(trail.totals(), [7]);
    }
}
