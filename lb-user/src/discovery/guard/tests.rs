//! The guard's table: what a source says, and what is believed of it.

use proptest::prelude::*;

use super::*;
use crate::config::Seconds;

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn endpoints(of: &[u8]) -> Vec<Endpoint> {
    of.iter().map(|last| Endpoint::new(address(*last))).collect()
}

fn all(of: &[u8]) -> Update {
    Update::Snapshot {
        endpoints: endpoints(of),
        refused: Vec::new(),
        revision: None,
    }
}

fn delta(set: &[u8], gone: &[u8]) -> Update {
    Update::Delta {
        set: endpoints(set),
        gone: gone.iter().map(|last| address(*last)).collect(),
        refused: Vec::new(),
        revision: None,
    }
}

/// A guard with a clock of its own and backends that checks found dead.
struct Source {
    guard: Guard,
    now: Instant,
    dead: BTreeSet<IpAddr>,
}

impl Source {
    fn new(spec: GuardSpec) -> Self {
        Self {
            guard: Guard::new(spec),
            now: Instant::now(),
            dead: BTreeSet::new(),
        }
    }

    fn says(&mut self, update: Update) -> Vec<u8> {
        self.guard.hear(update).expect("a state came first");
        self.decide()
    }

    fn decide(&mut self) -> Vec<u8> {
        let dead = self.dead.clone();
        self.guard.decide(self.now, |address| dead.contains(&address));
        self.believed()
    }

    fn believed(&self) -> Vec<u8> {
        let last = |address: &IpAddr| match address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(_) => unreachable!("only IPv4 here"),
        };
        self.guard.believed().keys().map(last).collect()
    }

    fn pass(&mut self, seconds: u64) -> Vec<u8> {
        self.now += Duration::from_secs(seconds);
        self.decide()
    }

    fn held(&self) -> usize {
        self.guard.held().map_or(0, |held| held.endpoints.len())
    }
}

#[test]
fn a_first_state_is_believed_whatever_its_size_and_an_empty_one_is_none() {
    let mut source = Source::new(GuardSpec::default());
    assert_eq!(source.says(all(&[])), [0; 0]);
    assert!(!source.guard.is_loaded(), "nothing is no state");
    assert_eq!(source.says(all(&[1, 2, 3])), [1, 2, 3]);
    assert!(source.guard.is_loaded());
    let mut willing = Source::new(GuardSpec {
        allow_empty: true,
        ..GuardSpec::default()
    });
    assert_eq!(willing.says(all(&[])), [0; 0]);
    assert!(willing.guard.is_loaded());
}

#[test]
fn additions_and_changes_go_in_at_once() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2]));
    assert_eq!(source.says(delta(&[3, 4, 5], &[])), [1, 2, 3, 4, 5]);
    let heavier = Endpoint {
        weight: 7,
        ..Endpoint::new(address(2))
    };
    source.says(Update::Delta {
        set: vec![heavier.clone()],
        gone: Vec::new(),
        refused: Vec::new(),
        revision: None,
    });
    assert_eq!(source.guard.believed()[&address(2)], heavier);
}

#[test]
fn an_empty_answer_takes_nothing_away() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3]));
    assert_eq!(source.says(all(&[])), [1, 2, 3]);
    assert_eq!(source.guard.held().map(|held| held.why), Some(Why::Empty));
    assert_eq!(source.pass(7 * 24 * 3600), [1, 2, 3], "not in a week either");
    assert_eq!(source.says(all(&[1, 2, 3])), [1, 2, 3]);
    assert_eq!(source.held(), 0, "the source came to its senses");
    source.says(all(&[]));
    assert_eq!(source.guard.accept(), 3);
    assert_eq!(source.believed(), [0; 0], "somebody looked at it");
}

#[test]
fn a_single_backend_may_always_go_unless_it_is_the_last() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2]));
    assert_eq!(source.says(all(&[1])), [1]);
    assert_eq!(source.says(all(&[])), [1]);
}

#[test]
fn more_than_half_at_once_waits_five_minutes() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4, 5, 6]));
    assert_eq!(source.says(all(&[1, 2, 3])), [1, 2, 3], "half may go");
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4, 5, 6]));
    assert_eq!(
        source.says(all(&[1, 2, 7])),
        [1, 2, 3, 4, 5, 6, 7],
        "the addition goes in"
    );
    assert_eq!(source.pass(299), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(source.pass(1), [1, 2, 7]);
}

#[test]
fn what_is_held_must_stay_the_same_to_go() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4]));
    source.says(all(&[1]));
    source.pass(250);
    source.says(all(&[2]));
    assert_eq!(
        source.pass(250),
        [1, 2, 3, 4],
        "other ones, so the time starts again"
    );
    assert_eq!(source.pass(50), [2]);
}

#[test]
fn many_small_removals_are_one_large_one() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(source.says(delta(&[], &[8, 7])), [1, 2, 3, 4, 5, 6]);
    source.pass(20);
    assert_eq!(source.says(delta(&[], &[6, 5])), [1, 2, 3, 4]);
    source.pass(20);
    assert_eq!(
        source.says(delta(&[], &[4])),
        [1, 2, 3, 4],
        "5 of 8 within a minute"
    );
    assert_eq!(
        source.guard.held().map(|held| held.why),
        Some(Why::TooMany { gone: 5, of: 8 })
    );
    let due = source.guard.due().expect("the minute ends");
    assert_eq!(due - source.now, Duration::from_secs(20));
    assert_eq!(source.pass(20), [1, 2, 3], "the first two were long ago by then");
}

#[test]
fn the_dead_may_go_however_many() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4]));
    source.dead = [1, 2, 3].map(address).into();
    assert_eq!(source.says(all(&[4])), [4]);
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4]));
    source.dead = [address(1)].into();
    assert_eq!(source.says(all(&[])), [2, 3, 4], "the living stay");
    source.dead = [2, 3, 4].map(address).into();
    assert_eq!(source.decide(), [0; 0], "checks agree in the end");
}

#[test]
fn draining_all_is_held_like_dropping_all() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3]));
    let draining = endpoints(&[1, 2, 3]).into_iter().map(|endpoint| Endpoint {
        state: BackendState::Draining,
        weight: 9,
        ..endpoint
    });
    source.says(Update::Snapshot {
        endpoints: draining.collect(),
        refused: Vec::new(),
        revision: None,
    });
    assert_eq!(source.held(), 3);
    let states = |source: &Source| -> Vec<(BackendState, u32)> {
        let believed = source.guard.believed().values();
        believed
            .map(|endpoint| (endpoint.state, endpoint.weight))
            .collect()
    };
    assert_eq!(
        states(&source),
        [(BackendState::Serving, 9); 3],
        "weights are changes"
    );
    source.guard.accept();
    assert_eq!(states(&source), [(BackendState::Draining, 9); 3]);
    assert_eq!(source.says(all(&[1, 2, 3])), [1, 2, 3]);
    assert_eq!(
        states(&source),
        [(BackendState::Serving, 1); 3],
        "back is an addition"
    );
}

#[test]
fn by_hand_everything_is_held_until_accepted() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4]));
    source.guard.hold();
    source.dead = [address(1)].into();
    assert_eq!(source.says(all(&[2, 3, 4])), [1, 2, 3, 4]);
    assert_eq!(source.pass(3600), [1, 2, 3, 4]);
    assert_eq!(source.says(delta(&[5], &[])), [1, 2, 3, 4, 5]);
    assert_eq!(source.guard.accept(), 1);
    assert_eq!(source.decide(), [2, 3, 4, 5]);
    assert_eq!(source.says(all(&[3, 4, 5])), [3, 4, 5], "and no longer held");
}

#[test]
fn what_was_accepted_does_not_count_against_what_comes_next() {
    let mut source = Source::new(GuardSpec::default());
    source.says(all(&[1, 2, 3, 4, 5, 6]));
    source.says(all(&[1, 2]));
    source.guard.accept();
    assert_eq!(source.says(all(&[1])), [1]);
}

#[test]
fn a_state_from_disk_is_guarded_like_any_other() {
    let mut source = Source::new(GuardSpec::default());
    source.guard = Guard::from_disk(GuardSpec::default(), endpoints(&[1, 2, 3]));
    assert!(source.guard.is_loaded());
    assert_eq!(source.decide(), [1, 2, 3], "the source has not said anything");
    assert_eq!(source.guard.hear(delta(&[], &[1])), Err(OutOfOrder));
    assert_eq!(source.says(all(&[])), [1, 2, 3]);
    assert_eq!(source.says(all(&[9])), [1, 2, 3, 9]);
    assert_eq!(source.held(), 3);
    assert_eq!(source.pass(300), [9]);
}

#[test]
fn times_and_shares_can_be_set() {
    let mut source = Source::new(GuardSpec {
        max_removal: 1.0,
        hold_empty: Hold::For(Seconds(10)),
        ..GuardSpec::default()
    });
    source.says(all(&[1, 2, 3, 4]));
    assert_eq!(source.says(all(&[1])), [1], "as many as you like");
    assert_eq!(source.says(all(&[])), [1]);
    assert_eq!(source.pass(10), [0; 0]);
}

proptest! {
    /// Whatever a source says, in whatever order: what it named last is believed and so is what is held, and nothing else;
    /// and within a window never more goes than may, so that something always serves.
    #[test]
    fn nothing_is_lost_that_was_not_let_go(
        answers in prop::collection::vec((prop::collection::vec(0u8..12, 0..12), 0u64..50), 0..40)
    ) {
        let spec = GuardSpec { hold: Hold::UntilAccepted, ..GuardSpec::default() };
        let mut source = Source::new(spec);
        let mut log: Vec<(Instant, usize)> = Vec::new();
        for (named, seconds) in answers {
            source.now += Duration::from_secs(seconds);
            let before: BTreeSet<u8> = source.believed().into_iter().collect();
            let after: BTreeSet<u8> = source.says(all(&named)).into_iter().collect();
            let held: BTreeSet<IpAddr> = source.guard.held().iter().flat_map(|held| held.endpoints.clone()).collect();
            if source.guard.is_loaded() {
                let wanted: BTreeSet<IpAddr> = named.iter().copied().map(address).chain(held).collect();
                prop_assert_eq!(after.iter().copied().map(address).collect::<BTreeSet<_>>(), wanted);
            }
            prop_assert!(before.is_empty() || !after.is_empty());
            let gone = before.difference(&after).count();
            if gone > 0 {
                log.push((source.now, gone));
                let recent = log.iter().filter(|(at, _)| source.now - *at < Duration::from_secs(60));
                let sum: usize = recent.map(|(_, count)| count).sum();
                prop_assert!(sum < 2 || sum as f64 <= 0.5 * (after.len() + sum) as f64, "{sum} of {}", after.len() + sum);
            }
        }
    }
}
