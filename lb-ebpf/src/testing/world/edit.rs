//! How a world is put together, and what happens to it later.

use std::net::IpAddr;

use lb_common::{
    backend::{Backend, mode, state},
    flow::{TAKEN, WAYS, candidate_buckets},
    flow_hash::Key,
    ids::next_generation,
    seed::{self, Seed},
    service::{Service, ServiceKey, VIP_MARK, flag},
    slot_table::{bucket_scale, slot_of},
    vip_filter,
};

use super::{INGRESS, World};
use crate::testing::packet::Packet;

/// Slots of a service's region here.
pub const SLOTS: u32 = 64;

/// An address as map entries hold it, and its family.
pub fn octets(address: &str) -> ([u8; 16], u8) {
    match address.parse() {
        Ok(IpAddr::V4(address)) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            (octets, 4)
        }
        Ok(IpAddr::V6(address)) => (address.octets(), 6),
        Err(error) => panic!("{address}: {error}"),
    }
}

/// The other way round.
pub fn address(octets: &[u8; 16], family: u8) -> IpAddr {
    if family == 6 {
        IpAddr::from(*octets)
    } else {
        IpAddr::from([octets[0], octets[1], octets[2], octets[3]])
    }
}

/// MAC address of a backend's next hop.
pub const fn next_hop_mac(id: u32) -> [u8; 6] {
    [2, 0, 0, 0, 1, id as u8]
}

/// This host's MAC address on an interface; 1 gives [`crate::testing::packet::HOST_MAC`].
pub const fn host_mac(interface: u32) -> [u8; 6] {
    [2, 0, 0, 0, 0, interface as u8]
}

pub fn service_key(vip: &str, protocol: u8, port: u16) -> ServiceKey {
    let (address, family) = octets(vip);
    ServiceKey {
        address,
        port: port.to_be_bytes(),
        protocol,
        family,
        reserved: [0; 4],
        align: [],
    }
}

impl World {
    /// Sets the filter bit and the mark of a VIP address.
    pub fn add_vip(&mut self, vip: &str) {
        let (address, family) = octets(vip);
        self.set_filter_bit(vip);
        let mark = Service {
            id: VIP_MARK,
            ..Service::default()
        };
        self.services.insert(ServiceKey::vip_mark(address, family), mark);
    }

    pub fn set_filter_bit(&mut self, address: &str) {
        let (address, family) = octets(address);
        let bit = vip_filter::bit_of(&address, family);
        self.vip_filter[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// A serving backend, reached over the ingress interface.
    pub fn add_backend(&mut self, id: u32, service: u32, mode: u8, address: &str) -> &mut Backend {
        let (address, family) = octets(address);
        let source = if family == 6 { "2001:db8:f::1" } else { "10.0.0.1" };
        let backend = &mut self.backends[id as usize];
        *backend = Backend {
            address,
            outer_source: octets(source).0,
            service,
            interface: INGRESS,
            mac_destination: next_hop_mac(id),
            mac_source: host_mac(INGRESS),
            generation: 200u8.wrapping_add(id as u8) | 1,
            state: state::SERVING,
            mode,
            family,
            mtu: 1500,
            udp_idle: 60,
            removed_at: 0,
        };
        backend
    }

    /// A service whose slots name these backends in turn.
    pub fn add_service(
        &mut self,
        id: u32,
        vip: &str,
        protocol: u8,
        port: u16,
        backends: &[u32],
    ) -> &mut Service {
        self.add_vip(vip);
        let offset = self.slots_used;
        let count = if backends.is_empty() { 0 } else { SLOTS };
        self.slots_used += count;
        for slot in 0..count {
            self.slots[(offset + slot) as usize] = self.reference(backends[slot as usize % backends.len()]);
        }
        let service = Service {
            id,
            slots_offset: offset,
            slots_count: count,
            table_generation: 1,
            flags: 0,
            reserved: 0,
            bucket_scale: bucket_scale(count),
        };
        let key = service_key(vip, protocol, port);
        self.services.insert(key, service);
        self.services.get_mut(&key).expect("it was inserted a line above")
    }

    /// A dsr service with one backend of the same id.
    pub fn add_simple(&mut self, id: u32, vip: &str, protocol: u8, port: u16) {
        let address = if vip.contains(':') {
            "2001:db8:b::"
        } else {
            "10.0.1."
        };
        self.add_backend(id, id, mode::DSR, &format!("{address}{id}"));
        self.add_service(id, vip, protocol, port, &[id]);
    }

    pub fn set_interface(&mut self, id: u32, interface: u32) {
        let backend = &mut self.backends[id as usize];
        backend.interface = interface;
        backend.mac_source = host_mac(interface);
    }

    /// New seeds, one generation up.
    pub fn rotate(&mut self, salt: u64) {
        for (index, seed) in self.seeds.iter_mut().enumerate() {
            *seed = Seed {
                k0: (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt,
                k1: (index as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ salt.rotate_left(32),
                generation: seed.generation + 1,
                reserved: 0,
            };
        }
    }

    /// The backend keeps its flows and gives its slots to the others of its services, if there are any.
    pub fn drain(&mut self, id: u32) {
        self.backends[id as usize].state = state::DRAINING;
        let service = self.backends[id as usize].service;
        let others: Vec<_> = (1..self.backends.len() as u32)
            .filter(|other| {
                let backend = &self.backends[*other as usize];
                backend.service == service && backend.state == state::SERVING
            })
            .map(|other| self.reference(other))
            .collect();
        let named = self.reference(id);
        if others.is_empty() {
            for service in self.services.values_mut().filter(|entry| entry.id == service) {
                service.slots_count = 0;
            }
        }
        for (index, slot) in self
            .slots
            .iter_mut()
            .enumerate()
            .filter(|(_, slot)| **slot == named)
        {
            if let Some(other) = others.get(index % others.len().max(1)) {
                *slot = *other;
            }
        }
    }

    /// The backend is gone, and another one has its id.
    pub fn replace(&mut self, id: u32) {
        let old = self.reference(id);
        let backend = &mut self.backends[id as usize];
        backend.generation = next_generation(backend.generation);
        let new = self.reference(id);
        for slot in self.slots.iter_mut().filter(|slot| **slot == old) {
            *slot = new;
        }
    }

    /// Whether the backend's service gives it a part of the new flows only.
    pub fn shares_service(&self, id: u32) -> bool {
        let service = self.backends[id as usize].service;
        self.backends
            .iter()
            .filter(|backend| backend.service == service)
            .count()
            > 1
    }

    /// The key of the seed that picks on this CPU for a service with these flags.
    pub fn picking_key(&self, flags: u32) -> Key {
        let shared = flags & (flag::FLEET | flag::CLIENT_AFFINITY) != 0;
        let index = if shared {
            seed::SHARED
        } else {
            seed::of_cpu(self.cpu)
        };
        let seed = self.seeds[index as usize];
        Key {
            k0: seed.k0,
            k1: seed.k1,
        }
    }

    /// The slot a packet's flow has in a service.
    pub fn slot_of(&self, packet: &Packet, service: &Service) -> u32 {
        let key = self.picking_key(service.flags);
        let tuple = packet.tuple().expect("an IP packet");
        let affinity = service.flags & flag::CLIENT_AFFINITY != 0;
        let hash = if affinity {
            tuple.hash_client(key)
        } else {
            tuple.hash(key)
        };
        slot_of(hash, service.slots_count)
    }

    /// The backend that a packet's new flow gets in a service with no slot out of order.
    pub fn pick(&self, packet: &Packet, service: &ServiceKey) -> u32 {
        let service = &self.services[service];
        self.slots[(service.slots_offset + self.slot_of(packet, service)) as usize].id()
    }

    /// Puts a flow into the table, in the first bucket that is its own.
    pub fn put_flow(&mut self, packet: &Packet, backend: u32, state: u8, idle: u32) {
        let fingerprint = packet
            .fingerprint(&self.settings.table_key)
            .expect("an IP packet");
        let value = self.flow_value(backend, state, idle).pack();
        let (bucket, _) = candidate_buckets(fingerprint);
        let entries = &self.flows[(bucket & self.settings.flow_mask) as usize].entries;
        let entry = entries
            .iter()
            .find(|entry| entry.fingerprint.load() == 0)
            .expect("room in the bucket");
        entry.value.store(value);
        entry.fingerprint.store(fingerprint);
    }

    /// Puts a flow at one of the eight ways of its two buckets, as `fill_buckets` numbers them, over what is there.
    pub fn put_flow_at(&mut self, packet: &Packet, number: usize, backend: u32, state: u8) {
        let fingerprint = packet
            .fingerprint(&self.settings.table_key)
            .expect("an IP packet");
        let (first, second) = candidate_buckets(fingerprint);
        let bucket = [first, second][number / WAYS] & self.settings.flow_mask;
        let entry = &self.flows[bucket as usize].entries[number % WAYS];
        entry.value.store(self.flow_value(backend, state, 0).pack());
        entry.fingerprint.store(fingerprint);
    }

    /// Fingerprint of one of the others that `fill_buckets` puts in.
    pub fn filler(number: usize) -> u64 {
        TAKEN | number as u64
    }

    /// Fills both buckets of a packet's flow with other flows; `of(way)` gives state and idle seconds of each.
    pub fn fill_buckets(&mut self, packet: &Packet, backend: u32, of: impl Fn(usize) -> (u8, u32)) {
        let fingerprint = packet
            .fingerprint(&self.settings.table_key)
            .expect("an IP packet");
        let (first, second) = candidate_buckets(fingerprint);
        for (index, bucket) in [first, second].into_iter().enumerate() {
            let entries = &self.flows[(bucket & self.settings.flow_mask) as usize].entries;
            for (way, entry) in entries.iter().enumerate() {
                let number = index * WAYS + way;
                let (state, idle) = of(number);
                entry.value.store(self.flow_value(backend, state, idle).pack());
                entry.fingerprint.store(Self::filler(number));
            }
        }
    }
}
