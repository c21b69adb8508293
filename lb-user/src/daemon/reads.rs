//! Answers to reads: the view joined with counters and the count of the flow table. Asks neither the controller nor the kernel.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Instant};

use lb_common::{
    counters::Event as Counted,
    flow::{FlowValue, state as flow_state},
    ids::BackendRef,
    seed,
};

use super::{
    shared::{Census, Shared},
    view::{BackendView, ServiceView, View},
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{self, Filter, Flow, FlowCount, FlowTable, Flows, Interface, Problem, Seed, Status, Totals},
    },
    maps,
    state::desired::BackendState,
};

/// Events shown by `status`.
const RECENT_EVENTS: usize = 5;
/// Flows listed at most.
const MOST_FLOWS: usize = 10_000;

pub fn status(shared: &Shared) -> Status {
    let view = shared.view();
    let census = shared.census();
    let services = services(shared);
    let flow_table = flow_table(shared, &census);
    let mut problems: Vec<Problem> = view.troubles.values().cloned().collect();
    problems.extend(view.services.values().flat_map(|service| service_problems(service)));
    problems.extend(datapath_problems(shared, &view, &flow_table));
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: shared.started.elapsed().as_secs(),
        ready: view.is_ready(),
        not_ready: view.not_ready.clone(),
        revision: view.revision,
        config_file: shared.config_file.display().to_string(),
        pin_directory: shared.pin_directory.display().to_string(),
        program: view.program.clone(),
        interfaces: interfaces(&view),
        services,
        flow_table,
        seeds: seeds(shared),
        problems,
        recent_events: shared.events.after(0, RECENT_EVENTS),
    }
}

fn interfaces(view: &View) -> Vec<Interface> {
    let shown = view.attached.iter().map(|attached| Interface {
        name: attached.name.clone(),
        index: attached.index,
        mode: attached.mode.name().to_owned(),
        note: attached.reason.clone(),
    });
    shown.collect()
}

fn service_problems(service: &ServiceView) -> Vec<Problem> {
    let object = format!("service {}", service.spec.name);
    let look = format!("see why with `evenkeel backends {}`", service.spec.name);
    let mut problems = Vec::new();
    if service.backends.is_empty() {
        problems.push(Problem {
            object: object.clone(),
            problem: "it has no backends, so its packets are dropped".to_owned(),
            next_step: format!("add one with `evenkeel backend add {} ADDRESS`", service.spec.name),
        });
    } else if service.entry.is_none_or(|entry| entry.slots_count == 0) {
        problems.push(Problem {
            object: object.clone(),
            problem: "no backend takes new flows, so they are dropped".to_owned(),
            next_step: look.clone(),
        });
    }
    let unresolved: Vec<&BackendView> = service.backends.values().filter(|backend| is_unresolved(backend)).collect();
    if let Some(first) = unresolved.first() {
        let reason = first.unresolved.as_deref().unwrap_or("unknown");
        problems.push(Problem {
            object,
            problem: match unresolved.len() {
                1 => format!("backend {} has no next hop: {reason}", first.spec.address),
                count => format!("{count} backends have no next hop; {}: {reason}", first.spec.address),
            },
            next_step: look,
        });
    }
    problems
}

fn datapath_problems(shared: &Shared, view: &View, flow_table: &FlowTable) -> Vec<Problem> {
    let mut problems = Vec::new();
    let unset = view.seeds.iter().filter(|seed| seed.generation == 0).count();
    if unset > 0 {
        problems.push(Problem {
            object: "seeds".to_owned(),
            problem: format!("{unset} are unset"),
            next_step: "write new ones with `evenkeel seeds rotate --all`".to_owned(),
        });
    }
    let used: u64 = flow_table.used.values().sum();
    if used * 2 > flow_table.slots && flow_table.slots > 0 {
        problems.push(Problem {
            object: "flow table".to_owned(),
            problem: "more than half full: flows begin to push each other out".to_owned(),
            next_step: "raise max_flows under [datapath], then `evenkeel detach` and start again".to_owned(),
        });
    }
    if shared.counters.event(Counted::MapInconsistent) > 0 {
        problems.push(Problem {
            object: "maps".to_owned(),
            problem: "the datapath met an entry that points outside a map".to_owned(),
            next_step: "find out what else writes the maps (`bpftool map`), and report a bug if nothing does".to_owned(),
        });
    }
    problems
}

pub fn services(shared: &Shared) -> Vec<types::Service> {
    let view = shared.view();
    let census = shared.census();
    view.services.values().map(|service| show_service(service, shared, &census)).collect()
}

fn show_service(service: &ServiceView, shared: &Shared, census: &Census) -> types::Service {
    let count = |wanted: BackendState| {
        let in_state = service.backends.values().filter(|backend| !is_unresolved(backend) && backend.spec.state == wanted);
        in_state.count() as u32
    };
    let references = || service.backends.values().filter_map(|backend| backend.reference);
    types::Service {
        name: service.spec.name.clone(),
        vip: service.spec.vip,
        port: service.spec.port.number(),
        protocol: service.spec.protocol,
        selection: service.spec.selection,
        affinity: service.spec.affinity,
        source: if service.from_file { "static" } else { "cli" }.to_owned(),
        slots: service.entry.map_or(0, |entry| entry.slots_count),
        table_generation: service.entry.map_or(0, |entry| entry.table_generation),
        serving: count(BackendState::Serving),
        draining: count(BackendState::Draining),
        down: count(BackendState::Down),
        unresolved: service.backends.values().filter(|backend| is_unresolved(backend)).count() as u32,
        active_flows: references().map(|reference| census.usage.active(reference)).sum(),
        totals: references().map(|reference| totals(shared, reference)).fold(Totals::default(), add),
    }
}

/// Wanted, but without a way there.
pub fn is_unresolved(backend: &BackendView) -> bool {
    backend.spec.state != BackendState::Down && backend.next_hop.is_none()
}

pub fn totals(shared: &Shared, reference: BackendRef) -> Totals {
    let counted = shared.counters.backend(reference.id());
    Totals { flows: counted.flows, packets: counted.packets, bytes: counted.bytes }
}

fn add(left: Totals, right: Totals) -> Totals {
    Totals {
        flows: left.flows.wrapping_add(right.flows),
        packets: left.packets.wrapping_add(right.packets),
        bytes: left.bytes.wrapping_add(right.bytes),
    }
}

pub fn backends(shared: &Shared, filter: &Filter) -> Result<Vec<types::Backend>, Refusal> {
    let view = shared.view();
    let census = if filter.now { shared.count_flows() } else { shared.census() };
    let mut shown = Vec::new();
    for service in chosen(&view, filter)? {
        let counted = service.backends.values().map(|backend| new_flows(shared, backend));
        let observed_flows: u64 = counted.sum();
        let of_service = Observed { flows: observed_flows, service, census: &census };
        let wanted = service.backends.iter().filter(|(address, _)| matches_backend(filter, **address));
        shown.extend(wanted.map(|(address, backend)| of_service.show(*address, backend, shared)));
    }
    if shown.is_empty()
        && let Some(address) = filter.backend
    {
        let error = format!("there is no backend {address} here");
        return Err(Refusal::new(RefusalKind::NotFound, error, Some("list them with `evenkeel backends`".into())));
    }
    Ok(shown)
}

struct Observed<'a> {
    flows: u64,
    service: &'a ServiceView,
    census: &'a Census,
}

impl Observed<'_> {
    fn show(&self, address: IpAddr, backend: &BackendView, shared: &Shared) -> types::Backend {
        let share = new_flows(shared, backend) as f64 / self.flows.max(1) as f64;
        types::Backend {
            service: self.service.spec.name.clone(),
            address,
            id: backend.reference.map(BackendRef::id),
            generation: backend.reference.map(BackendRef::generation),
            state: backend.spec.state,
            mode: backend.mode,
            weight: backend.spec.weight,
            sources: backend.sources.iter().cloned().collect(),
            next_hop: backend.next_hop.clone(),
            unresolved: backend.unresolved.clone(),
            expected_share: backend.expected_share,
            observed_share: (self.flows > 0).then_some(share),
            observed_flows: self.flows,
            active_flows: backend.reference.map_or(0, |reference| self.census.usage.active(reference)),
            totals: backend.reference.map(|reference| totals(shared, reference)).unwrap_or_default(),
        }
    }
}

/// New flows since the service's table last changed.
fn new_flows(shared: &Shared, backend: &BackendView) -> u64 {
    let flows = backend.reference.map_or(0, |reference| shared.counters.backend(reference.id()).flows);
    flows.saturating_sub(backend.flows_before)
}

fn chosen<'a>(view: &'a View, filter: &Filter) -> Result<Vec<&'a Arc<ServiceView>>, Refusal> {
    let Some(name) = &filter.service else {
        return Ok(view.services.values().collect());
    };
    let found = view.services.get(name).ok_or_else(|| {
        let error = format!("there is no service {name:?}");
        Refusal::new(RefusalKind::NotFound, error, Some("list them with `evenkeel services`".into()))
    })?;
    Ok(vec![found])
}

fn matches_backend(filter: &Filter, address: IpAddr) -> bool {
    filter.backend.is_none_or(|wanted| wanted.to_canonical() == address)
}

pub fn seeds(shared: &Shared) -> Vec<Seed> {
    let now = Instant::now();
    let view = shared.view();
    let shown = (0u32..).zip(&view.seeds).map(|(index, seed)| Seed {
        cpu: index.checked_sub(seed::of_cpu(0)),
        generation: seed.generation,
        age_seconds: seed.age().as_secs(),
        next_rotation_seconds: seed.next.map(|next| next.saturating_duration_since(now).as_secs()),
        fresh_fill: shared.counters.fresh_fill(index),
    });
    shown.collect()
}

/// How full, and what was lost.
pub fn flow_table(shared: &Shared, census: &Census) -> FlowTable {
    let capacity = shared.counters.capacity();
    let used = flow_state::NAMES.iter().zip(census.usage.live).skip(1);
    let events = shared.counters.events();
    let lost = EVICTIONS.iter().map(|(name, event)| ((*name).to_owned(), events[*event as usize]));
    FlowTable {
        slots: u64::from(capacity.flow_buckets) * lb_common::flow::WAYS as u64,
        used: used.map(|(name, number)| ((*name).to_owned(), number)).collect(),
        expired: census.usage.expired,
        lost: lost.collect(),
        counted_seconds_ago: census.at.elapsed().as_secs(),
    }
}

/// Living flows that were pushed out, by the state they had, and flows that found no room.
pub const EVICTIONS: [(&str, Counted); 5] = [
    ("closing", Counted::EvictedClosing),
    ("new", Counted::EvictedNew),
    ("datagram", Counted::EvictedDatagram),
    ("established", Counted::EvictedEstablished),
    ("not_stored", Counted::FlowNotStored),
];

pub fn flows(shared: &Shared, filter: &Filter) -> Result<Flows, Refusal> {
    let view = shared.view();
    let services = chosen(&view, filter)?;
    let state = filter.state.as_deref().map(state_number).transpose()?;
    let census = if filter.now { shared.count_flows() } else { shared.census() };
    let mut counts = Vec::new();
    for service in &services {
        for (address, backend) in service.backends.iter().filter(|(address, _)| matches_backend(filter, **address)) {
            let live = backend.reference.and_then(|reference| census.usage.by_backend.get(&reference));
            let count = |wanted: u8| match (live, state) {
                (Some(live), None) => live[usize::from(wanted)],
                (Some(live), Some(state)) if state == wanted => live[usize::from(wanted)],
                _ => 0,
            };
            let count = FlowCount {
                service: service.spec.name.clone(),
                backend: *address,
                new: count(flow_state::NEW),
                established: count(flow_state::ESTABLISHED),
                closing: count(flow_state::CLOSING),
                datagram: count(flow_state::DATAGRAM),
            };
            counts.push(count);
        }
    }
    let mut answer =
        Flows { table: flow_table(shared, &census), counts, flows: Vec::new(), truncated: false };
    if let Some(limit) = filter.limit {
        list(shared, &view, &services, filter, state, limit.min(MOST_FLOWS), &mut answer);
    }
    Ok(answer)
}

fn list(
    shared: &Shared,
    view: &View,
    services: &[&Arc<ServiceView>],
    filter: &Filter,
    state: Option<u8>,
    limit: usize,
    answer: &mut Flows,
) {
    let now = maps::datapath_seconds();
    let names: BTreeMap<BackendRef, (&ServiceView, IpAddr)> = view.by_reference();
    let wanted = |service: &ServiceView| services.iter().any(|chosen| chosen.key == service.key);
    for (fingerprint, value) in shared.counters.living_flows(now) {
        let Some((service, address)) = names.get(&value.backend) else {
            continue;
        };
        if !wanted(service) || !matches_backend(filter, *address) || state.is_some_and(|state| state != value.state) {
            continue;
        }
        if answer.flows.len() == limit {
            answer.truncated = true;
            return;
        }
        answer.flows.push(show_flow(fingerprint, value, service, *address, now));
    }
}

fn show_flow(fingerprint: u64, value: FlowValue, service: &ServiceView, backend: IpAddr, now: u32) -> Flow {
    Flow {
        fingerprint: format!("{fingerprint:016x}"),
        service: service.spec.name.clone(),
        backend,
        state: flow_state::NAMES.get(usize::from(value.state)).unwrap_or(&"unset").to_string(),
        idle_seconds: now.saturating_sub(value.last_seen),
    }
}

fn state_number(name: &str) -> Result<u8, Refusal> {
    let found = flow_state::NAMES.iter().position(|known| *known == name).filter(|state| *state > 0);
    found.map(|state| state as u8).ok_or_else(|| {
        let known = flow_state::NAMES[1..].join(", ");
        Refusal::new(RefusalKind::Invalid, format!("{name:?} is no flow state"), Some(format!("use one of: {known}")))
    })
}
