//! The datapath's maps: read as they are, written by `apply` alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    time::Duration,
};

use lb_common::{
    backend::Backend,
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey},
    service_index::MAX_CHAIN,
    settings::Settings,
    vip_filter,
};

use crate::state::{desired::key_text, observed::Observed};

mod clock;
#[cfg(test)]
mod in_memory;
mod layout;
mod mapped;
mod pinned;
mod services;

pub use clock::{datapath_seconds, kernel_hz, possible_cpus};
#[cfg(test)]
pub use in_memory::InMemoryMaps;
pub use layout::{Sizes, check_layout, pinned_sizes};
pub use mapped::MappedArray;
pub use pinned::PinnedMaps;
pub use services::{ServiceIndex, ServiceWords};

pub use crate::plan::Scope;

/// Maps that can be observed.
pub trait MapReader {
    /// Everything but slots whole; slots of the services in the scope.
    fn observe(&self, scope: &Scope) -> Result<Observed, MapError>;
}

/// Maps that can be written; only [`crate::apply`] does.
pub trait MapWriter {
    fn write_settings(&mut self, settings: &Settings) -> Result<(), MapError>;
    fn write_seed(&mut self, index: u32, seed: Seed) -> Result<(), MapError>;
    fn read_seed(&self, index: u32) -> Result<Seed, MapError>;
    /// Zeroes the fresh-key region of a seed index.
    fn clear_fresh(&mut self, index: u32) -> Result<(), MapError>;
    fn write_backend(&mut self, id: u32, backend: &Backend) -> Result<(), MapError>;
    fn write_slots(&mut self, offset: u32, slots: &[BackendRef]) -> Result<(), MapError>;
    fn read_service(&self, key: &ServiceKey) -> Result<Option<Service>, MapError>;
    fn write_service(&mut self, key: &ServiceKey, service: &Service) -> Result<(), MapError>;
    /// Removing what is not there is no error.
    fn remove_service(&mut self, key: &ServiceKey) -> Result<(), MapError>;
    fn write_filter(&mut self, filter: &[u64; vip_filter::WORDS]) -> Result<(), MapError>;
}

/// Why a map could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("map {name} is not pinned at {path}; start the daemon with `evenkeel run` first")]
    Open {
        name: &'static str,
        path: PathBuf,
        source: aya::maps::MapError,
    },
    #[error(
        "pinned map {name} has {what}; this build (layout version {ours}) expects {expected}; \
         run `evenkeel detach`, then start again"
    )]
    Layout {
        name: &'static str,
        what: String,
        expected: String,
        ours: u32,
    },
    #[error(
        "the pinned maps have layout version {pinned}, this build has {ours}; \
         run `evenkeel detach`, then start again (flows in the table are lost)"
    )]
    Version { pinned: u32, ours: u32 },
    #[error("cannot map {name} into memory")]
    Mmap { name: &'static str, source: io::Error },
    #[error("the object has no map {name}; rebuild with `cargo xtask build`")]
    NotInObject { name: &'static str },
    #[error("map {name} has {entries} entries, index {index} is outside")]
    Range {
        name: &'static str,
        index: u64,
        entries: u32,
    },
    #[error("map {name} was opened for reading only")]
    ReadOnly { name: &'static str },
    #[error(
        "no entry is free for {}; the maps are made for {services} services: remove services, or run \
         `evenkeel detach` and start with a larger `datapath.max_services`",
        key_text(key)
    )]
    NoServiceEntry { key: ServiceKey, services: u32 },
    #[error(
        "{MAX_CHAIN} other services have the place of {} in the index; give it another port or address, or run \
         `evenkeel detach` and start with another `datapath.max_services`",
        key_text(key)
    )]
    CrowdedServices { key: ServiceKey },
    /// In-memory maps that were told to fail.
    #[cfg(test)]
    #[error("write {write} refused on purpose")]
    Refused { write: usize },
}

fn holds(scope: &Scope, key: &ServiceKey) -> bool {
    match scope {
        Scope::All => true,
        Scope::Services(keys) => keys.contains(key),
    }
}

/// How long what was taken out of use rests before it is written again, slot regions and entries of services: a packet
/// that read the old word is through long before.
pub const REST: Duration = Duration::from_millis(20);

/// Services and VIP marks, which share a map, apart.
fn split_marks(
    entries: BTreeMap<ServiceKey, Service>,
) -> (BTreeMap<ServiceKey, Service>, BTreeSet<ServiceKey>) {
    let (marks, services): (BTreeMap<_, _>, BTreeMap<_, _>) =
        entries.into_iter().partition(|(key, _)| key.is_vip_mark());
    (services, marks.into_keys().collect())
}

/// A service's region when it lies within the slot map; an entry that points elsewhere counts as empty.
fn region(service: &Service, slots: u32) -> Option<std::ops::Range<u32>> {
    let end = service.slots_offset.checked_add(service.slots_count)?;
    (service.slots_count > 0 && end <= slots).then_some(service.slots_offset..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_outside_the_map_is_empty() {
        let service = |slots_offset, slots_count| Service {
            slots_offset,
            slots_count,
            ..Service::default()
        };
        assert_eq!(region(&service(0, 1021), 1021), Some(0..1021));
        assert_eq!(region(&service(1, 1021), 1021), None);
        assert_eq!(region(&service(u32::MAX, 1021), u32::MAX), None);
        assert_eq!(region(&service(5, 0), 1021), None);
    }
}
