//! `evenkeel backends [SERVICE]`: is each backend getting its share, and can it be reached.

use super::{
    Context,
    exit::Outcome,
    table::{self, Paint, Table},
};
use crate::{
    api::types::{Backend, Filter, Health},
    state::desired::{BackendState, Mode},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only this service's.
    service: Option<String>,
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    let filter = Filter {
        service: args.service,
        ..Filter::default()
    };
    let backends: Vec<Backend> = context.client().query("/v1/backends", &filter).await?;
    context.print(&backends, |paint| render(&backends, paint))
}

fn render(backends: &[Backend], paint: Paint) -> String {
    if backends.is_empty() {
        return "No backends. Add one: evenkeel backend add SERVICE ADDRESS\n".to_owned();
    }
    let mut table = Table::new(&[
        "SERVICE",
        "BACKEND",
        "STATE",
        "MODE",
        ">WEIGHT",
        ">EXPECTED",
        ">OBSERVED",
        ">OF NEW",
        ">ACTIVE",
        ">FLOWS",
        ">PACKETS",
        ">BYTES",
        "NEXT HOP",
        "SOURCE",
    ]);
    for backend in backends {
        table.row([
            backend.service.clone(),
            backend.address.to_string(),
            state(backend, paint),
            mode(backend.mode).to_owned(),
            backend.weight.to_string(),
            table::percent(backend.expected_share),
            backend
                .observed_share
                .map_or_else(|| "-".to_owned(), table::percent),
            table::count(backend.observed_flows),
            table::count(backend.active_flows),
            table::count(backend.totals.flows),
            table::count(backend.totals.packets),
            table::octets(backend.totals.bytes),
            next_hop(backend, paint),
            backend.sources.join(","),
        ]);
    }
    let mut text = table.render(0, paint);
    let unresolved = backends
        .iter()
        .filter_map(|backend| Some((backend, backend.unresolved.as_deref()?)));
    for (backend, reason) in unresolved {
        text.push_str(&format!(
            "{} {}/{}: {reason}\n",
            paint.warn("no next hop:"),
            backend.service,
            backend.address
        ));
    }
    let failing = backends
        .iter()
        .filter_map(|backend| Some((backend, backend.fails.as_deref()?)));
    for (backend, reason) in failing {
        text.push_str(&format!(
            "{} {}/{}: {reason}\n",
            paint.bad("fails its checks:"),
            backend.service,
            backend.address
        ));
    }
    text
}

fn state(backend: &Backend, paint: Paint) -> String {
    match (backend.state, &backend.next_hop) {
        (BackendState::Down, _) if backend.health == Some(Health::Unchecked) => paint.warn("unchecked"),
        (BackendState::Down, _) => paint.bad("down"),
        (_, None) => paint.bad("unresolved"),
        (BackendState::Serving, Some(_)) => paint.good("serving"),
        (BackendState::Draining, Some(_)) => paint.warn("draining"),
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Dsr => "dsr",
        Mode::Ipip => "ipip",
    }
}

fn next_hop(backend: &Backend, paint: Paint) -> String {
    match &backend.next_hop {
        Some(hop) => format!("{} dev {}", hop.mac, hop.interface),
        None => paint.bad("none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{NextHop, Totals};

    #[test]
    fn backends_show_shares_and_next_hops() {
        let first = Backend {
            service: "web".into(),
            address: "10.0.0.2".parse().unwrap(),
            id: Some(1),
            generation: Some(1),
            state: BackendState::Serving,
            health: None,
            fails: None,
            mode: Mode::Dsr,
            weight: 2,
            sources: vec!["cli".into(), "static".into()],
            next_hop: Some(NextHop {
                interface: "eth0".into(),
                mac: "02:00:00:00:00:01".into(),
                source: "10.0.0.1".parse().unwrap(),
                mtu: 1500,
            }),
            unresolved: None,
            expected_share: 0.6667,
            observed_share: Some(0.6612),
            observed_flows: 30_112,
            active_flows: 210,
            totals: Totals {
                flows: 19_910,
                packets: 1_200_000,
                bytes: 900_000_000,
            },
        };
        let second = Backend {
            address: "10.0.0.3".parse().unwrap(),
            weight: 1,
            next_hop: None,
            unresolved: Some("no route to 10.0.0.3; add one with `ip route`".into()),
            expected_share: 0.0,
            observed_share: None,
            observed_flows: 0,
            ..first.clone()
        };
        insta::assert_snapshot!(render(&[first, second], Paint::PLAIN));
    }
}
