//! The state as people and metrics see it: what is wanted, joined with what the maps hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use lb_common::{
    backend::{self, Backend},
    ids::BackendRef,
    service::{Service, ServiceKey},
};

use crate::{
    api::types::{NextHop, Problem},
    config::spec::{BackendSpec, ServiceSpec},
    counters::Counters,
    discovery::{guard::Held, registry::SourceHealth},
    health::OnPanic,
    net::Resolution,
    program::AttachedInterface,
    state::{
        desired::{self, BackendState, DesiredService, Mode, address_from},
        observed::Observed,
        overlay::EffectiveService,
    },
    watch::published::owned,
};

/// One consistent picture. Services that did not change are shared with the picture before.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub revision: u64,
    /// Why the daemon is not ready; empty when it is.
    pub not_ready: Vec<String>,
    pub attached: Vec<AttachedInterface>,
    /// The loaded program in words.
    pub program: String,
    pub services: BTreeMap<String, Arc<ServiceView>>,
    /// By index into `SEEDS`.
    pub seeds: Vec<SeedView>,
    /// In the order of services and names.
    pub sources: Vec<SourceView>,
    /// Services whose checks are not believed, since too few of their backends pass.
    pub panics: BTreeMap<String, OnPanic>,
    /// VIPs whose services ask for an announcement, and why those are not announced that are not.
    pub vips: BTreeMap<IpAddr, Result<(), String>>,
    /// Trouble that lasts: a refused file, a failed apply, what the loader had to say.
    pub troubles: BTreeMap<&'static str, Problem>,
}

/// A service, wanted and observed.
#[derive(Clone, Debug)]
pub struct ServiceView {
    pub key: ServiceKey,
    /// Its backends are in `backends`.
    pub spec: ServiceSpec,
    pub from_file: bool,
    /// The entry in the map.
    pub entry: Option<Service>,
    pub backends: BTreeMap<IpAddr, BackendView>,
}

/// A backend of a service, wanted and observed.
#[derive(Clone, Debug)]
pub struct BackendView {
    pub spec: BackendSpec,
    pub mode: Mode,
    pub sources: BTreeSet<String>,
    /// The entry in the map.
    pub reference: Option<BackendRef>,
    pub next_hop: Option<NextHop>,
    /// Why there is no next hop.
    pub unresolved: Option<String>,
    /// Part of the slots of the service's table.
    pub expected_share: f64,
    /// Its new flows when the service's table last changed.
    pub flows_before: u64,
    /// As it is wanted in the datapath: what was asked for, or down when checks say so.
    pub state: BackendState,
    /// `None`: it is not checked.
    pub health: Option<HealthView>,
}

/// A source of a service, and what is believed of it.
#[derive(Clone, Debug)]
pub struct SourceView {
    pub service: Arc<str>,
    pub name: Arc<str>,
    pub kind: &'static str,
    pub health: SourceHealth,
    pub loaded: bool,
    pub endpoints: usize,
    pub named: Option<usize>,
    pub held: Option<Held>,
    pub held_by_hand: bool,
    /// Endpoints of the service that cannot be its backends, with reasons.
    pub not_admitted: Vec<String>,
}

/// What checks find of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthView {
    /// `None` before the first check.
    pub passes: Option<bool>,
    /// Why it fails.
    pub reason: Option<String>,
}

/// A seed, without its secret.
#[derive(Clone, Copy, Debug)]
pub struct SeedView {
    pub generation: u32,
    /// When this daemon wrote or adopted it.
    pub since: Instant,
    /// When it is rotated by the clock.
    pub next: Option<Instant>,
}

impl View {
    pub fn is_ready(&self) -> bool {
        self.not_ready.is_empty()
    }

    /// The service and the backend behind every entry in use.
    pub fn by_reference(&self) -> BTreeMap<BackendRef, (&ServiceView, IpAddr)> {
        let all = self.services.values().flat_map(|service| {
            let backends = service.backends.iter();
            backends.filter_map(move |(address, backend)| {
                Some((backend.reference?, (service.as_ref(), *address)))
            })
        });
        all.collect()
    }
}

impl SeedView {
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// What a service's view is made from.
pub struct Sources<'a> {
    pub observed: &'a Observed,
    pub resolutions: &'a BTreeMap<IpAddr, Resolution>,
    pub counters: &'a Counters,
    entries: BTreeMap<(u32, IpAddr), (u32, Backend)>,
    interfaces: BTreeMap<u32, String>,
}

impl<'a> Sources<'a> {
    pub fn new(
        observed: &'a Observed,
        resolutions: &'a BTreeMap<IpAddr, Resolution>,
        counters: &'a Counters,
    ) -> Self {
        let mut entries = BTreeMap::new();
        let mut interfaces = BTreeMap::new();
        for (id, entry) in &observed.backends {
            // Only services in the snapshot's scope have slots there.
            if entry.state != backend::state::UNSET && observed.slots.contains_key(&entry.service) {
                let address = address_from(&entry.address, entry.family);
                entries.insert((entry.service, address), (*id, *entry));
                interfaces
                    .entry(entry.interface)
                    .or_insert_with(|| interface_name(entry.interface));
            }
        }
        Self {
            observed,
            resolutions,
            counters,
            entries,
            interfaces,
        }
    }

    /// Joins a wanted service with its entries; `before` is its view in the picture before.
    pub fn service(
        &self,
        effective: &EffectiveService,
        wanted: &DesiredService,
        before: Option<&ServiceView>,
    ) -> ServiceView {
        let key = effective.spec.key();
        let entry = self.observed.services.get(&key).copied();
        let shares = entry.map(|entry| self.shares(&entry)).unwrap_or_default();
        let same_table = before.filter(|before| {
            before.entry.is_some_and(|old| {
                entry.is_some_and(|new| old.id == new.id && old.table_generation == new.table_generation)
            })
        });
        let backends = effective.spec.backends.iter().map(|spec| {
            let address = spec.address.to_canonical();
            let before = same_table.and_then(|before| before.backends.get(&address));
            let sources = effective.sources.get(&address).cloned().unwrap_or_default();
            let joined = Joined {
                spec,
                mode: spec.mode.unwrap_or(effective.spec.mode),
                sources,
                entry,
                shares: &shares,
            };
            (address, self.backend(joined, wanted, before))
        });
        let backends = backends.collect();
        let spec = ServiceSpec {
            backends: Vec::new(),
            ..effective.spec.clone()
        };
        ServiceView {
            key,
            spec,
            from_file: effective.from_file,
            entry,
            backends,
        }
    }

    fn backend(
        &self,
        joined: Joined<'_>,
        wanted: &DesiredService,
        before: Option<&BackendView>,
    ) -> BackendView {
        let address = joined.spec.address.to_canonical();
        let found = joined
            .entry
            .and_then(|service| self.entries.get(&(service.id, address)));
        let reference = found.map(|(id, entry)| BackendRef::new(*id, entry.generation));
        let next_hop = wanted.backends.get(&address).and_then(|backend| backend.next_hop);
        let flows_before = match before {
            Some(before) if before.reference == reference => before.flows_before,
            _ => reference.map_or(0, |reference| self.counters.backend(reference.id()).flows),
        };
        BackendView {
            spec: joined.spec.clone(),
            mode: joined.mode,
            sources: joined.sources,
            reference,
            unresolved: next_hop.is_none().then(|| self.why_unresolved(address)),
            next_hop: next_hop.map(|hop| self.show(&hop)),
            expected_share: reference
                .and_then(|reference| joined.shares.get(&reference).copied())
                .unwrap_or(0.0),
            flows_before,
            state: joined.spec.state,
            health: None,
        }
    }

    fn shares(&self, entry: &Service) -> BTreeMap<BackendRef, f64> {
        let Some(slots) = self
            .observed
            .slots
            .get(&entry.id)
            .filter(|slots| !slots.is_empty())
        else {
            return BTreeMap::new();
        };
        let all = slots.len() as f64;
        owned(slots)
            .into_iter()
            .map(|(reference, count)| (reference, f64::from(count) / all))
            .collect()
    }

    fn why_unresolved(&self, address: IpAddr) -> String {
        match self.resolutions.get(&address) {
            Some(Resolution::Unresolved { reason, .. }) => reason.clone(),
            Some(Resolution::Resolved(hop)) if hop.gateway => {
                "is behind a router, and dsr only reaches hosts in this host's own segments; use mode = \"ipip\"".to_owned()
            }
            Some(Resolution::Resolved(_)) => "its next hop does not fit the backend's mode or family".to_owned(),
            None => "still being resolved".to_owned(),
        }
    }

    fn show(&self, hop: &desired::NextHop) -> NextHop {
        let name = self.interfaces.get(&hop.interface).cloned();
        NextHop {
            interface: name.unwrap_or_else(|| interface_name(hop.interface)),
            mac: mac(&hop.mac_destination),
            source: hop.source,
            mtu: hop.mtu,
        }
    }
}

struct Joined<'a> {
    spec: &'a BackendSpec,
    mode: Mode,
    sources: BTreeSet<String>,
    entry: Option<Service>,
    shares: &'a BTreeMap<BackendRef, f64>,
}

/// `02:00:00:00:00:01`.
pub fn mac(bytes: &[u8; 6]) -> String {
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

/// The name of an interface, or `#7` when there is none with that index.
pub fn interface_name(index: u32) -> String {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the IF_NAMESIZE bytes that if_indextoname(3) may write.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return format!("#{index}");
    }
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_have_names() {
        assert_eq!(interface_name(1), "lo");
        assert_eq!(interface_name(u32::MAX), "#4294967295");
        assert_eq!(mac(&[2, 0, 0, 0, 0xab, 1]), "02:00:00:00:ab:01");
    }
}
