//! How many entries each map gets: what the configuration wants, what pinned maps already have.

use std::path::Path;

use lb_common::{
    ids::MAX_BACKEND_IDS,
    map_names::{self, MapName},
    service_index::{entries_for, heads_for, services_in},
    settings::LAYOUT_VERSION,
};

use crate::maps::{MapError, Sizes, pinned_sizes, possible_cpus};

/// Entries that the configuration asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedCapacity {
    pub services: u32,
    /// Entries of `BACKENDS`, the unused id 0 included.
    pub backends: u32,
    pub slots: u32,
    /// A power of two.
    pub flow_buckets: u32,
    /// 64-bit words of one region of fresh-key bits, a power of two.
    pub fresh_words: u32,
}

impl Default for WantedCapacity {
    fn default() -> Self {
        Self {
            services: 1024,
            backends: 16_384,
            slots: 1 << 21,
            flow_buckets: 1 << 18,
            fresh_words: 4096,
        }
    }
}

/// Entries of every map, and what differs from the wish because pinned maps were adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub sizes: Sizes,
    pub notes: Vec<String>,
    pub adopted: bool,
}

/// Sizes for the maps in a pin directory.
pub fn plan(wanted: &WantedCapacity, pin_directory: &Path) -> Result<Plan, MapError> {
    settle(wanted, &pinned_sizes(pin_directory)?, possible_cpus())
}

fn settle(wanted: &WantedCapacity, pinned: &Sizes, cpus: u32) -> Result<Plan, MapError> {
    let mut notes = Vec::new();
    let mut keep = |map: MapName, wish: u32, what: &str| {
        let has = pinned.get(map.name).copied().unwrap_or(wish);
        if has != wish {
            notes.push(format!(
                "the pinned maps have room for {has} {what}, the configuration asks for {wish}: \
                 this takes effect after `evenkeel detach`"
            ));
        }
        has
    };
    let seeds = cpus + 1;
    let services = keep(
        map_names::SERVICES,
        entries_for(wanted.services),
        "service entries (three a service, and one)",
    );
    let backends = keep(
        map_names::BACKENDS,
        wanted.backends.min(MAX_BACKEND_IDS),
        "backend entries",
    );
    let slots = keep(map_names::SLOTS, wanted.slots, "slots");
    let flows = keep(map_names::FLOWS, wanted.flow_buckets, "flow buckets");
    let fresh = keep(
        map_names::FRESH,
        seeds.saturating_mul(wanted.fresh_words.next_power_of_two()),
        "words of fresh-key bits",
    );
    let samples = map_names::SAMPLES.capacity as u32;
    let sizes: Sizes = [
        (map_names::SETTINGS, 1),
        (map_names::VIP_FILTER, 1),
        (map_names::SERVICE_HEADS, heads_for(services_in(services))),
        (map_names::SERVICES, services),
        (map_names::BACKENDS, backends),
        (map_names::SLOTS, slots),
        (map_names::SEEDS, seeds),
        (map_names::FLOWS, flows),
        (map_names::FRESH, fresh),
        (map_names::BACKEND_COUNTERS, cpus.saturating_mul(backends)),
        (map_names::CPU_COUNTERS, cpus),
        (map_names::SAMPLES, samples),
        (map_names::FRAGMENTS, map_names::FRAGMENTS.capacity as u32),
        (map_names::RARE, map_names::RARE.capacity as u32),
    ]
    .into_iter()
    .map(|(map, entries)| (map.name, entries))
    .collect();
    match sizes
        .iter()
        .find(|(name, entries)| pinned.get(*name).is_some_and(|has| has != *entries))
    {
        None => Ok(Plan {
            sizes,
            notes,
            adopted: !pinned.is_empty(),
        }),
        Some((name, entries)) => Err(MapError::Layout {
            name,
            what: format!("{} entries", pinned[name]),
            expected: format!("{entries} on a machine of {cpus} possible CPUs"),
            ours: LAYOUT_VERSION,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_datapath_gets_what_is_wanted() {
        let plan = settle(&WantedCapacity::default(), &Sizes::new(), 4).unwrap();
        assert!(!plan.adopted && plan.notes.is_empty());
        assert_eq!(plan.sizes["SEEDS"], 5);
        assert_eq!(plan.sizes["FRESH"], 5 * 4096);
        assert_eq!(plan.sizes["BACKEND_COUNTERS"], 4 * 16_384);
        assert_eq!(plan.sizes.len(), map_names::ALL.len());
    }

    #[test]
    fn pinned_sizes_win_and_are_reported() {
        let first = settle(&WantedCapacity::default(), &Sizes::new(), 2).unwrap();
        let wanted = WantedCapacity {
            backends: 100,
            ..WantedCapacity::default()
        };
        let second = settle(&wanted, &first.sizes, 2).unwrap();
        assert_eq!(second.sizes, first.sizes);
        assert_eq!(second.notes.len(), 1);
        assert!(
            second.notes[0].contains("16384 backend entries"),
            "{:?}",
            second.notes
        );
    }

    #[test]
    fn pinned_maps_that_do_not_fit_each_other_are_refused() {
        let mut pinned = settle(&WantedCapacity::default(), &Sizes::new(), 2)
            .unwrap()
            .sizes;
        pinned.insert("BACKEND_COUNTERS", 7);
        let error = settle(&WantedCapacity::default(), &pinned, 2).unwrap_err();
        assert!(
            error.to_string().contains("BACKEND_COUNTERS has 7 entries"),
            "{error}"
        );
    }
}
