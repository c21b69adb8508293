//! `evenkeel plan`: what the next reconcile would write; changes nothing.

use super::{Context, exit::Outcome};
use crate::api::types::PlanText;

pub(super) async fn run(context: &Context) -> Outcome {
    let plan: PlanText = context.client().get("/v1/plan").await?;
    context.print(&plan, |_| render(&plan))
}

fn render(plan: &PlanText) -> String {
    if plan.steps == 0 {
        return "Nothing to do: the datapath is as it should be.\n".to_owned();
    }
    format!("{}\n", plan.text.trim_end())
}
