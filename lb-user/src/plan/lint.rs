//! What a plan may never do, stated once more and independently of how plans are made.

use std::collections::BTreeSet;

use lb_common::{
    backend::{Backend, state},
    ids::{BackendRef, next_generation},
    service::{Service, ServiceKey},
    slot_table::bucket_scale,
    vip_filter,
};

use super::{
    simulate::Model,
    step::{Plan, Step},
};
use crate::state::{desired::key_text, observed::Observed};

/// Carries the plan out on paper and notes every step that the datapath must not see. Nothing to note is the rule.
pub fn lint(observed: &Observed, plan: &Plan) -> Vec<String> {
    let mut inspector = Inspector {
        start: observed,
        model: Model::new(observed),
        switched_seeds: BTreeSet::new(),
        notes: Vec::new(),
    };
    for step in &plan.steps {
        inspector.inspect(step);
        inspector.model.carry_out(step);
    }
    inspector.inspect_end();
    inspector.notes
}

struct Inspector<'a> {
    start: &'a Observed,
    /// As it is before the step that is looked at.
    model: Model,
    switched_seeds: BTreeSet<u32>,
    notes: Vec<String>,
}

impl Inspector<'_> {
    fn note(&mut self, wrong: bool, note: impl FnOnce() -> String) {
        if wrong {
            self.notes.push(note());
        }
    }

    fn inspect(&mut self, step: &Step) {
        match step {
            Step::WriteSettings(settings) => {
                let held = self.start.settings.held_key();
                let new = settings.table_key;
                self.note(held.is_some_and(|held| held != new), || {
                    "settings: the key of a living flow table changes".into()
                });
                self.note(new.is_unset(), || "settings: the flow table has no key".into());
            }
            Step::WriteSeed { index, seed } => {
                self.switched_seeds.insert(*index);
                let places = self.start.seeds.len();
                self.note(*index as usize >= places, || {
                    format!("seed {index}: there are {places}")
                });
                self.note(seed.generation == 0, || {
                    format!("seed {index}: generation 0 would unset it")
                });
            }
            Step::ClearFresh { index } => {
                let switched = self.switched_seeds.contains(index);
                self.note(!switched, || {
                    format!("fresh keys {index}: cleared before the seed was switched")
                });
            }
            Step::WriteBackend { id, backend } => self.inspect_backend(*id, backend),
            Step::WriteSlots { offset, slots } => self.inspect_slots(*offset, slots),
            Step::WriteService { key, service } if key.is_vip_mark() => {
                let odd = *service != Service::MARK;
                self.note(odd, || format!("VIP mark {}: another value", key_text(key)));
            }
            Step::RemoveService { key } if key.is_vip_mark() => {
                let missing = !self.model.observed.vip_marks.contains(key);
                self.note(missing, || {
                    format!("VIP mark {}: removed, but not there", key_text(key))
                });
            }
            Step::WriteService { key, service } => self.inspect_service(key, service),
            Step::RemoveService { key } => {
                let missing = !self.model.observed.services.contains_key(key);
                self.note(missing, || {
                    format!("service {}: removed, but not there", key_text(key))
                });
            }
            Step::WriteFilter(filter) => self.inspect_filter(filter),
        }
    }

    fn inspect_backend(&mut self, id: u32, new: &Backend) {
        let old = self.model.observed.backends.get(&id).copied().unwrap_or_default();
        let capacity = self.start.capacity.backends;
        self.note(id == 0 || id >= capacity, || {
            format!("backend {id}: outside the map of {capacity}")
        });
        let (was, is) = (old.state != state::UNSET, new.state != state::UNSET);
        if is {
            self.note(new.service == 0 || new.family == 0, || {
                format!("backend {id}: belongs to no service")
            });
            self.note(new.removed_at != 0, || {
                format!("backend {id}: in use, but removed")
            });
        } else {
            self.note(new.removed_at == 0, || {
                format!("backend {id}: removed without a time")
            });
            self.note(new.generation != old.generation, || {
                format!("backend {id}: a removal loses the generation")
            });
        }
        match (was, is) {
            (true, true) => {
                let changed = (old.generation, old.service, old.family, old.address)
                    != (new.generation, new.service, new.family, new.address);
                self.note(changed, || {
                    format!("backend {id}: another backend in an entry that is in use")
                });
            }
            (false, true) => {
                let expected = next_generation(old.generation);
                self.note(new.generation != expected, || {
                    format!(
                        "backend {id}: generation {} after {}",
                        new.generation, old.generation
                    )
                });
                let reused = self
                    .start
                    .backends
                    .get(&id)
                    .is_some_and(|entry| entry.state != state::UNSET);
                self.note(reused, || format!("backend {id}: removed and reused in one plan"));
            }
            (_, false) => {}
        }
        let takes_flows = new.state == state::SERVING && new.is_resolved();
        if was && !takes_flows && self.is_reachable(old.service, BackendRef::new(id, old.generation)) {
            self.notes.push(format!(
                "backend {id}: stops taking flows while a slot of its service names it"
            ));
        }
    }

    fn is_reachable(&self, service: u32, reference: BackendRef) -> bool {
        let observed = &self.model.observed;
        let living = observed
            .services
            .values()
            .any(|known| known.id == service && known.slots_count > 0);
        living
            && observed
                .slots
                .get(&service)
                .is_some_and(|slots| slots.contains(&reference))
    }

    fn inspect_slots(&mut self, offset: u32, slots: &[BackendRef]) {
        let (start, end) = (u64::from(offset), u64::from(offset) + slots.len() as u64);
        let capacity = self.start.capacity.slots;
        self.note(slots.is_empty(), || format!("slots {offset}: an empty table"));
        self.note(end > u64::from(capacity), || {
            format!("slots {start}..{end}: outside the map of {capacity}")
        });
        let used = self.start.services.iter().chain(&self.model.observed.services);
        let hit = used
            .filter(|(_, service)| overlaps(service, start, end))
            .map(|(key, _)| *key)
            .next();
        if let Some(key) = hit {
            self.notes.push(format!(
                "slots {start}..{end}: written into a region that {} uses",
                key_text(&key)
            ));
        }
        let mut written = self.model.written.iter();
        let twice =
            written.any(|(at, table)| u64::from(*at) < end && start < u64::from(*at) + table.len() as u64);
        self.note(twice, || format!("slots {start}..{end}: written twice"));
    }

    fn inspect_service(&mut self, key: &ServiceKey, new: &Service) {
        let text = key_text(key);
        let known = &self.model.observed.services;
        let old = known.get(key).copied();
        let same_id = known
            .iter()
            .any(|(other, service)| other != key && service.id == new.id);
        let full = old.is_none() && known.len() as u64 >= u64::from(self.start.capacity.services);
        let id_moved = old.is_some_and(|old| old.id != 0 && old.id != new.id);
        self.note(new.id == 0 || same_id || id_moved, || {
            format!("service {text}: id {} is not its own", new.id)
        });
        self.note(full, || format!("service {text}: the map is full"));
        let scale = bucket_scale(new.slots_count);
        self.note(new.bucket_scale != scale, || {
            format!("service {text}: bucket scale {}", new.bucket_scale)
        });
        let old = old.unwrap_or_default();
        let moved = (old.slots_offset, old.slots_count) != (new.slots_offset, new.slots_count);
        let counted = old.table_generation != new.table_generation;
        self.note(new.table_generation == 0 || (moved && !counted), || {
            format!(
                "service {text}: a new table under generation {}",
                new.table_generation
            )
        });
        if new.slots_count > 0 && moved {
            self.inspect_switch(key, new);
        }
    }

    /// The moment at which slots become reachable.
    fn inspect_switch(&mut self, key: &ServiceKey, new: &Service) {
        let text = key_text(key);
        let (start, end) = (
            u64::from(new.slots_offset),
            u64::from(new.slots_offset) + u64::from(new.slots_count),
        );
        let mut others = self
            .model
            .observed
            .services
            .iter()
            .filter(|(other, _)| *other != key);
        let shared = others
            .find(|(_, service)| overlaps(service, start, end))
            .map(|(other, _)| key_text(other));
        self.note(shared.is_some(), || {
            format!("service {text}: shares slots with {}", shared.unwrap_or_default())
        });
        let table = self.model.written.get(&new.slots_offset);
        let Some(table) = table.filter(|table| table.len() as u64 == end - start) else {
            self.notes.push(format!(
                "service {text}: switched to slots {start}..{end}, which were not written"
            ));
            return;
        };
        for reference in table.iter().copied().collect::<BTreeSet<_>>() {
            let entry = self
                .model
                .observed
                .backends
                .get(&reference.id())
                .copied()
                .unwrap_or_default();
            let good = entry.is_named_by(reference)
                && entry.service == new.id
                && entry.state == state::SERVING
                && entry.is_resolved();
            self.note(!good, || {
                format!("service {text}: a slot names {reference:?}, which is {entry:?}")
            });
        }
    }

    fn inspect_filter(&mut self, filter: &[u64; vip_filter::WORDS]) {
        let missing: Vec<String> = self
            .model
            .observed
            .services
            .keys()
            .filter(|key| !holds(filter, key))
            .map(key_text)
            .collect();
        self.note(!missing.is_empty(), || {
            format!("VIP filter: hides {}", missing.join(", "))
        });
    }

    fn inspect_end(&mut self) {
        let filter = self.model.observed.vip_filter.clone();
        self.inspect_filter(&filter);
        let observed = &self.model.observed;
        let mark = |key: &ServiceKey| ServiceKey::vip_mark(key.address, key.family);
        let unmarked = observed
            .services
            .keys()
            .find(|key| !observed.vip_marks.contains(&mark(key)))
            .map(key_text);
        self.note(unmarked.is_some(), || {
            format!("service {}: its VIP has no mark", unmarked.unwrap_or_default())
        });
    }
}

fn holds(filter: &[u64; vip_filter::WORDS], key: &ServiceKey) -> bool {
    let bit = vip_filter::bit_of(&key.address, key.family);
    filter[(bit / 64) as usize] & 1 << (bit % 64) != 0
}

fn overlaps(service: &Service, start: u64, end: u64) -> bool {
    let offset = u64::from(service.slots_offset);
    service.slots_count > 0 && offset < end && start < offset + u64::from(service.slots_count)
}
