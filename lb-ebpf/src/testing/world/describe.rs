//! A world in words, for whoever has to make a named case of it.

use std::fmt::Write;

use lb_common::{backend::Backend, ids::BackendRef, service::VIP_MARK};

use super::{World, edit::address};

impl World {
    /// Everything that is not as [`World::empty`] has it, except flows and the addresses that are only marked as VIPs.
    pub fn describe(&self) -> String {
        let mut text = format!("cpu {}, second {}\n{:?}\n", self.cpu, self.now, self.settings);
        let _ = writeln!(text, "table key {:x?}", self.settings.table_key.words());
        let set = self.vip_filter.iter().map(|word| word.count_ones()).sum::<u32>();
        let _ = writeln!(text, "{set} bits of the VIP filter");
        let generations: Vec<_> = self
            .seeds
            .iter()
            .map(|seed| (seed.generation, seed.k0, seed.k1))
            .collect();
        let _ = writeln!(text, "seeds {generations:x?}");
        for (key, service) in self.services.iter().filter(|(_, service)| service.id != VIP_MARK) {
            let vip = address(&key.address, key.family);
            let _ = writeln!(
                text,
                "{vip} port {} protocol {}: {service:?}",
                key.port(),
                key.protocol
            );
        }
        let used = self
            .backends
            .iter()
            .enumerate()
            .filter(|(_, backend)| **backend != Backend::default());
        for (id, backend) in used {
            let _ = writeln!(
                text,
                "backend {id}: {} {backend:?}",
                address(&backend.address, backend.family)
            );
        }
        for (row, slots) in self.slots.chunks(64).enumerate() {
            if slots.iter().any(|slot| *slot != BackendRef::UNSET) {
                let _ = writeln!(text, "slots from {}: {}", row * 64, in_runs(slots));
            }
        }
        text
    }
}

/// References in order, repeated ones once with their count.
fn in_runs(slots: &[BackendRef]) -> String {
    let runs = slots.chunk_by(|one, two| one == two).map(|run| match run {
        [one] => format!("{one:?}"),
        many => format!("{:?}×{}", many[0], many.len()),
    });
    runs.collect::<Vec<_>>().join(" ")
}
