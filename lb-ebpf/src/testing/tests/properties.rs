//! Whatever comes in: one verdict, no panic, and nothing changes but what the verdict allows.

use proptest::prelude::*;

use crate::{
    testing::{
        engine::{Engine, HostEngine},
        random::{self, Rng, Traffic},
        world::World,
    },
    verdict::{Answer, Forward, Verdict},
};

/// Judges a frame and checks what holds for every frame.
fn check(engine: &mut HostEngine, frame: &[u8]) -> Verdict {
    let before = engine.state();
    let (verdict, bytes) = engine.judge(frame);
    let after = engine.state();
    let moved: Vec<u64> = after
        .verdicts()
        .iter()
        .zip(before.verdicts())
        .map(|(after, before)| after - before)
        .collect();
    assert_eq!(moved.iter().sum::<u64>(), 1, "{moved:?}");
    assert_eq!(moved[verdict.counter() as usize], 1, "{verdict:?}");
    match verdict {
        Verdict::Pass(_) | Verdict::Drop(_) => assert_eq!(bytes, frame, "{verdict:?}"),
        Verdict::Forward {
            how: Forward::Dsr, ..
        } => assert_eq!(bytes[12..], frame[12..]),
        Verdict::Forward {
            how: Forward::Ipip, ..
        } => {
            let added = bytes.len() - frame.len();
            assert!(added == 20 || added == 40);
            // Behind the longest link header the packet is the same, and the tags are in front of the outer one.
            assert_eq!(bytes[added + 22..], frame[22..]);
        }
        Verdict::Answer(answer) => check_answer(answer, frame, &bytes),
    }
    verdict
}

/// Where the IP packet begins behind tags.
fn network(frame: &[u8]) -> usize {
    let tags = [12, 16]
        .into_iter()
        .take_while(|at| matches!(frame[*at..at + 2], [0x81, 0] | [0x88, 0xa8]));
    14 + 4 * tags.count()
}

/// RFC 1071: of whole and unharmed octets the sum is 0xffff.
fn sum(octets: &[u8]) -> u32 {
    let words = octets
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    words.fold(0, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    })
}

/// An answer goes back in the same way, from the VIP to whom it came from.
fn check_answer(answer: Answer, frame: &[u8], bytes: &[u8]) {
    let at = network(frame);
    assert_eq!([&bytes[6..12], &bytes[..6]].concat(), frame[..12]);
    assert_eq!(bytes[12..at], frame[12..at]);
    let (packet, cause) = (&bytes[at..], &frame[at..]);
    let v6 = packet[0] >> 4 == 6;
    let (ends, half) = if v6 { (8, 16) } else { (12, 4) };
    let [source, destination] = [ends, ends + half].map(|at| at..at + half);
    assert_eq!(packet[source.clone()], cause[destination.clone()]);
    assert_eq!(packet[destination.clone()], cause[source.clone()]);
    if answer == Answer::EchoReply {
        assert_eq!(bytes.len(), frame.len());
        return;
    }
    let (header, largest) = if v6 { (40, 1280) } else { (20, 576) };
    assert!(packet.len() <= largest);
    assert_eq!(packet[header + 8..], cause[..packet.len() - header - 8]);
    let message = &packet[header..];
    if v6 {
        let pseudo = [
            &packet[8..40],
            &(message.len() as u32).to_be_bytes(),
            &[0, 0, 0, 58],
        ]
        .concat();
        assert_eq!(sum(&[&pseudo, message].concat()), 0xffff);
    } else {
        assert_eq!(sum(&packet[..20]), 0xffff);
        assert_eq!(sum(message), 0xffff);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_bytes_get_one_verdict(frame in prop::collection::vec(any::<u8>(), 0..200), kind in 0usize..6) {
        let mut frame = frame;
        if let Some(ethertype) = frame.get_mut(12..14) {
            ethertype.copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8], [8, 6], [1, 2]][kind]);
        }
        let mut world = World::standard(0, 1);
        world.vip_filter.fill(u64::MAX);
        let mut engine = HostEngine::new(0);
        engine.reset(&world);
        check(&mut engine, &frame);
    }

    #[test]
    fn random_frames_in_random_worlds_get_one_verdict(seed: u64) {
        let mut rng = Rng::new(seed);
        let traffic = Traffic::new(&mut rng);
        let mut world = random::world(&mut rng, 0, &traffic);
        let mut engine = HostEngine::new(0);
        engine.reset(&world);
        for _ in 0..50 {
            if rng.once_in(10) {
                random::disturb(&mut rng, &mut world);
                engine.configure(&world);
            }
            check(&mut engine, &traffic.frame(&mut rng));
        }
    }
}

#[test]
fn random_frames_reach_every_stage() {
    let mut rng = Rng::new(7);
    let mut engine = HostEngine::new(0);
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..120 {
        let traffic = Traffic::new(&mut rng);
        engine.reset(&random::world(&mut rng, 0, &traffic));
        for _ in 0..50 {
            *seen
                .entry(check(&mut engine, &traffic.frame(&mut rng)).names())
                .or_insert(0) += 1;
        }
    }
    // A frame in a buffer always has room in front.
    let missing: Vec<_> = Verdict::all()
        .map(Verdict::names)
        .filter(|names| !seen.contains_key(names))
        .collect();
    assert_eq!(missing, [("drop", "no_headroom")]);
    let forwarded: i32 = seen
        .iter()
        .filter(|((verdict, _), _)| *verdict == "forward")
        .map(|(_, count)| count)
        .sum();
    assert!(forwarded > 1200, "{seen:?}");
}
