//! `evenkeel events`: what happened lately, and with `--follow` what happens next.

use std::time::Duration;

use super::{
    Context,
    exit::{OK, Outcome},
    table::{self, Paint, Table, write_stdout},
};
use crate::api::types::{Event, EventsQuery};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Show the newest N.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Go on printing events as they happen (with --json: one object a line).
    #[arg(long, short)]
    follow: bool,
}

pub(super) async fn run(args: &Args, context: &Context) -> Outcome {
    let client = context.client();
    let mut query = EventsQuery {
        after: 0,
        limit: Some(args.limit),
    };
    let events: Vec<Event> = client.query("/v1/events", &query).await?;
    if !args.follow {
        return context.print(&events, |paint| render(&events, paint));
    }
    let mut news = events;
    loop {
        for event in &news {
            let line = if context.json {
                serde_json::to_string(event)?
            } else {
                line(event)
            };
            write_stdout(&format!("{line}\n"))?;
            query.after = event.id;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(500)) => {}
            _ = tokio::signal::ctrl_c() => return Ok(OK),
        }
        query.limit = None;
        news = client.query("/v1/events", &query).await?;
    }
}

fn render(events: &[Event], paint: Paint) -> String {
    if events.is_empty() {
        return "No events yet.\n".to_owned();
    }
    rows(events, 0, paint)
}

/// Events as a table, for this command and for `status`.
pub(super) fn rows(events: &[Event], indent: usize, paint: Paint) -> String {
    let mut table = Table::new(&["TIME (UTC)", "KIND", "OBJECT", "WHAT"]);
    for event in events {
        table.row([
            table::utc(event.time_ms),
            event.kind.to_string(),
            event.object.clone(),
            event.text.clone(),
        ]);
    }
    table.render(indent, paint)
}

fn line(event: &Event) -> String {
    format!(
        "{}  {:<12}  {}  {}",
        table::utc(event.time_ms),
        event.kind,
        event.object,
        event.text
    )
}
