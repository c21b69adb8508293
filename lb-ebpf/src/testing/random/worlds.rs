//! Random worlds: the standard one with anything in its maps wrong, and changes while packets flow.

use lb_common::{
    fingerprint::FingerprintKey,
    flow::{FlowBucket, candidate_buckets},
    flow_hash::Key,
    ids::BackendRef,
    seed::Seed,
    settings::{LAYOUT_VERSION, one_in},
};

use super::{Rng, Traffic};
use crate::{
    parse,
    testing::{
        engine::{Engine, HostEngine},
        frame::BufferFrame,
        world::{INGRESS, OTHER_INTERFACE, World},
    },
};

/// A world for a CPU: sometimes sound, mostly with a few things wrong, its flow table half full of anything.
pub fn world(rng: &mut Rng, cpu: u32, traffic: &Traffic) -> World {
    let mut world = World::standard(cpu, rng.word());
    world.now = rng.pick(&[1_000_000, 1_000_000, 0, 5, u32::MAX - 3, 1 << 31]);
    world.settings.flow_mask = rng.pick(&[15, 15, 7, 3, 1, 0]);
    world.settings.fresh_mask = rng.pick(&[63, 63, 7, 0]);
    world.settings.sample_mask = one_in(rng.pick(&[64, 4, 1]));
    world.settings.packet_sample_mask = one_in(rng.pick(&[64, 3, 1]));
    world.settings.icmp_rate = rng.pick(&[1000, 1000, 3, 0]);
    world.settings.flags = rng.pick(&[0, 0, 0, 1]);
    for _ in 0..rng.below(8) {
        disturb(rng, &mut world);
    }
    fill_flows(rng, &mut world, traffic);
    world
}

/// Changes something, as a daemon might, or something else with write access to the maps.
pub fn disturb(rng: &mut Rng, world: &mut World) {
    let id = 1 + rng.below(30) as u32;
    match rng.below(16) {
        0 => world.now = world.now.wrapping_add(rng.pick(&[1, 11, 31, 61, 121, 30_000])),
        1 => {
            let salt = rng.word();
            world.rotate(salt);
        }
        2 => world.drain(id),
        3 => world.replace(id),
        4 => seeds(rng, world),
        5 => settings(rng, world),
        6 | 7 => service(rng, world),
        8 | 9 => slots(rng, world),
        10 => world.vip_filter.fill(u64::MAX),
        _ => backend(rng, world, id),
    }
}

fn seeds(rng: &mut Rng, world: &mut World) {
    let index = rng.below(world.seeds.len());
    match rng.below(3) {
        0 => world.seeds[index] = Seed::default(),
        1 => world.seeds[index].generation = 0,
        _ => world.seeds.fill(Seed::default()),
    }
}

fn settings(rng: &mut Rng, world: &mut World) {
    let settings = &mut world.settings;
    match rng.below(14) {
        12 => settings.fragment_mask = rng.pick(&[0, 1, 7, u32::MAX]),
        13 => settings.icmp_rate = rng.pick(&[0, 1, u32::MAX]),
        0 => settings.layout_version = rng.pick(&[0, LAYOUT_VERSION + 1]),
        1 => settings.flow_mask = rng.pick(&[31, 0xffff, u32::MAX]),
        2 => settings.fresh_mask = rng.pick(&[127, 0xffff, u32::MAX]),
        3 => settings.backend_stride = rng.pick(&[0, 63, 1000, u32::MAX]),
        4 => settings.sample_mask = rng.pick(&[0, 1, 2, u64::MAX]),
        5 => {
            settings.table_key = FingerprintKey::expand(Key {
                k0: rng.word(),
                k1: 0,
            })
        }
        6 => settings.timeouts = std::array::from_fn(|_| rng.word() as u32),
        _ => {
            let state = rng.below(8);
            settings.timeouts[state] = rng.pick(&[0, 1, 30, 1 << 20, u32::MAX]);
        }
    }
}

fn service(rng: &mut Rng, world: &mut World) {
    let keys: Vec<_> = world.services.keys().copied().collect();
    if keys.is_empty() {
        return;
    }
    let key = rng.pick(&keys);
    if rng.once_in(6) {
        world.services.remove(&key);
        return;
    }
    let service = world.services.get_mut(&key).expect("a key of the map");
    match rng.below(6) {
        0 => service.flags = rng.below(4) as u32,
        1 => service.slots_offset = rng.pick(&[0, 1, 2040, 2047, 2048, u32::MAX]),
        2 => service.slots_count = rng.pick(&[0, 1, 2, 3, 5000, u32::MAX]),
        3 => service.id = rng.below(40) as u32,
        4 => service.bucket_scale = rng.word(),
        _ => service.flags = rng.word() as u32,
    }
}

fn slots(rng: &mut Rng, world: &mut World) {
    let id = rng.below(64) as u32;
    let any = [
        BackendRef::UNSET,
        BackendRef::from_bits(rng.word() as u32),
        world.reference(id),
        world.reference(1 + rng.below(30) as u32),
    ];
    let from = rng.below(world.slots.len());
    let count = rng.pick(&[1, 8, 64, 2048]);
    let stray = rng.pick(&any);
    for slot in world
        .slots
        .iter_mut()
        .skip(from)
        .take(count)
        .step_by(1 + rng.below(3))
    {
        *slot = stray;
    }
}

fn backend(rng: &mut Rng, world: &mut World, id: u32) {
    let backend = &mut world.backends[id as usize];
    match rng.below(10) {
        0 | 1 => backend.state = rng.below(5) as u8,
        2 => backend.mode = rng.below(4) as u8,
        3 => backend.family = rng.pick(&[0, 4, 6, 255]),
        4 => backend.generation = rng.word() as u8,
        5 => backend.interface = rng.pick(&[0, INGRESS, OTHER_INTERFACE]),
        6 => backend.mac_destination = rng.pick(&[[0; 6], [2, 0, 0, 0, 1, 99], [0, 0, 0, 0, 0, 1]]),
        7 => backend.mtu = rng.pick(&[0, 59, 60, 100, 576, 1280, 1500, 9000, u16::MAX]),
        8 => backend.udp_idle = rng.pick(&[0, 1, u16::MAX]),
        _ => backend.service = rng.below(31) as u32,
    }
}

/// Fills part of the table with flows that will come back, and with garbage.
fn fill_flows(rng: &mut Rng, world: &mut World, traffic: &Traffic) {
    world.flows.fill(FlowBucket::default());
    let mut host = HostEngine::new(world.cpu);
    host.reset(world);
    for _ in 0..rng.below(100) {
        let frame = traffic.frame(rng);
        let known = parse::parse(&BufferFrame::new(&frame, INGRESS), &host.tables)
            .ok()
            .map(|packet| world.settings.table_key.of_flow(&packet.tuple));
        let fingerprint = if rng.once_in(3) { Some(rng.word()) } else { known };
        let Some(fingerprint) = fingerprint else {
            continue;
        };
        let (first, second) = candidate_buckets(fingerprint);
        let bucket = if rng.once_in(3) { second } else { first } & world.settings.flow_mask;
        let Some(bucket) = world.flows.get(bucket as usize) else {
            continue;
        };
        let entry = &bucket.entries[rng.below(4)];
        entry.fingerprint.store(fingerprint);
        entry.value.store(flow_value(rng, world));
    }
}

fn flow_value(rng: &mut Rng, world: &World) -> u64 {
    if rng.once_in(8) {
        return rng.word();
    }
    let id = 1 + rng.below(30) as u32;
    let idle = rng.pick(&[0, 1, 10, 11, 30, 31, 60, 61, 21_600, 21_601, u32::MAX]);
    let seen = world.now.wrapping_sub(idle);
    u64::from(world.reference(id).bits()) | (rng.below(5) as u64) << 28 | u64::from(seen) << 32
}
