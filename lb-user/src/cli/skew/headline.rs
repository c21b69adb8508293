//! The verdict in one line: is it even, and if not, where and why.

use crate::{
    cli::{
        duration,
        table::{self, Paint},
    },
    watch::report::{CauseName, ServiceSkew, SeverityName, SkewReport, StateName},
};

/// The worst that there is to tell.
pub(in crate::cli) fn headline(report: &SkewReport, paint: Paint) -> String {
    alarm(report, paint)
        .or_else(|| failed_check(report, paint))
        .or_else(|| warned(report, true, paint))
        .or_else(|| suspected(report, paint))
        .or_else(|| warned(report, false, paint))
        .unwrap_or_else(|| quiet(report, paint))
}

fn alarm(report: &SkewReport, paint: Paint) -> Option<String> {
    let loudness = |service: &&ServiceSkew| (service.severity, service.state == StateName::Firing);
    let worst = report.firing().max_by_key(loudness)?;
    let more = match report.firing().count() {
        1 => String::new(),
        2 => "; 1 more service is uneven".to_owned(),
        count => format!("; {} more services are uneven", count - 1),
    };
    Some(format!(
        "{}   {}: {}{more}",
        alarm_word(worst, paint),
        worst.service,
        worst.explanation
    ))
}

fn alarm_word(service: &ServiceSkew, paint: Paint) -> String {
    if service.state == StateName::Healing {
        return paint.warn("HEALING");
    }
    match service.severity {
        SeverityName::Page => paint.bad("UNEVEN (page)"),
        SeverityName::Warn => paint.warn("UNEVEN (warn)"),
        SeverityName::Info | SeverityName::None => paint.warn("UNEVEN (small)"),
    }
}

fn failed_check(report: &SkewReport, paint: Paint) -> Option<String> {
    let check = report.failed_checks().next()?;
    Some(format!(
        "{}   self-check {}: {}",
        paint.bad("BROKEN"),
        check.name,
        check.detail
    ))
}

/// The first warning that is an alarm, or that is none.
fn warned(report: &SkewReport, alarm: bool, paint: Paint) -> Option<String> {
    let mut warnings = report.warnings.iter();
    let warning = warnings.find(|warning| warning.warning.is_alarm() == alarm)?;
    let word = match alarm {
        true => paint.warn("UNEVEN (slowly)"),
        false => paint.warn("WARNING"),
    };
    Some(format!("{word}   {}: {}", warning.object, warning.text))
}

fn suspected(report: &SkewReport, paint: Paint) -> Option<String> {
    let mut services = report.services.iter();
    let service = services.find(|service| service.state == StateName::Suspected)?;
    Some(format!(
        "{}   {} is suspected, no alarm yet; {}",
        paint.warn("WATCHING"),
        service.service,
        flows(report)
    ))
}

fn quiet(report: &SkewReport, paint: Paint) -> String {
    if report.services.is_empty() {
        return "NOTHING TO WATCH   there was no service at the last look".to_owned();
    }
    let unknown = |service: &&ServiceSkew| matches!(service.cause, None | Some(CauseName::TooLittleData));
    let too_little = report.services.iter().filter(unknown).count();
    let flows = flows(report);
    if too_little == report.services.len() {
        return format!("{}   {flows}: too few to tell", paint.warn("TOO LITTLE TRAFFIC"));
    }
    let but = match too_little {
        0 => String::new(),
        1 => ", of 1 service too few to tell".to_owned(),
        _ => format!(", of {too_little} services too few to tell"),
    };
    format!(
        "{}   new flows are spread as the slots say; {flows}{but}",
        paint.good("EVEN")
    )
}

fn flows(report: &SkewReport) -> String {
    let fresh: u64 = report.services.iter().map(|service| service.fresh_flows).sum();
    let seconds = report.window_seconds.round() as u64;
    if seconds == 0 {
        return "nothing counted yet".to_owned();
    }
    let window = duration::show(seconds);
    match fresh {
        1 => format!("1 fresh flow in the last {window}"),
        _ => format!("{} fresh flows in the last {window}", table::count(fresh)),
    }
}
