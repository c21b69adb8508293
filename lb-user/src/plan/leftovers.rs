//! Entries that an apply left to nobody when it was cut short.

use std::collections::BTreeSet;

use lb_common::backend::{Backend, state};

use super::step::{Plan, Step};
use crate::state::observed::Observed;

/// Removes entries of services that are not there. No slot names them, so they may go before anything else: what a
/// plan frees is free only for the next plan.
pub fn remove_leftovers(observed: &Observed) -> Plan {
    let services: BTreeSet<u32> = observed.services.values().map(|service| service.id).collect();
    let left = observed
        .backends
        .iter()
        .filter(|(_, entry)| entry.state != state::UNSET && !services.contains(&entry.service));
    let steps = left.map(|(&id, entry)| Step::WriteBackend {
        id,
        backend: removed(entry, observed.now),
    });
    Plan {
        steps: steps.collect(),
    }
}

/// What a removal leaves of an entry; `now` is the datapath's clock, seconds.
pub(super) fn removed(entry: &Backend, now: u32) -> Backend {
    Backend {
        generation: entry.generation,
        // 0 would mean that the entry is in use.
        removed_at: now.max(1),
        ..Backend::default()
    }
}
