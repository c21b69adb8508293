//! T11: what a check of a large box costs in time and memory.

use tests::simulation::cost::{ROUNDS, SERVICES, measure};

use crate::{
    chance::rng,
    lab::Lab,
    row::{Limit, Row, Unit},
};

pub fn cost(lab: &mut Lab) {
    let services = lab.size(SERVICES, 10);
    let cost = measure(services, &mut rng(lab.seed, "T11", 0));
    let held = |scenario: &str, measured: f64, unit: Unit, limit: f64| {
        Row::new("T11", scenario, measured, unit, Limit::AtMost(limit))
    };
    let scenario = "1,000 services of 1,000 backends: memory, last counters included";
    lab.push(
        held(scenario, cost.services_mb, Unit::Megabytes, 100.0)
            .study(68.0)
            .from(1, "box"),
    );
    if !lab.timing {
        return;
    }
    let scenario = "1,000 services of 1,000 backends, 1,000 flows each: CPU time of a check";
    lab.push(
        held(scenario, cost.services_ms, Unit::Milliseconds, 60.0)
            .study(26.0)
            .from(ROUNDS as u64, "checks"),
    );
    let scenario = "65 histograms, 16 flows each: CPU time of a check";
    lab.push(
        held(scenario, cost.histograms_ms, Unit::Milliseconds, 2.0)
            .study(0.4)
            .from(ROUNDS as u64, "checks"),
    );
}
