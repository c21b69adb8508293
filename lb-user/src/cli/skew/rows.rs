//! Services and backends as rows of tables.

use super::{bar::bar, render::percent};
use crate::{
    cli::table::{self, Paint, Table},
    state::desired::BackendState,
    watch::report::{BackendSkew, CauseName, ServiceSkew},
};

/// Cells of a bar.
const WIDTH: usize = 30;
/// Backends shown of a service that is not asked for by name.
const BACKENDS_SHOWN: usize = 20;

/// A service's backends; `in_full`: all of them.
pub(super) fn backends(service: &ServiceSkew, in_full: bool, paint: Paint) -> String {
    if service.backends.is_empty() {
        return "  No backend has an entry in the datapath.\n".to_owned();
    }
    // Those that are off most come first, where not all are shown.
    let mut rows: Vec<&BackendSkew> = service.backends.iter().collect();
    let hidden = if in_full {
        0
    } else {
        rows.len().saturating_sub(BACKENDS_SHOWN)
    };
    if hidden > 0 {
        let off = |row: &BackendSkew| (row.observed.unwrap_or(0.0) - row.expected).abs();
        rows.sort_by(|one, other| off(other).total_cmp(&off(one)));
        rows.truncate(BACKENDS_SHOWN);
    }
    let shares = rows
        .iter()
        .map(|row| row.expected.max(row.observed.unwrap_or(0.0)));
    let most = shares.fold(0.0, f64::max);
    let mut table = Table::new(&[
        "BACKEND",
        "STATE",
        ">EXPECTED",
        ">OBSERVED",
        "BETWEEN",
        "",
        ">FRESH",
        ">FLOWS",
        ">PACKETS",
    ]);
    for row in rows {
        table.row(backend(row, most, paint));
    }
    let mut text = table.render(2, paint);
    if hidden > 0 {
        text.push_str(&format!(
            "  and {hidden} that are off less: evenkeel skew {}\n",
            service.service
        ));
    }
    text
}

fn backend(row: &BackendSkew, most: f64, paint: Paint) -> [String; 9] {
    let off = row.observed.is_some() && !(row.low..=row.high).contains(&row.expected);
    let observed = row.observed.map_or_else(|| "-".to_owned(), percent);
    let between = match row.observed {
        Some(_) => format!("{} to {}", percent(row.low), percent(row.high)),
        None => "-".to_owned(),
    };
    let drawn = bar(row.observed.unwrap_or(0.0), row.expected, most, WIDTH);
    let mark = |text: String| if off { paint.bad(&text) } else { text };
    [
        row.endpoint.to_string(),
        match row.state {
            BackendState::Serving => "serving".to_owned(),
            BackendState::Draining => paint.warn("draining"),
            BackendState::Down => paint.bad("down"),
        },
        percent(row.expected),
        mark(observed),
        between,
        mark(drawn),
        table::count(row.fresh_flows),
        table::count(row.flows),
        table::count(row.packets),
    ]
}

/// Quiet services, one a row.
pub(super) fn services(services: &[&ServiceSkew], paint: Paint) -> String {
    let mut table = Table::new(&[
        "SERVICE",
        "STATE",
        "CAUSE",
        ">FRESH FLOWS",
        ">MISPLACED",
        ">AT LEAST",
        ">EVIDENCE",
        ">ALARM AT",
    ]);
    for service in services {
        table.row([
            service.service.clone(),
            service.state.name().to_owned(),
            service.cause.map_or("-", CauseName::name).to_owned(),
            table::count(service.fresh_flows),
            percent(service.effect.tv),
            percent(service.effect.tv_low),
            format!("{:.1}", service.evidence),
            format!("{:.1}", service.threshold),
        ]);
    }
    table.render(0, paint)
}

/// Flows that have much of a service's packets; nothing where there are none.
pub(super) fn heavy_flows(service: &ServiceSkew, paint: Paint) -> String {
    if service.heavy_flows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["HEAVY FLOW OF", "BACKEND", ">PACKETS", ">BYTES"]);
    for flow in &service.heavy_flows {
        table.row([
            flow.client
                .map_or_else(|| "not recorded".to_owned(), |client| client.to_string()),
            flow.endpoint.to_string(),
            percent(flow.packets),
            percent(flow.octets),
        ]);
    }
    table.render(2, paint)
}
