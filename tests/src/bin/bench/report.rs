//! The figures as a table for people and as JSON for machines.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Map, Value, json};

/// Everything measured in one run.
#[derive(Default)]
pub struct Report {
    pub packets: Vec<PacketFigures>,
    /// Name → milliseconds.
    pub control: BTreeMap<String, f64>,
    pub flow_table_bytes: f64,
    /// `None` where it was not measured.
    pub skew: Option<SkewFigures>,
    pub health: Option<HealthFigures>,
    pub discovery: Option<DiscoveryFigures>,
    /// By source; empty where it was not measured.
    pub removals: Vec<RemovalFigures>,
    /// By kind; empty where it was not measured.
    pub deaths: Vec<DeathFigures>,
}

/// From the moment a source was told to remove a backend until it was out of the slots.
pub struct RemovalFigures {
    pub source: &'static str,
    pub removals: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub worst_ms: f64,
}

impl RemovalFigures {
    pub fn print(&self) {
        let line = |name: &str, value: f64| {
            println!(
                "{:<28} {value:>9.1} ms",
                format!("removal_{}_{name}", self.source)
            );
        };
        line("p50", self.p50_ms);
        line("p99", self.p99_ms);
        line("worst", self.worst_ms);
    }
}

/// From the death of a backend until it was out of the slots, less `fall` intervals of its checks.
pub struct DeathFigures {
    pub kind: &'static str,
    pub deaths: usize,
    /// Negative where it was out sooner.
    pub beyond_p50_ms: f64,
    pub beyond_worst_ms: f64,
}

impl DeathFigures {
    pub fn print(&self) {
        let line = |name: &str, value: f64| {
            let name = format!("death_{}_{name}", self.kind);
            println!("{name:<28} {value:>9.1} ms beyond fall x interval");
        };
        line("p50", self.beyond_p50_ms);
        line("worst", self.beyond_worst_ms);
    }
}

/// The value that such a share of sorted ones does not exceed.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Of many endpoints from sources, in a daemon of its own.
pub struct DiscoveryFigures {
    pub endpoints: u32,
    /// From the start of the process until all serve.
    pub first_load_ms: f64,
    pub rss_loaded_mb: f64,
    pub rss_churned_mb: f64,
    pub rss_peak_mb: f64,
    pub churn_per_second: u32,
    /// CPU time of the daemon under churn, as a share of one core.
    pub cpu_share: f64,
    /// From a changed file until the map has it, under churn.
    pub propagation_p50_ms: f64,
    pub propagation_p99_ms: f64,
    pub samples: usize,
}

impl DiscoveryFigures {
    pub fn print(&self) {
        let line = |name: &str, value: f64, unit: &str| println!("{name:<28} {value:>9.1} {unit}");
        line("first_load", self.first_load_ms, "ms");
        line("rss_loaded", self.rss_loaded_mb, "MB");
        line("rss_churned", self.rss_churned_mb, "MB");
        line("rss_peak", self.rss_peak_mb, "MB");
        line("cpu_under_churn", 100.0 * self.cpu_share, "% of a core");
        line("propagation_p50", self.propagation_p50_ms, "ms");
        line("propagation_p99", self.propagation_p99_ms, "ms");
    }
}

/// Of checks of many backends on one core, over a stretch of time.
pub struct HealthFigures {
    pub backends: usize,
    /// CPU time of the checking thread, as a share of the time that passed.
    pub cpu_share: f64,
    pub us_per_check: f64,
    /// Checks that were due and that ended.
    pub due: u64,
    pub done: u64,
    /// Longest time from when a check was due to its start.
    pub latest_ms: f64,
}

/// Of one check of the spread.
pub struct SkewFigures {
    /// CPU time for 1,000 services of 1,000 backends, and what these keep in memory.
    pub check_1000x1000_ms: f64,
    pub memory_mb: f64,
    /// CPU time for the histograms of 64 CPUs and their sum.
    pub histograms_65_ms: f64,
}

/// One row of packets.
pub struct PacketFigures {
    pub name: &'static str,
    pub ns: f64,
    pub floor_ns: f64,
    pub lru_ns: f64,
    /// Flows put into Evenkeel's table while measuring.
    pub stored: u64,
    /// Flows that were not stored or displaced a living one.
    pub lost: u64,
    pub packets: u64,
}

impl PacketFigures {
    pub fn header() -> String {
        format!(
            "{:<20} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "packet", "evenkeel", "floor", "lru", "x floor", "x lru", "hit", "loss"
        )
    }

    pub fn line(&self) -> String {
        let percent = |part: u64| 100.0 * part as f64 / self.packets as f64;
        format!(
            "{:<20} {:>8.1} {:>8.1} {:>8.1} {:>8.2} {:>8.2} {:>7.2}% {:>7.4}%",
            self.name,
            self.ns,
            self.floor_ns,
            self.lru_ns,
            self.ns / self.floor_ns,
            self.ns / self.lru_ns,
            (100.0 - percent(self.stored + self.lost)).max(0.0),
            percent(self.lost),
        )
    }
}

impl Report {
    pub fn json(&self) -> Result<String> {
        let packet: Map<String, Value> = self
            .packets
            .iter()
            .map(|row| {
                let figures = json!({
                    "ns": row.ns, "floor_ns": row.floor_ns, "lru_ns": row.lru_ns,
                    "stored": row.stored, "lost": row.lost, "packets": row.packets,
                });
                (row.name.to_owned(), figures)
            })
            .collect();
        let skew = self.skew.as_ref().map(|skew| {
            json!({
                "check_1000x1000_ms": skew.check_1000x1000_ms, "memory_mb": skew.memory_mb,
                "histograms_65_ms": skew.histograms_65_ms,
            })
        });
        let health = self.health.as_ref().map(|health| {
            json!({
                "backends": health.backends, "cpu_share": health.cpu_share, "us_per_check": health.us_per_check,
                "due": health.due, "done": health.done, "latest_ms": health.latest_ms,
            })
        });
        let discovery = self.discovery.as_ref().map(|figures| {
            json!({
                "endpoints": figures.endpoints, "first_load_ms": figures.first_load_ms,
                "rss_loaded_mb": figures.rss_loaded_mb, "rss_churned_mb": figures.rss_churned_mb,
                "rss_peak_mb": figures.rss_peak_mb,
                "churn_per_second": figures.churn_per_second, "cpu_share": figures.cpu_share,
                "propagation_p50_ms": figures.propagation_p50_ms, "propagation_p99_ms": figures.propagation_p99_ms,
                "samples": figures.samples,
            })
        });
        let removals = self.removals.iter().map(|figures| {
            let values = json!({
                "removals": figures.removals, "p50_ms": figures.p50_ms, "p99_ms": figures.p99_ms,
                "worst_ms": figures.worst_ms,
            });
            (figures.source.to_owned(), values)
        });
        let deaths = self.deaths.iter().map(|figures| {
            let values = json!({
                "deaths": figures.deaths, "beyond_p50_ms": figures.beyond_p50_ms,
                "beyond_worst_ms": figures.beyond_worst_ms,
            });
            (figures.kind.to_owned(), values)
        });
        let report = json!({
            "packet": packet,
            "control": self.control,
            "flow_table_bytes_per_flow": self.flow_table_bytes,
            "skew": skew,
            "health": health,
            "discovery": discovery,
            "removals": removals.collect::<Map<_, _>>(),
            "deaths": deaths.collect::<Map<_, _>>(),
        });
        Ok(serde_json::to_string_pretty(&report)? + "\n")
    }
}

impl Report {
    /// Prints and keeps a figure of the control plane.
    pub fn note(&mut self, name: &str, milliseconds: f64) {
        println!("{name:<28} {milliseconds:>9.3} ms");
        self.control.insert(name.to_owned(), milliseconds);
    }
}
