//! Tables moved out of the way of one that finds no stretch long enough, though enough slots are free.

use std::cmp::Reverse;

use lb_common::service::{Service, ServiceKey};

use super::{
    regions::Regions,
    step::{Plan, Step},
};
use crate::state::observed::Observed;

/// Moves as few slots as needed so that the next plan finds `length` free ones in a row; what `observed` holds of all
/// slots is copied as it stands. Empty when one round of moves cannot do it: a table is written to its new place while
/// the old one is still in use, so that there must be room for both.
pub fn make_stretch(observed: &Observed, length: u32) -> Plan {
    let mut tables: Vec<(ServiceKey, Service)> = observed
        .services
        .iter()
        .filter(|(_, service)| service.slots_count > 0)
        .map(|(key, service)| (*key, *service))
        .collect();
    tables.sort_unstable_by_key(|(key, service)| (Reverse(service.slots_count), *key));
    let mut stretches: Vec<Stretch<'_>> = starts(&tables, observed.capacity.slots, length)
        .map(|start| Stretch::new(start, start + length, &tables))
        .collect();
    stretches.sort_by_key(|stretch| (stretch.cost, stretch.start));
    let steps = stretches.iter().find_map(|stretch| stretch.moves(observed));
    Plan {
        steps: steps.unwrap_or_default(),
    }
}

/// Where a stretch can begin: beside a table or at an end of the map. Any other one is no better than one of these.
fn starts(tables: &[(ServiceKey, Service)], capacity: u32, length: u32) -> impl Iterator<Item = u32> {
    let last = capacity.checked_sub(length);
    let beside = tables.iter().flat_map(move |(_, service)| {
        let after = service.slots_offset.saturating_add(service.slots_count);
        [Some(after), service.slots_offset.checked_sub(length)]
    });
    let starts = [Some(0), last].into_iter().chain(beside).flatten();
    starts.filter(move |start| last.is_some_and(|last| *start <= last))
}

/// Slots that are to become free, and the tables that stand in them, larger ones first.
struct Stretch<'a> {
    start: u32,
    end: u32,
    inside: Vec<&'a (ServiceKey, Service)>,
    /// Slots to move.
    cost: u64,
}

impl<'a> Stretch<'a> {
    fn new(start: u32, end: u32, tables: &'a [(ServiceKey, Service)]) -> Self {
        let overlaps = |service: &Service| {
            service.slots_offset < end && start < service.slots_offset.saturating_add(service.slots_count)
        };
        let inside: Vec<_> = tables.iter().filter(|(_, service)| overlaps(service)).collect();
        let cost = inside
            .iter()
            .map(|(_, service)| u64::from(service.slots_count))
            .sum();
        Self {
            start,
            end,
            inside,
            cost,
        }
    }

    /// Writes each table elsewhere, then switches each service; `None` if one has no place to go to.
    fn moves(&self, observed: &Observed) -> Option<Vec<Step>> {
        let mut regions = Regions::of(observed);
        regions.keep(self.start, self.end);
        let mut switches = Vec::with_capacity(self.inside.len());
        let mut steps = Vec::with_capacity(2 * self.inside.len());
        for (key, service) in &self.inside {
            let whole = |slots: &&Vec<_>| slots.len() as u64 == u64::from(service.slots_count);
            let slots = observed.slots.get(&service.id).filter(whole)?.clone();
            let offset = regions.take(service.slots_count).ok()?;
            steps.push(Step::WriteSlots { offset, slots });
            switches.push(Step::WriteService {
                key: *key,
                service: Service {
                    slots_offset: offset,
                    table_generation: service.table_generation.wrapping_add(1).max(1),
                    ..*service
                },
            });
        }
        steps.extend(switches);
        Some(steps)
    }
}
