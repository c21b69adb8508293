//! Every sentence, as people read it.

use std::time::Duration;

use super::*;
use crate::skew::attribution::{
    Spread,
    heterogeneity::{across_cpus, ln_p_of_pairs},
};

fn addresses() -> Vec<IpAddr> {
    vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]
}

fn of(cause: Cause, cpus: Option<&[u32]>) -> Verdict {
    Verdict {
        cause,
        scope: cpus.map_or(Scope::Global, |cpus| Scope::Cpus(cpus.iter().copied().collect())),
    }
}

fn verdicts() -> Vec<Verdict> {
    let pairs = [(30, 100), (70, 100)];
    let spread = Spread {
        backend: 1,
        share: 0.62,
        expected: 0.5,
        across_cpus: across_cpus(&pairs),
        ln_p_of_pairs: ln_p_of_pairs(&pairs),
    };
    let finding = |place, fault| SeedFinding { place, fault };
    let findings = vec![
        finding(Place::Shared, SeedFault::Key),
        finding(Place::Cpu(0), SeedFault::Zero),
        finding(Place::Cpu(1), SeedFault::Generation { found: 3, wanted: 4 }),
        finding(Place::Cpu(2), SeedFault::Equal { to: Place::Cpu(0) }),
    ];
    let histogram = HashProof::Histogram {
        buckets: 1,
        share: 0.992,
        expected: 0.0039,
    };
    vec![
        of(Cause::Seed { findings }, Some(&[0, 1, 2])),
        of(Cause::Hash(histogram), Some(&[3])),
        of(
            Cause::Hash(HashProof::Audit {
                wrong: 1199,
                checked: 1200,
            }),
            None,
        ),
        of(Cause::Table(TableProof::Checksum { wrong: 1, read: 1 }), None),
        of(
            Cause::Table(TableProof::Audit {
                wrong: 7,
                checked: 1200,
            }),
            None,
        ),
        of(Cause::Table(TableProof::Spread(spread)), None),
        of(Cause::StaleTable(TableProof::Spread(spread)), Some(&[])),
        of(
            Cause::KeyConcentration(Concentration {
                net_tv: 0.2,
                tv: 0.31,
                tv_without_top: 0.02,
                effective_flows: 41.7,
                flows: 60_000,
                expected_tv: 0.2,
            }),
            None,
        ),
        of(Cause::Drained { backends: vec![0, 1] }, None),
        of(
            Cause::TooLittleData(Shortage {
                flows: 12,
                needed: 310.2,
                detectable_ratio: None,
            }),
            None,
        ),
        of(
            Cause::TooLittleData(Shortage {
                flows: 200,
                needed: 310.2,
                detectable_ratio: Some(2.44),
            }),
            None,
        ),
        of(
            Cause::ElephantFlows(Elephants {
                tv: 0.3,
                tv_without_top: 0.04,
            }),
            None,
        ),
        of(Cause::Healthy, None),
    ]
}

#[test]
fn verdicts_are_sentences_with_numbers_and_a_next_step() {
    let backends = addresses();
    let names = Names {
        service: "web",
        backends: &backends,
    };
    let mut text = String::new();
    for verdict in verdicts() {
        text.push_str(&format!("{}\n", explanation(&verdict, names)));
        for step in advice(&verdict, names, true) {
            text.push_str(&format!("    {step}\n"));
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn remedies_and_what_holds_them_back_are_sentences() {
    let now = Duration::from_secs(100);
    let mut lines = vec![
        remedy_done(&Remedy::RotateSeeds { cpus: None }),
        remedy_done(&Remedy::RotateSeeds {
            cpus: Some([1, 2, 5].into()),
        }),
        remedy_done(&Remedy::RewriteSeeds),
        remedy_done(&Remedy::RewriteSlots {
            service: "web".into(),
        }),
    ];
    let until = Duration::from_secs(190);
    lines.extend(
        [
            Withheld::NoVerdict,
            Withheld::NoFault { cause: "drained" },
            Withheld::Exhausted {
                cause: "entropy_hash",
            },
            Withheld::AutoHealOff,
            Withheld::Cooldown { until },
            Withheld::Budget { until },
            Withheld::Budget { until: Duration::MAX },
        ]
        .map(|why| withheld(&why, now)),
    );
    let conclusions = [
        Conclusion::None,
        Conclusion::BadSeedOrAimedKeys,
        Conclusion::BrokenHash,
        Conclusion::ForeignWrite,
        Conclusion::NotTheTable,
        Conclusion::SeedsDoNotStay,
    ];
    lines.extend(conclusions.into_iter().filter_map(conclusion).map(str::to_owned));
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn long_lists_are_cut() {
    let scope = |cpus: std::ops::Range<u32>| scope_of(&Scope::Cpus(cpus.collect()));
    assert_eq!(scope(3..4), "CPU 3");
    assert_eq!(scope(3..5), "CPUs 3 and 4");
    assert_eq!(scope(0..5), "CPUs 0, 1, 2, 3 and 4");
    assert_eq!(scope(0..64), "CPUs 0, 1, 2, 3, 4 and 59 more");
}
