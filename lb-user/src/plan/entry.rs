//! Map entries of one service and of one backend, without slots.

use std::net::IpAddr;

use lb_common::{backend::Backend, service::flag};

use crate::state::desired::{Affinity, DesiredBackend, DesiredService, Selection, address_bytes};

/// [`lb_common::service::Service::flags`].
pub(super) fn service_flags(service: &DesiredService) -> u32 {
    let fleet = match service.selection {
        Selection::Fleet => flag::FLEET,
        Selection::PerCpu => 0,
    };
    let affinity = match service.affinity {
        Affinity::Client => flag::CLIENT_AFFINITY,
        Affinity::None => 0,
    };
    fleet | affinity
}

/// The entry of a backend; without a next hop if there is none that can be used.
pub(super) fn backend_entry(
    address: IpAddr,
    backend: &DesiredBackend,
    service: u32,
    generation: u8,
) -> Backend {
    let (bytes, family) = address_bytes(address);
    let mut entry = Backend {
        address: bytes,
        service,
        generation,
        state: backend.state.in_map(),
        mode: backend.mode.in_map(),
        family,
        udp_idle: backend.udp_idle,
        ..Backend::default()
    };
    if let Some(hop) = backend.next_hop {
        let (outer_source, source_family) = address_bytes(hop.source);
        // The outer header has one family: such an answer cannot be used.
        if source_family == family {
            entry.outer_source = outer_source;
            entry.interface = hop.interface;
            entry.mac_destination = hop.mac_destination;
            entry.mac_source = hop.mac_source;
            entry.mtu = hop.mtu;
        }
    }
    entry
}
