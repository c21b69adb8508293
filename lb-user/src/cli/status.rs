//! `evenkeel status`: one screen that can be read at three in the morning.

use serde::Serialize;

use super::{
    Context, duration, events,
    exit::Outcome,
    flows, services, skew,
    table::{self, Paint, Table},
};
use crate::{
    api::{
        client::ClientError,
        types::{RefusalKind, Seed, Status},
    },
    watch::report::SkewReport,
};

/// Services shown before the rest is left to `evenkeel services`.
const SERVICES_SHOWN: usize = 20;

/// The daemon's status, and its spread in one line.
#[derive(Debug, Serialize)]
struct Screen {
    #[serde(flatten)]
    status: Status,
    /// `None` while the daemon does not watch it yet.
    spread: Option<Spread>,
}

#[derive(Debug, Serialize)]
struct Spread {
    /// An alarm stands or a self-check failed.
    alarm: bool,
    verdict: String,
}

pub(super) async fn run(context: &Context) -> Outcome {
    let client = context.client();
    let status: Status = client.get("/v1/status").await?;
    let report: Result<SkewReport, ClientError> = client.get("/v1/skew").await;
    let report = match report {
        Ok(report) => Some(report),
        Err(ClientError::Refused { failure, .. }) if failure.reason == RefusalKind::Unavailable => None,
        Err(error) => return Err(error.into()),
    };
    let spread = report.as_ref().map(|report| Spread {
        alarm: report.is_alarm(),
        verdict: skew::headline::headline(report, Paint::PLAIN),
    });
    let screen = Screen { status, spread };
    context.print(&screen, |paint| {
        let line = report
            .as_ref()
            .map(|report| skew::headline::headline(report, paint));
        render(&screen.status, line.as_deref(), paint)
    })
}

fn render(status: &Status, spread: Option<&str>, paint: Paint) -> String {
    let mut text = head(status, paint);
    text.push_str(&problems(status, paint));
    text.push_str(&interfaces(status, paint));
    text.push_str(&service_table(status, paint));
    text.push_str(&format!(
        "\n{}  {}\n",
        paint.head("SPREAD"),
        spread.unwrap_or("not watched yet")
    ));
    text.push_str(&format!(
        "{}   {}\n",
        paint.head("FLOWS"),
        flows::fill(&status.flow_table, paint)
    ));
    text.push_str(&format!(
        "{}   {}\n",
        paint.head("SEEDS"),
        seeds(&status.seeds, paint)
    ));
    if !status.recent_events.is_empty() {
        text.push_str(&format!("\n{}\n", paint.head("LAST EVENTS")));
        text.push_str(&events::rows(&status.recent_events, 2, paint));
    }
    text
}

fn head(status: &Status, paint: Paint) -> String {
    let state = match (status.ready, status.problems.is_empty()) {
        (false, _) => paint.bad("NOT READY"),
        (true, false) => paint.warn("READY, WITH PROBLEMS"),
        (true, true) => paint.good("READY"),
    };
    let program = match status.program.as_str() {
        "" => "attached nowhere yet",
        program => program,
    };
    let mut text = format!(
        "{state}   evenkeel {}, up {}, pid {}, revision {}\n  configuration {}\n  datapath      {program}, pinned in {}\n",
        status.version,
        duration::show(status.uptime_seconds),
        status.pid,
        status.revision,
        status.config_file,
        status.pin_directory,
    );
    for reason in &status.not_ready {
        text.push_str(&format!("  {} {reason}\n", paint.bad("not ready:")));
    }
    text
}

fn problems(status: &Status, paint: Paint) -> String {
    if status.problems.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}\n", paint.bad("PROBLEMS"));
    for problem in &status.problems {
        text.push_str(&format!(
            "  {}: {}\n    next: {}\n",
            problem.object, problem.problem, problem.next_step
        ));
    }
    text
}

fn interfaces(status: &Status, paint: Paint) -> String {
    if status.interfaces.is_empty() {
        return format!(
            "\n{}\n",
            paint.bad("Attached to no interface: no traffic is balanced.")
        );
    }
    let mut table = Table::new(&["INTERFACE", "XDP MODE", "NOTE"]);
    for interface in &status.interfaces {
        let mode = if interface.mode == "native" {
            paint.good("native")
        } else {
            paint.warn(&interface.mode)
        };
        table.row([
            interface.name.clone(),
            mode,
            interface.note.clone().unwrap_or_default(),
        ]);
    }
    format!("\n{}", table.render(0, paint))
}

fn service_table(status: &Status, paint: Paint) -> String {
    if status.services.is_empty() {
        return "\nNo services. Add one: evenkeel service add NAME --vip ADDRESS --port PORT --protocol tcp\n".to_owned();
    }
    let mut table = Table::new(&[
        "SERVICE",
        "VIP",
        "PROTO",
        ">SERVING",
        ">DRAINING",
        ">DOWN",
        ">UNRESOLVED",
        ">ACTIVE FLOWS",
        ">NEW FLOWS",
    ]);
    for service in status.services.iter().take(SERVICES_SHOWN) {
        table.row([
            service.name.clone(),
            services::address(service),
            services::protocol(service).to_owned(),
            services::serving(service, paint),
            service.draining.to_string(),
            service.down.to_string(),
            services::trouble(service.unresolved, paint),
            table::count(service.active_flows),
            table::count(service.totals.flows),
        ]);
    }
    let mut text = format!("\n{}", table.render(0, paint));
    if status.services.len() > SERVICES_SHOWN {
        text.push_str(&format!(
            "and {} more: evenkeel services\n",
            status.services.len() - SERVICES_SHOWN
        ));
    }
    text
}

fn seeds(seeds: &[Seed], paint: Paint) -> String {
    let unset: Vec<&Seed> = seeds.iter().filter(|seed| seed.generation == 0).collect();
    let own: Vec<&Seed> = seeds.iter().filter(|seed| seed.cpu.is_some()).collect();
    let generations = (
        own.iter().map(|seed| seed.generation).min(),
        own.iter().map(|seed| seed.generation).max(),
    );
    let mut text = match generations {
        (Some(least), Some(most)) if least == most => format!("{} CPUs at generation {least}", own.len()),
        (Some(least), Some(most)) => format!("{} CPUs at generations {least} to {most}", own.len()),
        _ => "no CPU seeds".to_owned(),
    };
    if let Some(oldest) = own.iter().map(|seed| seed.age_seconds).max() {
        text.push_str(&format!(", oldest {}", duration::show(oldest)));
    }
    if let Some(next) = own.iter().filter_map(|seed| seed.next_rotation_seconds).min() {
        text.push_str(&format!(", next rotation in {}", duration::show(next)));
    }
    if let Some(shared) = seeds.iter().find(|seed| seed.cpu.is_none()) {
        text.push_str(&format!("; shared seed at generation {}", shared.generation));
    }
    if !unset.is_empty() {
        text.push_str(&format!("; {}", paint.bad(&format!("{} unset", unset.len()))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::types::{Event, Interface, Problem},
        events::Kind,
    };

    fn example() -> Status {
        Status {
            version: "0.1.0".into(),
            pid: 4711,
            uptime_seconds: 93_784,
            ready: true,
            not_ready: vec![],
            revision: 12,
            config_file: "/etc/evenkeel/evenkeel.toml".into(),
            pin_directory: "/sys/fs/bpf/evenkeel".into(),
            program: "program 214, tag 8d2b6a9c0f3e1d47".into(),
            interfaces: vec![
                Interface {
                    name: "eth0".into(),
                    index: 2,
                    mode: "native".into(),
                    note: None,
                },
                Interface {
                    name: "eth1".into(),
                    index: 3,
                    mode: "generic".into(),
                    note: Some("the driver has no XDP".into()),
                },
            ],
            services: services::tests::example(),
            flow_table: flows::tests::example(),
            seeds: vec![
                Seed {
                    cpu: None,
                    generation: 1,
                    age_seconds: 93_784,
                    next_rotation_seconds: None,
                    fresh_fill: 0.0,
                },
                Seed {
                    cpu: Some(0),
                    generation: 8,
                    age_seconds: 120,
                    next_rotation_seconds: Some(480),
                    fresh_fill: 0.1,
                },
                Seed {
                    cpu: Some(1),
                    generation: 8,
                    age_seconds: 119,
                    next_rotation_seconds: Some(481),
                    fresh_fill: 0.1,
                },
            ],
            problems: vec![Problem {
                object: "service dns".into(),
                problem: "no backend takes new flows".into(),
                next_step: "see why with `evenkeel backends dns`".into(),
            }],
            recent_events: vec![Event {
                id: 9,
                time_ms: 1_767_225_599_999,
                kind: Kind::NextHop,
                object: "10.0.0.3".into(),
                text: "no longer reachable: neighbour 10.0.0.3 failed".into(),
            }],
        }
    }

    #[test]
    fn status_is_one_screen() {
        let spread = skew::headline::headline(&skew::tests::firing(), Paint::PLAIN);
        let text = render(&example(), Some(&spread), Paint::PLAIN);
        assert!(text.lines().count() <= 40, "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_daemon_that_is_not_ready_says_why() {
        let status = Status {
            ready: false,
            not_ready: vec!["the first state is not loaded".into()],
            interfaces: vec![],
            services: vec![],
            problems: vec![],
            recent_events: vec![],
            ..example()
        };
        insta::assert_snapshot!(render(&status, None, Paint::PLAIN));
    }

    #[test]
    fn json_is_stable() {
        let report = skew::tests::quiet();
        insta::assert_json_snapshot!(Screen {
            status: example(),
            spread: Some(Spread {
                alarm: report.is_alarm(),
                verdict: skew::headline::headline(&report, Paint::PLAIN),
            }),
        });
    }
}
