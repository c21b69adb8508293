//! Seeds as the datapath holds them against seeds as they should be.

use std::collections::BTreeMap;

use lb_common::seed::{SHARED, Seed};

/// Whose seed it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The seed of fleet selection and of client affinity: all CPUs use it.
    Shared,
    Cpu(u32),
}

/// A seed that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedFinding {
    pub place: Place,
    pub fault: SeedFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedFault {
    /// Never written, or a key of zeros.
    Zero,
    /// Of another generation than was written last.
    Generation { found: u32, wanted: u32 },
    /// The right generation, and another key.
    Key,
    /// The key of another place: two CPUs pick alike.
    Equal { to: Place },
}

/// What is wrong with the entries of `SEEDS`. `wanted` has the seeds as written last, by index; entries that it does not
/// have are held to be nonzero and distinct only.
pub fn seed_findings(found: &[Seed], wanted: &BTreeMap<u32, Seed>) -> Vec<SeedFinding> {
    let mut keys = BTreeMap::new();
    let mut findings = Vec::new();
    for (index, seed) in (0u32..).zip(found) {
        let place = place(index);
        let fault = fault(seed, wanted.get(&index)).or_else(|| {
            let first = *keys.entry((seed.k0, seed.k1)).or_insert(place);
            (first != place).then_some(SeedFault::Equal { to: first })
        });
        findings.extend(fault.map(|fault| SeedFinding { place, fault }));
    }
    findings
}

fn place(index: u32) -> Place {
    match index {
        SHARED => Place::Shared,
        index => Place::Cpu(index - 1),
    }
}

fn fault(found: &Seed, wanted: Option<&Seed>) -> Option<SeedFault> {
    if found.generation == 0 || (found.k0, found.k1) == (0, 0) {
        return Some(SeedFault::Zero);
    }
    let wanted = wanted?;
    if found.generation != wanted.generation {
        return Some(SeedFault::Generation {
            found: found.generation,
            wanted: wanted.generation,
        });
    }
    ((found.k0, found.k1) != (wanted.k0, wanted.k1)).then_some(SeedFault::Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(k0: u64, k1: u64, generation: u32) -> Seed {
        Seed {
            k0,
            k1,
            generation,
            reserved: 0,
        }
    }

    #[test]
    fn every_fault_is_told() {
        let good = [
            seed(1, 2, 3),
            seed(3, 4, 1),
            seed(5, 6, 1),
            seed(7, 8, 1),
            seed(9, 10, 1),
            seed(11, 12, 1),
        ];
        let wanted: BTreeMap<u32, Seed> = (0..).zip(good).collect();
        assert_eq!(seed_findings(&good, &wanted), []);
        let found = [
            good[0],
            seed(0, 0, 1),
            seed(5, 6, 2),
            seed(7, 9, 1),
            seed(1, 2, 1),
            seed(11, 12, 0),
        ];
        let of = |cpu, fault| SeedFinding {
            place: Place::Cpu(cpu),
            fault,
        };
        assert_eq!(
            seed_findings(&found, &wanted),
            [
                of(0, SeedFault::Zero),
                of(1, SeedFault::Generation { found: 2, wanted: 1 }),
                of(2, SeedFault::Key),
                of(3, SeedFault::Key),
                of(4, SeedFault::Zero),
            ]
        );
        let equal = SeedFinding {
            place: Place::Cpu(3),
            fault: SeedFault::Equal { to: Place::Shared },
        };
        assert_eq!(seed_findings(&found, &BTreeMap::new())[1], equal);
    }
}
