//! What people see, for the states that matter.

use super::{render, *};
use crate::{
    cli::table::Paint,
    state::desired::BackendState,
    watch::report::{
        BackendSkew, CauseName, CpuSkew, EffectSkew, EpochSkew, RatioSkew, Remedies, RemedyDone, SelfCheck,
        ServiceSkew, SeverityName, StateName, Warning, WarningName,
    },
};

fn backend(last: u8, expected: f64, fresh: u64, [low, high]: [f64; 2]) -> BackendSkew {
    BackendSkew {
        endpoint: [10, 0, 0, last].into(),
        state: BackendState::Serving,
        expected,
        observed: Some(fresh as f64 / 6000.0),
        low,
        high,
        fresh_flows: fresh,
        flows: fresh + 40,
        packets: fresh * 11,
        evidence: 0.4,
    }
}

fn ratio(last: u8, ratio: f64, [low, high]: [f64; 2]) -> RatioSkew {
    RatioSkew {
        endpoint: [10, 0, 0, last].into(),
        ratio,
        low,
        high,
    }
}

fn quiet_service(name: &str) -> ServiceSkew {
    ServiceSkew {
        service: name.into(),
        state: StateName::Quiet,
        severity: SeverityName::None,
        cause: Some(CauseName::Healthy),
        scope: None,
        explanation: "new flows are spread as the slots say".into(),
        since_seconds: 86_400.0,
        onset_seconds_ago: None,
        flows: 6120,
        fresh_flows: 6000,
        packets: 66_000,
        evidence: 2.1,
        threshold: 22.6,
        alarm_evidence: None,
        effect: EffectSkew {
            cv: 0.004,
            cv_low: 0.0,
            cv_high: Some(0.041),
            tv: 0.008,
            tv_low: 0.0,
            tv_high: 0.028,
            max_ratio: Some(ratio(2, 1.02, [0.95, 1.09])),
            min_ratio: Some(ratio(1, 0.98, [0.91, 1.05])),
        },
        backends: vec![
            backend(1, 0.25, 1470, [0.228, 0.263]),
            backend(2, 0.25, 1530, [0.238, 0.273]),
            backend(3, 0.5, 3000, [0.48, 0.52]),
        ],
        heavy_flows: vec![],
        done: vec![],
        todo: vec![],
        seeds: None,
    }
}

fn cpu(cpu: Option<u32>, fresh_flows: u64) -> CpuSkew {
    CpuSkew {
        cpu,
        fresh_flows,
        evidence: 1.2,
        threshold: 25.4,
        entropy_bits: 7.97,
        expected_entropy_bits: 7.97,
        alarm: false,
        seed_generation: cpu.map(|_| 4),
    }
}

fn check(name: &str, detail: &str) -> SelfCheck {
    SelfCheck {
        name: name.into(),
        ok: true,
        checked_seconds_ago: Some(0.4),
        detail: detail.into(),
    }
}

pub(in crate::cli) fn quiet() -> SkewReport {
    SkewReport {
        at: 1_767_225_599_999,
        interval_seconds: 1.0,
        streams: 4,
        ln_threshold: 18.7,
        false_alarms_per_year: 1.0,
        auto_heal: true,
        window_seconds: 60.0,
        services: vec![quiet_service("web")],
        cpus: vec![cpu(None, 6000), cpu(Some(0), 3000), cpu(Some(1), 3000)],
        self_checks: vec![
            check("seeds", "3 seeds are as written"),
            check("slots", "2 tables are as published"),
        ],
        warnings: vec![],
        remedies: Remedies {
            left_in_budget: 4,
            next_allowed_seconds: Some(0.0),
            last: vec![],
        },
    }
}

/// One CPU of two names a single slot.
pub(in crate::cli) fn firing() -> SkewReport {
    let mut report = quiet();
    report.services[0] = ServiceSkew {
        state: StateName::Firing,
        severity: SeverityName::Page,
        cause: Some(CauseName::HashFailure),
        scope: Some("CPU 1".into()),
        explanation: "the hash does not spread on CPU 1: 99.2% of new keys fall into 1 of 256 buckets, which should get 0.39%"
            .into(),
        since_seconds: 3.2,
        onset_seconds_ago: Some(5.0),
        evidence: 3.0,
        alarm_evidence: Some(41.2),
        effect: EffectSkew {
            cv: 0.61,
            cv_low: 0.58,
            cv_high: Some(0.64),
            tv: 0.37,
            tv_low: 0.338,
            tv_high: 0.39,
            max_ratio: Some(ratio(2, 2.48, [2.41, 2.55])),
            min_ratio: Some(ratio(1, 0.5, [0.45, 0.55])),
        },
        backends: vec![
            backend(1, 0.25, 750, [0.113, 0.138]),
            backend(2, 0.25, 3720, [0.602, 0.638]),
            backend(3, 0.5, 1530, [0.238, 0.273]),
        ],
        done: vec!["asked for new seeds of CPU 1".into()],
        todo: vec!["nothing yet: a remedy is at work, and this says whether it helps".into()],
        ..quiet_service("web")
    };
    report.cpus[2] = CpuSkew {
        alarm: true,
        entropy_bits: 0.09,
        evidence: 212.0,
        ..cpu(Some(1), 3000)
    };
    report.services.push(quiet_service("zz"));
    report
}

fn shown(report: &SkewReport) -> String {
    render::report(report, false, Paint::PLAIN)
}

#[test]
fn a_quiet_box_is_one_screen() {
    assert_eq!(code(&quiet()), exit::OK);
    insta::assert_snapshot!(shown(&quiet()));
}

#[test]
fn an_alarm_says_what_where_since_when_and_what_to_do() {
    assert_eq!(code(&firing()), exit::UNEVEN);
    insta::assert_snapshot!(shown(&firing()));
}

#[test]
fn healing_tells_what_was_done() {
    let mut report = firing();
    report.services.truncate(1);
    report.services[0].state = StateName::Healing;
    report.services[0].done = vec!["rotated the seeds of CPU 1".into()];
    report.remedies = Remedies {
        left_in_budget: 3,
        next_allowed_seconds: Some(57.4),
        last: vec![RemedyDone {
            at: 1_767_225_598_000,
            remedy: "rotate-seeds".into(),
            service: "web".into(),
            ok: true,
            text: "rotated the seeds of CPU 1".into(),
        }],
    };
    assert_eq!(code(&report), exit::UNEVEN);
    insta::assert_snapshot!(shown(&report));
}

#[test]
fn too_little_traffic_says_how_much_it_takes() {
    let mut report = quiet();
    let service = &mut report.services[0];
    service.cause = Some(CauseName::TooLittleData);
    service.explanation =
        "12 fresh flows, of 310 that it takes to see a doubled share; so few show nothing yet".into();
    (service.flows, service.fresh_flows, service.evidence) = (12, 0, 0.0);
    for backend in &mut service.backends {
        (backend.observed, backend.fresh_flows, backend.flows) = (None, 0, 4);
        (backend.low, backend.high) = (0.0, 1.0);
    }
    report.cpus = vec![cpu(None, 0), cpu(Some(0), 0)];
    report.auto_heal = false;
    assert_eq!(code(&report), exit::OK);
    insta::assert_snapshot!(shown(&report));
}

#[test]
fn a_failed_self_check_is_an_alarm_without_traffic() {
    let mut report = quiet();
    report.self_checks[0].ok = false;
    report.self_checks[0].detail = "the seed of CPU 1 is zero".into();
    assert_eq!(code(&report), exit::UNEVEN);
    let text = shown(&report);
    assert!(
        text.starts_with("BROKEN   self-check seeds: the seed of CPU 1 is zero\n"),
        "{text}"
    );
}

#[test]
fn a_warning_is_told_after_everything_that_is_worse() {
    let mut report = quiet();
    report.warnings = vec![Warning {
        warning: WarningName::Weights,
        object: "web".into(),
        since_seconds: 90.0,
        text: "its 17 slots do not stand for its weights: 10.0.0.1 owns 5.9% of them and should own 1.0%"
            .into(),
        todo: "give web a larger table, slots = 2000 or more, or weights that differ less".into(),
    }];
    assert_eq!(code(&report), exit::OK, "a setting is no fault");
    insta::assert_snapshot!(shown(&report));
    report.services[0].state = StateName::Suspected;
    assert!(shown(&report).starts_with("WATCHING"), "{}", shown(&report));
    // Slow evidence that holds whatever the clients are is an alarm.
    report.warnings[0].warning = WarningName::Seeds;
    assert!(
        shown(&report).starts_with("UNEVEN (slowly)   web: "),
        "{}",
        shown(&report)
    );
    assert_eq!(code(&report), exit::UNEVEN);
    report.services = firing().services;
    assert!(shown(&report).starts_with("UNEVEN (page)"), "{}", shown(&report));
}

#[test]
fn seeds_that_have_ended_are_told_with_their_evidence() {
    let mut report = quiet();
    report.services[0].seeds = Some(EpochSkew {
        ended: 0,
        evidence: 0.0,
        threshold: 21.9,
    });
    assert!(!shown(&report).contains("have ended"));
    report.services[0].seeds = Some(EpochSkew {
        ended: 12,
        evidence: 1.5,
        threshold: 21.9,
    });
    let text = shown(&report);
    assert!(
        text.contains(
            "12 seeds have ended; whatever the clients are, evidence of 1.5 nats, and an alarm takes 21.9"
        ),
        "{text}"
    );
}

#[test]
fn the_window_is_as_long_as_what_was_counted() {
    let mut report = quiet();
    report.window_seconds = 3.0;
    assert!(
        shown(&report)
            .starts_with("EVEN   new flows are spread as the slots say; 6,000 fresh flows in the last 3s\n")
    );
    report.window_seconds = 0.0;
    report.services[0].fresh_flows = 0;
    report.services[0].cause = None;
    assert!(shown(&report).starts_with("TOO LITTLE TRAFFIC   nothing counted yet: too few to tell\n"));
}

#[test]
fn an_alarm_of_the_hash_shows_the_evidence_of_the_hash_and_a_found_fault_none() {
    let mut report = firing();
    report.services[0].alarm_evidence = None;
    let text = shown(&report);
    assert!(
        text.contains("less than once in a billion years at most (212.0 nats; an alarm takes 25.4)"),
        "{text}"
    );
    report.services[0].cause = Some(CauseName::SeedFailure);
    let text = shown(&report);
    assert!(
        text.contains("evidence  certain: found by reading back"),
        "{text}"
    );
}

#[test]
fn many_backends_show_the_worst_first() {
    let mut report = quiet();
    let off = BackendSkew {
        observed: Some(0.9),
        ..backend(200, 0.01, 60, [0.8, 0.95])
    };
    report.services[0].backends = (1..100)
        .map(|last| backend(last, 0.01, 60, [0.0, 0.02]))
        .chain([off])
        .collect();
    let text = shown(&report);
    assert!(
        text.contains("and 80 that are off less: evenkeel skew web"),
        "{text}"
    );
    let mut rows = text.lines().skip_while(|line| !line.starts_with("  BACKEND"));
    let first = rows.nth(1).unwrap_or_default();
    assert!(first.trim_start().starts_with("10.0.0.200 "), "{text}");
    let full = render::report(&report, true, Paint::PLAIN);
    assert_eq!(full.lines().filter(|line| line.contains("serving")).count(), 100);
}

#[test]
fn json_is_stable_and_comes_back() {
    let text = serde_json::to_string(&firing()).unwrap();
    assert_eq!(serde_json::from_str::<SkewReport>(&text).unwrap(), firing());
    insta::assert_json_snapshot!(firing());
}

/// No daemon: the code and the next step that scripts and people rely on.
#[tokio::test]
async fn without_a_daemon_it_says_how_to_start_one() {
    let directory = tempfile::tempdir().unwrap();
    let context = Context {
        socket: Some(directory.path().join("none.sock")),
        json: false,
    };
    for record in [None, Some(directory.path().join("record"))] {
        let args = Args {
            service: None,
            record,
            length: Duration::from_secs(1),
        };
        let error = run(args, &context).await.unwrap_err();
        assert_eq!(exit::print_failure(&error, false), exit::UNREACHABLE);
    }
    assert!(!directory.path().join("record").exists());
}
