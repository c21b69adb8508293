//! How a stream is watched.

/// The parameters of a [`super::Stream`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamSpec {
    /// ln A: the average run length to a false alarm, in checks, is at least A. See [`super::threshold::ln_arl`].
    pub ln_arl: f64,
    /// Part of the flows that may be misplaced before the dense part gains (total variation).
    pub tau: f64,
    /// Whether the dense part runs.
    pub dense: bool,
    /// Whether evidence starts from zero after it has passed a threshold. An alarm then stands on evidence from after
    /// it was raised, and ends soon after the fault; without, evidence piles up for as long as the fault lasts, and
    /// may take hours to fall.
    pub restart: bool,
    /// Checks left out after the shares have changed: 2 where the counters are not told apart by table generation (the
    /// check in which the table was switched, and one more), 0 where they are.
    pub blank: u32,
    /// Quiet checks in a row after which an alarm may clear, if no more were needed to raise it.
    pub clear_after: u32,
}

impl StreamSpec {
    /// For backends of a service and for hash histograms.
    pub fn new(ln_arl: f64) -> Self {
        Self {
            ln_arl,
            tau: 0.02,
            dense: true,
            restart: true,
            blank: 2,
            clear_after: 60,
        }
    }

    /// For a service's backends on one CPU: too many streams for the dense part.
    pub fn sparse_only(ln_arl: f64) -> Self {
        Self {
            dense: false,
            ..Self::new(ln_arl)
        }
    }
}
