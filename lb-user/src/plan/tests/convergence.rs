//! Whatever is wanted one after the other, and wherever an apply stops: plans converge and keep their rules.

use lb_common::{
    backend::{Backend, state},
    ids::next_generation,
};
use proptest::prelude::*;

use super::*;
use crate::{
    plan::{lint::lint, soundness::unsound},
    state::{desired::address_bytes, observed::Observed},
};

fn backends() -> impl Strategy<Value = BTreeMap<IpAddr, DesiredBackend>> {
    let state = prop::sample::select(vec![
        BackendState::Serving,
        BackendState::Serving,
        BackendState::Draining,
        BackendState::Down,
    ]);
    let one = (1u32..4, state, prop::bool::weighted(0.9), any::<bool>()).prop_map(
        |(weight, state, resolved, tunnel)| DesiredBackend {
            state,
            mode: if tunnel { Mode::Ipip } else { Mode::Dsr },
            next_hop: serving(1).next_hop.filter(|_| resolved),
            ..serving(weight)
        },
    );
    prop::collection::btree_map((0u8..8).prop_map(backend), one, 0..6)
}

fn desires() -> impl Strategy<Value = Desired> {
    let keys = (0u8..4, prop::option::of(1u16..3), any::<bool>()).prop_map(|(vip, port, tcp)| {
        let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        service_key(IpAddr::from([192, 0, 2, vip]), port, protocol)
    });
    let one = (
        backends(),
        any::<bool>(),
        any::<bool>(),
        prop::option::of(1021u32..2000),
    )
        .prop_map(|(backends, fleet, affinity, slots)| DesiredService {
            selection: if fleet {
                Selection::Fleet
            } else {
                Selection::PerCpu
            },
            affinity: if affinity {
                Affinity::Client
            } else {
                Affinity::None
            },
            slots,
            ..service("s", backends)
        });
    let seeds = prop::collection::btree_map(0u32..3, (1u32..4).prop_map(seed), 0..3);
    (prop::collection::btree_map(keys, one, 0..5), seeds).prop_map(|(services, seeds)| Desired {
        services,
        seeds,
        ..desired()
    })
}

fn roomy() -> Observed {
    let mut observed = empty();
    observed.capacity = Capacity {
        services: 5,
        backends: 80,
        slots: 25_000,
        ..observed.capacity
    };
    observed
}

/// The maps say exactly what is wanted.
fn assert_right(wanted: &Desired, observed: &Observed) {
    assert!(wanted.services.keys().eq(observed.services.keys()));
    let mut living = 0;
    for (key, service) in &wanted.services {
        let held = observed.services[key];
        let mut eligible = Vec::new();
        for (address, backend) in &service.backends {
            let (bytes, family) = address_bytes(*address);
            let is_it =
                |entry: &Backend| (entry.service, entry.family, entry.address) == (held.id, family, bytes);
            let entries: Vec<_> = observed
                .backends
                .iter()
                .filter(|(_, entry)| is_it(entry))
                .collect();
            let [(id, entry)] = entries[..] else {
                panic!("{address}: {entries:?}")
            };
            living += 1;
            assert_eq!(
                (entry.state, entry.mode),
                (backend.state.in_map(), backend.mode.in_map())
            );
            if backend.state == BackendState::Serving && backend.next_hop.is_some() {
                eligible.push((*id, backend.weight));
            }
        }
        let shares = shares(observed, *key);
        eligible.sort_unstable();
        assert!(
            shares.keys().copied().eq(eligible.iter().map(|(id, _)| *id)),
            "{shares:?} {eligible:?}"
        );
        let total: u32 = eligible.iter().map(|(_, weight)| weight).sum();
        for (id, weight) in eligible {
            let ideal = f64::from(weight) * f64::from(held.slots_count) / f64::from(total);
            assert!((shares[&id] as f64 - ideal).abs() < 1.0);
        }
    }
    assert_eq!(
        observed
            .backends
            .values()
            .filter(|entry| entry.state != state::UNSET)
            .count(),
        living
    );
    let marks = wanted
        .services
        .keys()
        .map(|key| ServiceKey::vip_mark(key.address, key.family))
        .collect();
    assert_eq!(observed.vip_marks, marks);
    let bits: BTreeSet<u32> = wanted
        .services
        .keys()
        .map(|key| vip_filter::bit_of(&key.address, key.family))
        .collect();
    assert_eq!(
        observed
            .vip_filter
            .iter()
            .map(|word| word.count_ones())
            .sum::<u32>(),
        bits.len() as u32
    );
    for (index, seed) in &wanted.seeds {
        assert_eq!(observed.seeds[*index as usize], *seed);
    }
}

fn assert_generations_move(before: &Observed, after: &Observed) {
    for (id, entry) in &after.backends {
        let old = before.backends.get(id).copied().unwrap_or_default();
        let same =
            (old.service, old.address, old.state != state::UNSET) == (entry.service, entry.address, true);
        let reused = entry.state != state::UNSET && !same;
        let expected = if reused {
            next_generation(old.generation)
        } else {
            old.generation
        };
        assert_eq!(entry.generation, expected, "{id}: {old:?} {entry:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_reaches_what_is_wanted_and_then_rests(wanted in prop::collection::vec(desires(), 1..5)) {
        let mut observed = roomy();
        let mut tables = SlotTableCache::default();
        for desired in wanted {
            observed.now += 10;
            let plan = make_plan(&desired, &observed, &Scope::All, &mut tables).unwrap();
            prop_assert_eq!(lint(&observed, &plan), Vec::<String>::new());
            let after = simulate(&observed, &plan);
            assert_right(&desired, &after);
            assert_generations_move(&observed, &after);
            let again = make_plan(&desired, &after, &Scope::All, &mut tables).unwrap();
            prop_assert!(again.steps.is_empty(), "{}", again);
            observed = after;
        }
    }

    #[test]
    fn a_memo_changes_nothing(first in desires(), second in desires()) {
        let mut tables = SlotTableCache::default();
        let observed = simulate(&roomy(), &make_plan(&first, &roomy(), &Scope::All, &mut tables).unwrap());
        let with = make_plan(&second, &observed, &Scope::All, &mut tables).unwrap();
        prop_assert_eq!(with, plan(&second, &observed));
    }

    /// Whatever was carried out when an apply failed or the daemon was killed, the next plan finds its way.
    #[test]
    fn a_plan_cut_short_is_taken_up_again(first in desires(), second in desires(), third in desires()) {
        let observed = simulate(&roomy(), &plan(&first, &roomy()));
        let whole = plan(&second, &observed);
        for done in 0..whole.steps.len() {
            let part = Plan { steps: whole.steps[..done].to_vec() };
            let mut cut = simulate(&observed, &part);
            cut.now += 10;
            // Some of these states want no seeds at all.
            let notes: Vec<String> = unsound(&cut).into_iter().filter(|note| !note.starts_with("seed")).collect();
            prop_assert_eq!(notes, Vec::<String>::new());
            for next in [&second, &third] {
                let rest = plan(next, &cut);
                prop_assert_eq!(lint(&cut, &rest), Vec::<String>::new());
                assert_right(next, &simulate(&cut, &rest));
            }
        }
    }

    #[test]
    fn services_planned_one_by_one_come_to_the_same(first in desires(), second in desires()) {
        // Without any service there is no plan that could switch seeds.
        let second = Desired { seeds: BTreeMap::new(), ..second };
        let mut observed = simulate(&roomy(), &plan(&first, &roomy()));
        let mut keys: Vec<_> = first.services.keys().chain(second.services.keys()).copied().collect();
        // As the daemon does it: what goes makes room for what comes.
        keys.sort_by_key(|key| second.services.contains_key(key));
        for key in keys {
            observed = simulate(&observed, &plan_one(&second, &observed, key));
        }
        assert_right(&second, &observed);
    }
}
