//! The state machine as a table: state, input, what follows.

use proptest::prelude::*;

use super::*;
use crate::skew::attribution::{Cause, HashProof, Place, Scope, SeedFault, SeedFinding, TableProof};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn hash_verdict() -> Verdict {
    Verdict {
        cause: Cause::Hash(HashProof::Audit { wrong: 3, checked: 9 }),
        scope: Scope::Cpus([4].into()),
    }
}

fn table_verdict() -> Verdict {
    Verdict {
        cause: Cause::Table(TableProof::Checksum { wrong: 1, read: 1 }),
        scope: Scope::Global,
    }
}

fn rotation() -> Remedy {
    Remedy::RotateSeeds {
        cpus: Some([4].into()),
    }
}

const CALM: Input<'static> = Input {
    at: Duration::ZERO,
    level: 0.1,
    alarm: false,
    crossed: false,
    relapsed: false,
    severity: Severity::Warn,
    verdict: None,
    report: Report::None,
};

const ALARM: Input<'static> = Input {
    level: 1.2,
    alarm: true,
    crossed: true,
    ..CALM
};

/// A machine with its budget, stepped one second at a time unless told otherwise.
struct Bench {
    machine: SkewState,
    budget: Budget,
    policy: Policy,
    now: Duration,
}

impl Bench {
    fn new() -> Self {
        Self {
            machine: SkewState::new("web".into()),
            budget: Budget::new(Limits::DEFAULT),
            policy: Policy::DEFAULT,
            now: at(1000),
        }
    }

    fn step(&mut self, input: Input<'_>) -> Output {
        self.now += at(1);
        let input = Input {
            at: self.now,
            ..input
        };
        self.machine.step(input, &self.policy, &mut self.budget)
    }

    fn wait(&mut self, seconds: u64) -> &mut Self {
        self.now += at(seconds - 1);
        self
    }

    /// In a state, by the shortest way.
    fn in_state(state: &str) -> Self {
        let mut bench = Self::new();
        let verdict = hash_verdict();
        let asking = Input {
            verdict: Some(&verdict),
            ..ALARM
        };
        let steps: Vec<Input<'_>> = match state {
            "Quiet" => vec![],
            "Suspected" => vec![Input { level: 0.6, ..CALM }],
            "Firing" => vec![asking],
            "Healing" => vec![
                asking,
                Input {
                    report: Report::Started,
                    ..asking
                },
            ],
            "Resolved" => vec![asking, CALM],
            other => panic!("{other}"),
        };
        for input in steps {
            bench.step(input);
        }
        assert_eq!(name(bench.machine.state()), state);
        bench
    }
}

fn name(state: &State) -> &'static str {
    match state {
        State::Quiet => "Quiet",
        State::Suspected { .. } => "Suspected",
        State::Firing { .. } => "Firing",
        State::Healing { .. } => "Healing",
        State::Resolved { .. } => "Resolved",
    }
}

fn event(event: &Event) -> &'static str {
    match event {
        Event::Suspected { .. } => "suspected",
        Event::Dismissed { .. } => "dismissed",
        Event::Fired { again: false, .. } => "fired",
        Event::Fired { again: true, .. } => "fired again",
        Event::Escalated { .. } => "escalated",
        Event::Explained { .. } => "explained",
        Event::Withheld { .. } => "withheld",
        Event::Started { .. } => "started",
        Event::Failed { .. } => "failed",
        Event::DidNotHelp { .. } => "did not help",
        Event::Resolved { .. } => "resolved",
        Event::Closed => "closed",
    }
}

const STATES: [&str; 5] = ["Quiet", "Suspected", "Firing", "Healing", "Resolved"];

const INPUTS: [&str; 10] = [
    "calm",
    "undecided",
    "suspicion",
    "alarm",
    "old alarm",
    "relapse",
    "alarm+started",
    "alarm+failed",
    "calm+started",
    "calm+failed",
];

fn input(name: &str) -> Input<'static> {
    let (what, report) = name.split_once('+').unwrap_or((name, ""));
    let what = match what {
        "calm" => CALM,
        "undecided" => Input { level: 0.25, ..CALM },
        "suspicion" => Input { level: 0.5, ..CALM },
        "alarm" => ALARM,
        // Evidence has not passed a threshold once more.
        "old alarm" => Input {
            crossed: false,
            ..ALARM
        },
        "relapse" => Input {
            crossed: false,
            relapsed: true,
            ..ALARM
        },
        other => panic!("{other}"),
    };
    let report = match report {
        "" => Report::None,
        "started" => Report::Started,
        "failed" => Report::Failed,
        other => panic!("{other}"),
    };
    Input { report, ..what }
}

/// State, seconds until the input, input, state after it, events.
const TABLE: &str = "
    Quiet     |   1 | calm          | Quiet     |
    Quiet     |   1 | undecided     | Quiet     |
    Quiet     |   1 | suspicion     | Suspected | suspected
    Quiet     |   1 | alarm         | Firing    | fired, withheld
    Quiet     |   1 | old alarm     | Firing    | fired, withheld
    Quiet     |   1 | relapse       | Firing    | fired, withheld
    Quiet     |   1 | alarm+started | Firing    | fired, withheld
    Quiet     |   1 | alarm+failed  | Firing    | fired, withheld
    Quiet     |   1 | calm+started  | Quiet     |
    Quiet     |   1 | calm+failed   | Quiet     |
    Quiet     | 999 | calm          | Quiet     |
    Suspected |   1 | calm          | Quiet     | dismissed
    Suspected |   1 | undecided     | Suspected |
    Suspected |   1 | suspicion     | Suspected |
    Suspected |   1 | alarm         | Firing    | fired, withheld
    Suspected |   1 | old alarm     | Firing    | fired, withheld
    Suspected |   1 | relapse       | Firing    | fired, withheld
    Suspected |   1 | alarm+started | Firing    | fired, withheld
    Suspected |   1 | alarm+failed  | Firing    | fired, withheld
    Suspected |   1 | calm+started  | Quiet     | dismissed
    Suspected |   1 | calm+failed   | Quiet     | dismissed
    Suspected | 999 | undecided     | Suspected |
    Firing    |   1 | calm          | Resolved  | resolved
    Firing    |   1 | undecided     | Resolved  | resolved
    Firing    |   1 | suspicion     | Resolved  | resolved
    Firing    |   1 | alarm         | Firing    |
    Firing    |   1 | old alarm     | Firing    |
    Firing    |   1 | relapse       | Firing    |
    Firing    |   1 | alarm+started | Healing   | started
    Firing    |   1 | alarm+failed  | Firing    | failed, withheld
    Firing    |   1 | calm+started  | Resolved  | started, resolved
    Firing    |   1 | calm+failed   | Resolved  | failed, resolved
    Firing    | 999 | alarm         | Firing    |
    Healing   |   1 | calm          | Resolved  | resolved
    Healing   |   1 | undecided     | Resolved  | resolved
    Healing   |   1 | suspicion     | Resolved  | resolved
    Healing   |   1 | alarm         | Healing   |
    Healing   |   4 | alarm         | Healing   |
    Healing   |   5 | alarm         | Firing    | did not help, withheld
    Healing   |   1 | old alarm     | Healing   |
    Healing   | 999 | old alarm     | Healing   |
    Healing   |   1 | relapse       | Firing    | fired again, withheld
    Healing   | 999 | relapse       | Firing    | fired again
    Healing   |   1 | alarm+started | Healing   |
    Healing   |   5 | alarm+started | Firing    | did not help, withheld
    Healing   |   1 | alarm+failed  | Firing    | failed, withheld
    Healing   |   1 | calm+started  | Resolved  | resolved
    Healing   |   1 | calm+failed   | Resolved  | resolved
    Resolved  |   1 | calm          | Resolved  |
    Resolved  | 299 | calm          | Resolved  |
    Resolved  | 300 | calm          | Quiet     | closed
    Resolved  |   1 | undecided     | Resolved  |
    Resolved  |   1 | suspicion     | Resolved  |
    Resolved  |   1 | alarm         | Firing    | fired again, withheld
    Resolved  |   1 | old alarm     | Firing    | fired again, withheld
    Resolved  |   1 | relapse       | Firing    | fired again, withheld
    Resolved  |   1 | alarm+started | Firing    | fired again, withheld
    Resolved  |   1 | alarm+failed  | Firing    | fired again, withheld
    Resolved  |   1 | calm+started  | Resolved  |
    Resolved  |   1 | calm+failed   | Resolved  |
";

#[test]
fn every_state_by_every_input() {
    let mut seen = std::collections::BTreeSet::new();
    for row in TABLE.lines().filter(|row| !row.trim().is_empty()) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [before, wait, what, after, events] = cells[..] else {
            panic!("{row}");
        };
        let mut bench = Bench::in_state(before);
        let output = bench.wait(wait.parse().unwrap()).step(input(what));
        let found: Vec<&str> = output.events.iter().map(event).collect();
        assert_eq!(
            (name(bench.machine.state()), &*found.join(", ")),
            (after, events),
            "{row}"
        );
        seen.insert((before.to_owned(), what.to_owned()));
    }
    for state in STATES {
        for input in INPUTS {
            assert!(
                seen.contains(&(state.to_owned(), input.to_owned())),
                "{state}, {input} is not in the table"
            );
        }
    }
}

#[test]
fn a_stuck_hash_is_healed_by_new_seeds() {
    let mut bench = Bench::new();
    let verdict = hash_verdict();
    // The alarm comes first, its cause a check later.
    assert_eq!(bench.step(ALARM).remedy, None);
    let asking = Input {
        verdict: Some(&verdict),
        ..ALARM
    };
    let output = bench.step(asking);
    assert_eq!(output.remedy, Some(rotation()));
    assert_eq!(
        output.events,
        [Event::Explained {
            verdict: verdict.clone()
        }]
    );
    // It is asked for once.
    assert_eq!(bench.step(asking), Output::default());
    let started = bench.step(Input {
        report: Report::Started,
        ..asking
    });
    assert_eq!(started.events, [Event::Started { remedy: rotation() }]);
    let output = bench.wait(70).step(CALM);
    assert_eq!(
        output.events,
        [Event::Resolved {
            after: at(73),
            remedy: Some(rotation()),
            conclusion: Conclusion::BadSeedOrAimedKeys
        }]
    );
    assert_eq!(bench.machine.verdict(), Some(&verdict));
}

#[test]
fn slots_that_are_falsified_again_and_again_are_written_again_each_time() {
    let verdict = table_verdict();
    let mut bench = Bench::new();
    bench.budget = Budget::new(Limits {
        cooldown: Duration::ZERO,
        most: u32::MAX,
        ..Limits::DEFAULT
    });
    let wrong = Input {
        relapsed: true,
        verdict: Some(&verdict),
        ..ALARM
    };
    let standing = Input {
        relapsed: false,
        ..wrong
    };
    for _ in 0..3 {
        let asked = bench.step(wrong).remedy;
        assert!(matches!(asked, Some(Remedy::RewriteSlots { .. })), "{asked:?}");
        // What the flows showed of it stands for a while.
        bench.step(Input {
            report: Report::Started,
            crossed: false,
            ..standing
        });
        assert_eq!(name(bench.machine.state()), "Healing");
    }
    // Wrong at one look after the other: writing does not help.
    let output = bench.wait(10).step(standing);
    assert!(
        matches!(output.events[0], Event::DidNotHelp { .. }),
        "{:?}",
        output.events
    );
    assert_eq!(bench.step(standing).remedy, None);
    // It was right for a moment: somebody else writes.
    assert!(bench.step(wrong).remedy.is_some());
}

#[test]
fn a_broken_hash_is_not_rotated_for_ever() {
    let mut bench = Bench::in_state("Healing");
    let verdict = hash_verdict();
    let asking = Input {
        verdict: Some(&verdict),
        ..ALARM
    };
    let output = bench.wait(200).step(asking);
    assert!(output.events.contains(&Event::DidNotHelp {
        remedy: rotation(),
        conclusion: Conclusion::BrokenHash
    }));
    for _ in 0..100 {
        assert_eq!(bench.wait(100).step(asking).remedy, None);
    }
    // Cleared and come again at once: still no rotation. A new alarm later may have one.
    bench.step(CALM);
    assert_eq!(bench.step(asking).remedy, None);
    bench.step(CALM);
    bench.wait(400).step(CALM);
    assert_eq!(bench.step(asking).remedy, Some(rotation()));
}

#[test]
fn each_cause_has_its_remedy_and_a_failure_leads_on() {
    let service: ServiceName = "web".into();
    let finding = |fault| SeedFinding {
        place: Place::Cpu(4),
        fault,
    };
    let seed = |fault| Verdict {
        cause: Cause::Seed {
            findings: vec![finding(fault)],
        },
        scope: Scope::Cpus([4].into()),
    };
    let choose = |verdict: &Verdict, tried: &[Remedy]| {
        let mut attempts = Attempts::default();
        tried.iter().for_each(|remedy| attempts.note(remedy));
        remedy::choose(Some(verdict), &service, &attempts)
    };
    let zero = seed(SeedFault::Zero);
    assert_eq!(choose(&zero, &[]), Ok(Remedy::RewriteSeeds));
    assert_eq!(choose(&zero, &[Remedy::RewriteSeeds]), Ok(rotation()));
    let exhausted = |cause| Err(Withheld::Exhausted { cause });
    assert_eq!(
        choose(&zero, &[Remedy::RewriteSeeds, rotation()]),
        exhausted("entropy_seed")
    );
    assert_eq!(
        choose(&seed(SeedFault::Equal { to: Place::Shared }), &[]),
        Ok(rotation())
    );
    let rewrite = Remedy::RewriteSlots {
        service: service.clone(),
    };
    assert_eq!(choose(&table_verdict(), &[]), Ok(rewrite.clone()));
    assert_eq!(choose(&table_verdict(), &[rewrite]), exhausted("table_mismatch"));
    let everywhere = Verdict {
        scope: Scope::Global,
        ..hash_verdict()
    };
    assert_eq!(choose(&everywhere, &[]), Ok(Remedy::RotateSeeds { cpus: None }));
    let healthy = Verdict {
        cause: Cause::Healthy,
        scope: Scope::Global,
    };
    assert_eq!(choose(&healthy, &[]), Err(Withheld::NoFault { cause: "healthy" }));
    assert_eq!(
        remedy::choose(None, &service, &Attempts::default()),
        Err(Withheld::NoVerdict)
    );
}

#[test]
fn nothing_is_done_where_nothing_may_be_done() {
    let verdict = hash_verdict();
    let asking = Input {
        verdict: Some(&verdict),
        ..ALARM
    };
    let mut bench = Bench::new();
    bench.policy.auto_heal = false;
    let output = bench.step(asking);
    assert_eq!(output.remedy, None);
    let off = Event::Withheld {
        why: Withheld::AutoHealOff,
    };
    assert!(output.events.contains(&off));
    // Said once, not in each check.
    assert_eq!(bench.step(asking), Output::default());
}

#[test]
fn one_budget_serves_all_services() {
    let verdict = hash_verdict();
    let asking = Input {
        at: at(5),
        verdict: Some(&verdict),
        ..ALARM
    };
    let mut budget = Budget::new(Limits::DEFAULT);
    let mut step = |machine: &mut SkewState, input| machine.step(input, &Policy::DEFAULT, &mut budget);
    let (mut one, mut other) = (SkewState::new("one".into()), SkewState::new("other".into()));
    assert!(step(&mut one, asking).remedy.is_some());
    let output = step(&mut other, asking);
    assert_eq!(output.remedy, None);
    let cooling = Withheld::Cooldown { until: at(65) };
    assert!(output.events.contains(&Event::Withheld { why: cooling }));
    assert!(step(&mut other, Input { at: at(65), ..asking }).remedy.is_some());
}

#[test]
fn a_remedy_that_nobody_reports_on_is_asked_for_again_after_the_cooldown() {
    let mut bench = Bench::in_state("Firing");
    assert_eq!(bench.wait(59).step(ALARM).remedy, None);
    assert_eq!(bench.step(ALARM).remedy, Some(rotation()));
}

#[test]
fn worse_and_other_causes_are_told() {
    let mut bench = Bench::in_state("Firing");
    let output = bench.step(Input {
        severity: Severity::Page,
        ..ALARM
    });
    assert_eq!(
        output.events,
        [Event::Escalated {
            severity: Severity::Page
        }]
    );
    let table = table_verdict();
    let output = bench.step(Input {
        severity: Severity::Info,
        verdict: Some(&table),
        ..ALARM
    });
    assert_eq!(output.events, [Event::Explained { verdict: table }]);
}

#[test]
fn time_that_goes_back_stands_still() {
    let mut bench = Bench::in_state("Healing");
    bench.now = at(3);
    assert_eq!(bench.step(ALARM), Output::default());
    assert_eq!(name(bench.machine.state()), "Healing");
}

/// The states alone, as the picture has them: what a report of a remedy that was asked for, an alarm, and time do.
fn model(
    state: &'static str,
    input: &Input<'_>,
    asked: bool,
    waited: Duration,
    policy: &Policy,
) -> &'static str {
    let suspected = input.level >= policy.suspect;
    match (state, input.alarm) {
        ("Quiet" | "Suspected" | "Resolved", true) => "Firing",
        ("Firing", true) if input.report == Report::Started && asked => "Healing",
        ("Healing", true) if input.report == Report::Failed => "Firing",
        ("Healing", true) if input.relapsed => "Firing",
        ("Healing", true) if waited >= policy.settle && input.crossed => "Firing",
        ("Firing" | "Healing", false) => "Resolved",
        ("Quiet", false) if suspected => "Suspected",
        ("Suspected", false) if input.level < policy.dismiss => "Quiet",
        ("Resolved", false) if waited >= policy.hold => "Quiet",
        (state, _) => state,
    }
}

proptest! {
    #[test]
    fn the_machine_keeps_to_its_picture_and_its_budget(
        steps in proptest::collection::vec((0u64..120, 0.0f64..1.5, any::<bool>(), any::<(bool, bool)>(), 0u8..3, 0u8..3), 1..200),
        auto_heal in any::<bool>(),
    ) {
        let (hash, table) = (hash_verdict(), table_verdict());
        let policy = Policy { auto_heal, ..Policy::DEFAULT };
        let mut budget = Budget::new(Limits::DEFAULT);
        let mut machine = SkewState::new("web".into());
        let (mut now, mut entered, mut asked) = (Duration::ZERO, Duration::ZERO, false);
        let mut remedies = Vec::new();
        for (seconds, level, alarm, (crossed, relapsed), verdict, report) in steps {
            now += at(seconds);
            let input = Input {
                at: now,
                level,
                alarm,
                crossed,
                relapsed,
                severity: Severity::Warn,
                verdict: [None, Some(&hash), Some(&table)][usize::from(verdict)],
                report: [Report::None, Report::Started, Report::Failed][usize::from(report)],
            };
            let before = name(machine.state());
            let wanted = model(before, &input, asked, now - entered, &policy);
            let output = machine.step(input, &policy, &mut budget);
            let after = name(machine.state());
            prop_assert_eq!(after, wanted);
            if before != after {
                entered = now;
                prop_assert!(!output.events.is_empty());
            }
            asked &= after == "Firing" && before == "Firing" && input.report == Report::None;
            prop_assert_eq!(output.restart, before == "Firing" && after == "Healing");
            if output.remedy.is_some() {
                prop_assert!(auto_heal && after == "Firing");
                remedies.push(now);
                asked = true;
            }
        }
        let limits = Limits::DEFAULT;
        for (index, granted) in remedies.iter().enumerate() {
            let mut recent = remedies[..index].iter().filter(|earlier| *granted - **earlier < limits.window);
            prop_assert!(recent.clone().count() < limits.most as usize);
            prop_assert!(recent.next_back().is_none_or(|last| *granted - *last >= limits.cooldown));
        }
    }
}
