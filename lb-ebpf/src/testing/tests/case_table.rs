//! The table of cases, on the library.

use std::collections::BTreeSet;

use crate::{
    testing::{
        case::{self, Case, Expect, Step},
        cases,
        engine::HostEngine,
        packet::Packet,
        world::{
            World,
            standard::{DNS, TUNNEL_4IN4, WEB},
        },
    },
    verdict::{Drop, Pass, Verdict},
};
use lb_common::counters::Event;

/// Checks a table; answers how many cases there were.
fn check(table: &[Case], cpu: u32) -> usize {
    let failures: Vec<String> = table
        .iter()
        .filter_map(|case| {
            let mut engine = match case.headroom {
                Some(octets) => HostEngine::with_headroom(cpu, octets),
                None => HostEngine::new(cpu),
            };
            case::check(case, &mut engine).err()
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}",
        failures.len(),
        table.len(),
        failures.join("\n")
    );
    table.len()
}

#[test]
fn the_library_passes_every_case() {
    let count = check(&cases::all(&World::standard(0, 0x5eed)), 0);
    println!("{count} cases");
    assert!(count >= 320, "only {count} cases");
}

#[test]
fn the_library_passes_every_case_on_another_cpu_with_other_seeds() {
    check(&cases::all(&World::standard(3, 0x0dd_5eed)), 3);
}

/// As when the program for them is not loaded: what is rare is passed or dropped, and nothing else is different.
#[test]
fn rare_frames_have_a_verdict_without_their_program() {
    let world = World::standard(0, 0x5eed);
    let ping = Packet::icmp_v4(8, 0, [0; 4]);
    let fragment = DNS.packet().payload(&[1; 64]).fragment(0, true);
    let too_big = TUNNEL_4IN4.packet().dont_fragment().filled_to(1500);
    let mut engine = HostEngine::new(0).without_rare();
    let case = Case::new("alone", &world)
        .sends(&ping, Expect::pass(Pass::Icmp))
        .sends(&fragment, Expect::drop(Drop::Fragment))
        .sends(
            &too_big,
            Expect::drop_for(TUNNEL_4IN4.id, Drop::TooBig).new_flow(),
        )
        .sends(&WEB.packet(), Expect::dsr(WEB.id).new_flow());
    case::check(&case, &mut engine).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn every_sentence_is_said_once() {
    let table = cases::all(&World::standard(0, 0x5eed));
    let sentences: BTreeSet<_> = table.iter().map(|case| &case.sentence).collect();
    assert_eq!(sentences.len(), table.len());
}

#[test]
fn every_verdict_and_every_event_is_provoked() {
    let table = cases::all(&World::standard(0, 0x5eed));
    let expects = table
        .iter()
        .flat_map(|case| &case.steps)
        .filter_map(|step| match step {
            Step::Send(_, expect) => Some(expect),
            _ => None,
        });
    let mut verdicts = BTreeSet::new();
    let mut events = BTreeSet::new();
    for expect in expects {
        verdicts.insert(expect.verdict().counter());
        events.extend(expect.events().keys().copied());
    }
    let missing: Vec<_> = Verdict::all()
        .filter(|verdict| !verdicts.contains(&verdict.counter()))
        .collect();
    assert!(missing.is_empty(), "no case ends with {missing:?}");
    let missing: Vec<_> = Event::ALL
        .into_iter()
        .filter(|event| !events.contains(event))
        .collect();
    assert!(missing.is_empty(), "no case has {missing:?}");
}

#[test]
fn an_unmet_expectation_is_told() {
    let world = World::standard(0, 0x5eed);
    let syn = WEB.packet().syn();
    let told = |expect| {
        let case = Case::new("a sentence", &world).sends(&syn, expect);
        case::check(&case, &mut HostEngine::new(0)).expect_err("it is not met")
    };
    assert!(told(Expect::pass(Pass::NotVip)).contains("Transmit, expected Pass"));
    let text = told(Expect::dsr(2).new_flow());
    assert!(text.contains("expected 020000000102"), "{text}");
    assert!(
        text.contains("backend 1 flows, packets, bytes, fresh flows: [1, 1, 54, 1], expected [0, 0, 0, 0]")
    );
    assert!(told(Expect::dsr(WEB.id)).contains("picks and fresh picks: [1, 1], expected [0, 0]"));
    assert!(told(Expect::dsr(WEB.id).new_flow().no_flow()).contains("expected none"));
    assert!(told(Expect::dsr(WEB.id).new_flow().at(99 % 16, 3)).contains("way 3 holds 0x0"));
}
