//! The table of cases: what becomes of every kind of packet.

mod echo;
mod eviction;
mod flows;
mod fragment_table;
mod fragments;
mod icmp;
mod icmp_refused;
mod ipv4;
mod ipv6;
mod link;
mod malformed;
mod picks;
mod services;
mod settings;
mod too_big;
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
        fragment_table::cases(world),
        echo::cases(world),
        icmp::cases(world),
        icmp_refused::cases(world),
        too_big::cases(world),
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
    let fingerprint = inner.fingerprint(&world.settings.table_key);
    outer_spread_by(world, id, inner, class, fingerprint)
}

/// The same for a packet whose path is not chosen by its own flow.
fn outer_spread_by(world: &World, id: u32, inner: &Packet, class: u8, fingerprint: Option<u64>) -> Packet {
    let backend = &world.backends[id as usize];
    let source = address(&backend.outer_source, backend.family);
    let destination = address(&backend.address, backend.family);
    let outer = Packet::tunnel(source, destination)
        .traffic_class(class)
        .tags_of(inner)
        .carrying(inner);
    if backend.family == 6 {
        let fingerprint = fingerprint.expect("an IP packet");
        return outer.flow_label((fingerprint >> 40) as u32 & 0xf_ffff);
    }
    outer
}
