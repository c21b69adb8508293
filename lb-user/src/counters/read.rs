//! Sums over CPUs and the flow table's occupancy, from mapped memory without a system call.

use std::collections::BTreeMap;

use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters, EVENT_SLOTS, Event, VERDICT_SLOTS},
    flow::{self, FlowBucket, FlowValue, WAYS, candidate_buckets},
    ids::BackendRef,
    settings::Settings,
    shared::Word,
    slot_table::HISTOGRAM_BUCKETS,
};
use serde::Serialize;

use crate::{maps::MappedArray, state::observed::Capacity};

/// The counters of one set of maps. Clones share the memory.
#[derive(Clone)]
pub struct Counters {
    pub(crate) capacity: Capacity,
    pub(crate) settings: MappedArray<Settings>,
    pub(crate) backends: MappedArray<Backend>,
    pub(crate) flows: MappedArray<FlowBucket>,
    pub(crate) fresh: MappedArray<Word>,
    pub(crate) by_backend: MappedArray<BackendCounters>,
    pub(crate) by_cpu: MappedArray<CpuCounters>,
}

/// One backend over all CPUs since its counters were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackendTotals {
    pub flows: u64,
    pub packets: u64,
    /// Octets of the frames as they arrived.
    pub bytes: u64,
    pub fresh_flows: u64,
}

/// One CPU's picks by bucket of their slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramTotals {
    pub picks: [u64; HISTOGRAM_BUCKETS as usize],
    pub fresh: [u64; HISTOGRAM_BUCKETS as usize],
}

/// How full the flow table is and with what. Entries past their timeout are not live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTableUse {
    pub entries: u64,
    /// By [`flow::state`].
    pub live: [u64; flow::state::COUNT],
    pub expired: u64,
    /// Live entries, by backend and state.
    pub by_backend: BTreeMap<BackendRef, [u64; flow::state::COUNT]>,
}

impl Counters {
    pub fn cpus(&self) -> u32 {
        self.capacity.possible_cpus
    }

    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// A backend entry as it is now.
    pub fn backend_entry(&self, id: u32) -> Option<Backend> {
        self.backends.get(id)
    }

    pub fn backend(&self, id: u32) -> BackendTotals {
        let mut totals = BackendTotals::default();
        for cpu in 0..self.cpus() {
            totals += self.backend_of(cpu, id);
        }
        totals
    }

    /// What one CPU counted for a backend.
    pub fn backend_of(&self, cpu: u32, id: u32) -> BackendTotals {
        if id >= self.capacity.backends {
            return BackendTotals::default();
        }
        let index = cpu as usize * self.capacity.backends as usize + id as usize;
        self.by_backend
            .as_slice()
            .get(index)
            .map_or_else(BackendTotals::default, |counted| BackendTotals {
                flows: counted.flows.load(),
                packets: counted.packets.load(),
                bytes: counted.bytes.load(),
                fresh_flows: counted.fresh_flows.load(),
            })
    }

    /// Every backend id that ever counted something.
    pub fn backends(&self) -> Vec<(u32, BackendTotals)> {
        (1..self.capacity.backends)
            .map(|id| (id, self.backend(id)))
            .filter(|(_, totals)| *totals != BackendTotals::default())
            .collect()
    }

    pub fn verdicts(&self) -> [u64; VERDICT_SLOTS] {
        self.sum_cpus(|counted| &counted.verdicts)
    }

    pub fn verdicts_of(&self, cpu: u32) -> [u64; VERDICT_SLOTS] {
        self.by_cpu
            .as_slice()
            .get(cpu as usize)
            .map_or([0; VERDICT_SLOTS], |counted| load(&counted.verdicts))
    }

    pub fn events(&self) -> [u64; EVENT_SLOTS] {
        self.sum_cpus(|counted| &counted.events)
    }

    pub fn event(&self, event: Event) -> u64 {
        self.events()[event as usize]
    }

    /// New flows for which a backend was picked, and those of them whose key was seen for the first time in its seed's
    /// life.
    pub fn picks(&self) -> (u64, u64) {
        let sum = |words: &[Word]| words.iter().map(Word::load).sum::<u64>();
        let histograms = self.by_cpu.as_slice().iter().map(|cpu| &cpu.histogram);
        histograms.fold((0, 0), |(picks, fresh), counted| {
            (picks + sum(&counted.picks), fresh + sum(&counted.fresh))
        })
    }

    pub fn histogram(&self, cpu: u32) -> HistogramTotals {
        self.by_cpu.as_slice().get(cpu as usize).map_or(
            HistogramTotals {
                picks: [0; _],
                fresh: [0; _],
            },
            |counted| HistogramTotals {
                picks: load(&counted.histogram.picks),
                fresh: load(&counted.histogram.fresh),
            },
        )
    }

    /// Share of bits set in the fresh-key region of a seed index, 0 to 1.
    pub fn fresh_fill(&self, index: u32) -> f64 {
        let words = self.capacity.fresh_words as usize;
        let start = index as usize * words;
        let Some(region) = self.fresh.as_slice().get(start..start + words) else {
            return 0.0;
        };
        let set: u64 = region
            .iter()
            .map(|word| u64::from(word.load().count_ones()))
            .sum();
        set as f64 / (words.max(1) as f64 * 64.0)
    }

    /// Scans the flow table; `now` is the datapath's clock.
    pub fn flow_table(&self, now: u32) -> FlowTableUse {
        let timeouts = self.timeouts();
        let mut seen = Scan::new(self);
        for bucket in self.flows.as_slice() {
            for entry in &bucket.entries {
                if entry.fingerprint.load() != 0 {
                    let value = FlowValue::unpack(entry.value.load());
                    seen.count(value, timeouts.live(value, now));
                }
            }
        }
        seen.finish()
    }

    /// Every entry that the datapath counts as a flow at `now`, with its fingerprint, in the table's order.
    pub fn living_flows(&self, now: u32) -> impl Iterator<Item = (u64, FlowValue)> {
        let timeouts = self.timeouts();
        self.flows
            .as_slice()
            .iter()
            .flat_map(|bucket| &bucket.entries)
            .map(|entry| (entry.fingerprint.load(), FlowValue::unpack(entry.value.load())))
            .filter(move |(fingerprint, value)| *fingerprint != 0 && timeouts.live(*value, now))
    }

    /// A copy of one bucket of the flow table.
    pub fn flow_bucket(&self, index: u32) -> Option<FlowBucket> {
        self.flows.as_slice().get(index as usize).cloned()
    }

    /// The entry of a fingerprint, expired or not.
    pub fn flow(&self, fingerprint: u64) -> Option<FlowValue> {
        let mask = self.settings.get(0)?.flow_mask;
        let (first, second) = candidate_buckets(fingerprint);
        [first, second].into_iter().find_map(|bucket| {
            self.flows
                .as_slice()
                .get((bucket & mask) as usize)?
                .entries
                .iter()
                .find(|entry| fingerprint != 0 && entry.fingerprint.load() == fingerprint)
                .map(|entry| FlowValue::unpack(entry.value.load()))
        })
    }

    /// Whether the datapath would still count an entry as a flow at `now`.
    pub fn is_live(&self, value: FlowValue, now: u32) -> bool {
        self.timeouts().live(value, now)
    }

    fn timeouts(&self) -> Timeouts<'_> {
        Timeouts {
            settings: self.settings.get(0).unwrap_or_default(),
            backends: &self.backends,
        }
    }

    fn sum_cpus<const N: usize>(&self, of: impl Fn(&CpuCounters) -> &[Word; N]) -> [u64; N] {
        let mut sums = [0u64; N];
        for counted in self.by_cpu.as_slice() {
            for (sum, word) in sums.iter_mut().zip(of(counted)) {
                *sum = sum.wrapping_add(word.load());
            }
        }
        sums
    }
}

fn load<const N: usize>(words: &[Word; N]) -> [u64; N] {
    std::array::from_fn(|index| words[index].load())
}

impl std::ops::AddAssign for BackendTotals {
    fn add_assign(&mut self, other: Self) {
        self.flows = self.flows.wrapping_add(other.flows);
        self.packets = self.packets.wrapping_add(other.packets);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.fresh_flows = self.fresh_flows.wrapping_add(other.fresh_flows);
    }
}

struct Timeouts<'a> {
    settings: Settings,
    backends: &'a MappedArray<Backend>,
}

impl Timeouts<'_> {
    fn live(&self, value: FlowValue, now: u32) -> bool {
        // Another CPU, or a clock a tick ahead, may have stamped the entry after `now`.
        let idle = now.saturating_sub(value.last_seen);
        let limit = match value.state {
            flow::state::UNSET => return false,
            flow::state::DATAGRAM => self.datagram_timeout(value.backend),
            state => match self.settings.timeouts.get(state as usize) {
                Some(limit) => *limit,
                None => return false,
            },
        };
        idle <= limit
    }

    fn datagram_timeout(&self, backend: BackendRef) -> u32 {
        self.backends
            .get(backend.id())
            .filter(|entry| entry.is_named_by(backend))
            .map_or(self.settings.timeouts[flow::state::DATAGRAM as usize], |entry| {
                u32::from(entry.udp_idle)
            })
    }
}

/// A scan under way: millions of entries are counted by id, the few of former generations by name.
struct Scan<'a> {
    backends: &'a MappedArray<Backend>,
    current: Vec<(BackendRef, [u64; flow::state::COUNT])>,
    seen: FlowTableUse,
}

impl<'a> Scan<'a> {
    fn new(counters: &'a Counters) -> Self {
        Self {
            backends: &counters.backends,
            current: vec![(BackendRef::UNSET, [0; _]); counters.capacity.backends as usize],
            seen: FlowTableUse {
                entries: u64::from(counters.capacity.flow_buckets) * WAYS as u64,
                ..FlowTableUse::default()
            },
        }
    }

    fn count(&mut self, value: FlowValue, live: bool) {
        let state = value.state as usize;
        if !live || state >= flow::state::COUNT {
            self.seen.expired += 1;
            return;
        }
        self.seen.live[state] += 1;
        let backend = value.backend;
        match self.current.get_mut(backend.id() as usize) {
            Some((current, by_state)) if *current == backend => by_state[state] += 1,
            Some((current, by_state)) if current.is_unset() && is_current(self.backends, backend) => {
                *current = backend;
                by_state[state] += 1;
            }
            _ => self.seen.by_backend.entry(backend).or_default()[state] += 1,
        }
    }

    fn finish(mut self) -> FlowTableUse {
        let current = self
            .current
            .into_iter()
            .filter(|(backend, _)| !backend.is_unset());
        self.seen.by_backend.extend(current);
        self.seen
    }
}

fn is_current(backends: &MappedArray<Backend>, backend: BackendRef) -> bool {
    backends
        .get(backend.id())
        .is_some_and(|entry| entry.is_named_by(backend))
}

impl FlowTableUse {
    /// Live entries in every state.
    pub fn used(&self) -> u64 {
        self.live.iter().sum()
    }

    /// A backend's flows that are neither closing nor expired.
    pub fn active(&self, backend: BackendRef) -> u64 {
        self.by_backend.get(&backend).map_or(0, |by_state| {
            by_state[flow::state::NEW as usize]
                + by_state[flow::state::ESTABLISHED as usize]
                + by_state[flow::state::DATAGRAM as usize]
        })
    }
}

#[cfg(test)]
impl Counters {
    /// Counters in plain memory.
    pub(crate) fn in_memory(capacity: Capacity) -> Self {
        Self {
            capacity,
            settings: MappedArray::in_memory(1),
            backends: MappedArray::in_memory(capacity.backends),
            flows: MappedArray::in_memory(capacity.flow_buckets),
            fresh: MappedArray::in_memory(capacity.fresh_words * (capacity.possible_cpus + 1)),
            by_backend: MappedArray::in_memory(capacity.possible_cpus * capacity.backends),
            by_cpu: MappedArray::in_memory(capacity.possible_cpus),
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::backend;

    use super::*;

    const CPUS: u32 = 2;
    const BACKENDS: u32 = 8;
    const BUCKETS: u32 = 4;

    fn counters() -> Counters {
        let mut settings = Settings {
            flow_mask: BUCKETS - 1,
            ..Settings::default()
        };
        settings.timeouts[..flow::state::COUNT].copy_from_slice(&[0, 10, 30, 120, 600]);
        let counters = Counters::in_memory(Capacity {
            services: 1,
            backends: BACKENDS,
            slots: 1,
            possible_cpus: CPUS,
            flow_buckets: BUCKETS,
            fresh_words: 2,
            hz: 250,
        });
        counters.settings.put(0, settings);
        counters
    }

    fn store(counters: &Counters, bucket: usize, way: usize, fingerprint: u64, value: FlowValue) {
        let entry = &counters.flows.as_slice()[bucket].entries[way];
        entry.value.store(value.pack());
        entry.fingerprint.store(fingerprint);
    }

    #[test]
    fn backends_and_verdicts_are_summed_over_cpus() {
        let counters = counters();
        for cpu in 0..CPUS as usize {
            let counted = &counters.by_backend.as_slice()[cpu * BACKENDS as usize + 3];
            counted.flows.store(1 + cpu as u64);
            counted.packets.store(10);
            counters.by_cpu.as_slice()[cpu].verdicts[48].store(5);
            counters.by_cpu.as_slice()[cpu].events[Event::FlowStored as usize].store(2);
            counters.by_cpu.as_slice()[cpu].histogram.picks[7].store(3);
            counters.by_cpu.as_slice()[cpu].histogram.fresh[cpu].store(1);
        }
        let expected = BackendTotals {
            flows: 3,
            packets: 20,
            bytes: 0,
            fresh_flows: 0,
        };
        assert_eq!(counters.backend(3), expected);
        assert_eq!(counters.backends(), [(3, expected)]);
        assert_eq!(counters.backend(BACKENDS), BackendTotals::default());
        assert_eq!(counters.verdicts()[48], 10);
        assert_eq!(counters.verdicts_of(1)[48], 5);
        assert_eq!(counters.event(Event::FlowStored), 4);
        assert_eq!(counters.picks(), (6, 2));
    }

    #[test]
    fn the_flow_table_is_counted_by_state_and_age() {
        let counters = counters();
        let backend = BackendRef::new(2, 1);
        counters.backends.put(
            2,
            Backend {
                generation: 1,
                state: backend::state::SERVING,
                udp_idle: 5,
                ..Backend::default()
            },
        );
        let flow = |state, last_seen| FlowValue {
            backend,
            state,
            last_seen,
        };
        store(&counters, 0, 0, 1, flow(flow::state::NEW, 990));
        store(&counters, 0, 1, 2, flow(flow::state::NEW, 960));
        store(&counters, 1, 0, 3, flow(flow::state::ESTABLISHED, 500));
        store(&counters, 2, 3, 4, flow(flow::state::CLOSING, 995));
        store(&counters, 3, 0, 5, flow(flow::state::DATAGRAM, 990));
        store(&counters, 3, 1, 6, flow(flow::state::DATAGRAM, 1001));
        let seen = counters.flow_table(1000);
        assert_eq!(seen.entries, 16);
        assert_eq!(seen.live, [0, 1, 1, 1, 1]);
        assert_eq!((seen.used(), seen.expired), (4, 2));
        assert_eq!(seen.active(backend), 3);
        assert_eq!(seen.active(BackendRef::new(2, 2)), 0);
    }

    #[test]
    fn a_flow_is_found_in_either_bucket() {
        let counters = counters();
        let value = FlowValue {
            backend: BackendRef::new(2, 1),
            state: flow::state::NEW,
            last_seen: 9,
        };
        let fingerprint = 3 << 32 | 1;
        store(&counters, 3, 2, fingerprint, value);
        assert_eq!(counters.flow(fingerprint), Some(value));
        store(&counters, 1, 0, 1 << 32, value);
        assert_eq!(counters.flow(1 << 32), Some(value));
        assert_eq!((counters.flow(0), counters.flow(77)), (None, None));
    }

    #[test]
    fn fresh_fill_is_the_share_of_bits_set() {
        let counters = counters();
        counters.fresh.as_slice()[2].store(u64::MAX);
        assert_eq!(counters.fresh_fill(0), 0.0);
        assert_eq!(counters.fresh_fill(1), 0.5);
        assert_eq!(counters.fresh_fill(99), 0.0);
    }
}
