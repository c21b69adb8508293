//! The series of backends, written straight into the exposition: ten thousand backends are scraped within 50 ms.

use std::fmt::{self, Write};

use lb_common::backend::state;

use super::full_name;
use crate::{
    api::types::Totals,
    daemon::{
        reads,
        shared::{Census, Shared},
        view::{BackendView, ServiceView},
    },
};

/// A backend, or all of a service in one.
struct Row {
    /// `{service="web",backend="10.0.0.1"}`
    labels: String,
    totals: Totals,
    active_flows: u64,
    /// What only a single backend has.
    single: Option<Single>,
}

struct Single {
    expected_share: f64,
    state: u8,
    weight: u32,
}

enum Value {
    Count(u64),
    Share(f64),
}

/// A family of series.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Row) -> Option<Value>,
}

const FAMILIES: [Family; 7] = [
    Family {
        name: "backend_flows_total",
        kind: "counter",
        help: "New flows picked for the backend since its entry was made.",
        value: |row| Some(Value::Count(row.totals.flows)),
    },
    Family {
        name: "backend_packets_total",
        kind: "counter",
        help: "Packets forwarded to the backend since its entry was made.",
        value: |row| Some(Value::Count(row.totals.packets)),
    },
    Family {
        name: "backend_bytes_total",
        kind: "counter",
        help: "Octets of frames as they arrived for the backend since its entry was made.",
        value: |row| Some(Value::Count(row.totals.bytes)),
    },
    Family {
        name: "backend_active_flows",
        kind: "gauge",
        help: "Flows of the backend in the flow table, closing ones left out.",
        value: |row| Some(Value::Count(row.active_flows)),
    },
    Family {
        name: "backend_expected_share",
        kind: "gauge",
        help: "Part of the service's slots that the backend owns.",
        value: |row| Some(Value::Share(row.single.as_ref()?.expected_share)),
    },
    Family {
        name: "backend_state",
        kind: "gauge",
        help: "1 serving, 2 draining, 3 down, 0 without a next hop.",
        value: |row| Some(Value::Count(row.single.as_ref()?.state.into())),
    },
    Family {
        name: "backend_weight",
        kind: "gauge",
        help: "Weight of the backend as wanted.",
        value: |row| Some(Value::Count(row.single.as_ref()?.weight.into())),
    },
];

/// Appends the series of all backends; where they would be more than `max_series`, one set for each service.
pub(super) fn write(shared: &Shared, max_series: usize, text: &mut String) {
    let view = shared.view();
    let census = shared.census();
    let count: usize = view.services.values().map(|service| service.backends.len()).sum();
    let fold = count.saturating_mul(FAMILIES.len()) > max_series;
    let rows: Vec<Row> = if fold {
        view.services
            .values()
            .map(|service| folded(shared, service, &census))
            .collect()
    } else {
        view.services
            .values()
            .flat_map(|service| single(shared, service, &census))
            .collect()
    };
    text.reserve(rows.len() * FAMILIES.len() * 80);
    for family in &FAMILIES {
        family.write(&rows, text);
    }
    let name = full_name("metrics_folded_backends");
    let help = "Backends without series of their own, because of metrics.max_series.";
    let folded = if fold { count } else { 0 };
    append(
        text,
        format_args!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {folded}\n"),
    );
}

impl Family {
    fn write(&self, rows: &[Row], text: &mut String) {
        let name = full_name(self.name);
        let mut values = rows
            .iter()
            .filter_map(|row| Some((row, (self.value)(row)?)))
            .peekable();
        if values.peek().is_none() {
            return;
        }
        append(
            text,
            format_args!("# HELP {name} {}\n# TYPE {name} {}\n", self.help, self.kind),
        );
        for (row, value) in values {
            append(text, format_args!("{name}{} {value}\n", row.labels));
        }
    }
}

fn single<'a>(
    shared: &'a Shared,
    service: &'a ServiceView,
    census: &'a Census,
) -> impl Iterator<Item = Row> + 'a {
    service.backends.iter().map(move |(address, backend)| Row {
        labels: labels(service, &address.to_string()),
        totals: backend
            .reference
            .map(|reference| reads::totals(shared, reference))
            .unwrap_or_default(),
        active_flows: backend
            .reference
            .map_or(0, |reference| census.usage.active(reference)),
        single: Some(Single {
            expected_share: backend.expected_share,
            state: state_number(backend),
            weight: backend.spec.weight,
        }),
    })
}

/// All backends of a service in one: the sums keep their meaning.
fn folded(shared: &Shared, service: &ServiceView, census: &Census) -> Row {
    let all = single(shared, service, census);
    let nothing = Row {
        labels: labels(service, ""),
        totals: Totals::default(),
        active_flows: 0,
        single: None,
    };
    all.fold(nothing, |sum, row| Row {
        totals: sum.totals + row.totals,
        active_flows: sum.active_flows + row.active_flows,
        ..sum
    })
}

/// Names of services and addresses need no escapes: they are made of `a-z0-9._:-`.
fn labels(service: &ServiceView, backend: &str) -> String {
    format!("{{service=\"{}\",backend=\"{backend}\"}}", service.spec.name)
}

fn state_number(backend: &BackendView) -> u8 {
    if reads::is_unresolved(backend) {
        state::UNSET
    } else {
        backend.state.in_map()
    }
}

fn append(text: &mut String, words: fmt::Arguments<'_>) {
    text.write_fmt(words).expect("a string takes everything");
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Share(share) => share.fmt(f),
        }
    }
}
