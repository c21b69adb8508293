//! Pure planning: from what should be and what is to ordered steps.

mod compact;
mod entry;
mod leftovers;
pub mod lint;
pub mod order;
pub mod regions;
pub mod service;
pub mod simulate;
pub mod slot_table;
pub mod soundness;
pub mod step;
pub mod table_cache;
pub mod text;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, net::IpAddr};

use lb_common::{
    flow, map_names,
    seed::Seed,
    service::ServiceKey,
    service_index::{head_shift, heads_for},
    settings::{LAYOUT_VERSION, Settings, clock_multiplier, flag, initial_jiffies, one_in},
    vip_filter,
};

use crate::{
    plan::{order::Phases, service::ServicePlanner},
    state::{desired::Desired, observed::Observed},
};

pub use compact::make_stretch;
pub use leftovers::remove_leftovers;
pub use step::{Plan, Step};
pub use table_cache::SlotTableCache;

/// What a plan looks at. Seeds, settings and the VIP filter are always compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every service, and whatever else is left in the maps.
    All,
    /// These services alone; the others are taken as they are, and only these need be in [`Observed::slots`].
    Services(BTreeSet<ServiceKey>),
}

/// Why there is no plan. Nothing of it was carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("service {service}: {needed} services are wanted and the map holds {capacity}")]
    Services {
        service: String,
        needed: u32,
        capacity: u32,
    },
    #[error(
        "service {service}: no backend entry is left for {address}: the map holds {capacity}, {wanted} are wanted and \
         {leaving} leave only with this change"
    )]
    Backends {
        service: String,
        address: IpAddr,
        capacity: u32,
        wanted: u32,
        leaving: u32,
    },
    #[error(
        "service {service}: no room for its new table of {wanted} slots: the largest free stretch of {capacity} slots \
         is {largest}, and a table is replaced while the old one is still in use"
    )]
    Slots {
        service: String,
        wanted: u32,
        largest: u32,
        capacity: u32,
        suggested: u64,
    },
    #[error("service {service}: it cannot have a slot table")]
    SlotTable {
        service: String,
        #[source]
        source: slot_table::SlotTableError,
    },
    #[error("the seed of CPU {cpu} has no place: the maps were made for {possible} possible CPUs")]
    SeedPlace { cpu: u32, possible: u32 },
    #[error("the maps hold no key for flow fingerprints and none was given")]
    TableKey,
}

impl PlanError {
    /// What to do about it.
    pub fn next_step(&self) -> String {
        let larger = |key: &str, least: u64| {
            format!("set datapath.{key} = {least} or more and restart after `evenkeel detach`")
        };
        match self {
            Self::Services { needed, .. } => larger("max_services", u64::from(*needed)),
            Self::Backends { wanted, leaving, .. } => larger("max_backends", u64::from(wanted + leaving)),
            Self::Slots { suggested, .. } => larger("max_slots", *suggested),
            Self::SlotTable { source, .. } => source.remedy(),
            Self::SeedPlace { .. } => "restart after `evenkeel detach`".to_owned(),
            Self::TableKey => "report it: this is a defect of the daemon".to_owned(),
        }
    }
}

/// Compares what should be with what is. Equal input gives equal plans; `tables` saves only time.
pub fn make_plan(
    desired: &Desired,
    observed: &Observed,
    scope: &Scope,
    tables: &mut SlotTableCache,
) -> Result<Plan, PlanError> {
    let mut phases = Phases::default();
    plan_seeds(desired, observed, &mut phases)?;
    let keys = ServicePlanner::new(desired, observed, scope, tables).plan(&mut phases)?;
    plan_settings(desired, observed, scope, &mut phases)?;
    plan_vip_marks(&keys, observed, &mut phases);
    plan_filter(keys, observed, &mut phases);
    let plan = phases.into_plan();
    if cfg!(debug_assertions) {
        let notes = lint::lint(observed, &plan);
        assert!(
            notes.is_empty(),
            "a plan breaks its own rules:\n{}\n{plan}",
            notes.join("\n")
        );
    }
    Ok(plan)
}

fn plan_seeds(desired: &Desired, observed: &Observed, phases: &mut Phases) -> Result<(), PlanError> {
    for (&index, &seed) in &desired.seeds {
        let Some(current) = observed.seeds.get(index as usize) else {
            let possible = (observed.seeds.len() as u32).saturating_sub(1);
            return Err(PlanError::SeedPlace {
                cpu: index.saturating_sub(1),
                possible,
            });
        };
        if *current != seed {
            phases.seeds.push(Step::WriteSeed {
                index,
                seed: Seed { reserved: 0, ..seed },
            });
            phases.seeds.push(Step::ClearFresh { index });
        }
    }
    Ok(())
}

fn plan_settings(
    desired: &Desired,
    observed: &Observed,
    scope: &Scope,
    phases: &mut Phases,
) -> Result<(), PlanError> {
    let current = &observed.settings;
    let wanted = &desired.settings;
    // The key lives as long as the flow table: another one would make every flow unknown.
    let table_key = current.held_key().unwrap_or(wanted.table_key);
    if table_key.is_unset() {
        return Err(PlanError::TableKey);
    }
    let mut timeouts = [0; _];
    timeouts[usize::from(flow::state::NEW)] = wanted.new_timeout;
    timeouts[usize::from(flow::state::ESTABLISHED)] = wanted.established_timeout;
    timeouts[usize::from(flow::state::CLOSING)] = wanted.closing_timeout;
    timeouts[usize::from(flow::state::DATAGRAM)] = datagram_timeout(desired, current, scope);
    let capacity = &observed.capacity;
    let settings = Settings {
        layout_version: LAYOUT_VERSION,
        possible_cpus: capacity.possible_cpus,
        table_key,
        clock_base: initial_jiffies(capacity.hz),
        clock_multiplier: clock_multiplier(capacity.hz),
        flow_mask: capacity.flow_buckets.saturating_sub(1),
        fresh_mask: capacity.fresh_words.saturating_sub(1),
        sample_mask: one_in(wanted.sampling.flow_bits),
        packet_sample_mask: one_in(wanted.sampling.packet_bits),
        backend_stride: capacity.backends,
        timeouts,
        service_shift: head_shift(heads_for(capacity.services)),
        fragment_mask: map_names::FRAGMENTS.capacity as u32 - 1,
        icmp_rate: wanted.icmp_rate,
        flags: if wanted.ping_kernel { flag::PING_KERNEL } else { 0 },
    };
    if settings != *current {
        phases.settings = Some(settings);
    }
    Ok(())
}

/// The longest `udp_idle`. A plan of some services may only raise it; the next whole plan brings it down.
fn datagram_timeout(desired: &Desired, current: &Settings, scope: &Scope) -> u32 {
    let longest = |key: &ServiceKey| {
        let backends = desired
            .services
            .get(key)
            .into_iter()
            .flat_map(|service| service.backends.values());
        backends
            .map(|backend| u32::from(backend.udp_idle))
            .max()
            .unwrap_or(0)
    };
    match scope {
        Scope::All => desired.services.keys().map(longest).max().unwrap_or(0),
        Scope::Services(keys) => keys
            .iter()
            .map(longest)
            .max()
            .unwrap_or(0)
            .max(current.timeouts[usize::from(flow::state::DATAGRAM)]),
    }
}

/// Every VIP has its mark as long as one of its services is there.
fn plan_vip_marks(keys: &BTreeSet<ServiceKey>, observed: &Observed, phases: &mut Phases) {
    let wanted: BTreeSet<ServiceKey> = keys
        .iter()
        .map(|key| ServiceKey::vip_mark(key.address, key.family))
        .collect();
    phases.marks_in.extend(wanted.difference(&observed.vip_marks));
    phases.marks_out.extend(observed.vip_marks.difference(&wanted));
}

/// The bits of the services that are there after the plan, and no others.
fn plan_filter(keys: BTreeSet<ServiceKey>, observed: &Observed, phases: &mut Phases) {
    let mut filter = Box::new([0u64; vip_filter::WORDS]);
    for key in &keys {
        let bit = vip_filter::bit_of(&key.address, key.family);
        filter[(bit / 64) as usize] |= 1 << (bit % 64);
    }
    if filter != observed.vip_filter {
        phases.filter = Some(filter);
    }
}
