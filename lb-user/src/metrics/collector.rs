//! Everything but the series of backends: read in place at each scrape, without a question to the controller.

use std::sync::Arc;

use lb_common::{counters::Event as Counted, flow, ids::BackendRef, map_names, seed};
use lb_ebpf::verdict::Verdict;
use prometheus::{core::Desc, proto::MetricFamily};

use super::{
    discovery,
    families::{FAMILIES, Scrape},
    health, process, skew,
};
use crate::{
    daemon::{
        flow_reads, reads,
        shared::{Census, Shared},
        view::{BackendView, ServiceView, View},
    },
    events::Kind,
    state::desired::BackendState,
};

/// Registered once; every scrape calls [`prometheus::core::Collector::collect`].
pub struct Collector {
    shared: Arc<Shared>,
    descs: Vec<Desc>,
}

impl Collector {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            descs: FAMILIES.iter().map(super::families::Family::desc).collect(),
        }
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
        for service in view.services.values() {
            service_series(service, &mut scrape);
        }
        datapath(&self.shared, &mut scrape);
        flow_table(&self.shared, &census, &mut scrape);
        seeds(&self.shared, &view, &mut scrape);
        maps(&self.shared, &view, &mut scrape);
        daemon(&self.shared, &view, &mut scrape);
        discovery::collect(&view, &mut scrape);
        health::collect(&self.shared, &view, &mut scrape);
        skew::collect(&self.shared, &mut scrape);
        process::collect(&mut scrape);
        scrape.into_families()
    }
}

/// Whether a backend is of a kind.
type Wanted = fn(&BackendView) -> bool;

fn service_series(service: &ServiceView, scrape: &mut Scrape) {
    let name = ("service", service.spec.name.as_str());
    let entry = service.entry.unwrap_or_default();
    scrape.add("service_slots", &[name], f64::from(entry.slots_count));
    scrape.add(
        "service_table_generation",
        &[name],
        f64::from(entry.table_generation),
    );
    let count = |wanted: Wanted| {
        service
            .backends
            .values()
            .filter(|backend| wanted(backend))
            .count()
    };
    let states: [(&str, Wanted); 4] = [
        ("serving", |backend| {
            !reads::is_unresolved(backend) && backend.state == BackendState::Serving
        }),
        ("draining", |backend| {
            !reads::is_unresolved(backend) && backend.state == BackendState::Draining
        }),
        ("down", |backend| backend.state == BackendState::Down),
        ("unresolved", reads::is_unresolved),
    ];
    for (state, wanted) in states {
        scrape.add(
            "service_backends",
            &[name, ("state", state)],
            count(wanted) as f64,
        );
    }
}

fn datapath(shared: &Shared, scrape: &mut Scrape) {
    let verdicts = shared.counters.verdicts();
    for verdict in Verdict::all() {
        let (kind, reason) = verdict.names();
        let number = verdicts[verdict.counter() as usize];
        scrape.add(
            "verdicts_total",
            &[("verdict", kind), ("reason", reason)],
            number as f64,
        );
    }
    let events = shared.counters.events();
    let (picked, fresh) = shared.counters.picks();
    let counted = Counted::ALL.map(|event| (event.name(), events[event as usize]));
    for (event, number) in [("flow_picked", picked), ("fresh_key", fresh)]
        .into_iter()
        .chain(counted)
    {
        scrape.add("datapath_events_total", &[("event", event)], number as f64);
    }
    for (state, event) in flow_reads::EVICTIONS {
        scrape.add(
            "flow_table_evictions_total",
            &[("state", state)],
            events[event as usize] as f64,
        );
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
        let name = index
            .checked_sub(seed::of_cpu(0))
            .map_or_else(|| "shared".to_owned(), |cpu| cpu.to_string());
        let labels = [("cpu", name.as_str())];
        scrape.add("seed_generation", &labels, f64::from(seed.generation));
        scrape.add("seed_age_seconds", &labels, seed.age().as_secs_f64());
        scrape.add("seed_fresh_fill", &labels, shared.counters.fresh_fill(index));
    }
}

fn maps(shared: &Shared, view: &View, scrape: &mut Scrape) {
    let capacity = shared.counters.capacity();
    let references = view
        .services
        .values()
        .flat_map(|service| service.backends.values());
    let entries: Vec<BackendRef> = references.filter_map(|backend| backend.reference).collect();
    let slots: u64 = view
        .services
        .values()
        .filter_map(|service| service.entry)
        .map(|entry| u64::from(entry.slots_count))
        .sum();
    let services = view
        .services
        .values()
        .filter(|service| service.entry.is_some())
        .count();
    let rows = [
        (map_names::SERVICES.name, capacity.services, services as f64),
        (
            map_names::BACKENDS.name,
            capacity.backends.saturating_sub(1),
            entries.len() as f64,
        ),
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
        let labels = [
            ("interface", attached.name.as_str()),
            ("mode", attached.mode.name()),
        ];
        scrape.add("interface_attached", &labels, 1.0);
    }
    scrape.add("ready", &[], f64::from(u8::from(view.is_ready())));
    let degraded = !view.troubles.is_empty()
        || view
            .services
            .values()
            .any(|service| service.backends.values().any(reads::is_unresolved));
    scrape.add("degraded", &[], f64::from(u8::from(degraded)));
    let totals = shared.events.totals();
    for kind in Kind::ALL {
        scrape.add(
            "events_total",
            &[("kind", kind.name())],
            totals.get(&kind).copied().unwrap_or(0) as f64,
        );
    }
    scrape.add("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
}
