//! What maps may never look like, not even between two steps of an apply or after one that was cut short.

use lb_common::{
    backend::state,
    ids::BackendRef,
    service::{Service, ServiceKey},
};

use crate::state::{desired::key_text, observed::Observed};

/// What is wrong with maps that were observed whole. Nothing is the rule.
///
/// Says nothing about work that is still to be done: leftovers, marks and filter bits are the plan's business.
pub fn unsound(observed: &Observed) -> Vec<String> {
    let mut notes = Vec::new();
    for (key, service) in &observed.services {
        look_at_slots(observed, key, service, &mut notes);
        look_beside(observed, key, service, &mut notes);
    }
    for (id, entry) in &observed.backends {
        if entry.state != state::UNSET && entry.generation == 0 {
            notes.push(format!("backend {id}: in use without a generation"));
        }
    }
    if observed.settings.layout_version != 0 {
        let unset = |index: &usize| observed.seeds[*index].generation == 0;
        let unset = (0..observed.seeds.len()).filter(unset);
        notes.extend(unset.map(|index| format!("seed {index}: unset while packets are looked at")));
    }
    notes
}

/// A service's region is whole, and every slot names a backend of the service that takes new flows.
fn look_at_slots(observed: &Observed, key: &ServiceKey, service: &Service, notes: &mut Vec<String>) {
    let slots = observed.slots.get(&service.id).map_or(&[][..], Vec::as_slice);
    if slots.len() as u64 != u64::from(service.slots_count) {
        notes.push(format!(
            "service {}: {} of its {} slots are inside the map",
            key_text(key),
            slots.len(),
            service.slots_count
        ));
    }
    let mut bad: Vec<BackendRef> = slots
        .iter()
        .filter(|slot| !takes_flows(observed, service, **slot))
        .copied()
        .collect();
    bad.sort_unstable();
    bad.dedup();
    for slot in bad {
        let entry = observed.backends.get(&slot.id());
        let text = key_text(key);
        notes.push(format!(
            "service {text}: a slot names {slot:?}, which is {entry:?}"
        ));
    }
}

fn takes_flows(observed: &Observed, service: &Service, slot: BackendRef) -> bool {
    observed.backends.get(&slot.id()).is_some_and(|entry| {
        entry.is_named_by(slot)
            && entry.service == service.id
            && entry.state == state::SERVING
            && entry.is_resolved()
    })
}

/// A service shares neither its id nor a slot with another one.
fn look_beside(observed: &Observed, key: &ServiceKey, service: &Service, notes: &mut Vec<String>) {
    if service.id == 0 {
        notes.push(format!("service {}: has no id", key_text(key)));
    }
    let later = observed.services.range(key..).filter(|(other, _)| *other != key);
    for (other, beside) in later {
        if beside.id == service.id {
            notes.push(format!(
                "service {}: has the id of {}",
                key_text(key),
                key_text(other)
            ));
        }
        if overlap(service, beside) {
            notes.push(format!(
                "service {}: shares slots with {}",
                key_text(key),
                key_text(other)
            ));
        }
    }
}

fn overlap(one: &Service, other: &Service) -> bool {
    let end = |service: &Service| u64::from(service.slots_offset) + u64::from(service.slots_count);
    let empty = one.slots_count == 0 || other.slots_count == 0;
    !empty && u64::from(one.slots_offset) < end(other) && u64::from(other.slots_offset) < end(one)
}
