//! The spread as text: the verdict first, then the numbers behind it.

use super::{chance, headline::headline, host, rows};
use crate::{
    cli::{
        duration,
        table::{self, Paint},
    },
    watch::report::{CauseName, EpochSkew, RatioSkew, ServiceSkew, SeverityName, SkewReport, StateName},
};

/// The whole report; `in_full`: every service with its backends.
pub(in crate::cli) fn report(report: &SkewReport, in_full: bool, paint: Paint) -> String {
    let mut text = format!("{}\n", headline(report, paint));
    let alone = report.services.len() == 1;
    let (told, listed): (Vec<_>, Vec<_>) = report
        .services
        .iter()
        .partition(|service| in_full || alone || service.state != StateName::Quiet);
    for service in &told {
        text.push_str(&format!("\n{}", in_detail(report, service, in_full, paint)));
    }
    if !listed.is_empty() {
        text.push_str(&format!("\n{}", rows::services(&listed, paint)));
    }
    text.push_str(&format!("\n{}", host::hash(report, paint)));
    text.push_str(&host::checks(report, paint));
    text.push_str(&host::warnings(report, paint));
    text.push_str(&host::remedies(report, paint));
    text
}

fn in_detail(report: &SkewReport, service: &ServiceSkew, in_full: bool, paint: Paint) -> String {
    let mut text = format!("{}   {}\n", paint.head(&service.service), state(service, paint));
    let mut line = |name: &str, what: &str| text.push_str(&format!("  {name:<9} {what}\n"));
    line("cause", &cause(service, paint));
    line("evidence", &evidence(report, service));
    for effect in effect(service) {
        line("effect", &effect);
    }
    if let Some(seeds) = service.seeds.as_ref().filter(|seeds| seeds.ended > 0) {
        line("seeds", &ended(seeds));
    }
    for done in &service.done {
        line("done", done);
    }
    for todo in &service.todo {
        line("to do", &paint.head(todo));
    }
    text.push_str(&rows::backends(service, in_full, paint));
    text.push_str(&rows::heavy_flows(service, paint));
    text
}

fn state(service: &ServiceSkew, paint: Paint) -> String {
    let name = service.state.name();
    let shown = match service.state {
        StateName::Quiet => paint.good(name),
        StateName::Firing => paint.bad(name),
        StateName::Suspected | StateName::Healing | StateName::Resolved => paint.warn(name),
    };
    let mut text = match service.severity {
        SeverityName::None => shown,
        severity => format!("{shown} ({})", severity.name()),
    };
    text.push_str(&format!(", for {}", seconds(service.since_seconds)));
    if let Some(onset) = service.onset_seconds_ago {
        text.push_str(&format!("; began about {} ago", seconds(onset)));
    }
    text
}

fn cause(service: &ServiceSkew, paint: Paint) -> String {
    let name = service.cause.map_or("not known yet", CauseName::name);
    let shown = match service.cause {
        Some(cause) if cause.is_fault() => paint.bad(name),
        _ => name.to_owned(),
    };
    let place = service
        .scope
        .as_ref()
        .map_or_else(String::new, |scope| format!(" on {scope}"));
    format!("{shown}{place}: {}", service.explanation)
}

fn evidence(report: &SkewReport, service: &ServiceSkew) -> String {
    let own = (
        service.alarm_evidence.unwrap_or(service.evidence),
        service.threshold,
    );
    let certain = "certain: found by reading back and computing again, not by counting".to_owned();
    let (evidence, threshold) = match (service.state.is_alarm(), service.alarm_evidence) {
        // The alarm is not one of its backends: of the hash, or of a self-check.
        (true, None) if service.cause != Some(CauseName::HashFailure) => return certain,
        (true, None) => match strongest(report) {
            Some(pair) => pair,
            None => return certain,
        },
        _ => own,
    };
    if evidence <= 0.0 {
        return format!("none; an alarm takes {threshold:.1} nats");
    }
    let numbers = format!("{evidence:.1} nats; an alarm takes {threshold:.1}");
    match chance::words(report.years_by_chance(evidence, threshold)) {
        Some(often) => format!("by chance {often} at most ({numbers})"),
        None => format!("as much as chance brings every hour ({numbers})"),
    }
}

/// The slow bets, which hold whatever the clients are.
fn ended(seeds: &EpochSkew) -> String {
    let counted = match seeds.ended {
        1 => "1 seed has ended".to_owned(),
        ended => format!("{} seeds have ended", table::count(ended.into())),
    };
    format!(
        "{counted}; whatever the clients are, evidence of {:.1} nats, and an alarm takes {:.1}",
        seeds.evidence, seeds.threshold
    )
}

/// Of the hash histograms with an alarm.
fn strongest(report: &SkewReport) -> Option<(f64, f64)> {
    let alarmed = report.cpus.iter().filter(|cpu| cpu.alarm);
    let pairs = alarmed.map(|cpu| (cpu.evidence, cpu.threshold));
    let reached = pairs.filter(|(evidence, threshold)| evidence >= threshold);
    reached.max_by(|one, other| (one.0 - one.1).total_cmp(&(other.0 - other.1)))
}

fn effect(service: &ServiceSkew) -> Vec<String> {
    let effect = &service.effect;
    if service.fresh_flows == 0 {
        return vec!["no fresh flow in the window".to_owned()];
    }
    let cv_high = effect.cv_high.map_or_else(|| "…".to_owned(), percent);
    let mut lines = vec![format!(
        "{} of {} fresh flows misplaced (at least {}, at most {}); variation {} ({} to {cv_high})",
        percent(effect.tv),
        table::count(service.fresh_flows),
        percent(effect.tv_low),
        percent(effect.tv_high),
        percent(effect.cv),
        percent(effect.cv_low),
    )];
    let ratio = |name: &str, ratio: &RatioSkew| {
        format!(
            "{name} {} at {:.2} times its share ({:.2} to {:.2})",
            ratio.endpoint, ratio.ratio, ratio.low, ratio.high
        )
    };
    if let (Some(most), Some(least)) = (&effect.max_ratio, &effect.min_ratio)
        && most.endpoint != least.endpoint
    {
        lines.push(format!("{}, {}", ratio("most", most), ratio("least", least)));
    }
    lines
}

/// A time that may be a fraction of a second.
pub(super) fn seconds(seconds: f64) -> String {
    if seconds < 10.0 {
        format!("{:.1}s", seconds.max(0.0))
    } else {
        duration::show(seconds as u64)
    }
}

/// One decimal; nothing that is something looks like nothing.
pub(super) fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.0005 {
        "<0.1%".to_owned()
    } else {
        table::percent(share)
    }
}
