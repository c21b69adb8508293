//! `evenkeel reload`: the daemon reads its configuration file again.

use super::{Context, exit::Outcome};
use crate::{
    api::types::{Done, steps_written},
    cli::table::Paint,
};

pub(super) async fn run(context: &Context) -> Outcome {
    let done: Done = context.client().post("/v1/reload", &()).await?;
    context.print(&done, |paint| render(&done, paint))
}

/// What every accepted change prints.
pub(super) fn render(done: &Done, paint: Paint) -> String {
    let steps = steps_written(done.steps);
    let mut text = format!("{} ({steps}, revision {})\n", done.text, done.revision);
    for note in &done.notes {
        text.push_str(&format!("{} {note}\n", paint.warn("note:")));
    }
    text
}
