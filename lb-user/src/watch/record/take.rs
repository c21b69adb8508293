//! A reading of the running daemon: the datapath's counters joined with what was published and what the watch found.

use std::time::Duration;

use lb_common::seed::{SHARED, of_cpu};

use super::format::{
    AuditRecord, BackendRecord, Check, CpuRecord, Header, HeavyFlowRecord, HeavyRecord, Place, Reading,
    SeedRecord, ServiceRecord, TableFaultRecord, VERSION,
};
use crate::watch::{monitor::Monitor, published::Table, readback::WrongTable, source::Source};

/// Keys recorded of a service.
const HEAVIEST: usize = 64;

/// Reads the counters as they are at `at`, by the clock that the monitor is given; `time_ms` is since 1970.
pub fn take(monitor: &Monitor, source: &impl Source, at: Duration, time_ms: u64) -> Reading {
    let published = &monitor.published;
    let histograms = (0..source.cpus()).map(|cpu| CpuRecord {
        cpu,
        fresh: source.histogram(cpu).to_vec(),
    });
    let histograms: Vec<CpuRecord> = histograms
        .filter(|cpu| cpu.fresh.iter().any(|count| *count > 0))
        .collect();
    let cpus: Vec<u32> = histograms.iter().map(|cpu| cpu.cpu).collect();
    let seeds = published.seeds.iter().map(|(index, seed)| SeedRecord {
        place: match *index {
            SHARED => Place::Shared,
            index => Place::Cpu(index - of_cpu(0)),
        },
        generation: seed.generation,
    });
    let services = published.services.iter().map(|(key, table)| {
        let fault = monitor.findings.tables.get(key).map(table_fault);
        of_service(table, fault, monitor, source, &cpus)
    });
    let mut services: Vec<ServiceRecord> = services.collect();
    services.sort_by(|one, other| one.name.cmp(&other.name));
    Reading {
        header: Header {
            evenkeel_skew_record: VERSION,
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            time_ms,
            cpus: source.cpus(),
            interval_ms: millis(monitor.settings.interval),
            false_alarms_per_year: monitor.settings.false_alarms_per_year,
        },
        check: Check {
            at_ms: millis(at),
            // Another daemon may have made the maps anew.
            source: source.origin().wrapping_add(u64::from(std::process::id())),
            services,
            cpus: histograms,
            seeds: seeds.collect(),
            seed_faults: monitor.findings.seeds.iter().copied().map(Into::into).collect(),
        },
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn table_fault(wrong: &WrongTable) -> TableFaultRecord {
    TableFaultRecord {
        wanted: wrong.read.wanted,
        found: wrong.read.found,
        wrong: wrong.wrong,
        slots: wrong.slots,
    }
}

fn of_service(
    table: &Table,
    table_fault: Option<TableFaultRecord>,
    monitor: &Monitor,
    source: &impl Source,
    cpus: &[u32],
) -> ServiceRecord {
    let service = table.service;
    let backends = table.members.iter().map(|member| {
        let id = member.reference.id();
        let by_cpu: Vec<_> = (0..source.cpus()).map(|cpu| source.backend(cpu, id)).collect();
        BackendRecord {
            endpoint: member.endpoint,
            id,
            generation: member.reference.generation(),
            state: member.state,
            weight: member.weight,
            owned: member.owned,
            fresh: cpus.iter().map(|cpu| by_cpu[*cpu as usize].fresh_flows).collect(),
            flows: by_cpu
                .iter()
                .fold(0, |sum, counted| sum.wrapping_add(counted.flows)),
            packets: by_cpu
                .iter()
                .fold(0, |sum, counted| sum.wrapping_add(counted.packets)),
        }
    });
    let audits = monitor
        .sampled
        .audits_of(service.id)
        .into_iter()
        .map(|audit| AuditRecord {
            cpu: audit.cpu,
            checked: audit.checked,
            wrong_slot: audit.wrong_slot,
            wrong_backend: audit.wrong_backend,
        });
    let heaviest = monitor.sampled.heaviest(service.id, HEAVIEST).into_iter();
    let flows = monitor.sampled.packets.heaviest(service.id, HEAVIEST).into_iter();
    ServiceRecord {
        name: table.name.to_string(),
        id: service.id,
        slots: table.slots.len() as u32,
        table_generation: service.table_generation,
        flags: service.flags,
        backends: backends.collect(),
        table_fault,
        audits: audits.collect(),
        top_keys: heaviest
            .map(|(count, reference)| HeavyRecord {
                count,
                id: reference.id(),
                generation: reference.generation(),
            })
            .collect(),
        top_flows: flows
            .map(|flow| HeavyFlowRecord {
                part: flow.packets,
                id: flow.backend.id(),
                generation: flow.backend.generation(),
            })
            .collect(),
    }
}
