//! One change to the maps: what a plan is made of and what `apply` carries out.

use lb_common::{
    backend::Backend,
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
    vip_filter,
};

/// Steps in the order in which they must be carried out; applying them leaves no choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub steps: Vec<Step>,
}

/// One write. The order between kinds is in `order.rs`.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    WriteSettings(Box<Settings>),
    /// `SEEDS[index]`.
    WriteSeed {
        index: u32,
        seed: Seed,
    },
    /// Clears the fresh-key region of that seed index; only after the seed was switched.
    ClearFresh {
        index: u32,
    },
    /// `BACKENDS[id]`: a new entry, a change of state or next hop, or a removal (state 0, generation kept).
    WriteBackend {
        id: u32,
        backend: Backend,
    },
    /// A whole slot table into `SLOTS[offset..]`, a region no service points at.
    WriteSlots {
        offset: u32,
        slots: Vec<BackendRef>,
    },
    /// Switches a service to its new table, or adds it.
    WriteService {
        key: ServiceKey,
        service: Service,
    },
    RemoveService {
        key: ServiceKey,
    },
    WriteFilter(Box<[u64; vip_filter::WORDS]>),
}
