//! Reads the datapath's counters in place at each scrape: no system call a backend, no question to the controller.

use std::sync::Arc;

use lb_common::{backend::state, counters::Event as Counted, flow, ids::BackendRef, map_names, seed};
use lb_ebpf::verdict::Verdict;
use prometheus::{core::Desc, proto::MetricFamily};

use super::{
    families::{FAMILIES, Scrape},
    process,
};
use crate::{
    api::types::Totals,
    daemon::{
        reads,
        shared::{Census, Shared},
        view::{BackendView, ServiceView, View},
    },
    events::Kind,
    state::desired::BackendState,
};

/// Series each backend has of its own.
const SERIES_A_BACKEND: usize = 7;

/// Registered once; every scrape calls [`prometheus::core::Collector::collect`].
pub struct Collector {
    shared: Arc<Shared>,
    /// Beyond it, a service's backends are folded into one.
    max_series: usize,
    descs: Vec<Desc>,
}

impl Collector {
    pub fn new(shared: Arc<Shared>, max_series: usize) -> Self {
        Self { shared, max_series, descs: FAMILIES.iter().map(super::families::Family::desc).collect() }
    }
}

impl prometheus::core::Collector for Collector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let view = self.shared.view();
        let census = self.shared.census();
        let mut scrape = Scrape::default();
        backends(&self.shared, &view, &census, self.max_series, &mut scrape);
        for service in view.services.values() {
            service_series(service, &mut scrape);
        }
        datapath(&self.shared, &mut scrape);
        flow_table(&self.shared, &census, &mut scrape);
        seeds(&self.shared, &view, &mut scrape);
        maps(&self.shared, &view, &mut scrape);
        daemon(&self.shared, &view, &mut scrape);
        process::collect(&mut scrape);
        scrape.into_families()
    }
}

fn backends(shared: &Shared, view: &View, census: &Census, max_series: usize, scrape: &mut Scrape) {
    let count: usize = view.services.values().map(|service| service.backends.len()).sum();
    let fold = count.saturating_mul(SERIES_A_BACKEND) > max_series;
    for service in view.services.values() {
        if fold {
            folded(shared, service, census, scrape);
            continue;
        }
        for (address, backend) in &service.backends {
            one_backend(shared, service, &address.to_string(), backend, census, scrape);
        }
    }
    scrape.add("metrics_folded_backends", &[], if fold { count as f64 } else { 0.0 });
}

fn one_backend(
    shared: &Shared,
    service: &ServiceView,
    address: &str,
    backend: &BackendView,
    census: &Census,
    scrape: &mut Scrape,
) {
    let labels = [("service", service.spec.name.as_str()), ("backend", address)];
    let totals = backend.reference.map(|reference| reads::totals(shared, reference)).unwrap_or_default();
    let active = backend.reference.map_or(0, |reference| census.usage.active(reference));
    counted(&labels, totals, active, scrape);
    scrape.add("backend_expected_share", &labels, backend.expected_share);
    scrape.add("backend_state", &labels, f64::from(state_number(backend)));
    scrape.add("backend_weight", &labels, f64::from(backend.spec.weight));
}

/// All backends of a service in one set of series: the sums keep their meaning.
fn folded(shared: &Shared, service: &ServiceView, census: &Census, scrape: &mut Scrape) {
    let labels = [("service", service.spec.name.as_str()), ("backend", "")];
    let mut sum = Totals::default();
    let mut active = 0;
    for reference in service.backends.values().filter_map(|backend: &BackendView| backend.reference) {
        let totals = reads::totals(shared, reference);
        sum.flows = sum.flows.wrapping_add(totals.flows);
        sum.packets = sum.packets.wrapping_add(totals.packets);
        sum.bytes = sum.bytes.wrapping_add(totals.bytes);
        active += census.usage.active(reference);
    }
    counted(&labels, sum, active, scrape);
}

fn counted(labels: &[(&str, &str)], totals: Totals, active: u64, scrape: &mut Scrape) {
    scrape.add("backend_flows_total", labels, totals.flows as f64);
    scrape.add("backend_packets_total", labels, totals.packets as f64);
    scrape.add("backend_bytes_total", labels, totals.bytes as f64);
    scrape.add("backend_active_flows", labels, active as f64);
}

fn state_number(backend: &BackendView) -> u8 {
    if reads::is_unresolved(backend) { state::UNSET } else { backend.spec.state.in_map() }
}

fn service_series(service: &ServiceView, scrape: &mut Scrape) {
    let name = ("service", service.spec.name.as_str());
    let entry = service.entry.unwrap_or_default();
    scrape.add("service_slots", &[name], f64::from(entry.slots_count));
    scrape.add("service_table_generation", &[name], f64::from(entry.table_generation));
    let count = |wanted: fn(&BackendView) -> bool| service.backends.values().filter(|backend| wanted(backend)).count();
    let states: [(&str, fn(&BackendView) -> bool); 4] = [
        ("serving", |backend| !reads::is_unresolved(backend) && backend.spec.state == BackendState::Serving),
        ("draining", |backend| !reads::is_unresolved(backend) && backend.spec.state == BackendState::Draining),
        ("down", |backend| backend.spec.state == BackendState::Down),
        ("unresolved", reads::is_unresolved),
    ];
    for (state, wanted) in states {
        scrape.add("service_backends", &[name, ("state", state)], count(wanted) as f64);
    }
}

fn datapath(shared: &Shared, scrape: &mut Scrape) {
    let verdicts = shared.counters.verdicts();
    for verdict in Verdict::all() {
        let (kind, reason) = verdict.names();
        let number = verdicts[verdict.counter() as usize];
        scrape.add("verdicts_total", &[("verdict", kind), ("reason", reason)], number as f64);
    }
    let events = shared.counters.events();
    for event in Counted::ALL {
        scrape.add("datapath_events_total", &[("event", event.name())], events[event as usize] as f64);
    }
    for (state, event) in reads::EVICTIONS {
        scrape.add("flow_table_evictions_total", &[("state", state)], events[event as usize] as f64);
    }
}

fn flow_table(shared: &Shared, census: &Census, scrape: &mut Scrape) {
    let slots = u64::from(shared.counters.capacity().flow_buckets) * flow::WAYS as u64;
    scrape.add("flow_table_slots", &[], slots as f64);
    scrape.add("flow_table_expired", &[], census.usage.expired as f64);
    for (state, number) in flow::state::NAMES.iter().zip(census.usage.live).skip(1) {
        scrape.add("flow_table_used", &[("state", state)], number as f64);
    }
}

fn seeds(shared: &Shared, view: &View, scrape: &mut Scrape) {
    for (index, seed) in (0u32..).zip(&view.seeds) {
        let name = index.checked_sub(seed::of_cpu(0)).map_or_else(|| "shared".to_owned(), |cpu| cpu.to_string());
        let labels = [("cpu", name.as_str())];
        scrape.add("seed_generation", &labels, f64::from(seed.generation));
        scrape.add("seed_age_seconds", &labels, seed.age().as_secs_f64());
        scrape.add("seed_fresh_fill", &labels, shared.counters.fresh_fill(index));
    }
}

fn maps(shared: &Shared, view: &View, scrape: &mut Scrape) {
    let capacity = shared.counters.capacity();
    let references = view.services.values().flat_map(|service| service.backends.values());
    let entries: Vec<BackendRef> = references.filter_map(|backend| backend.reference).collect();
    let slots: u64 =
        view.services.values().filter_map(|service| service.entry).map(|entry| u64::from(entry.slots_count)).sum();
    let services = view.services.values().filter(|service| service.entry.is_some()).count();
    let rows = [
        (map_names::SERVICES.name, capacity.services, services as f64),
        (map_names::BACKENDS.name, capacity.backends.saturating_sub(1), entries.len() as f64),
        (map_names::SLOTS.name, capacity.slots, slots as f64),
    ];
    for (name, room, used) in rows {
        let name = name.to_ascii_lowercase();
        scrape.add("map_capacity", &[("map", &name)], f64::from(room));
        scrape.add("map_used", &[("map", &name)], used);
    }
}

fn daemon(shared: &Shared, view: &View, scrape: &mut Scrape) {
    for attached in &view.attached {
        let labels = [("interface", attached.name.as_str()), ("mode", attached.mode.name())];
        scrape.add("interface_attached", &labels, 1.0);
    }
    scrape.add("ready", &[], f64::from(u8::from(view.is_ready())));
    let degraded = !view.troubles.is_empty()
        || view.services.values().any(|service| service.backends.values().any(reads::is_unresolved));
    scrape.add("degraded", &[], f64::from(u8::from(degraded)));
    let totals = shared.events.totals();
    for kind in Kind::ALL {
        scrape.add("events_total", &[("kind", kind.name())], totals.get(&kind).copied().unwrap_or(0) as f64);
    }
    scrape.add("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
}
