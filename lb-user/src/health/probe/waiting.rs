//! What a check is waiting for, so that one that takes too long can say so.

use std::sync::atomic::{AtomicU8, Ordering};

/// In the order in which a check comes to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Connection,
    Tls,
    Answer,
    /// More of an answer that has begun.
    Rest,
    /// An answer other than those that came.
    RightAnswer,
}

const STAGES: [Stage; 5] = [
    Stage::Connection,
    Stage::Tls,
    Stage::Answer,
    Stage::Rest,
    Stage::RightAnswer,
];

/// Where a check is. Only one task ever uses it; it is atomic so that the task may move between threads.
#[derive(Default)]
pub struct Waiting(AtomicU8);

impl Waiting {
    pub fn at(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    pub fn stage(&self) -> Stage {
        STAGES[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_kept() {
        let waiting = Waiting::default();
        assert_eq!(waiting.stage(), Stage::Connection);
        for stage in STAGES {
            waiting.at(stage);
            assert_eq!(waiting.stage(), stage);
        }
    }
}
