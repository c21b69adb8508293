//! A plan as people read it: one line a step.

use std::{collections::BTreeMap, fmt};

use lb_common::{
    backend::{Backend, mode, state},
    flow,
    ids::BackendRef,
    seed,
    service::{Service, flag},
    settings::{Settings, flag::PING_KERNEL},
};

use super::step::{Plan, Step};
use crate::state::desired::{address_from, key_text};

/// Owners named before the rest of a table is summed up.
const OWNERS_SHOWN: usize = 8;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return writeln!(f, "nothing to do");
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteSettings(settings) => settings_line(f, settings),
            Self::WriteSeed { index, seed } => {
                write!(
                    f,
                    "seed of {}: generation {}",
                    seed_owner(*index),
                    seed.generation
                )
            }
            Self::ClearFresh { index } => write!(f, "fresh keys of {}: clear", seed_owner(*index)),
            Self::WriteBackend { id, backend } => backend_line(f, *id, backend),
            Self::WriteSlots { offset, slots } => slots_line(f, *offset, slots),
            Self::WriteService { key, .. } if key.is_vip_mark() => {
                write!(f, "VIP {}: mark", address_from(&key.address, key.family))
            }
            Self::RemoveService { key } if key.is_vip_mark() => {
                write!(
                    f,
                    "VIP {}: remove its mark",
                    address_from(&key.address, key.family)
                )
            }
            Self::WriteService { key, service } => {
                write!(f, "service {}: ", key_text(key))?;
                service_line(f, service)
            }
            Self::RemoveService { key } => write!(f, "service {}: remove", key_text(key)),
            Self::WriteFilter(filter) => {
                let bits: u32 = filter.iter().map(|word| word.count_ones()).sum();
                write!(f, "VIP filter: {bits} bits set")
            }
        }
    }
}

fn seed_owner(index: u32) -> String {
    match index {
        seed::SHARED => "all CPUs (shared)".to_owned(),
        index => format!("CPU {}", index - 1),
    }
}

fn settings_line(f: &mut fmt::Formatter<'_>, settings: &Settings) -> fmt::Result {
    let timeout = |state: u8| settings.timeouts[usize::from(state)];
    write!(
        f,
        "settings: {} CPUs, {} flow buckets, {} backend entries, timeouts new {} s, established {} s, closing {} s, \
         datagram {} s, ",
        settings.possible_cpus,
        u64::from(settings.flow_mask) + 1,
        settings.backend_stride,
        timeout(flow::state::NEW),
        timeout(flow::state::ESTABLISHED),
        timeout(flow::state::CLOSING),
        timeout(flow::state::DATAGRAM),
    )?;
    let of = |mask: u64, what: &str| match mask.checked_add(1) {
        None => format!("no {what}s"),
        Some(1) => format!("every {what}"),
        Some(count) => format!("1 {what} in {count}"),
    };
    let (flows, packets) = (settings.sample_mask, settings.packet_sample_mask);
    write!(
        f,
        "samples: {}, {}; ",
        of(flows, "new flow"),
        of(packets, "packet")
    )?;
    let pings = if settings.flags & PING_KERNEL != 0 {
        "left to the kernel"
    } else {
        "answered"
    };
    write!(f, "pings {pings}, ICMP {}/s a CPU", settings.icmp_rate)
}

fn backend_line(f: &mut fmt::Formatter<'_>, id: u32, backend: &Backend) -> fmt::Result {
    let reference = BackendRef::new(id, backend.generation);
    write!(f, "backend {reference:?}: ")?;
    let state = match backend.state {
        state::UNSET => return write!(f, "remove"),
        state::SERVING => "serving",
        state::DRAINING => "draining",
        state::DOWN => "down",
        _ => "in an unknown state",
    };
    let mode = match backend.mode {
        mode::DSR => "dsr",
        mode::IPIP => "ipip",
        _ => "no mode",
    };
    let address = address_from(&backend.address, backend.family);
    write!(
        f,
        "{address} of service id {}, {state}, {mode}, ",
        backend.service
    )?;
    if !backend.is_resolved() {
        return f.write_str("next hop unknown");
    }
    let mac = backend
        .mac_destination
        .map(|octet| format!("{octet:02x}"))
        .join(":");
    write!(
        f,
        "via {mac} on interface {}, mtu {}",
        backend.interface, backend.mtu
    )
}

fn slots_line(f: &mut fmt::Formatter<'_>, offset: u32, slots: &[BackendRef]) -> fmt::Result {
    let mut owners = BTreeMap::<BackendRef, u32>::new();
    slots
        .iter()
        .for_each(|slot| *owners.entry(*slot).or_default() += 1);
    write!(f, "slots {offset}..{}: ", u64::from(offset) + slots.len() as u64)?;
    let shown: Vec<String> = owners
        .iter()
        .take(OWNERS_SHOWN)
        .map(|(owner, count)| format!("{count} of {owner:?}"))
        .collect();
    f.write_str(&shown.join(", "))?;
    match owners.len().saturating_sub(OWNERS_SHOWN) {
        0 => Ok(()),
        more => write!(f, " and those of {more} more backends"),
    }
}

fn service_line(f: &mut fmt::Formatter<'_>, service: &Service) -> fmt::Result {
    write!(f, "id {}, ", service.id)?;
    match service.slots_count {
        0 => f.write_str("no slots, ")?,
        count => write!(
            f,
            "slots {}..{}, ",
            service.slots_offset,
            u64::from(service.slots_offset) + u64::from(count)
        )?,
    }
    let selection = if service.flags & flag::FLEET == 0 {
        "per-cpu"
    } else {
        "fleet"
    };
    write!(f, "table {}, {selection}", service.table_generation)?;
    if service.flags & flag::CLIENT_AFFINITY != 0 {
        f.write_str(", client affinity")?;
    }
    Ok(())
}
