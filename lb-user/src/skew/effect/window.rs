//! Counts of the last checks, added up.

use std::collections::VecDeque;

/// The sum of the last checks' counts by category. Holds every check's counts: make one where something is suspected,
/// not for each of a thousand services.
#[derive(Clone, Debug)]
pub struct Window {
    checks: VecDeque<Box<[u64]>>,
    length: usize,
    totals: Vec<u64>,
}

impl Window {
    /// Over the last `length` checks (at least one) of `categories` categories.
    pub fn new(categories: usize, length: usize) -> Self {
        Self {
            checks: VecDeque::new(),
            length: length.max(1),
            totals: vec![0; categories],
        }
    }

    /// Takes one check's counts. Another number of categories starts the window anew.
    pub fn push(&mut self, counts: &[u64]) {
        if counts.len() != self.totals.len() {
            *self = Self::new(counts.len(), self.length);
        }
        // Wrapping: what is added is taken away again, so that a sum that fits is right whatever came before.
        for (total, count) in self.totals.iter_mut().zip(counts) {
            *total = total.wrapping_add(*count);
        }
        self.checks.push_back(counts.into());
        if self.checks.len() > self.length
            && let Some(oldest) = self.checks.pop_front()
        {
            for (total, count) in self.totals.iter_mut().zip(&oldest) {
                *total = total.wrapping_sub(*count);
            }
        }
    }

    /// Sums by category.
    pub fn totals(&self) -> &[u64] {
        &self.totals
    }

    /// Checks in the window now.
    pub fn len(&self) -> usize {
        self.checks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_checks_leave() {
        let mut window = Window::new(2, 3);
        assert!(window.is_empty());
        for step in 1..=5 {
            window.push(&[step, 10 * step]);
        }
        assert_eq!(window.totals(), [12, 120]);
        assert_eq!(window.len(), 3);
    }

    #[test]
    fn other_categories_start_anew_and_sums_may_wrap() {
        let mut window = Window::new(2, 2);
        window.push(&[u64::MAX, 1]);
        window.push(&[5, 1]);
        window.push(&[6, 1]);
        assert_eq!(window.totals(), [11, 2]);
        window.push(&[7]);
        assert_eq!(window.totals(), [7]);
        assert_eq!(window.len(), 1);
    }
}
