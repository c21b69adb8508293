//! Answers to reads: the view joined with counters and the count of the flow table. Asks neither the controller nor the kernel.

use std::{net::IpAddr, ops::Add, sync::Arc, time::Instant};

use lb_common::{counters::Event as Counted, ids::BackendRef, seed};

use super::{
    flow_reads::flow_table,
    shared::{Census, Shared},
    view::{BackendView, ServiceView, View},
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{self, Filter, FlowTable, Health, Interface, Problem, Seed, Status, Totals},
    },
    state::desired::BackendState,
    watch::{record::Reading, report::SkewReport},
};

/// Events shown by `status`.
const RECENT_EVENTS: usize = 5;

pub fn status(shared: &Shared) -> Status {
    let view = shared.view();
    let census = shared.census();
    let services = services(shared);
    let flow_table = flow_table(shared, &census);
    let mut problems: Vec<Problem> = view.troubles.values().cloned().collect();
    problems.extend(
        view.services
            .values()
            .flat_map(|service| service_problems(service)),
    );
    problems.extend(super::source_reads::problems(&view));
    problems.extend(super::health_reads::problems(&view));
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
            next_step: format!(
                "add one with `evenkeel backend add {} ADDRESS`",
                service.spec.name
            ),
        });
    } else if service.entry.is_none_or(|entry| entry.slots_count == 0) {
        problems.push(Problem {
            object: object.clone(),
            problem: "no backend takes new flows, so they are dropped".to_owned(),
            next_step: look.clone(),
        });
    }
    let unresolved: Vec<&BackendView> = service
        .backends
        .values()
        .filter(|backend| is_unresolved(backend))
        .collect();
    if let Some(first) = unresolved.first() {
        let reason = first.unresolved.as_deref().unwrap_or("unknown");
        problems.push(Problem {
            object,
            problem: match unresolved.len() {
                1 => format!("backend {} has no next hop: {reason}", first.spec.address),
                count => format!(
                    "{count} backends have no next hop; {}: {reason}",
                    first.spec.address
                ),
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
            next_step: "find out what else writes the maps (`bpftool map`), and report a bug if nothing does"
                .to_owned(),
        });
    }
    problems
}

pub fn services(shared: &Shared) -> Vec<types::Service> {
    let view = shared.view();
    let census = shared.census();
    view.services
        .values()
        .map(|service| show_service(service, shared, &census))
        .collect()
}

fn show_service(service: &ServiceView, shared: &Shared, census: &Census) -> types::Service {
    let count = |wanted: BackendState| {
        let in_state = service
            .backends
            .values()
            .filter(|backend| !is_unresolved(backend) && backend.state == wanted);
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
        unresolved: service
            .backends
            .values()
            .filter(|backend| is_unresolved(backend))
            .count() as u32,
        active_flows: references().map(|reference| census.usage.active(reference)).sum(),
        totals: references()
            .map(|reference| totals(shared, reference))
            .fold(Totals::default(), Totals::add),
    }
}

/// Wanted, but without a way there.
pub fn is_unresolved(backend: &BackendView) -> bool {
    backend.state != BackendState::Down && backend.next_hop.is_none()
}

pub fn totals(shared: &Shared, reference: BackendRef) -> Totals {
    let counted = shared.counters.backend(reference.id());
    Totals {
        flows: counted.flows,
        packets: counted.packets,
        bytes: counted.bytes,
    }
}

pub fn backends(shared: &Shared, filter: &Filter) -> Result<Vec<types::Backend>, Refusal> {
    let view = shared.view();
    let census = if filter.now {
        shared.count_flows()
    } else {
        shared.census()
    };
    let mut shown = Vec::new();
    for service in chosen(&view, filter)? {
        let counted = service
            .backends
            .values()
            .map(|backend| new_flows(shared, backend));
        let observed_flows: u64 = counted.sum();
        let of_service = Observed {
            flows: observed_flows,
            service,
            census: &census,
        };
        let wanted = service
            .backends
            .iter()
            .filter(|(address, _)| matches_backend(filter, **address));
        shown.extend(wanted.map(|(address, backend)| of_service.show(*address, backend, shared)));
    }
    if shown.is_empty()
        && let Some(address) = filter.backend
    {
        let error = format!("there is no backend {address} here");
        return Err(Refusal::new(
            RefusalKind::NotFound,
            error,
            "list them with `evenkeel backends`",
        ));
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
            state: backend.state,
            health: backend.health.as_ref().map(|health| {
                health.passes.map_or(Health::Unchecked, |passes| {
                    if passes { Health::Passes } else { Health::Fails }
                })
            }),
            fails: backend.health.as_ref().and_then(|health| health.reason.clone()),
            mode: backend.mode,
            weight: backend.spec.weight,
            sources: backend.sources.iter().cloned().collect(),
            next_hop: backend.next_hop.clone(),
            unresolved: backend.unresolved.clone(),
            expected_share: backend.expected_share,
            observed_share: (self.flows > 0).then_some(share),
            observed_flows: self.flows,
            active_flows: backend
                .reference
                .map_or(0, |reference| self.census.usage.active(reference)),
            totals: backend
                .reference
                .map(|reference| totals(shared, reference))
                .unwrap_or_default(),
        }
    }
}

/// New flows since the service's table last changed.
fn new_flows(shared: &Shared, backend: &BackendView) -> u64 {
    let flows = backend
        .reference
        .map_or(0, |reference| shared.counters.backend(reference.id()).flows);
    flows.saturating_sub(backend.flows_before)
}

pub(super) fn chosen<'a>(view: &'a View, filter: &Filter) -> Result<Vec<&'a Arc<ServiceView>>, Refusal> {
    let Some(name) = &filter.service else {
        return Ok(view.services.values().collect());
    };
    let found = view.services.get(name).ok_or_else(|| {
        let error = format!("there is no service {name:?}");
        Refusal::new(RefusalKind::NotFound, error, "list them with `evenkeel services`")
    })?;
    Ok(vec![found])
}

pub(super) fn matches_backend(filter: &Filter, address: IpAddr) -> bool {
    filter
        .backend
        .is_none_or(|wanted| wanted.to_canonical() == address)
}

/// The spread of new flows, of one service or of all.
pub fn skew(shared: &Shared, filter: &Filter) -> Result<SkewReport, Refusal> {
    let desk = shared.skew.get().ok_or_else(not_watched)?;
    let name = filter.service.as_deref();
    desk.report(name).ok_or_else(|| {
        let error = format!("there is no service {:?}", name.unwrap_or_default());
        Refusal::new(RefusalKind::NotFound, error, "list them with `evenkeel services`")
    })
}

/// Counters of the spread as they are now.
pub fn skew_counters(shared: &Shared) -> Result<Reading, Refusal> {
    Ok(shared.skew.get().ok_or_else(not_watched)?.reading())
}

fn not_watched() -> Refusal {
    let error = "the daemon does not watch the spread yet: it is starting";
    Refusal::new(
        RefusalKind::Unavailable,
        error,
        "ask again when `evenkeel status` says ready",
    )
}

pub fn seeds(shared: &Shared) -> Vec<Seed> {
    let now = Instant::now();
    let view = shared.view();
    let shown = (0u32..).zip(&view.seeds).map(|(index, seed)| Seed {
        cpu: index.checked_sub(seed::of_cpu(0)),
        generation: seed.generation,
        age_seconds: seed.age().as_secs(),
        next_rotation_seconds: seed
            .next
            .map(|next| next.saturating_duration_since(now).as_secs()),
        fresh_fill: shared.counters.fresh_fill(index),
    });
    shown.collect()
}
