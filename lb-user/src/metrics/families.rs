//! Metric families built by hand, for values that live in the datapath's memory and not in this crate's counters.

use std::collections::BTreeMap;

use prometheus::{
    core::Desc,
    proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType},
};

use super::full_name;

/// A family's name, kind and help, as the scrape shows them.
pub(super) struct Family {
    pub name: &'static str,
    pub kind: MetricType,
    pub help: &'static str,
}

/// Every family of the collector.
pub(super) const FAMILIES: &[Family] = &[
    gauge("service_backends", "Backends of the service by state."),
    gauge(
        "service_slots",
        "Slots of the service's table in the datapath; 0 while no backend is eligible.",
    ),
    gauge("service_table_generation", "Moves with every new slot table."),
    counter("verdicts_total", "Frames by what became of them and why."),
    counter(
        "datapath_events_total",
        "Things the datapath counted besides verdicts.",
    ),
    gauge("flow_table_slots", "Entries of the flow table."),
    gauge("flow_table_used", "Living entries of the flow table by state."),
    gauge(
        "flow_table_expired",
        "Entries whose time is over and that nothing has replaced yet.",
    ),
    counter(
        "flow_table_evictions_total",
        "Living flows pushed out by the state they had; not_stored: flows that found no room.",
    ),
    gauge("seed_generation", "Generation of a seed; 0 means unset."),
    gauge(
        "seed_age_seconds",
        "Time since this daemon wrote or adopted the seed.",
    ),
    gauge(
        "seed_fresh_fill",
        "Part of the bits of the fresh-key bitmap that are set.",
    ),
    gauge(
        "skew_state",
        "1 for the state of the alarm about the service's spread.",
    ),
    gauge("skew_cause", "1 for why the service's spread is as it is."),
    gauge(
        "skew_severity",
        "Of the service's alarm: 0 none, 1 info, 2 warn, 3 page.",
    ),
    gauge(
        "skew_evidence",
        "Evidence that new flows are spread otherwise than the slots say, in nats.",
    ),
    gauge("skew_evidence_threshold", "Evidence that is an alarm, in nats."),
    gauge(
        "skew_cv",
        "Coefficient of variation of observed over expected flows, less what chance gives.",
    ),
    gauge("skew_tv", "Part of the new flows that is misplaced, as seen."),
    gauge("skew_tv_lower", "Lower end of its 99 % interval."),
    gauge("skew_tv_upper", "Upper end of its 99 % interval."),
    gauge(
        "skew_ratio_max",
        "The largest of the backends' observed over expected flows.",
    ),
    gauge("skew_ratio_min", "The smallest."),
    gauge(
        "skew_hash_evidence",
        "Evidence that a CPU's hash does not spread, in nats.",
    ),
    gauge(
        "skew_hash_entropy_bits",
        "Shannon entropy of a CPU's hash histogram, at most 8 bits.",
    ),
    gauge(
        "skew_warning",
        "1 while it is warned of something beside the alarms of services.",
    ),
    gauge("skew_streams", "Streams of counts that are watched."),
    gauge(
        "skew_false_alarms_per_year",
        "Budget of false alarms in force, of the whole host.",
    ),
    gauge(
        "skew_self_check_failed",
        "1 when the last self-check of its kind failed.",
    ),
    gauge(
        "skew_last_check_timestamp_seconds",
        "When the spread was checked last, seconds since 1970.",
    ),
    gauge("map_capacity", "Entries a map has room for."),
    gauge("map_used", "Entries of a map in use."),
    gauge(
        "interface_attached",
        "1 for an interface the datapath is attached to, by mode.",
    ),
    gauge(
        "discovery_up",
        "1 while the source of the service's backends answers.",
    ),
    gauge(
        "discovery_loaded",
        "1 when there is a state, from the source or from disk.",
    ),
    gauge(
        "discovery_stale_seconds",
        "How long what is believed of the source was not confirmed; 0 while it answers.",
    ),
    gauge(
        "discovery_endpoints",
        "Endpoints of the source that are believed.",
    ),
    counter(
        "discovery_updates_total",
        "States and changes that the source told.",
    ),
    counter("discovery_failures_total", "Times that the source failed."),
    counter(
        "discovery_refused_total",
        "Entries of the source that cannot be endpoints.",
    ),
    gauge(
        "guard_held",
        "Endpoints that the source took away and that stay for the time being.",
    ),
    gauge(
        "health_backends",
        "Backends that are checked, by what their checks say.",
    ),
    gauge(
        "health_panic",
        "1 while the service's checks are not believed, since too few of its backends pass.",
    ),
    counter(
        "health_checks_total",
        "Checks of the service's backends by result; unable: not made for a reason on this host.",
    ),
    gauge(
        "health_lateness_seconds",
        "Longest time from when a check was due to its start, since the daemon started.",
    ),
    gauge(
        "vip_announced",
        "1 while the VIP is an address of this host; 0 while it should be and its services cannot serve.",
    ),
    gauge("ready", "1 when the daemon is ready."),
    gauge(
        "degraded",
        "1 when something works less well than it should; `evenkeel status` says what.",
    ),
    counter("events_total", "Events of the daemon by kind."),
    gauge("build_info", "1, with the version as label."),
    gauge(
        "process_start_time_seconds",
        "When the daemon started, seconds since 1970.",
    ),
    gauge("process_resident_memory_bytes", "Resident memory of the daemon."),
    counter(
        "process_cpu_seconds_total",
        "CPU time of the daemon, user and system.",
    ),
    gauge("process_open_fds", "Open file descriptors of the daemon."),
];

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: MetricType::COUNTER,
        help,
    }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: MetricType::GAUGE,
        help,
    }
}

impl Family {
    pub(super) fn desc(&self) -> Desc {
        Desc::new(
            full_name(self.name),
            self.help.to_owned(),
            Vec::new(),
            Default::default(),
        )
        .expect("names and help are not empty")
    }
}

/// Values by family, collected during one scrape.
#[derive(Default)]
pub(super) struct Scrape {
    metrics: BTreeMap<&'static str, Vec<Metric>>,
}

impl Scrape {
    /// Adds a value to one of [`FAMILIES`].
    pub(super) fn add(&mut self, name: &'static str, labels: &[(&str, &str)], value: f64) {
        let mut metric = Metric::from_label(labels.iter().map(|(name, value)| label(name, value)).collect());
        if name.ends_with("_total") {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.metrics.entry(name).or_default().push(metric);
    }

    /// The families that have values, in the order of [`FAMILIES`].
    pub(super) fn into_families(mut self) -> Vec<MetricFamily> {
        let families = FAMILIES.iter().filter_map(|family| {
            let metrics = self.metrics.remove(family.name)?;
            let mut shown = MetricFamily::default();
            shown.set_name(full_name(family.name));
            shown.set_help(family.help.to_owned());
            shown.set_field_type(family.kind);
            shown.set_metric(metrics);
            Some(shown)
        });
        families.collect()
    }
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            assert_eq!(
                family.name.ends_with("_total"),
                family.kind == MetricType::COUNTER,
                "{}",
                family.name
            );
        }
    }
}
