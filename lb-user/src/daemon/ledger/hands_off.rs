//! What is left as something else wrote it, where healing is off.

use super::Ledger;
use crate::{
    metrics::Trigger,
    plan::{Plan, Step},
};

impl<M> Ledger<M> {
    /// Whether a change waits to be finished: what differs from what was written is then not a stranger's alone.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Takes out of a plan that nobody asked for the seeds that are wanted as they were written.
    pub(super) fn leave_seeds(&self, plan: &mut Plan, trigger: Trigger) {
        if !self.hands_off || self.behind || trigger.is_asked_for() {
            return;
        }
        let written = self.board.read();
        let same = |index: &u32| {
            let seed = written.seeds.get(index);
            seed.is_some() && seed == self.desired.seeds.get(index)
        };
        plan.steps.retain(|step| match step {
            Step::WriteSeed { index, .. } | Step::ClearFresh { index } => !same(index),
            _ => true,
        });
    }
}
