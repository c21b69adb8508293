//! What each pinned map must look like to be adopted, and how large the adopted ones are.

use std::{collections::BTreeMap, path::Path};

use aya::maps::{MapInfo, MapType};
use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters},
    flow::FlowBucket,
    ids::BackendRef,
    map_names,
    seed::Seed,
    service_index::ServiceEntry,
    settings::{LAYOUT_VERSION, Settings},
    vip_filter,
};

use super::MapError;

/// Entries by map name.
pub type Sizes = BTreeMap<&'static str, u32>;

struct Expected {
    name: &'static str,
    kind: MapType,
    key: u32,
    value: u32,
}

fn expected() -> impl Iterator<Item = Expected> {
    fn array<T>(map: map_names::MapName) -> Expected {
        Expected {
            name: map.name,
            kind: MapType::Array,
            key: 4,
            value: size_of::<T>() as u32,
        }
    }
    [
        array::<Settings>(map_names::SETTINGS),
        array::<[u64; vip_filter::WORDS]>(map_names::VIP_FILTER),
        array::<u64>(map_names::SERVICE_HEADS),
        array::<ServiceEntry>(map_names::SERVICES),
        array::<Backend>(map_names::BACKENDS),
        array::<BackendRef>(map_names::SLOTS),
        array::<Seed>(map_names::SEEDS),
        array::<FlowBucket>(map_names::FLOWS),
        array::<u64>(map_names::FRESH),
        array::<BackendCounters>(map_names::BACKEND_COUNTERS),
        array::<CpuCounters>(map_names::CPU_COUNTERS),
        Expected {
            name: map_names::SAMPLES.name,
            kind: MapType::RingBuf,
            key: 0,
            value: 0,
        },
        array::<FlowBucket>(map_names::FRAGMENTS),
        Expected {
            name: map_names::RARE.name,
            kind: MapType::ProgramArray,
            key: 4,
            value: 4,
        },
    ]
    .into_iter()
}

/// Checks one map's shape against this build's.
pub fn check_layout(name: &'static str, info: &MapInfo) -> Result<(), MapError> {
    let Some(expected) = expected().find(|expected| expected.name == name) else {
        return Ok(());
    };
    let refuse = |what: String, wanted: String| {
        Err(MapError::Layout {
            name,
            what,
            expected: wanted,
            ours: LAYOUT_VERSION,
        })
    };
    match info.map_type() {
        Ok(kind) if kind == expected.kind => {}
        kind => return refuse(format!("type {kind:?}"), format!("{:?}", expected.kind)),
    }
    if info.key_size() != expected.key || info.value_size() != expected.value {
        return refuse(
            format!(
                "{}-byte keys and {}-byte values",
                info.key_size(),
                info.value_size()
            ),
            format!("{} and {}", expected.key, expected.value),
        );
    }
    Ok(())
}

/// Sizes of the maps that are pinned in a directory, after checking their shape; empty when there are none.
pub fn pinned_sizes(pin_directory: &Path) -> Result<Sizes, MapError> {
    let mut sizes = Sizes::new();
    for map in map_names::ALL {
        let path = pin_directory.join(map.name);
        if !path.exists() {
            continue;
        }
        let info = MapInfo::from_pin(&path).map_err(|source| MapError::Open {
            name: map.name,
            path,
            source,
        })?;
        check_layout(map.name, &info)?;
        sizes.insert(map.name, info.max_entries());
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_has_an_expected_shape() {
        let shapes: Vec<_> = expected().map(|shape| shape.name).collect();
        let names: Vec<_> = map_names::ALL.iter().map(|map| map.name).collect();
        assert_eq!(shapes, names);
    }
}
