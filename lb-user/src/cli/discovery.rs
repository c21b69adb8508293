//! `evenkeel discovery`: what the sources of backends say, and what is believed of it.

use super::{
    Context, duration,
    exit::Outcome,
    reload,
    table::{Paint, Table},
};
use crate::api::types::{Done, Filter, Source, SourceAction, SourceRequest, SourceState};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    /// Only this service's sources.
    service: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Let the endpoints go that are held.
    Accept(Which),
    /// Let no endpoint go until it is accepted, whatever the source says.
    Hold(Which),
}

#[derive(Debug, clap::Args)]
struct Which {
    service: String,
    /// One source by its name; all of the service's unless given.
    source: Option<String>,
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    let (which, action) = match args.command {
        None => return list(args.service, context).await,
        Some(Command::Accept(which)) => (which, SourceAction::Accept),
        Some(Command::Hold(which)) => (which, SourceAction::Hold),
    };
    let request = SourceRequest {
        service: which.service,
        source: which.source,
        action,
    };
    let done: Done = context.client().post("/v1/discovery", &request).await?;
    context.print(&done, |paint| reload::render(&done, paint))
}

async fn list(service: Option<String>, context: &Context) -> Outcome {
    let filter = Filter {
        service,
        ..Filter::default()
    };
    let sources: Vec<Source> = context.client().query("/v1/discovery", &filter).await?;
    context.print(&sources, |paint| render(&sources, paint))
}

fn render(sources: &[Source], paint: Paint) -> String {
    if sources.is_empty() {
        return "No sources. A service gets one by [[service.source]] in the configuration file.\n"
            .to_owned();
    }
    let mut table = Table::new(&[
        "SERVICE",
        "SOURCE",
        "STATE",
        ">BELIEVED",
        ">NAMED",
        ">HELD",
        ">REFUSED",
        ">HEARD",
        "REVISION",
        "FOLLOWS",
    ]);
    for source in sources {
        table.row([
            source.service.clone(),
            source.name.clone(),
            state(source, paint),
            source.endpoints.to_string(),
            source
                .named
                .map_or_else(|| "-".to_owned(), |named| named.to_string()),
            match &source.held {
                Some(held) => paint.warn(&held.count.to_string()),
                None if source.held_by_hand => paint.warn("by hand"),
                None => "0".to_owned(),
            },
            source.refused.to_string(),
            source.heard_seconds.map_or_else(
                || "never".to_owned(),
                |ago| format!("{} ago", duration::show(ago)),
            ),
            source.revision.clone().unwrap_or_else(|| "-".to_owned()),
            source.follows.clone(),
        ]);
    }
    let mut text = table.render(0, paint);
    for source in sources {
        text.push_str(&notes(source, paint));
    }
    text
}

fn state(source: &Source, paint: Paint) -> String {
    match source.state {
        SourceState::Fresh => "fresh".to_owned(),
        SourceState::Stale => paint.warn(&format!("stale for {}", duration::show(source.stale_seconds))),
        SourceState::FromDisk => paint.warn("from disk"),
        SourceState::NotLoaded => paint.bad("not loaded"),
    }
}

/// What the table has no room for, a line each.
fn notes(source: &Source, paint: Paint) -> String {
    let mut text = String::new();
    let object = format!("{}/{}", source.service, source.name);
    if let Some(error) = &source.error {
        text.push_str(&format!("{} {object}: {error}\n", paint.bad("fails:")));
    }
    if let Some(held) = &source.held {
        let goes = match held.until_seconds {
            Some(until) => format!("they go in {}", duration::show(until)),
            None => "they stay until accepted".to_owned(),
        };
        text.push_str(&format!(
            "{} {object}: {} {} ago; {goes}, or at once by `evenkeel discovery accept {} {}`\n",
            paint.warn("held:"),
            held.why,
            duration::show(held.since_seconds),
            source.service,
            source.name,
        ));
        let named: Vec<String> = held.endpoints.iter().map(ToString::to_string).collect();
        let more = match held.count - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text.push_str(&format!("      {}{more}\n", named.join(", ")));
    }
    for refused in &source.refused_now {
        text.push_str(&format!("{} {object}: {refused}\n", paint.warn("refused:")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Held;

    fn source(name: &str, state: SourceState) -> Source {
        Source {
            service: "web".into(),
            name: name.into(),
            kind: "dns".into(),
            follows: "dns web.example (A)".into(),
            state,
            error: None,
            stale_seconds: 0,
            heard_seconds: Some(3),
            from_disk: None,
            revision: Some("7".into()),
            endpoints: 4,
            named: Some(4),
            held: None,
            held_by_hand: false,
            updates: 9,
            failures: 0,
            refused: 0,
            refused_now: Vec::new(),
        }
    }

    #[test]
    fn each_source_says_how_it_does_and_what_to_do() {
        let stale = Source {
            error: Some("no answer within 5s".into()),
            stale_seconds: 75,
            heard_seconds: Some(75),
            failures: 12,
            ..source("stale", SourceState::Stale)
        };
        let held = Source {
            named: Some(1),
            held: Some(Held {
                endpoints: vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
                count: 3,
                why: "the source took 3 of 4 endpoints away".into(),
                since_seconds: 60,
                until_seconds: Some(240),
            }),
            ..source("held", SourceState::Fresh)
        };
        let refused = Source {
            refused: 2,
            refused_now: vec!["127.0.0.1: the address is loopback".into()],
            held_by_hand: true,
            ..source("refused", SourceState::FromDisk)
        };
        let never = Source {
            endpoints: 0,
            named: None,
            heard_seconds: None,
            revision: None,
            error: Some("connection refused".into()),
            ..source("never", SourceState::NotLoaded)
        };
        let all = [source("fresh", SourceState::Fresh), stale, held, refused, never];
        insta::assert_snapshot!(render(&all, Paint::PLAIN));
        assert!(render(&[], Paint::PLAIN).contains("[[service.source]]"));
    }
}
