//! What concerns the host: hash, self-checks, remedies.

use super::render::seconds;
use crate::{
    cli::table::{self, Paint},
    watch::report::{CpuSkew, SelfCheck, SkewReport, Warning},
};

/// Entropy of the hash: one line, and one for each CPU that is off.
pub(super) fn hash(report: &SkewReport, paint: Paint) -> String {
    let own: Vec<&CpuSkew> = report.cpus.iter().filter(|cpu| cpu.cpu.is_some()).collect();
    let alarmed: Vec<&CpuSkew> = report.cpus.iter().filter(|cpu| cpu.alarm).collect();
    let counting = own.iter().filter(|cpu| cpu.fresh_flows > 0).count();
    let title = paint.head("HASH");
    let all = report.cpus.iter().find(|cpu| cpu.cpu.is_none()).map(entropy);
    let mut text = match (alarmed.len(), all) {
        (0, _) if counting == 0 => format!("{title}       no fresh flow on any CPU\n"),
        (0, Some(all)) => format!(
            "{title}       spreads well on {counting} of {} CPUs with traffic; {all}\n",
            own.len()
        ),
        (0, None) => format!(
            "{title}       spreads well on {counting} of {} CPUs with traffic\n",
            own.len()
        ),
        (_, _) => format!("{title}       {}\n", paint.bad("does not spread:")),
    };
    for cpu in alarmed {
        let name = cpu
            .cpu
            .map_or_else(|| "all CPUs".to_owned(), |cpu| format!("CPU {cpu}"));
        text.push_str(&format!(
            "  {name}: {}, {} fresh flows, evidence {:.1} of {:.1}\n",
            entropy(cpu),
            table::count(cpu.fresh_flows),
            cpu.evidence,
            cpu.threshold
        ));
    }
    text
}

fn entropy(cpu: &CpuSkew) -> String {
    format!(
        "entropy {:.2} of {:.2} bits",
        cpu.entropy_bits, cpu.expected_entropy_bits
    )
}

/// Self-checks in one line, and what failed ones found.
pub(super) fn checks(report: &SkewReport, paint: Paint) -> String {
    if report.self_checks.is_empty() {
        return String::new();
    }
    let shown = |check: &SelfCheck| {
        let when = check
            .checked_seconds_ago
            .map_or_else(|| "not yet".to_owned(), |ago| format!("{} ago", seconds(ago)));
        match (check.ok, check.checked_seconds_ago) {
            (true, Some(_)) => format!("{} {} ({when})", check.name, paint.good("ok")),
            (true, None) => format!("{} {when}", check.name),
            (false, _) => format!("{} {} ({when})", check.name, paint.bad("FAILED")),
        }
    };
    let all: Vec<String> = report.self_checks.iter().map(shown).collect();
    let mut text = format!("{}    {}\n", paint.head("CHECKED"), all.join(", "));
    for check in report.failed_checks() {
        text.push_str(&format!("  {}: {}\n", check.name, check.detail));
    }
    text
}

/// What is worth knowing beside alarms of services.
pub(super) fn warnings(report: &SkewReport, paint: Paint) -> String {
    let shown = |warning: &Warning| {
        format!(
            "  {} ({}, for {}): {}\n    to do: {}\n",
            warning.object,
            warning.warning.name(),
            seconds(warning.since_seconds),
            warning.text,
            paint.head(&warning.todo)
        )
    };
    match report.warnings.is_empty() {
        true => String::new(),
        false => {
            let all: String = report.warnings.iter().map(shown).collect();
            format!("{}\n{all}", paint.warn("WARNINGS"))
        }
    }
}

/// What may be done by itself, and what was.
pub(super) fn remedies(report: &SkewReport, paint: Paint) -> String {
    let remedies = &report.remedies;
    let mut text = format!("{}   ", paint.head("REMEDIES"));
    if report.auto_heal {
        text.push_str(&format!(
            "automatic, {} left in the budget",
            remedies.left_in_budget
        ));
        match remedies.next_allowed_seconds {
            Some(wait) if wait > 0.0 => text.push_str(&format!(", the next allowed in {}", seconds(wait))),
            Some(_) => {}
            None => text.push_str(", none allowed"),
        }
    } else {
        text.push_str(&paint.warn("only by hand (auto_heal is off)"));
        text.push_str(": evenkeel reload, evenkeel seeds rotate --all");
    }
    text.push_str(&format!(
        "; at most {} a year expected of {} streams\n",
        false_alarms(report.false_alarms_per_year),
        table::count(report.streams)
    ));
    for done in &remedies.last {
        let outcome = if done.ok {
            String::new()
        } else {
            format!(" {}", paint.bad("failed"))
        };
        text.push_str(&format!(
            "  {}  {}  {}{outcome}\n",
            table::utc(done.at),
            done.service,
            done.text
        ));
    }
    text
}

fn false_alarms(number: f64) -> String {
    if number == 1.0 {
        "1 false alarm".to_owned()
    } else {
        format!("{number} false alarms")
    }
}
