//! What attribution is shown: the box's part, gathered once a check, and each service's.

use lb_common::ids::BackendRef;

use super::{
    histograms::Histograms,
    readback::Findings,
    samples::Sampled,
    service::{ServiceWatch, worst},
};
use crate::skew::{
    Reading,
    attribution::{
        self, Audit, CpuBackends, CpuHash, Evidence, HashEvidence, Heavy, Place, SeedFinding,
        ServiceEvidence, TableRead, Verdict,
    },
};

/// Heaviest keys that are shown.
const HEAVIEST: usize = 64;

/// The part that concerns all services.
pub(super) struct BoxEvidence {
    ln_arl: f64,
    seeds: Vec<SeedFinding>,
    audits: Vec<Audit>,
    shares: Vec<f64>,
    cpus: Vec<(u32, Reading, Vec<u64>)>,
    sum: Reading,
}

impl BoxEvidence {
    pub fn gather(ln_arl: f64, findings: &Findings, sampled: &Sampled, histograms: &Histograms) -> Self {
        let cpus = histograms.cpus.iter();
        Self {
            ln_arl,
            seeds: findings.seeds.clone(),
            audits: sampled.audits(),
            shares: histograms.pooled.stream.shares().to_vec(),
            cpus: cpus
                .map(|(cpu, histogram)| (*cpu, histogram.stream.reading(), histogram.trail.totals()))
                .collect(),
            sum: histograms.pooled.stream.reading(),
        }
    }

    fn hashes(&self) -> Vec<CpuHash<'_>> {
        let cpus = self.cpus.iter();
        cpus.map(|(cpu, reading, fresh)| CpuHash {
            cpu: *cpu,
            reading: *reading,
            fresh,
        })
        .collect()
    }

    /// Why the box is as it is: seeds, hash, and nothing about services.
    pub fn explain(&self) -> Verdict {
        let audits: Vec<Audit> = self
            .audits
            .iter()
            .map(|audit| Audit {
                wrong_backend: 0,
                ..*audit
            })
            .collect();
        attribution::explain(&Evidence {
            ln_arl: self.ln_arl,
            seeds: &self.seeds,
            tables: &[],
            audits: &audits,
            hash: HashEvidence {
                shares: &self.shares,
                cpus: &self.hashes(),
                sum: Some(self.sum),
            },
            service: NOTHING,
        })
    }

    /// Why a service is as it is. `table`: what a look at its slots found.
    pub fn explain_service(
        &self,
        service: &ServiceWatch,
        table: Option<TableRead>,
        sampled: &Sampled,
    ) -> Verdict {
        let shared = service.table.uses_shared_seed();
        let seeds: Vec<SeedFinding> = self
            .seeds
            .iter()
            .filter(|finding| (finding.place == Place::Shared) == shared)
            .copied()
            .collect();
        let id = service.table.service.id;
        let [fresh, all, packets] = service.totals();
        let cpus: Vec<(u32, Option<usize>, Vec<u64>)> = service
            .cpus
            .iter()
            .map(|(cpu, counts)| (*cpu, worst(&counts.stream), counts.trail.totals()))
            .collect();
        let cpus: Vec<CpuBackends<'_>> = cpus
            .iter()
            .map(|(cpu, alarm, fresh)| CpuBackends {
                cpu: *cpu,
                alarm: *alarm,
                fresh,
            })
            .collect();
        let top_keys = heavy_keys(service, sampled);
        let top_flows = heavy_flows(service, packets.iter().sum(), sampled);
        attribution::explain(&Evidence {
            ln_arl: self.ln_arl,
            seeds: &seeds,
            tables: table.as_slice(),
            audits: &sampled.audits_of(id),
            hash: HashEvidence {
                shares: &self.shares,
                cpus: &self.hashes(),
                sum: Some(self.sum),
            },
            service: ServiceEvidence {
                shares: &service.stream.shares().to_vec(),
                fresh: &fresh,
                alarm: service.worst(),
                cpus: &cpus,
                all: &all,
                packets: &packets,
                top_keys: &top_keys,
                top_flows: &top_flows,
                leaving: &service.leaving(),
            },
        })
    }
}

/// Index of a backend among the members.
fn place(service: &ServiceWatch, reference: BackendRef) -> Option<usize> {
    let mut members = service.table.members.iter();
    members.position(|member| member.reference == reference)
}

/// Out of so many packets in the window.
fn heavy_flows(service: &ServiceWatch, packets: u64, sampled: &Sampled) -> Vec<Heavy> {
    let flows = sampled.packets.heaviest(service.table.service.id, HEAVIEST);
    flows
        .into_iter()
        .filter_map(|flow| {
            Some(Heavy {
                count: (flow.packets * packets as f64) as u64,
                backend: place(service, flow.backend)?,
            })
        })
        .collect()
}

fn heavy_keys(service: &ServiceWatch, sampled: &Sampled) -> Vec<Heavy> {
    let keys = sampled.heaviest(service.table.service.id, HEAVIEST);
    keys.into_iter()
        .filter_map(|(count, reference)| {
            Some(Heavy {
                count,
                backend: place(service, reference)?,
            })
        })
        .collect()
}

const NOTHING: ServiceEvidence<'static> = ServiceEvidence {
    shares: &[],
    fresh: &[],
    alarm: None,
    cpus: &[],
    all: &[],
    packets: &[],
    top_keys: &[],
    top_flows: &[],
    leaving: &[],
};
