//! Verdicts from constructed evidence, one rule at a time.

use super::*;
use crate::skew::Reading;

const QUIET: Reading = Reading {
    alarmed: false,
    significant: false,
    max_s: 1.0,
    ln_dense: 0.5,
};
const ALARMED: Reading = Reading {
    alarmed: true,
    significant: true,
    max_s: 40.0,
    ln_dense: 30.0,
};
const P4: [f64; 4] = [0.25; 4];

/// Four backends, even traffic, nothing read back.
fn healthy<'a>() -> Evidence<'a> {
    Evidence {
        ln_arl: 24.2,
        seeds: &[],
        tables: &[],
        audits: &[],
        hash: HashEvidence {
            shares: &[],
            cpus: &[],
            sum: Some(QUIET),
        },
        service: ServiceEvidence {
            shares: &P4,
            fresh: &[25_000, 25_100, 24_900, 25_000],
            alarm: None,
            cpus: &[],
            all: &[30_000, 30_100, 29_900, 30_000],
            packets: &[300_000, 301_000, 299_000, 300_000],
            top_keys: &[],
            top_flows: &[],
            leaving: &[],
        },
    }
}

fn cpus(list: &[u32]) -> Scope {
    Scope::Cpus(list.iter().copied().collect())
}

fn name(evidence: &Evidence<'_>) -> &'static str {
    explain(evidence).cause.name()
}

#[test]
fn even_traffic_is_healthy() {
    let verdict = explain(&healthy());
    assert_eq!(
        (verdict.cause.name(), verdict.cause.is_fault()),
        ("healthy", false)
    );
}

#[test]
fn faulty_seeds_are_named_with_their_cpus() {
    let on = |place| SeedFinding {
        place,
        fault: SeedFault::Zero,
    };
    let findings = [on(Place::Cpu(3)), on(Place::Cpu(9))];
    let verdict = explain(&Evidence {
        seeds: &findings,
        ..healthy()
    });
    assert_eq!(
        (verdict.cause.name(), verdict.scope),
        ("entropy_seed", cpus(&[3, 9]))
    );
    // The shared seed is everyone's.
    let findings = [on(Place::Cpu(3)), on(Place::Shared)];
    let verdict = explain(&Evidence {
        seeds: &findings,
        ..healthy()
    });
    assert_eq!(verdict.scope, Scope::Global);
}

#[test]
fn mistakes_found_by_computing_again_tell_hash_from_table() {
    let audit = |cpu, wrong_slot, wrong_backend| Audit {
        cpu,
        checked: 100,
        wrong_slot,
        wrong_backend,
    };
    let of = |audits: &[Audit]| {
        let verdict = explain(&Evidence { audits, ..healthy() });
        (verdict.cause.name(), verdict.scope)
    };
    assert_eq!(of(&[audit(0, 0, 0), audit(1, 0, 0)]).0, "healthy");
    assert_eq!(
        of(&[audit(0, 0, 0), audit(1, 7, 7)]),
        ("entropy_hash", cpus(&[1]))
    );
    assert_eq!(
        of(&[audit(0, 9, 0), audit(1, 7, 0)]),
        ("entropy_hash", Scope::Global)
    );
    assert_eq!(of(&[audit(0, 0, 0), audit(1, 0, 1)]), ("stale_table", cpus(&[1])));
    assert_eq!(
        of(&[audit(0, 0, 2), audit(1, 0, 1)]),
        ("table_mismatch", Scope::Global)
    );
    // A rare mistake of all 64 CPUs, which six of them did not make yet.
    let rare: Vec<Audit> = (0..64)
        .map(|cpu| Audit {
            checked: 47,
            ..audit(cpu, 3 * u64::from(cpu >= 6), 0)
        })
        .collect();
    assert_eq!(of(&rare), ("entropy_hash", Scope::Global));
    // A CPU without any choice has no say.
    let idle = Audit {
        cpu: 2,
        ..Audit::default()
    };
    assert_eq!(of(&[audit(0, 0, 2), idle]), ("table_mismatch", Scope::Global));
}

#[test]
fn tables_that_differ_from_the_intended_one_are_wrong_or_stale() {
    let read = |cpu, found| TableRead {
        cpu,
        wanted: 7,
        found,
    };
    let of = |tables: &[TableRead]| {
        let verdict = explain(&Evidence { tables, ..healthy() });
        (verdict.cause.name(), verdict.scope)
    };
    assert_eq!(of(&[read(None, 7)]).0, "healthy");
    assert_eq!(of(&[read(None, 8)]), ("table_mismatch", Scope::Global));
    assert_eq!(
        of(&[read(Some(0), 8), read(Some(1), 7)]),
        ("stale_table", cpus(&[0]))
    );
    assert_eq!(
        of(&[read(Some(0), 8), read(Some(1), 8)]),
        ("table_mismatch", Scope::Global)
    );
}

/// Histograms of 16 buckets: of `cpus` CPUs those in `bad` have their flows in bucket 5.
fn histograms(cpus: u32, bad: &[u32], flows: u64) -> Vec<[u64; 16]> {
    let even = [flows / 16; 16];
    let mut stuck = [0; 16];
    stuck[5] = flows;
    (0..cpus)
        .map(|cpu| if bad.contains(&cpu) { stuck } else { even })
        .collect()
}

fn hash_verdict(histograms: &[[u64; 16]], alarmed: &[u32], sum: Reading) -> Verdict {
    let shares = [1.0 / 16.0; 16];
    let list = |(cpu, fresh): (u32, &'_ [u64; 16])| (cpu, *fresh);
    let owned: Vec<(u32, [u64; 16])> = (0..).zip(histograms).map(list).collect();
    let cpus: Vec<CpuHash<'_>> = owned
        .iter()
        .map(|(cpu, fresh)| CpuHash {
            cpu: *cpu,
            reading: if alarmed.contains(cpu) { ALARMED } else { QUIET },
            fresh,
        })
        .collect();
    let hash = HashEvidence {
        shares: &shares,
        cpus: &cpus,
        sum: Some(sum),
    };
    // The service is uneven too, its keys heavy, its packets elephants: none of it hides the hash.
    let keys = [Heavy {
        count: 40_000,
        backend: 0,
    }];
    let service = ServiceEvidence {
        alarm: Some(0),
        all: &[60_000, 20_000, 20_000, 20_000],
        packets: &[900_000, 1000, 1000, 1000],
        top_keys: &keys,
        top_flows: &keys,
        ..healthy().service
    };
    explain(&Evidence {
        hash,
        service,
        ..healthy()
    })
}

#[test]
fn a_stuck_cpu_is_an_entropy_failure_of_that_cpu() {
    let verdict = hash_verdict(&histograms(8, &[6], 160), &[6], QUIET);
    assert_eq!(verdict.scope, cpus(&[6]));
    assert_eq!(
        verdict.cause,
        Cause::Hash(HashProof::Histogram {
            buckets: 1,
            share: 1.0,
            expected: 1.0 / 16.0
        })
    );
}

#[test]
fn cpus_that_crowd_alike_are_found_by_the_one_that_is_sure() {
    // CPU 2 has an alarm; 6 has too few flows for one, but they are all in the same bucket.
    let mut counts = histograms(8, &[2], 160);
    counts[6] = [0; 16];
    counts[6][5] = 4;
    assert_eq!(hash_verdict(&counts, &[2], QUIET).scope, cpus(&[2, 6]));
}

#[test]
fn a_hash_that_is_broken_on_most_cpus_is_broken_everywhere() {
    let counts = histograms(8, &[0, 1, 2, 3, 4], 160);
    assert_eq!(hash_verdict(&counts, &[0, 1], ALARMED).scope, Scope::Global);
    // Idle CPUs have no vote.
    let mut counts = histograms(8, &[0, 1], 160);
    counts[3..].fill([0; 16]);
    assert_eq!(hash_verdict(&counts, &[0, 1], QUIET).scope, Scope::Global);
    // Of two CPUs one is one, not all.
    assert_eq!(
        hash_verdict(&histograms(2, &[1], 160), &[1], ALARMED).scope,
        cpus(&[1])
    );
    // A weak fault of all: only their sum has an alarm.
    let weak: Vec<[u64; 16]> = (0..8)
        .map(|_| std::array::from_fn(|bucket| if bucket < 8 { 11 } else { 9 }))
        .collect();
    assert_eq!(hash_verdict(&weak, &[], ALARMED).scope, Scope::Global);
}

/// A service on four CPUs, 4,000 fresh flows each, of which backend 0 gets `hits` on each.
fn service_verdict(hits: [u64; 4], alarm: Option<usize>, cpu_alarm: Option<u32>) -> Verdict {
    let rows: Vec<[u64; 4]> = hits
        .iter()
        .map(|hits| [*hits, (4000 - hits) / 3, (4000 - hits) / 3, (4000 - hits) / 3])
        .collect();
    let cpus: Vec<CpuBackends<'_>> = (0..)
        .zip(&rows)
        .map(|(cpu, fresh)| CpuBackends {
            cpu,
            alarm: (cpu_alarm == Some(cpu)).then_some(0),
            fresh,
        })
        .collect();
    let fresh: Vec<u64> = (0..4)
        .map(|backend| rows.iter().map(|row| row[backend]).sum())
        .collect();
    let service = ServiceEvidence {
        fresh: &fresh,
        alarm,
        cpus: &cpus,
        ..healthy().service
    };
    explain(&Evidence { service, ..healthy() })
}

#[test]
fn a_backend_that_is_uneven_on_all_cpus_alike_is_a_wrong_table() {
    let verdict = service_verdict([2000, 2010, 1990, 2000], Some(0), None);
    assert_eq!(
        (verdict.cause.name(), verdict.scope),
        ("table_mismatch", Scope::Global)
    );
    let Cause::Table(TableProof::Spread(spread)) = verdict.cause else {
        panic!("no spread");
    };
    assert!((spread.share - 0.5).abs() < 1e-3 && spread.expected == 0.25);
}

#[test]
fn a_backend_that_is_uneven_on_some_cpus_is_a_stale_table_there() {
    let verdict = service_verdict([1000, 2000, 1000, 1010], Some(0), None);
    assert_eq!((verdict.cause.name(), verdict.scope), ("stale_table", cpus(&[1])));
    // A hole on one CPU.
    let verdict = service_verdict([1000, 1000, 0, 1010], Some(0), None);
    assert_eq!((verdict.cause.name(), verdict.scope), ("stale_table", cpus(&[2])));
    // Only that CPU's own stream is sure.
    let verdict = service_verdict([1000, 1000, 1000, 1120], None, Some(3));
    assert_eq!((verdict.cause.name(), verdict.scope), ("stale_table", cpus(&[3])));
}

#[test]
fn few_hits_that_sit_on_one_cpu_are_seen_by_their_pairs() {
    // A backend that should get 4 of 16,000 flows gets 12, all of them on one CPU.
    let pairs = [(12, 4000), (0, 4000), (0, 4000), (0, 4000)];
    assert!(heterogeneity::ln_p_of_pairs(&pairs) < -6.9);
    assert!(heterogeneity::ln_p_of_pairs(&[(3, 4000), (3, 4000), (3, 4000), (3, 4000)]) > -0.7);
    assert_eq!(heterogeneity::ln_p_of_pairs(&[]), 0.0);
    assert_eq!(heterogeneity::ln_p_of_pairs(&[(1, 4000), (0, 0)]), 0.0);
}

#[test]
fn heavy_keys_are_told_from_uneven_choice() {
    let all = [60_000, 20_000, 20_000, 20_000];
    let keys = [Heavy {
        count: 40_000,
        backend: 0,
    }];
    let service = ServiceEvidence {
        all: &all,
        top_keys: &keys,
        ..healthy().service
    };
    let verdict = explain(&Evidence { service, ..healthy() });
    let Cause::KeyConcentration(found) = verdict.cause else {
        panic!("{verdict:?}");
    };
    assert!(
        found.net_tv > 0.2 && found.effective_flows < 10.0 && found.tv_without_top < 0.01,
        "{found:?}"
    );
    // The same unevenness without heavy keys is not explained by them.
    let service = ServiceEvidence {
        top_keys: &[],
        ..service
    };
    assert_eq!(name(&Evidence { service, ..healthy() }), "healthy");
    // Nor when the alarm says that fresh keys are uneven too.
    let service = ServiceEvidence {
        top_keys: &keys,
        alarm: Some(0),
        ..service
    };
    assert_eq!(name(&Evidence { service, ..healthy() }), "table_mismatch");
}

#[test]
fn a_backend_that_leaves_explains_its_missing_flows() {
    let service = ServiceEvidence {
        leaving: &[2],
        ..healthy().service
    };
    let verdict = explain(&Evidence { service, ..healthy() });
    assert_eq!(verdict.cause, Cause::Drained { backends: vec![2] });
}

#[test]
fn too_few_flows_are_no_verdict_of_health() {
    let service = ServiceEvidence {
        fresh: &[10, 9, 11, 10],
        all: &[10, 9, 11, 10],
        ..healthy().service
    };
    let verdict = explain(&Evidence { service, ..healthy() });
    let Cause::TooLittleData(shortage) = verdict.cause else {
        panic!("{verdict:?}");
    };
    assert!(
        shortage.needed > 400.0 && shortage.detectable_ratio.is_none(),
        "{shortage:?}"
    );
    let service = ServiceEvidence {
        fresh: &[70, 70, 70, 70],
        ..service
    };
    let Cause::TooLittleData(shortage) = explain(&Evidence { service, ..healthy() }).cause else {
        panic!();
    };
    assert!(shortage.detectable_ratio.unwrap() > 2.0, "{shortage:?}");
    // One backend cannot be uneven, however few its flows.
    let single = ServiceEvidence {
        shares: &[1.0],
        fresh: &[3],
        all: &[3],
        packets: &[9],
        ..healthy().service
    };
    assert_eq!(
        name(&Evidence {
            service: single,
            ..healthy()
        }),
        "healthy"
    );
}

#[test]
fn elephants_are_told_by_their_packets() {
    let flows = [Heavy {
        count: 900_000,
        backend: 1,
    }];
    let service = ServiceEvidence {
        packets: &[300_000, 1_200_000, 300_000, 300_000],
        top_flows: &flows,
        ..healthy().service
    };
    let verdict = explain(&Evidence { service, ..healthy() });
    let Cause::ElephantFlows(found) = verdict.cause else {
        panic!("{verdict:?}");
    };
    assert!(found.tv > 0.3 && found.tv_without_top < 1e-9);
    let nameless = ServiceEvidence {
        top_flows: &[],
        ..service
    };
    assert_eq!(
        name(&Evidence {
            service: nameless,
            ..healthy()
        }),
        "healthy"
    );
}

#[test]
fn nothing_known_gives_a_verdict_too() {
    let service = ServiceEvidence {
        shares: &[],
        fresh: &[],
        alarm: Some(7),
        cpus: &[],
        all: &[],
        packets: &[],
        top_keys: &[Heavy {
            count: 1,
            backend: 99,
        }],
        top_flows: &[Heavy {
            count: 1,
            backend: 99,
        }],
        leaving: &[42],
    };
    assert_eq!(name(&Evidence { service, ..healthy() }), "table_mismatch");
    let service = ServiceEvidence {
        alarm: None,
        ..service
    };
    assert_eq!(name(&Evidence { service, ..healthy() }), "drained");
}
