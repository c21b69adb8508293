//! What the maps hold after a plan: apply without maps.

use std::collections::BTreeMap;

use lb_common::ids::BackendRef;

use super::step::{Plan, Step};
use crate::state::observed::Observed;

/// Carries a plan out on a snapshot.
pub fn simulate(observed: &Observed, plan: &Plan) -> Observed {
    let mut model = Model::new(observed);
    plan.steps.iter().for_each(|step| model.carry_out(step));
    model.observed
}

/// A snapshot that steps change.
pub(super) struct Model {
    pub observed: Observed,
    /// Tables written so far, by first slot.
    pub written: BTreeMap<u32, Vec<BackendRef>>,
}

impl Model {
    pub fn new(observed: &Observed) -> Self {
        Self {
            observed: observed.clone(),
            written: BTreeMap::new(),
        }
    }

    pub fn carry_out(&mut self, step: &Step) {
        let observed = &mut self.observed;
        match step {
            Step::WriteSettings(settings) => observed.settings = **settings,
            Step::WriteSeed { index, seed } => {
                if let Some(place) = observed.seeds.get_mut(*index as usize) {
                    *place = *seed;
                }
            }
            Step::ClearFresh { .. } => {}
            Step::WriteBackend { id, backend } => {
                observed.backends.insert(*id, *backend);
            }
            Step::WriteSlots { offset, slots } => {
                self.written.insert(*offset, slots.clone());
            }
            Step::WriteService { key, .. } if key.is_vip_mark() => {
                observed.vip_marks.insert(*key);
            }
            Step::RemoveService { key } if key.is_vip_mark() => {
                observed.vip_marks.remove(key);
            }
            Step::WriteService { key, service } => {
                let before = observed.services.insert(*key, *service);
                let moved = before.is_none_or(|before| {
                    (before.slots_offset, before.slots_count) != (service.slots_offset, service.slots_count)
                });
                if moved {
                    let slots = self
                        .written
                        .get(&service.slots_offset)
                        .filter(|_| service.slots_count > 0);
                    observed
                        .slots
                        .insert(service.id, slots.cloned().unwrap_or_default());
                }
            }
            Step::RemoveService { key } => {
                if let Some(service) = observed.services.remove(key) {
                    observed.slots.remove(&service.id);
                }
            }
            Step::WriteFilter(filter) => observed.vip_filter = filter.clone(),
        }
    }
}
