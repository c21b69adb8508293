//! The table of cases: what becomes of every kind of packet.

mod eviction;
mod flows;
mod fragments;
mod ipv4;
mod ipv6;
mod link;
mod malformed;
mod picks;
mod services;
mod settings;
mod tunnels;

use super::{
    case::Case,
    packet::Packet,
    world::{World, edit::address},
};

/// Every case, for worlds like [`World::standard`] with any seeds.
pub fn all(world: &World) -> Vec<Case> {
    [
        link::cases(world),
        ipv4::cases(world),
        ipv6::cases(world),
        malformed::cases(world),
        fragments::cases(world),
        services::cases(world),
        picks::cases(world),
        flows::cases(world),
        eviction::cases(world),
        tunnels::cases(world),
        settings::cases(world),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the backend's tunnel makes of a packet: written by hand from RFC 2003, RFC 2473 and RFC 4213.
fn outer(world: &World, id: u32, inner: &Packet, class: u8) -> Packet {
    let backend = &world.backends[id as usize];
    let source = address(&backend.outer_source, backend.family);
    let destination = address(&backend.address, backend.family);
    let outer = Packet::tunnel(source, destination)
        .traffic_class(class)
        .tags_of(inner)
        .carrying(inner);
    if backend.family == 6 {
        let fingerprint = inner
            .fingerprint(&world.settings.table_key)
            .expect("an IP packet");
        return outer.flow_label((fingerprint >> 40) as u32 & 0xf_ffff);
    }
    outer
}
