//! The statistics of the spread: what a check of a large box takes.

use tests::simulation::{
    chance::rng,
    cost::{BACKENDS, HISTOGRAMS, ROUNDS, SERVICES, measure},
};

use crate::report::{Report, SkewFigures};

pub fn run(report: &mut Report) {
    println!("\nskew statistics: CPU time of a check, medians of {ROUNDS}, and memory");
    let cost = measure(SERVICES, &mut rng(1, "bench", 0));
    let line = |name: String, value: f64, unit: &str| println!("{name:<28} {value:>9.3} {unit}");
    line(format!("check_{SERVICES}x{BACKENDS}"), cost.services_ms, "ms");
    line(format!("memory_{SERVICES}x{BACKENDS}"), cost.services_mb, "MB");
    line(format!("histograms_{HISTOGRAMS}"), cost.histograms_ms, "ms");
    report.skew = Some(SkewFigures {
        check_1000x1000_ms: cost.services_ms,
        memory_mb: cost.services_mb,
        histograms_65_ms: cost.histograms_ms,
    });
}
