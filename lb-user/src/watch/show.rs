//! From what the monitor knows to the words of the interface.

mod checks;

use std::{net::IpAddr, time::Duration};

use lb_common::seed::of_cpu;

use super::{
    incident::Incident,
    monitor::Monitor,
    report::{
        BackendCounts, CpuSkew, EffectSkew, EpochSkew, HeavyFlowSkew, Names, Remedies, ServiceSkew,
        SkewReport, StateName, Warning, WarningName, advice, backend_rows, cause_of, evidence_of,
        explanation, scope_of, withheld,
    },
    service::ServiceWatch,
};
use crate::skew::attribution::{Place, SeedFault, SeedFinding, Verdict};

pub(super) use checks::self_checks;

pub(super) fn report(monitor: &Monitor, only: Option<&str>, now_ms: u64) -> SkewReport {
    let wanted = |service: &&ServiceWatch| only.is_none_or(|name| &*service.table.name == name);
    let mut services: Vec<ServiceSkew> = monitor
        .services
        .values()
        .filter(wanted)
        .map(|service| of_service(monitor, service))
        .collect();
    services.sort_by(|a, b| a.service.cmp(&b.service));
    let settings = &monitor.settings;
    SkewReport {
        at: now_ms,
        interval_seconds: settings.interval.as_secs_f64(),
        streams: monitor.streams,
        ln_threshold: monitor.ln_arl,
        false_alarms_per_year: settings.false_alarms_per_year,
        auto_heal: settings.auto_heal,
        window_seconds: settings.interval.as_secs_f64() * f64::from(monitor.histograms.pooled.trail.checks()),
        services,
        cpus: cpus(monitor),
        self_checks: self_checks(monitor),
        warnings: warnings(monitor, only),
        remedies: remedies(monitor),
    }
}

/// Whose alarm a service shows: its own, or the box's where that is about this service too.
pub(super) fn incident_of<'a>(monitor: &'a Monitor, service: &'a ServiceWatch) -> &'a Incident {
    let own = &service.incident;
    let other = &monitor.the_box;
    let rank = |incident: &Incident| match incident.name() {
        StateName::Quiet => 0,
        StateName::Resolved => 1,
        StateName::Suspected => 2,
        StateName::Healing => 3,
        StateName::Firing => 4,
    };
    if rank(other) > rank(own) && monitor.concerns(service) {
        other
    } else {
        own
    }
}

fn of_service(monitor: &Monitor, service: &ServiceWatch) -> ServiceSkew {
    let incident = incident_of(monitor, service);
    let endpoints: Vec<IpAddr> = service
        .table
        .members
        .iter()
        .map(|member| member.endpoint)
        .collect();
    let names = Names {
        service: &service.table.name,
        backends: &endpoints,
    };
    let [fresh, flows, packets] = service.totals();
    let counts: Vec<BackendCounts> = service
        .table
        .members
        .iter()
        .enumerate()
        .map(|(place, member)| BackendCounts {
            endpoint: member.endpoint,
            state: member.state,
            fresh: fresh[place],
            flows: flows[place],
            packets: packets[place],
        })
        .collect();
    let (evidence, threshold) = evidence_of(&service.stream);
    let alarm = service.stream.alarm();
    let verdict = incident.shown();
    ServiceSkew {
        service: service.table.name.to_string(),
        state: incident.name(),
        severity: incident.severity(),
        cause: verdict.map(|verdict| cause_of(&verdict.cause)),
        scope: verdict
            .filter(|verdict| verdict.cause.is_fault())
            .map(|verdict| scope_of(&verdict.scope)),
        explanation: verdict.map_or_else(
            || "not looked at yet".to_owned(),
            |verdict| explanation(verdict, names),
        ),
        since_seconds: seconds(monitor.at.saturating_sub(incident.since)),
        onset_seconds_ago: onset(monitor, service, incident),
        flows: flows.iter().sum(),
        fresh_flows: fresh.iter().sum(),
        packets: packets.iter().sum(),
        evidence,
        threshold,
        alarm_evidence: alarm.map(|alarm| alarm.max_s.max(alarm.ln_dense)),
        effect: EffectSkew::of(&service.effect(), &endpoints),
        seeds: service.epochs.as_ref().map(|epochs| EpochSkew {
            ended: epochs.ended(),
            evidence: epochs.evidence(),
            threshold: epochs.threshold(),
        }),
        backends: backend_rows(&service.stream, &counts),
        heavy_flows: heavy_flows(monitor, service),
        done: incident.done.clone(),
        todo: todo(monitor, incident, verdict, names),
    }
}

/// Flows that have less than this part of the packets are not shown.
const HEAVY: f64 = 0.05;
/// Twenty flows cannot have more than a twentieth each, beside estimates.
const HEAVY_FLOWS: usize = 20;

fn heavy_flows(monitor: &Monitor, service: &ServiceWatch) -> Vec<HeavyFlowSkew> {
    let packets = &monitor.sampled.packets;
    let flows = packets
        .heaviest(service.table.service.id, HEAVY_FLOWS)
        .into_iter();
    flows
        .take_while(|flow| flow.packets >= HEAVY)
        .filter_map(|flow| {
            let mut members = service.table.members.iter();
            let member = members.find(|member| member.reference == flow.backend)?;
            Some(HeavyFlowSkew {
                client: flow.client(),
                endpoint: member.endpoint,
                packets: flow.packets,
                octets: flow.octets,
            })
        })
        .collect()
}

fn onset(monitor: &Monitor, service: &ServiceWatch, incident: &Incident) -> Option<f64> {
    if !incident.name().is_alarm() {
        return None;
    }
    let interval = monitor.settings.interval.as_secs_f64();
    let by_stream = service.stream.alarm().map(|alarm| {
        let checks = service.stream.checks().saturating_sub(alarm.since);
        f64::from(checks) * interval
    });
    by_stream.or_else(|| {
        let first = incident.alarm_check?;
        Some(f64::from(monitor.checks.saturating_sub(first)) * interval)
    })
}

fn todo(monitor: &Monitor, incident: &Incident, verdict: Option<&Verdict>, names: Names<'_>) -> Vec<String> {
    let Some(verdict) = verdict.filter(|_| incident.name() != StateName::Resolved) else {
        return Vec::new();
    };
    let healing = incident.name() == StateName::Healing;
    let mut todo: Vec<String> = incident
        .withheld()
        .filter(|_| verdict.cause.is_fault())
        .map(|why| withheld(why, monitor.at))
        .into_iter()
        .collect();
    todo.extend(advice(verdict, names, healing));
    todo
}

fn cpus(monitor: &Monitor) -> Vec<CpuSkew> {
    let generation = |cpu: u32| {
        let mut findings = monitor.findings.seeds.iter();
        match findings.find(|finding| finding.place == Place::Cpu(cpu)) {
            Some(SeedFinding {
                fault: SeedFault::Zero,
                ..
            }) => Some(0),
            Some(SeedFinding {
                fault: SeedFault::Generation { found, .. },
                ..
            }) => Some(*found),
            _ => monitor
                .published
                .seeds
                .get(&of_cpu(cpu))
                .map(|seed| seed.generation),
        }
    };
    let pooled = &monitor.histograms.pooled;
    let all = CpuSkew::of(None, &pooled.stream, &pooled.trail.totals(), None);
    let cpus = monitor.histograms.cpus.iter().map(|(cpu, histogram)| {
        CpuSkew::of(
            Some(*cpu),
            &histogram.stream,
            &histogram.trail.totals(),
            generation(*cpu),
        )
    });
    std::iter::once(all).chain(cpus).collect()
}

/// A filter that is in doubt is among the self-checks.
fn warnings(monitor: &Monitor, only: Option<&str>) -> Vec<Warning> {
    let standing = monitor.warnings.standing.iter();
    let shown = standing.filter(|((name, service, _), standing)| {
        let wanted = service.is_none() || only.is_none_or(|only| standing.said.object == only);
        wanted && *name != WarningName::FreshKeysStarved
    });
    let mut warnings: Vec<Warning> = shown
        .map(|((name, ..), standing)| Warning {
            warning: *name,
            object: standing.said.object.clone(),
            since_seconds: seconds(monitor.at.saturating_sub(standing.since)),
            text: standing.said.text.clone(),
            todo: standing.said.todo.clone(),
        })
        .collect();
    warnings.sort_by_key(|warning| !warning.warning.is_alarm());
    warnings
}

fn remedies(monitor: &Monitor) -> Remedies {
    let limits = monitor.settings.limits;
    let recent: Vec<Duration> = monitor
        .granted
        .iter()
        .copied()
        .filter(|then| monitor.at.saturating_sub(*then) < limits.window)
        .collect();
    let left = limits.most.saturating_sub(recent.len() as u32);
    let cooldown = recent.last().map_or(Duration::ZERO, |last| {
        (*last + limits.cooldown).saturating_sub(monitor.at)
    });
    let next = match (left, recent.first()) {
        (0, None) => None,
        (0, Some(first)) => Some(cooldown.max((*first + limits.window).saturating_sub(monitor.at))),
        _ => Some(cooldown),
    };
    Remedies {
        left_in_budget: left,
        next_allowed_seconds: next.map(seconds),
        last: monitor.remedies.iter().cloned().collect(),
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
