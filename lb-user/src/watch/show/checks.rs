//! Self-checks as the interface shows them.

use std::time::Duration;

use super::seconds;
use crate::watch::{monitor::Monitor, report::SelfCheck};

pub(in crate::watch) fn self_checks(monitor: &Monitor) -> Vec<SelfCheck> {
    let (findings, known) = (&monitor.findings, &monitor.known_answers);
    let ago = |then: Duration| seconds(monitor.at.saturating_sub(then));
    let looked = monitor.looked.map(ago);
    let check = |name: &str, ok: bool, ago: Option<f64>, detail: String| SelfCheck {
        name: name.to_owned(),
        ok,
        checked_seconds_ago: ago,
        detail,
    };
    let seeds = match (findings.seeds.len(), monitor.old_seed) {
        (0, Some([age, limit])) => format!(
            "the oldest seed of a CPU is {} s old, and should have been renewed within {} s",
            age.as_secs(),
            limit.as_secs()
        ),
        (0, None) => format!("{} seeds read back as they were written", findings.seeds_read),
        (wrong, _) => format!(
            "{wrong} of {} seeds are not as they were written",
            findings.seeds_read
        ),
    };
    let slots = match findings.tables.len() {
        0 => format!(
            "{} slots of {} tables read back as they were written",
            findings.slots_read, findings.tables_read
        ),
        wrong => {
            let slots: u64 = findings.tables.values().map(|table| u64::from(table.wrong)).sum();
            format!(
                "{slots} slots of {wrong} of {} tables are not as they were written",
                findings.tables_read
            )
        }
    };
    let hash = match &known.error {
        Some(error) => format!("not tested: {error}"),
        None => format!(
            "{} known flows asked on {} CPUs, {} answered wrongly",
            known.checked, known.cpus, known.wrong
        ),
    };
    let audits = monitor.sampled.audits();
    let wrong: u64 = audits
        .iter()
        .map(|audit| audit.wrong_slot + audit.wrong_backend)
        .sum();
    let checked: u64 = audits.iter().map(|audit| audit.checked).sum();
    let fresh = match monitor.warnings.starved().next() {
        Some(said) => said.text.clone(),
        None => "the filters of fresh keys tell new keys among the samples from known ones".to_owned(),
    };
    vec![
        check(
            "seeds",
            findings.seeds.is_empty() && monitor.old_seed.is_none(),
            looked,
            seeds,
        ),
        check(
            "hash",
            known.wrong == 0 && known.error.is_none(),
            known.at.map(ago),
            hash,
        ),
        check("slots", findings.tables.is_empty(), looked, slots),
        check(
            "samples",
            wrong == 0,
            Some(0.0),
            format!("{checked} choices of the last seconds computed again, {wrong} of them wrong"),
        ),
        check(
            "fresh-keys",
            monitor.warnings.starved().next().is_none(),
            looked,
            fresh,
        ),
    ]
}
