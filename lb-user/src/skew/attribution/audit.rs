//! Choices of the datapath, computed once more.

use std::collections::BTreeMap;

use lb_common::{
    flow_hash::{FlowTuple, Key},
    ids::BackendRef,
    sample::Sample,
    seed::{SHARED, Seed, of_cpu},
    slot_table::slot_of,
};

use super::evidence::Audit;

/// How many slots the datapath tries from the one that the hash names, when backends there are not serving.
const ATTEMPTS: usize = 8;

/// What a choice should have been made with.
#[derive(Clone, Copy, Debug)]
pub struct Intended<'a> {
    /// The seed of the sample's index, as written last.
    pub seed: Seed,
    /// Whether the service picks by the shared seed, and by the client's address alone.
    pub shared: bool,
    pub by_client: bool,
    /// The slot table as published last, and its generation.
    pub slots: &'a [BackendRef],
    pub table_generation: u32,
}

/// What a sample shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Right,
    /// Another seed, another hash or another slot than should be.
    WrongSlot,
    /// The right slot, and a backend that does not own it though the owner was serving.
    WrongBackend,
    /// Made before or after a change of seed or table: nothing to compare it with.
    Incomparable,
}

/// Recomputes hash, slot and backend of a sample. `is_serving` tells backends that may take new flows.
pub fn recompute(
    sample: &Sample,
    intended: &Intended<'_>,
    is_serving: impl Fn(BackendRef) -> bool,
) -> Choice {
    let wanted_index = if intended.shared || intended.by_client {
        SHARED
    } else {
        of_cpu(sample.cpu)
    };
    if sample.seed_index != wanted_index {
        return Choice::WrongSlot;
    }
    let Seed {
        k0, k1, generation, ..
    } = intended.seed;
    if sample.seed_generation != generation || sample.table_generation != intended.table_generation {
        return Choice::Incomparable;
    }
    let hash = hash_of(sample, Key { k0, k1 }, intended.by_client);
    let slot = slot_of(hash, intended.slots.len() as u32);
    if (hash, slot) != (sample.hash, sample.slot) {
        return Choice::WrongSlot;
    }
    let owners = intended.slots.iter().cycle().skip(slot as usize).take(ATTEMPTS);
    for owner in owners {
        if *owner == sample.backend {
            return Choice::Right;
        }
        if is_serving(*owner) {
            break;
        }
    }
    Choice::WrongBackend
}

fn hash_of(sample: &Sample, key: Key, by_client: bool) -> u64 {
    let tuple = FlowTuple {
        v6: sample.family == 6,
        words: sample.words,
        ports: sample.ports,
        protocol: sample.protocol,
    };
    if by_client {
        tuple.hash_client(key)
    } else {
        tuple.hash(key)
    }
}

/// Choices counted by CPU.
#[derive(Clone, Debug, Default)]
pub struct Audits {
    by_cpu: BTreeMap<u32, Audit>,
}

impl Audits {
    pub fn count(&mut self, cpu: u32, choice: Choice) {
        if choice == Choice::Incomparable {
            return;
        }
        let audit = self.by_cpu.entry(cpu).or_insert(Audit {
            cpu,
            ..Audit::default()
        });
        audit.checked += 1;
        audit.wrong_slot += u64::from(choice == Choice::WrongSlot);
        audit.wrong_backend += u64::from(choice == Choice::WrongBackend);
    }

    /// Adds choices that were counted elsewhere.
    pub fn add(&mut self, more: Audit) {
        let audit = self.by_cpu.entry(more.cpu).or_insert(Audit {
            cpu: more.cpu,
            ..Audit::default()
        });
        audit.checked = audit.checked.saturating_add(more.checked);
        audit.wrong_slot = audit.wrong_slot.saturating_add(more.wrong_slot);
        audit.wrong_backend = audit.wrong_backend.saturating_add(more.wrong_backend);
    }

    /// In order of CPUs.
    pub fn to_vec(&self) -> Vec<Audit> {
        self.by_cpu.values().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Vec<BackendRef> {
        (0..1021).map(|slot| BackendRef::new(1 + slot % 4, 1)).collect()
    }

    const SEED: Seed = Seed {
        k0: 11,
        k1: 12,
        generation: 3,
        reserved: 0,
    };

    fn intended(slots: &[BackendRef]) -> Intended<'_> {
        Intended {
            seed: SEED,
            shared: false,
            by_client: false,
            slots,
            table_generation: 5,
        }
    }

    /// What the datapath would send for a flow on CPU 2.
    fn sample(slots: &[BackendRef]) -> Sample {
        let tuple = FlowTuple::v4(0x0a00_0001, 0xc000_020a, 0x01bb_c350, 6);
        let hash = tuple.hash(Key { k0: 11, k1: 12 });
        let slot = slot_of(hash, slots.len() as u32);
        Sample {
            words: tuple.words,
            hash,
            ports: tuple.ports,
            slot,
            table_generation: 5,
            seed_generation: 3,
            backend: slots[slot as usize],
            seed_index: of_cpu(2),
            cpu: 2,
            protocol: 6,
            family: 4,
            ..Sample::default()
        }
    }

    #[test]
    fn each_kind_of_mistake_is_told() {
        let slots = slots();
        let good = sample(&slots);
        let of = |sample: Sample| recompute(&sample, &intended(&slots), |_| true);
        let other = slots[(good.slot as usize + 1) % slots.len()];
        let cases = [
            ("as it should be", good, Choice::Right),
            (
                "stuck hash",
                Sample {
                    hash: 0,
                    slot: 0,
                    ..good
                },
                Choice::WrongSlot,
            ),
            (
                "lost bit of the slot",
                Sample {
                    slot: good.slot ^ 4,
                    ..good
                },
                Choice::WrongSlot,
            ),
            ("another tuple", Sample { ports: 1, ..good }, Choice::WrongSlot),
            (
                "another CPU's seed",
                Sample {
                    seed_index: of_cpu(3),
                    ..good
                },
                Choice::WrongSlot,
            ),
            (
                "the shared seed",
                Sample {
                    seed_index: SHARED,
                    ..good
                },
                Choice::WrongSlot,
            ),
            (
                "another backend",
                Sample {
                    backend: other,
                    ..good
                },
                Choice::WrongBackend,
            ),
            (
                "before a rotation",
                Sample {
                    seed_generation: 2,
                    ..good
                },
                Choice::Incomparable,
            ),
            (
                "before a new table",
                Sample {
                    table_generation: 4,
                    ..good
                },
                Choice::Incomparable,
            ),
        ];
        for (name, sample, wanted) in cases {
            assert_eq!(of(sample), wanted, "{name}");
        }
    }

    #[test]
    fn a_slot_whose_owner_is_not_serving_falls_to_the_next() {
        let slots = slots();
        let good = sample(&slots);
        let owner = slots[good.slot as usize];
        let next = slots[(good.slot as usize + 1) % slots.len()];
        let moved = Sample {
            backend: next,
            ..good
        };
        assert_eq!(
            recompute(&moved, &intended(&slots), |backend| backend != owner),
            Choice::Right
        );
        let far = Sample {
            backend: BackendRef::new(99, 1),
            ..good
        };
        assert_eq!(
            recompute(&far, &intended(&slots), |_| false),
            Choice::WrongBackend
        );
    }

    #[test]
    fn affinity_picks_by_the_client_and_the_shared_seed() {
        let slots = slots();
        let tuple = FlowTuple::v4(0x0a00_0001, 0xc000_020a, 7, 6);
        let hash = tuple.hash_client(Key { k0: 11, k1: 12 });
        let slot = slot_of(hash, slots.len() as u32);
        let of_client = Sample {
            hash,
            slot,
            backend: slots[slot as usize],
            seed_index: SHARED,
            ..sample(&slots)
        };
        let affine = Intended {
            by_client: true,
            ..intended(&slots)
        };
        assert_eq!(recompute(&of_client, &affine, |_| true), Choice::Right);
        assert_eq!(recompute(&sample(&slots), &affine, |_| true), Choice::WrongSlot);
    }

    #[test]
    fn no_slots_are_no_panic() {
        let empty = Sample {
            hash: 1,
            ..sample(&slots())
        };
        assert_eq!(recompute(&empty, &intended(&[]), |_| true), Choice::WrongSlot);
    }

    #[test]
    fn choices_are_counted_by_cpu() {
        let mut audits = Audits::default();
        for choice in [Choice::Right, Choice::WrongSlot, Choice::Incomparable] {
            audits.count(4, choice);
        }
        audits.count(1, Choice::WrongBackend);
        let of = |cpu, checked, wrong_slot, wrong_backend| Audit {
            cpu,
            checked,
            wrong_slot,
            wrong_backend,
        };
        assert_eq!(audits.to_vec(), [of(1, 1, 0, 1), of(4, 2, 1, 0)]);
    }
}
