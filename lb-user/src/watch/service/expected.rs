//! What a service's table promises its backends.

use crate::{
    skew::{
        Shares,
        shares::{SlotMismatch, check_slots},
        tilt::Tolerance,
    },
    state::desired::BackendState,
    watch::published::{Member, Table},
};

/// Names of the categories: backends' references.
pub(super) fn ids(table: &Table) -> impl Iterator<Item = u32> {
    table.members.iter().map(|member| member.reference.bits())
}

/// Backends that take new flows, by their slots and their weights.
pub(super) fn mismatches(table: &Table) -> Vec<SlotMismatch> {
    if table.slots.is_empty() {
        return Vec::new();
    }
    let weight = |member: &Member| match member.state {
        BackendState::Serving => member.weight,
        BackendState::Draining | BackendState::Down => 0,
    };
    let owned: Vec<u32> = table.members.iter().map(|member| member.owned).collect();
    let weights: Vec<u32> = table.members.iter().map(weight).collect();
    check_slots(&owned, &weights)
}

/// Shares by owned slots, as published.
pub(super) fn shares(table: &Table) -> Shares {
    let owned: Vec<(u32, u32)> = table
        .members
        .iter()
        .map(|member| (member.reference.bits(), member.owned))
        .collect();
    Shares::of_slots(&owned, table.slots.len() as u32, Tolerance::DEFAULT)
}
