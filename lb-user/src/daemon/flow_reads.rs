//! Answers about the flow table: how full it is, whose flows it holds, and some of them.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use lb_common::{
    counters::Event as Counted,
    flow::{FlowValue, state as flow_state},
    ids::BackendRef,
};

use super::{
    reads::{chosen, matches_backend},
    shared::{Census, Shared},
    view::{ServiceView, View},
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{Filter, Flow, FlowCount, FlowTable, Flows},
    },
    maps,
};

/// Flows listed at most.
const MOST_FLOWS: usize = 10_000;

/// How full, and what was lost.
pub fn flow_table(shared: &Shared, census: &Census) -> FlowTable {
    let capacity = shared.counters.capacity();
    let used = flow_state::NAMES.iter().zip(census.usage.live).skip(1);
    let events = shared.counters.events();
    let lost = EVICTIONS
        .iter()
        .map(|(name, event)| ((*name).to_owned(), events[*event as usize]));
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
    let census = if filter.now {
        shared.count_flows()
    } else {
        shared.census()
    };
    let mut counts = Vec::new();
    for service in &services {
        for (address, backend) in service
            .backends
            .iter()
            .filter(|(address, _)| matches_backend(filter, **address))
        {
            let live = backend
                .reference
                .and_then(|reference| census.usage.by_backend.get(&reference));
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
    let mut answer = Flows {
        table: flow_table(shared, &census),
        counts,
        flows: Vec::new(),
        truncated: false,
    };
    if let Some(limit) = filter.limit {
        list(
            shared,
            &view,
            &services,
            filter,
            state,
            limit.min(MOST_FLOWS),
            &mut answer,
        );
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
        if !wanted(service)
            || !matches_backend(filter, *address)
            || state.is_some_and(|state| state != value.state)
        {
            continue;
        }
        if answer.flows.len() == limit {
            answer.truncated = true;
            return;
        }
        answer
            .flows
            .push(show_flow(fingerprint, value, service, *address, now));
    }
}

fn show_flow(fingerprint: u64, value: FlowValue, service: &ServiceView, backend: IpAddr, now: u32) -> Flow {
    Flow {
        fingerprint: format!("{fingerprint:016x}"),
        service: service.spec.name.clone(),
        backend,
        state: flow_state::NAMES
            .get(usize::from(value.state))
            .unwrap_or(&"unset")
            .to_string(),
        idle_seconds: now.saturating_sub(value.last_seen),
    }
}

fn state_number(name: &str) -> Result<u8, Refusal> {
    let found = flow_state::NAMES
        .iter()
        .position(|known| *known == name)
        .filter(|state| *state > 0);
    found.map(|state| state as u8).ok_or_else(|| {
        let known = flow_state::NAMES[1..].join(", ");
        Refusal::new(
            RefusalKind::Invalid,
            format!("{name:?} is no flow state"),
            format!("use one of: {known}"),
        )
    })
}
