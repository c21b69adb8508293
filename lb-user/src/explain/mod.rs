//! What would happen to a packet: the datapath's own code, run on copies of the live maps, and what it looked at.

mod live;

use std::net::IpAddr;

use lb_common::{
    backend::{self, Backend, mode},
    flow::FlowValue,
    seed,
    service::ServiceKey,
};
use lb_ebpf::{
    datapath,
    testing::{frame::BufferFrame, packet::Packet},
    verdict::Verdict,
};

use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{Answer, ExplainQuery, Explanation, Stage},
    },
    counters::Counters,
    daemon::view::{View, interface_name, mac},
    maps::{MapError, MapReader, PinnedMaps, Scope},
    state::{
        desired::{Protocol, address_from, key_text, service_key},
        observed::Observed,
    },
};
use live::{LiveTables, Seen};

/// What the answers are made from.
struct Question<'a> {
    query: &'a ExplainQuery,
    frame: Vec<u8>,
    fingerprint: u64,
    ingress: u32,
    observed: &'a Observed,
    counters: &'a Counters,
    view: &'a View,
}

/// Explains a packet on every CPU; CPUs that answer alike stand together.
pub fn explain(query: &ExplainQuery, maps: &PinnedMaps, view: &View) -> Result<Explanation, Refusal> {
    if query.source.is_ipv4() != query.destination.is_ipv4() {
        let error = format!(
            "{} and {} are of different families",
            query.source.ip(),
            query.destination.ip()
        );
        return Err(Refusal::new(
            RefusalKind::Invalid,
            error,
            "give two IPv4 or two IPv6 addresses",
        ));
    }
    let vip = query.destination.ip();
    let keys = [Some(query.destination.port()), None].map(|port| service_key(vip, port, query.protocol));
    let observed = maps
        .observe(&Scope::Services(keys.into()))
        .map_err(|error| unreadable(&error))?;
    let counters = maps.counters();
    let packet = packet(query);
    let settings = observed.settings;
    let question = Question {
        query,
        frame: packet.bytes(),
        fingerprint: packet.fingerprint(&settings.table_key).unwrap_or_default(),
        ingress: view.attached.first().map_or(0, |interface| interface.index),
        observed: &observed,
        counters: &counters,
        view,
    };
    let mut answers: Vec<Answer> = Vec::new();
    for cpu in 0..observed.capacity.possible_cpus.max(1) {
        let answer = question.on_cpu(cpu);
        match answers
            .iter_mut()
            .find(|known| known.stages == answer.stages && known.verdict == answer.verdict)
        {
            Some(known) => known.cpus.push(cpu),
            None => answers.push(answer),
        }
    }
    Ok(Explanation {
        packet: describe(query),
        answers,
    })
}

fn unreadable(error: &MapError) -> Refusal {
    Refusal::new(
        RefusalKind::Failed,
        error.to_string(),
        "look into the daemon's log",
    )
}

fn packet(query: &ExplainQuery) -> Packet {
    let base = match (query.protocol, query.source.is_ipv4()) {
        (Protocol::Tcp, true) => Packet::tcp_v4(),
        (Protocol::Tcp, false) => Packet::tcp_v6(),
        (Protocol::Udp, true) => Packet::udp_v4(),
        (Protocol::Udp, false) => Packet::udp_v6(),
    };
    let packet = base
        .from(&query.source.ip().to_string(), query.source.port())
        .to(&query.destination.ip().to_string(), query.destination.port());
    if query.syn && query.protocol == Protocol::Tcp {
        packet.syn()
    } else {
        packet
    }
}

fn describe(query: &ExplainQuery) -> String {
    let (protocol, kind) = match (query.protocol, query.syn) {
        (Protocol::Tcp, true) => ("tcp", ", first packet (SYN)"),
        (Protocol::Tcp, false) => (
            "tcp",
            ", a packet of a connection (for its first packet add --syn)",
        ),
        (Protocol::Udp, _) => ("udp", ""),
    };
    format!("{protocol} {} > {}{kind}", query.source, query.destination)
}

impl Question<'_> {
    fn on_cpu(&self, cpu: u32) -> Answer {
        let tables = LiveTables::new(cpu, self.observed, self.counters, self.fingerprint);
        let mut frame = BufferFrame::new(&self.frame, self.ingress);
        // Of a whole TCP or UDP packet of no size nothing is left to the other programs.
        let verdict = datapath::handle(&mut frame, &tables, |_, _, _| None);
        let (kind, reason) = verdict.names();
        let found = tables
            .chosen()
            .filter(|_| matches!(verdict, Verdict::Forward { .. }));
        let mut stages = self.stages(&tables);
        stages.push(stage("verdict", verdict_words(verdict, self.ingress)));
        Answer {
            cpus: vec![cpu],
            stages,
            verdict: kind.to_owned(),
            reason: reason.to_owned(),
            backend: found.map(|backend| address_from(&backend.address, backend.family)),
        }
    }

    /// What the datapath looked at, in its order.
    fn stages(&self, tables: &LiveTables<'_>) -> Vec<Stage> {
        let mut stages = Vec::new();
        let vip = self.query.destination.ip();
        let mut flow_told = false;
        for seen in tables.seen() {
            match seen {
                Seen::VipBit(true) => stages.push(stage("vip filter", format!("{vip} may be a VIP"))),
                Seen::VipBit(false) => stages.push(stage("vip filter", format!("{vip} is no VIP"))),
                Seen::FlowBucket if !flow_told => {
                    flow_told = true;
                    stages.push(stage("flow table", self.flow(tables)));
                }
                Seen::FlowBucket => {}
                Seen::Service(key, found) => stages.push(stage("service", self.service(&key, found, vip))),
                Seen::Seed(index, generation) => stages.push(stage("seed", seed_words(index, generation))),
                Seen::Slot(index, reference) => {
                    stages.push(stage("slot", self.slot(index, reference, tables)))
                }
            }
        }
        if let Some(backend) = tables.chosen() {
            stages.push(stage("backend", self.backend(&backend)));
            stages.push(stage("next hop", next_hop(&backend)));
        }
        stages
    }

    fn flow(&self, tables: &LiveTables<'_>) -> String {
        let Some(value) = tables.stored() else {
            return format!("miss: no entry {:016x}", self.fingerprint);
        };
        let words = self.entry_words(value);
        if tables.picked() {
            format!("miss: {words}, which does not count any more")
        } else {
            format!("hit: {words}")
        }
    }

    fn entry_words(&self, value: FlowValue) -> String {
        let state = lb_common::flow::state::NAMES
            .get(usize::from(value.state))
            .unwrap_or(&"unset");
        let idle = self.observed.now.saturating_sub(value.last_seen);
        format!("{state} to backend {:?}, idle {idle} s", value.backend)
    }

    fn service(&self, key: &ServiceKey, found: bool, vip: IpAddr) -> String {
        if *key == ServiceKey::vip_mark(key.address, key.family) {
            return if found {
                format!("{vip} is a VIP")
            } else {
                format!("{vip} is no VIP after all")
            };
        }
        if !found {
            return format!("no service {}", key_text(key));
        }
        let by_key = self.view.services.values().find(|service| service.key == *key);
        let name = by_key.map_or_else(|| format!("of {vip}"), |service| service.spec.name.clone());
        let slots = self
            .observed
            .services
            .get(key)
            .map_or(0, |service| service.slots_count);
        format!("{name} ({}), {slots} slots", key_text(key))
    }

    fn slot(&self, index: u32, reference: lb_common::ids::BackendRef, tables: &LiveTables<'_>) -> String {
        let offset = tables.service_entry().map_or(0, |service| service.slots_offset);
        format!("{} names backend {reference:?}", index.wrapping_sub(offset))
    }

    fn backend(&self, backend: &Backend) -> String {
        let state = match backend.state {
            backend::state::SERVING => "serving",
            backend::state::DRAINING => "draining",
            backend::state::DOWN => "down",
            _ => "unset",
        };
        let mode = match backend.mode {
            mode::DSR => "dsr",
            mode::IPIP => "ipip",
            _ => "no mode",
        };
        format!(
            "{}, {state}, {mode}",
            address_from(&backend.address, backend.family)
        )
    }
}

fn stage(stage: &str, finding: String) -> Stage {
    Stage {
        stage: stage.to_owned(),
        finding,
    }
}

fn seed_words(index: u32, generation: u32) -> String {
    let name = match index.checked_sub(seed::of_cpu(0)) {
        Some(cpu) => format!("of CPU {cpu}"),
        None => "shared".to_owned(),
    };
    if generation == 0 {
        format!("{name}: unset")
    } else {
        format!("{name}, generation {generation}")
    }
}

fn next_hop(backend: &Backend) -> String {
    if !backend.is_resolved() {
        return "none: the backend is unresolved".to_owned();
    }
    let name = interface_name(backend.interface);
    format!(
        "{} dev {name}, MTU {}",
        mac(&backend.mac_destination),
        backend.mtu
    )
}

fn verdict_words(verdict: Verdict, ingress: u32) -> String {
    let (kind, reason) = verdict.names();
    match verdict {
        Verdict::Forward { interface, .. } if interface == ingress => {
            format!("{kind} ({reason}), back out of the interface it came in on")
        }
        Verdict::Forward { interface, .. } => {
            format!("{kind} ({reason}), redirected to {}", interface_name(interface))
        }
        Verdict::Drop(_) | Verdict::Answer(_) => format!("{kind} ({reason})"),
        Verdict::Pass(_) => format!("{kind} ({reason}): this host's own stack gets it"),
    }
}
