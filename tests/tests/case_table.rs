//! Promise: the loaded program does what the table of cases says, byte for byte, and the library does the same.

use lb_ebpf::testing::{
    case::{self, Case, Expect, Outcome},
    cases,
    engine::{Engine, HostEngine},
    packet::Packet,
    world::{
        World,
        standard::{DNS, SPREAD, TUNNEL_4IN4, TUNNEL_4IN6, TUNNEL_6IN4, TUNNEL_6IN6},
    },
};
use lb_ebpf::verdict::{Drop, Pass};
use tests::{Proof, engine::KernelEngine};

fn compare(when: &str, case: &Case, host: &Outcome, kernel: &Outcome) {
    let differences = host.state.differences(&kernel.state);
    assert!(
        host.ran == kernel.ran && host.samples == kernel.samples && differences.is_empty(),
        "{when}: library and program differ: {}\n{}\n library {:?}\n program {:?}\n samples {:?}\n and {:?}",
        case.sentence,
        differences.join("\n"),
        host.ran,
        kernel.ran,
        host.samples,
        kernel.samples,
    );
}

/// The cases that a test run of the kernel can show.
fn table(world: &World) -> Vec<Case> {
    let all = cases::all(world);
    let here: Vec<_> = all.into_iter().filter(|case| case.host_only.is_none()).collect();
    assert!(here.len() >= 500, "only {} cases", here.len());
    here
}

/// Runs the whole table with every expectation on both engines, and compares them.
fn check(when: &str, world: &World, kernel: &mut KernelEngine) {
    let mut failures = Vec::new();
    for case in table(world) {
        let mut host = HostEngine::new(kernel.cpu());
        let wanted = case::check(&case, &mut host).unwrap_or_else(|error| panic!("{when}, library: {error}"));
        match case::check(&case, kernel) {
            Ok(found) => compare(when, &case, &wanted, &found),
            Err(error) => failures.push(error),
        }
    }
    assert!(
        failures.is_empty(),
        "{when}: the program fails {} cases:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn the_program_passes_every_case() -> Proof {
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    check("fresh maps", &World::standard(kernel.cpu(), 0x5eed), &mut kernel);
    Ok(())
}

#[test]
fn the_program_passes_every_case_after_seed_rotations() -> Proof {
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    let mut world = World::standard(kernel.cpu(), 0x5eed);
    for salt in [0xfeed, 0xbeef] {
        world.rotate(salt);
        check("new seeds", &world, &mut kernel);
    }
    Ok(())
}

#[test]
fn the_program_passes_every_case_after_it_was_replaced() -> Proof {
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    kernel.replace_program()?;
    check("replaced", &World::standard(kernel.cpu(), 0x5eed), &mut kernel);
    Ok(())
}

/// As before the daemon has put the programs for rare frames into their map.
#[test]
fn rare_frames_have_a_verdict_without_their_programs() -> Proof {
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    kernel.without_rare()?;
    let world = World::standard(kernel.cpu(), 0x5eed);
    let ping = Packet::icmp_v6(128, 0, [0; 4]);
    let fragment = DNS.packet().payload(&[1; 64]).fragment(0, true);
    let too_big = TUNNEL_6IN6.packet().filled_to(1500);
    let case = Case::new("without their programs", &world)
        .sends(&ping, Expect::pass(Pass::Icmp))
        .sends(&fragment, Expect::drop(Drop::Fragment))
        .sends(
            &too_big,
            Expect::drop_for(TUNNEL_6IN6.id, Drop::TooBig).new_flow(),
        );
    let mut host = HostEngine::new(kernel.cpu()).without_rare();
    let wanted = case::check(&case, &mut host).map_err(anyhow::Error::msg)?;
    let found = case::check(&case, &mut kernel).map_err(anyhow::Error::msg)?;
    compare("alone", &case, &wanted, &found);
    Ok(())
}

/// Each case again and again on the maps it has left behind, while the world moves on under it.
#[test]
fn both_agree_on_used_maps_through_rotation_drain_and_replacement() -> Proof {
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    let mut host = HostEngine::new(kernel.cpu());
    for case in table(&World::standard(kernel.cpu(), 0x5eed)) {
        let mut worlds = [case.world.clone(), case.world.clone()];
        host.reset(&case.world);
        kernel.reset(&case.world);
        for when in ["first", "rotated", "drained", "replaced", "gone"] {
            for world in &mut worlds {
                change(when, world);
            }
            host.configure(&worlds[0]);
            kernel.configure(&worlds[1]);
            if when == "replaced" {
                kernel.replace_program()?;
            }
            let wanted = case::repeat(&case, &mut worlds[0], &mut host);
            let found = case::repeat(&case, &mut worlds[1], &mut kernel);
            compare(when, &case, &wanted, &found);
        }
    }
    Ok(())
}

fn change(when: &str, world: &mut World) {
    let used: Vec<u32> = (1..world.backends.len() as u32)
        .filter(|id| world.backends[*id as usize].state != 0)
        .collect();
    match when {
        "rotated" => world.rotate(0xabcd),
        // One of the backends of every service that has several, and the only ones of every third other.
        "drained" => used
            .iter()
            .filter(|id| **id % 3 == SPREAD.id % 3)
            .for_each(|id| world.drain(*id)),
        "gone" => used
            .iter()
            .filter(|id| **id % 3 == 0)
            .for_each(|id| world.replace(*id)),
        _ => {}
    }
}

/// What goes into a tunnel comes out of `decap` as it was, in both engines.
#[test]
fn decap_gives_back_what_the_tunnel_took() -> Proof {
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    let mut host = HostEngine::new(kernel.cpu());
    let world = World::standard(kernel.cpu(), 0x5eed);
    for service in [TUNNEL_4IN4, TUNNEL_4IN6, TUNNEL_6IN4, TUNNEL_6IN6] {
        let plain = service.packet().payload(b"hello").traffic_class(0xb8);
        for packet in [
            plain.clone(),
            plain.clone().vlan(5),
            plain.clone().service_vlan(7).vlan(5),
            plain.clone().trailing(9),
            plain.filled_to(1200),
        ] {
            host.reset(&world);
            let frame = packet.bytes();
            let outer = host.run(&frame);
            let (here, there) = (host.decap(&outer.bytes), kernel.decap(&outer.bytes));
            assert_eq!(here, there);
            assert_eq!(here.bytes[12..], frame[12..], "only the MAC addresses are new");
            assert_eq!(here.bytes[..12], outer.bytes[..12]);
        }
    }
    Ok(())
}

#[test]
fn decap_leaves_other_packets_alone() -> Proof {
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    let mut host = HostEngine::new(kernel.cpu());
    let inner = TUNNEL_4IN4.packet();
    let tunnel = Packet::tunnel("10.0.0.1".parse()?, "10.0.0.2".parse()?).carrying(&inner);
    let others = [
        inner.clone(),
        TUNNEL_6IN6.packet(),
        Packet::ethernet(0x0806, &[0; 28]),
        tunnel.clone().options(&[148, 4, 0, 0]),
        tunnel.clone().fragment(0, true),
        tunnel.clone().fragment(64, false),
        tunnel.clone().raw_protocol(47),
        tunnel.truncate_to(14 + 20 + 10),
    ];
    for packet in others {
        let frame = packet.bytes();
        assert_eq!(host.decap(&frame).bytes, frame);
        assert_eq!(kernel.decap(&frame).bytes, frame);
    }
    Ok(())
}
