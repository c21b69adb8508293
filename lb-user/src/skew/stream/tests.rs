//! Streams over constructed counts: alarms, resets, changes of shares, clearing.

use proptest::prelude::*;

use super::*;
use crate::skew::tilt::Tolerance;

const LN_A: f64 = 13.815_510_557_964_274;

fn shares(owned: &[(u32, u32)]) -> Shares {
    let slots = owned.iter().map(|(_, owned)| owned).sum();
    Shares::of_slots(owned, slots, Tolerance::DEFAULT)
}

/// `count` backends of one size, with ids from `first`.
fn equal(first: u32, count: u32) -> Shares {
    shares(&(first..first + count).map(|id| (id, 100)).collect::<Vec<_>>())
}

fn stream(shares: Shares) -> Stream {
    Stream::new(StreamSpec::new(LN_A), shares)
}

fn measured(outcome: Outcome) -> Measure {
    match outcome {
        Outcome::Measured(measure) => measure,
        Outcome::Skipped(skip) => panic!("skipped: {skip:?}"),
    }
}

/// Checks until the alarm, and the alarm.
fn until_alarm(stream: &mut Stream, counts: &[u64]) -> (u32, Alarm) {
    for check in 1..10_000 {
        if let Outcome::Measured(Measure {
            raised: Some(alarm), ..
        }) = stream.check(counts)
        {
            return (check, alarm);
        }
    }
    panic!("no alarm");
}

#[test]
fn even_traffic_raises_no_alarm() {
    let mut stream = stream(equal(0, 10));
    for _ in 0..10_000 {
        assert_eq!(measured(stream.check(&[100; 10])).raised, None);
    }
    assert_eq!(stream.level(), 0.0);
    assert!(!stream.reading().significant);
}

#[test]
fn a_backend_without_flows_is_found_and_named_with_its_change() {
    let mut stream = stream(equal(40, 10));
    for _ in 0..100 {
        stream.check(&[10; 10]);
    }
    let (checks, alarm) = until_alarm(&mut stream, &[12, 11, 11, 11, 0, 11, 11, 11, 11, 11]);
    assert!((2..=5).contains(&checks), "{checks}");
    assert_eq!(alarm.category, Category::Member(44));
    assert!(alarm.sparse && alarm.tilt >= 5);
    assert_eq!(alarm.since, 101);
    assert_eq!(alarm.check, 100 + checks);
    assert_eq!(stream.alarm(), Some(&alarm));
    assert!(stream.level() >= 1.0 && stream.reading().alarmed && stream.reading().significant);
}

#[test]
fn weak_skew_of_all_is_found_by_the_dense_part() {
    let counts: Vec<u64> = (0..100)
        .map(|backend| if backend % 2 == 0 { 12 } else { 8 })
        .collect();
    let mut both = stream(equal(0, 100));
    let (checks, alarm) = until_alarm(&mut both, &counts);
    assert!(alarm.dense && !alarm.sparse);
    let mut sparse = Stream::new(StreamSpec::sparse_only(LN_A), equal(0, 100));
    let (alone, alarm) = until_alarm(&mut sparse, &counts);
    assert!(checks < alone && alarm.sparse, "{checks} {alone}");
    assert_eq!(alarm.ln_dense, f64::NEG_INFINITY);
}

#[test]
fn a_lost_bit_of_the_hash_is_named() {
    let shares = Shares::of_histogram(65_537, Tolerance::DEFAULT);
    let mut stream = stream(shares);
    // Bit 3 is always 1. A prime stride visits buckets as a hash would.
    let mut counts = [0; 256];
    for flow in 0..60 {
        counts[((flow * 89 + 7) % 256) | 8] += 1;
    }
    let (_, alarm) = until_alarm(&mut stream, &counts);
    assert_eq!(alarm.category, Category::Bit(3));
}

#[test]
fn what_says_nothing_changes_nothing() {
    let mut stream = stream(equal(0, 3));
    stream.check(&[5, 1, 2]);
    let before = (stream.s(0), stream.reading());
    assert_eq!(stream.check(&[0, 0, 0]), Outcome::Skipped(Skip::Empty));
    assert_eq!(stream.check(&[1, 2]), Outcome::Skipped(Skip::Length));
    stream.leave_out(1);
    assert_eq!(stream.check(&[900, 1, 2]), Outcome::Skipped(Skip::Blanked));
    assert_eq!((stream.s(0), stream.reading()), before);
    assert_eq!(measured(stream.check(&[5, 1, 2])).check, 5);
}

#[test]
fn a_service_without_backends_is_never_measured() {
    let mut stream = stream(shares(&[]));
    assert_eq!(stream.check(&[]), Outcome::Skipped(Skip::Empty));
    assert_eq!(stream.level(), 0.0);
    assert_eq!(stream.s(0), None);
}

#[test]
fn evidence_follows_its_backend_through_changes() {
    let mut stream = stream(shares(&[(7, 50), (8, 50), (9, 100)]));
    stream.check(&[30, 10, 60]);
    let [seven, eight] = [0, 1].map(|category| stream.s(category).unwrap());
    // 9 leaves, 5 joins in front.
    stream.set_shares(shares(&[(5, 100), (8, 50), (7, 60)]));
    assert_eq!(stream.s(0), Some([0.0; TILTS]));
    assert_eq!(stream.s(1), Some(eight));
    assert_eq!(stream.s(2), Some(seven));
    let dense = stream.reading().ln_dense;
    for _ in 0..2 {
        assert_eq!(stream.check(&[50, 20, 30]), Outcome::Skipped(Skip::Blanked));
    }
    // The averages start afresh, so that the first check after a change bets on no group: R only gains its 1.
    let expected = crate::skew::numeric::stable::softplus(dense);
    assert!((measured(stream.check(&[50, 24, 30])).ln_dense - expected).abs() < 1e-12);
}

/// Mixing the counts of two tables looks like a fault; leaving the mixed checks out does not.
#[test]
fn many_changes_of_shares_raise_no_alarm_when_blanked() {
    let (one, other) = (
        shares(&[(1, 100), (2, 300), (3, 200)]),
        shares(&[(1, 300), (2, 100), (4, 200)]),
    );
    let run = |blank: u32| {
        let spec = StreamSpec {
            blank,
            ..StreamSpec::new(LN_A)
        };
        let mut stream = Stream::new(spec, one.clone());
        for change in 0..50 {
            let (before, after) = if change % 2 == 0 {
                (&one, &other)
            } else {
                (&other, &one)
            };
            let flows = |shares: &Shares| {
                shares
                    .to_vec()
                    .iter()
                    .map(|p| (p * 600.0) as u64)
                    .collect::<Vec<_>>()
            };
            (0..20).for_each(|_| _ = stream.check(&flows(before)));
            stream.set_shares(after.clone());
            // The table was switched at the end of this check and in the middle of the next, on some CPUs.
            stream.check(&flows(before));
            stream.check(&[250, 200, 150]);
        }
        stream.alarm().copied()
    };
    assert_eq!(run(2), None);
    assert!(run(0).is_some());
}

#[test]
fn a_drained_backend_may_get_a_few_late_flows_only() {
    let draining = shares(&[(1, 500), (2, 500), (3, 0)]);
    let mut few = stream(draining.clone());
    for _ in 0..100 {
        few.check(&[20_000, 20_000, 3]);
    }
    assert_eq!(few.alarm(), None);
    let (_, alarm) = until_alarm(&mut stream(draining), &[500, 500, 20]);
    assert_eq!(alarm.category, Category::Member(3));
}

fn effect(counts: &[u64]) -> Effect {
    Effect::measure(counts, &vec![1.0 / counts.len() as f64; counts.len()], 0.01)
}

#[test]
fn an_alarm_stays_while_the_fault_lasts_and_ends_soon_after() {
    let mut stream = stream(equal(0, 4));
    let (_, alarm) = until_alarm(&mut stream, &[400, 200, 200, 200]);
    let even = effect(&[15_000; 4]);
    let skewed = effect(&[24_000, 12_000, 12_000, 12_000]);
    for _ in 0..1000 {
        let measure = measured(stream.check(&[400, 200, 200, 200]));
        assert_eq!(measure.raised, None);
        assert!(!stream.clear(&even), "evidence is still there");
    }
    let standing = stream.alarm().unwrap();
    assert!(standing.last > 995 && standing.check == alarm.check);
    let mut checks = 0;
    while !stream.clear(&even) {
        stream.check(&[250; 4]);
        // While checks are calm the effect decides.
        assert!(!stream.clear(&skewed));
        checks += 1;
    }
    assert!((60..70).contains(&checks), "{checks}");
    assert_eq!(stream.alarm(), None);
    // Not twice, and the next fault is a new alarm.
    assert!(!stream.clear(&even));
    assert!(until_alarm(&mut stream, &[400, 200, 200, 200]).1.since > 1000);
}

/// A fault that takes 200 checks to be seen is not gone because 60 checks do not show it.
#[test]
fn a_weak_fault_is_disproved_as_slowly_as_it_was_proved() {
    let mut stream = stream(equal(0, 4));
    let weak = [4, 3, 3, 3];
    let (took, _) = until_alarm(&mut stream, &weak);
    assert!(took > 150, "{took}");
    let nothing_shown = effect(&[240, 180, 180, 180]);
    for _ in 0..2000 {
        stream.check(&weak);
        assert!(!stream.clear(&nothing_shown));
    }
}

#[test]
fn after_a_restart_only_what_comes_counts() {
    let mut stream = stream(equal(0, 10));
    let (_, alarm) = until_alarm(&mut stream, &[0, 11, 11, 11, 11, 11, 11, 11, 11, 11]);
    stream.restart();
    assert_eq!(stream.level(), 0.0);
    assert_eq!(stream.s(0), Some([0.0; TILTS]));
    // The remedy helped: no evidence is renewed, and the alarm ends.
    let even = effect(&[600; 10]);
    let mut checks = 0;
    while !stream.clear(&even) {
        assert!(!measured(stream.check(&[10; 10])).crossed);
        checks += 1;
    }
    assert_eq!(checks, 60);
    assert_eq!(alarm.check, alarm.last);
}

#[test]
fn quiet_without_traffic_clears_nothing() {
    let mut stream = stream(equal(0, 4));
    until_alarm(&mut stream, &[400, 200, 200, 200]);
    let nothing = Effect::measure(&[0; 4], &[0.25; 4], 0.01);
    for _ in 0..200 {
        stream.check(&[0; 4]);
    }
    assert!(!stream.clear(&nothing));
}

#[test]
fn tables_of_several_sizes_share_a_histogram() {
    let of = |slots| Shares::of_histogram(slots, Tolerance::DEFAULT);
    let (small, large) = (of(1021), of(65_537));
    // 3 or 4 of 1,021 slots a bucket: uneven by design.
    let counts: Vec<u64> = (0..256)
        .map(|bucket| (small.share(bucket) * 102_100.0).round() as u64)
        .collect();
    let mut wrong = stream(large.clone());
    until_alarm(&mut wrong, &counts);
    let mut right = stream(large.clone());
    for _ in 0..1000 {
        right.check_mixed(&counts, &[(1e5, &small), (0.0, &large)]);
        right.check_mixed(&counts, &[(1e5, &small)]);
    }
    assert_eq!(right.alarm(), None);
    // Without flows of any table the stream's own shares count.
    let mut own = stream(small);
    own.check_mixed(&counts, &[]);
    assert!(own.alarm().is_none());
}

/// 1,000 services of 1,000 backends within 100 MB, with the counters' last values beside.
#[test]
fn a_million_pairs_fit_in_memory() {
    let owned: Vec<(u32, u32)> = (0..1000).map(|id| (id, 95 + id % 11)).collect();
    let mut stream = stream(shares(&owned));
    stream.check(&[1; 1000]);
    let bytes = stream.heap_bytes() + size_of::<Stream>() + 1000 * size_of::<u64>();
    assert!(bytes * 1000 <= 100_000_000, "{bytes} a service");
}

fn counts(categories: usize) -> impl Strategy<Value = Vec<u64>> {
    let count = prop_oneof![4 => 0u64..50, 1 => Just(0), 1 => 0u64..=1_000_000_000, 1 => Just(u64::MAX)];
    proptest::collection::vec(count, categories)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn evidence_is_a_number_whatever_comes(
        owned in proptest::collection::vec(0u32..4, 1..9),
        checks in proptest::collection::vec(counts(8), 1..40),
        changes in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let owned: Vec<(u32, u32)> = (0..).zip(owned).collect();
        let mut stream = stream(shares(&owned));
        for (counts, change) in checks.iter().zip(changes) {
            if change {
                let turned: Vec<(u32, u32)> = owned.iter().rev().map(|(id, owned)| (*id, 3 - owned)).collect();
                stream.set_shares(shares(&turned));
            }
            if let Outcome::Measured(measure) = stream.check(&counts[..owned.len()]) {
                prop_assert!(measure.peak.value.is_finite() && measure.ln_dense.is_finite());
                prop_assert!(stream.level().is_finite());
                prop_assert_eq!(measure.crossed, stream.alarm().is_some_and(|alarm| alarm.last == measure.check));
            }
            for category in 0..owned.len() {
                prop_assert!(stream.s(category).unwrap().iter().all(|s| !s.is_nan()));
            }
        }
    }

    #[test]
    fn one_backend_is_never_uneven(checks in proptest::collection::vec(any::<u64>(), 1..60)) {
        let mut stream = stream(shares(&[(1, 7)]));
        for count in checks {
            stream.check(&[count]);
        }
        prop_assert!(stream.alarm().is_none());
    }
}
