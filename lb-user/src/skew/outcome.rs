//! What a stream says about a check, and about itself.

use super::sparse::Peak;

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Measured(Measure),
    Skipped(Skip),
}

/// Why a check was no evidence. Nothing changed but the number of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// No flow.
    Empty,
    /// The shares changed shortly before.
    Blanked,
    /// Another number of counts than the stream has categories.
    Length,
}

/// Evidence after a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Number of the check, from 1, skipped ones counted.
    pub check: u32,
    pub flows: u64,
    /// Largest S.
    pub peak: Peak,
    /// ln of the mean of the dense part's R; −∞ where that part does not run.
    pub ln_dense: f64,
    /// Evidence passed a threshold: an alarm was raised, or the one that stands holds.
    pub crossed: bool,
    /// The alarm, if it was raised in this check.
    pub raised: Option<Alarm>,
}

/// What a category is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// A backend or a bucket, by its id in [`super::Shares`].
    Member(u32),
    /// A bit of the bucket's index.
    Bit(u32),
}

/// An alarm as it was raised. It stays until [`super::Stream::clear`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    pub check: u32,
    /// Which part's evidence passed its threshold; both may.
    pub sparse: bool,
    pub dense: bool,
    /// Largest S, and ln of the mean of R, in nats.
    pub max_s: f64,
    pub ln_dense: f64,
    /// Where S was largest. A dense alarm names it too: the worst of many.
    pub category: Category,
    pub tilt: usize,
    /// Estimate of the check in which the fault began: the first since which that category's S is above 0.
    pub since: u32,
    /// The last check in which evidence passed a threshold, from zero, once more.
    pub last: u32,
}

/// Evidence as attribution reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub alarmed: bool,
    /// S or ln R is more than 20 times its mean under the null for as many checks as there were. Weaker than an alarm:
    /// it tells which of several streams take part in a fault that is known already.
    pub significant: bool,
    pub max_s: f64,
    pub ln_dense: f64,
}
