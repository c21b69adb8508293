//! Whether the filters of fresh keys still tell new keys from known ones: bits set, against keys among the samples.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use lb_common::{sample::Sample, seed::Seed};

use super::source::Source;
use crate::skew::fresh::{Advice, Filter};

/// Distinct keys that are remembered by seed: enough to tell many from few, and never more than there were.
const MOST_KEYS: usize = 1024;

/// The filters by index into `SEEDS`, each since it was last cleared.
#[derive(Debug, Default)]
pub(super) struct Filters {
    by_seed: BTreeMap<u32, Since>,
}

#[derive(Debug, Default)]
struct Since {
    generation: u32,
    /// Bits set at the last look.
    set: u64,
    /// New flows that the samples stand for.
    flows: u64,
    keys: BTreeSet<u64>,
}

/// What a look at one filter came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub index: u32,
    pub filter: Filter,
    pub advice: Advice,
}

impl Filters {
    /// A sampled pick, which stands for `weight` flows; `key` is what the service picks by.
    pub fn count(&mut self, sample: &Sample, key: &impl Hash, weight: u64) {
        // Before the first look nobody knows which seed a sample should be of.
        let Some(since) = self.by_seed.get_mut(&sample.seed_index) else {
            return;
        };
        if since.generation != sample.seed_generation {
            return;
        }
        since.flows = since.flows.saturating_add(weight);
        if since.keys.len() < MOST_KEYS {
            // Its keys are fixed, so that a record gives the same answer each time.
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            since.keys.insert(hasher.finish());
        }
    }

    /// Looks at every filter. One that was cleared, with a new seed or without, is counted anew.
    pub fn look(&mut self, seeds: &BTreeMap<u32, Seed>, source: &impl Source) -> Vec<Found> {
        self.by_seed.retain(|index, _| seeds.contains_key(index));
        let mut found = Vec::new();
        for (&index, seed) in seeds {
            let Some([set, bits]) = source.fresh_bits(index) else {
                continue;
            };
            let since = self.by_seed.entry(index).or_default();
            if since.generation != seed.generation || set < since.set {
                *since = Since {
                    generation: seed.generation,
                    ..Since::default()
                };
            }
            since.set = set;
            let filter = Filter {
                // Every fresh key set a bit, those of the time before this daemon included.
                fresh: set,
                flows: since.flows,
                set,
                bits,
                distinct: Some(since.keys.len() as f64),
            };
            found.push(Found {
                index,
                filter,
                advice: filter.advice(),
            });
        }
        found
    }

    /// After a remedy: filters may have been cleared.
    pub fn restart(&mut self) {
        self.by_seed.clear();
    }
}
