//! Faults written straight into the pinned maps of a running daemon, behind its back.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result};
use lb_common::{
    ids::BackendRef,
    seed::{Seed, of_cpu},
    service::{Service, ServiceKey},
};
use lb_user::{
    maps::{MapReader, MapWriter, PinnedMaps, Scope},
    state::desired::{Protocol, address_bytes, service_key},
};

use crate::traffic::Kind;

/// A second writer of the maps, which there should never be.
pub struct Tamper {
    maps: PinnedMaps,
    service: ServiceKey,
}

impl Tamper {
    /// Opens the maps pinned in `pins`; slots are those of the service at `vip`.
    pub fn open(pins: &Path, vip: SocketAddr, kind: Kind) -> Result<Self> {
        let protocol = match kind {
            Kind::Tcp => Protocol::Tcp,
            Kind::Udp => Protocol::Udp,
        };
        Ok(Self {
            maps: PinnedMaps::open(pins)?,
            service: service_key(vip.ip(), Some(vip.port()), protocol),
        })
    }

    /// A CPU's seed becomes zeros under the generation it has, as by a write of which half was lost.
    pub fn zero_seed(&mut self, cpu: u32) -> Result<()> {
        let generation = self.maps.read_seed(of_cpu(cpu))?.generation;
        let zero = Seed {
            generation,
            ..Seed::default()
        };
        Ok(self.maps.write_seed(of_cpu(cpu), zero)?)
    }

    /// Whether a CPU's seed is set, and no other entry of the map has the same key.
    pub fn seed_is_fit(&self, cpu: u32) -> Result<bool> {
        let own = self.maps.read_seed(of_cpu(cpu))?;
        let is_same = |seed: &&Seed| (seed.k0, seed.k1) == (own.k0, own.k1);
        let alike = self.maps.seeds().iter().filter(is_same).count();
        Ok(own.generation != 0 && (own.k0, own.k1) != (0, 0) && alike == 1)
    }

    /// All slots that `from` owns name `to` instead.
    pub fn give_slots(&mut self, from: IpAddr, to: IpAddr) -> Result<()> {
        let entry = self.entry()?;
        let (from, to) = (self.reference(&entry, from)?, self.reference(&entry, to)?);
        self.rewrite_slots(|_, slot| if slot == from { to } else { slot })
    }

    /// Every slot, by its place in the table, names what `change` makes of it.
    pub fn rewrite_slots(&mut self, change: impl Fn(usize, BackendRef) -> BackendRef) -> Result<()> {
        let entry = self.entry()?;
        let slots = self.maps.slots_of(&entry).into_iter().enumerate();
        let changed: Vec<BackendRef> = slots.map(|(place, slot)| change(place, slot)).collect();
        Ok(self.maps.write_slots(entry.slots_offset, &changed)?)
    }

    /// How many slots each backend owns that owns any.
    pub fn owned(&self) -> Result<BTreeMap<BackendRef, usize>> {
        let mut owned = BTreeMap::new();
        for slot in self.maps.slots_of(&self.entry()?) {
            *owned.entry(slot).or_default() += 1;
        }
        Ok(owned)
    }

    fn entry(&self) -> Result<Service> {
        let found = self.maps.read_service(&self.service)?;
        found.context("the service is not in the maps")
    }

    /// What slots call a backend of a service.
    fn reference(&self, service: &Service, address: IpAddr) -> Result<BackendRef> {
        let (octets, family) = address_bytes(address);
        let observed = self.maps.observe(&Scope::Services([].into()))?;
        let mut backends = observed.backends.iter();
        let found = backends.find(|(_, backend)| {
            (backend.service, backend.address, backend.family) == (service.id, octets, family)
        });
        let (id, backend) = found.with_context(|| format!("the maps have no backend {address}"))?;
        Ok(BackendRef::new(*id, backend.generation))
    }
}
