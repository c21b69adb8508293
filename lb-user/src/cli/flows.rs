//! `evenkeel flows`: what the flow table holds, by service, backend and state.

use std::net::IpAddr;

use super::{
    Context, duration,
    exit::Outcome,
    table::{self, Paint, Table},
};
use crate::api::types::{Filter, FlowTable, Flows};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only this service's.
    service: Option<String>,
    /// Only this backend's.
    #[arg(long, value_name = "ADDRESS")]
    backend: Option<IpAddr>,
    /// Only flows in this state.
    #[arg(long, value_parser = ["new", "established", "closing", "datagram"])]
    state: Option<String>,
    /// List up to N flows besides counting them.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "50")]
    list: Option<usize>,
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    let filter = Filter {
        service: args.service,
        backend: args.backend,
        state: args.state,
        limit: args.list,
        now: true,
    };
    let flows: Flows = context.client().query("/v1/flows", &filter).await?;
    context.print(&flows, |paint| render(&flows, paint))
}

fn render(flows: &Flows, paint: Paint) -> String {
    let mut text = format!("{}\n", fill(&flows.table, paint));
    if flows.counts.is_empty() {
        text.push_str("No flows match.\n");
        return text;
    }
    let mut table = Table::new(&[
        "SERVICE",
        "BACKEND",
        ">NEW",
        ">ESTABLISHED",
        ">CLOSING",
        ">DATAGRAM",
    ]);
    for count in &flows.counts {
        let numbers = [count.new, count.established, count.closing, count.datagram].map(table::count);
        table.row(
            [count.service.clone(), count.backend.to_string()]
                .into_iter()
                .chain(numbers),
        );
    }
    text.push_str(&table.render(0, paint));
    if !flows.flows.is_empty() {
        text.push('\n');
        text.push_str(&list(flows, paint));
    }
    text
}

fn list(flows: &Flows, paint: Paint) -> String {
    let mut table = Table::new(&["FINGERPRINT", "SERVICE", "BACKEND", "STATE", ">IDLE"]);
    for flow in &flows.flows {
        table.row([
            flow.fingerprint.clone(),
            flow.service.clone(),
            flow.backend.to_string(),
            flow.state.clone(),
            duration::show(flow.idle_seconds.into()),
        ]);
    }
    let mut text = table.render(0, paint);
    if flows.truncated {
        text.push_str("There are more; raise --list or narrow the filter.\n");
    }
    text
}

/// One line: how full, by state, and what was lost.
pub(super) fn fill(flows: &FlowTable, paint: Paint) -> String {
    let used: u64 = flows.used.values().sum();
    let share = if flows.slots == 0 {
        0.0
    } else {
        used as f64 / flows.slots as f64
    };
    let share_text = table::percent(share);
    let share_text = if share > 0.5 {
        paint.warn(&share_text)
    } else {
        share_text
    };
    let mut text = format!(
        "{} of {} entries in use ({share_text})",
        table::count(used),
        table::count(flows.slots)
    );
    let states = flows.used.iter().filter(|(_, number)| **number > 0);
    let states: Vec<String> = states
        .map(|(state, number)| format!("{state} {}", table::count(*number)))
        .collect();
    if !states.is_empty() {
        text.push_str(&format!(": {}", states.join(", ")));
    }
    let lost = flows.lost.iter().filter(|(_, number)| **number > 0);
    let lost: Vec<String> = lost
        .map(|(reason, number)| format!("{reason} {}", table::count(*number)))
        .collect();
    if !lost.is_empty() {
        text.push_str(&format!(
            "; pushed out since the maps were made: {}",
            lost.join(", ")
        ));
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::types::{Flow, FlowCount};

    pub(in crate::cli) fn example() -> FlowTable {
        FlowTable {
            slots: 2_097_152,
            used: [
                ("established".to_owned(), 1799),
                ("new".to_owned(), 33),
                ("closing".to_owned(), 0),
            ]
            .into(),
            expired: 400,
            lost: [("established".to_owned(), 0), ("new".to_owned(), 12)].into(),
            counted_seconds_ago: 3,
        }
    }

    #[test]
    fn flows_are_counted_and_listed() {
        let flows = Flows {
            table: example(),
            counts: vec![FlowCount {
                service: "web".into(),
                backend: "10.0.0.2".parse().unwrap(),
                new: 33,
                established: 1799,
                closing: 0,
                datagram: 0,
            }],
            flows: vec![Flow {
                fingerprint: "00c0ffee00c0ffee".into(),
                service: "web".into(),
                backend: "10.0.0.2".parse().unwrap(),
                state: "established".into(),
                idle_seconds: 71,
            }],
            truncated: true,
        };
        insta::assert_snapshot!(render(&flows, Paint::PLAIN));
    }
}
