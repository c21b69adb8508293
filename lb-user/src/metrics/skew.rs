//! The spread of new flows: state, cause, evidence and size by service, hash by CPU, self-checks.

use super::families::Scrape;
use crate::{
    daemon::shared::Shared,
    watch::{
        gauges::ServiceGauges,
        report::{CauseName, StateName},
    },
};

pub(super) fn collect(shared: &Shared, scrape: &mut Scrape) {
    let Some(desk) = shared.skew.get() else {
        return;
    };
    let (gauges, last_check) = desk.gauges();
    for service in &gauges.services {
        of_service(service, scrape);
    }
    for cpu in &gauges.cpus {
        let labels = [("cpu", cpu.cpu.as_str())];
        scrape.add("skew_hash_evidence", &labels, cpu.evidence);
        scrape.add("skew_hash_entropy_bits", &labels, cpu.entropy_bits);
    }
    for (check, failed) in &gauges.self_checks {
        let labels = [("check", check.as_str())];
        scrape.add("skew_self_check_failed", &labels, f64::from(u8::from(*failed)));
    }
    for (service, warning, stands) in &gauges.warnings {
        let labels = [("service", service.as_str()), ("warning", warning.name())];
        scrape.add("skew_warning", &labels, f64::from(u8::from(*stands)));
    }
    scrape.add("skew_streams", &[], gauges.streams as f64);
    scrape.add("skew_false_alarms_per_year", &[], gauges.false_alarms_per_year);
    if let Some(seconds) = last_check {
        scrape.add("skew_last_check_timestamp_seconds", &[], seconds);
    }
}

fn of_service(gauges: &ServiceGauges, scrape: &mut Scrape) {
    let name = ("service", gauges.service.as_str());
    let one = |yes: bool| f64::from(u8::from(yes));
    for state in StateName::ALL {
        let labels = [name, ("state", state.name())];
        scrape.add("skew_state", &labels, one(state == gauges.state));
    }
    for cause in CauseName::ALL {
        let labels = [name, ("cause", cause.name())];
        scrape.add("skew_cause", &labels, one(Some(cause) == gauges.cause));
    }
    let [low, high] = gauges.tv_interval;
    let rows = [
        ("skew_severity", f64::from(gauges.severity.value())),
        ("skew_evidence", gauges.evidence),
        ("skew_evidence_threshold", gauges.threshold),
        ("skew_cv", gauges.cv),
        ("skew_tv", gauges.tv),
        ("skew_tv_lower", low),
        ("skew_tv_upper", high),
    ];
    for (family, value) in rows {
        scrape.add(family, &[name], value);
    }
    if let Some([most, least]) = gauges.ratios {
        scrape.add("skew_ratio_max", &[name], most);
        scrape.add("skew_ratio_min", &[name], least);
    }
}
