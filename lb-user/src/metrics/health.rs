//! Series of health checks: by service, since backends may be many.

use super::families::Scrape;
use crate::daemon::{
    shared::Shared,
    view::{BackendView, View},
};

pub(super) fn collect(shared: &Shared, view: &View, scrape: &mut Scrape) {
    for (name, service) in &view.services {
        if service.spec.health.is_none() {
            continue;
        }
        let panics = view.panics.contains_key(name);
        scrape.add("health_panic", &[("service", name)], f64::from(u8::from(panics)));
        for (state, number) in by_state(service.backends.values()) {
            scrape.add(
                "health_backends",
                &[("service", name), ("state", state)],
                number as f64,
            );
        }
    }
    let Some(checker) = shared.checker.get() else {
        return;
    };
    for (service, totals) in checker.totals() {
        for (result, number) in [
            ("passed", totals.passed),
            ("failed", totals.failed),
            ("unable", totals.unable),
        ] {
            scrape.add(
                "health_checks_total",
                &[("service", &service), ("result", result)],
                number as f64,
            );
        }
    }
    scrape.add(
        "health_lateness_seconds",
        &[],
        checker.pace().latest.as_secs_f64(),
    );
}

fn by_state<'a>(backends: impl Iterator<Item = &'a BackendView>) -> [(&'static str, usize); 3] {
    let (mut up, mut down, mut unchecked) = (0, 0, 0);
    for health in backends.filter_map(|backend| backend.health.as_ref()) {
        *match health.passes {
            Some(true) => &mut up,
            Some(false) => &mut down,
            None => &mut unchecked,
        } += 1;
    }
    [("up", up), ("down", down), ("unchecked", unchecked)]
}
