//! Series of sources, checks and announced VIPs.

use std::time::Instant;

use super::families::Scrape;
use crate::{
    api::types::SourceState,
    daemon::{
        source_reads,
        view::{SourceView, View},
    },
};

pub(super) fn collect(view: &View, scrape: &mut Scrape) {
    let now = Instant::now();
    for source in &view.sources {
        source_series(source, now, scrape);
    }
    for (vip, announced) in &view.vips {
        let vip = vip.to_string();
        scrape.add(
            "vip_announced",
            &[("vip", &vip)],
            f64::from(u8::from(announced.is_ok())),
        );
    }
}

fn source_series(source: &SourceView, now: Instant, scrape: &mut Scrape) {
    let labels = [("service", &*source.service), ("source", &*source.name)];
    let state = source_reads::state(source);
    scrape.add(
        "discovery_up",
        &labels,
        f64::from(u8::from(state == SourceState::Fresh)),
    );
    scrape.add("discovery_loaded", &labels, f64::from(u8::from(source.loaded)));
    scrape.add(
        "discovery_stale_seconds",
        &labels,
        source.health.stale_for(now).as_secs_f64(),
    );
    scrape.add("discovery_endpoints", &labels, source.endpoints as f64);
    scrape.add("discovery_updates_total", &labels, source.health.updates as f64);
    scrape.add("discovery_failures_total", &labels, source.health.failures as f64);
    scrape.add("discovery_refused_total", &labels, source.health.refused as f64);
    let held = source.held.as_ref().map_or(0, |held| held.endpoints.len());
    scrape.add("guard_held", &labels, held as f64);
}
