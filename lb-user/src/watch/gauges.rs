//! What the metrics show of each service and CPU, without the intervals that only a report needs.

use super::{
    incident::Incident,
    monitor::Monitor,
    report::{self, CauseName, SeverityName, StateName, WarningName, alpha, entropy_bits, evidence_of},
    service::ServiceWatch,
    show::incident_of,
};
use crate::skew::{classical, effect::noise_floor};

/// One service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceGauges {
    pub service: String,
    pub state: StateName,
    pub cause: Option<CauseName>,
    pub severity: SeverityName,
    pub evidence: f64,
    pub threshold: f64,
    /// Less what chance gives.
    pub cv: f64,
    pub tv: f64,
    pub tv_interval: [f64; 2],
    /// Largest and smallest of observed over expected flows; `None` without flows.
    pub ratios: Option<[f64; 2]>,
}

/// One hash histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuGauges {
    /// `all` or a number.
    pub cpu: String,
    pub evidence: f64,
    pub entropy_bits: f64,
}

/// Everything that the metrics show beside counters.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauges {
    pub streams: u64,
    pub false_alarms_per_year: f64,
    pub services: Vec<ServiceGauges>,
    pub cpus: Vec<CpuGauges>,
    /// Self-checks by name, and whether they failed.
    pub self_checks: Vec<(String, bool)>,
    /// Every warning there may be: a service's name or nothing, and whether it stands.
    pub warnings: Vec<(String, WarningName, bool)>,
}

impl Gauges {
    pub fn of(monitor: &Monitor) -> Self {
        let pooled = ("all".to_owned(), &monitor.histograms.pooled);
        let cpus = monitor.histograms.cpus.iter();
        let cpus = cpus.map(|(cpu, histogram)| (cpu.to_string(), histogram));
        Self {
            streams: monitor.streams,
            false_alarms_per_year: monitor.settings.false_alarms_per_year,
            services: monitor
                .services
                .values()
                .map(|service| of_service(service, incident_of(monitor, service)))
                .collect(),
            cpus: std::iter::once(pooled)
                .chain(cpus)
                .map(|(cpu, histogram)| CpuGauges {
                    cpu,
                    evidence: evidence_of(&histogram.stream).0,
                    entropy_bits: entropy_bits(&histogram.trail.totals()),
                })
                .collect(),
            self_checks: monitor.self_checks(),
            warnings: warnings(monitor),
        }
    }
}

fn warnings(monitor: &Monitor) -> Vec<(String, WarningName, bool)> {
    let standing = &monitor.warnings.standing;
    let of_services = monitor.services.iter().flat_map(|(key, service)| {
        [WarningName::Weights, WarningName::Seeds].map(|name| {
            let stands = standing.contains_key(&(name, Some(*key), 0));
            (service.table.name.to_string(), name, stands)
        })
    });
    let of_host = [WarningName::FreshKeysFull, WarningName::FreshKeysStarved].map(|name| {
        let stands = standing.keys().any(|(known, ..)| *known == name);
        (String::new(), name, stands)
    });
    of_services.chain(of_host).collect()
}

fn of_service(service: &ServiceWatch, incident: &Incident) -> ServiceGauges {
    let [fresh, ..] = service.totals();
    let p = service.stream.shares().to_vec();
    let n = fresh.iter().sum::<u64>() as f64;
    let expected = p.iter().filter(|share| **share > 0.0).count();
    let (evidence, threshold) = evidence_of(&service.stream);
    let mut gauges = ServiceGauges {
        service: service.table.name.to_string(),
        state: incident.name(),
        cause: incident.shown().map(|verdict| report::cause_of(&verdict.cause)),
        severity: incident.severity(),
        evidence,
        threshold,
        cv: 0.0,
        tv: 0.0,
        tv_interval: [0.0, 1.0],
        ratios: None,
    };
    if n > 0.0 {
        let chi2 = classical::chi2(&fresh, &p);
        gauges.cv = ((chi2 - expected.saturating_sub(1) as f64).max(0.0) / n).sqrt();
        let pairs = || fresh.iter().zip(&p);
        gauges.tv = pairs()
            .map(|(count, share)| (*count as f64 / n - share).abs())
            .sum::<f64>()
            / 2.0;
        let reach = ((1.0 / alpha()).ln() / (2.0 * n)).sqrt();
        gauges.tv_interval = [
            (gauges.tv - noise_floor(p.len(), n) - reach).max(0.0),
            (gauges.tv + reach).min(1.0),
        ];
        let seen = pairs().filter(|(_, share)| **share > 0.0);
        gauges.ratios = seen.map(|(count, share)| *count as f64 / n / share).fold(
            None,
            |ends: Option<[f64; 2]>, ratio| {
                let [most, least] = ends.unwrap_or([ratio; 2]);
                Some([most.max(ratio), least.min(ratio)])
            },
        );
    }
    gauges
}
