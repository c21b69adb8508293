//! The choice of a slot as the XDP program makes it: its hash, its seeds, its filter of fresh keys, on the host.

use lb_common::{
    fingerprint::FingerprintKey,
    flow_hash::{FlowTuple, Key},
    seed::{SHARED, Seed, of_cpu},
    slot_table::{bucket_of, bucket_scale, slot_of},
};
use lb_user::program::WantedCapacity;
use rand::Rng as _;

use crate::chance::Rng;

/// Seeds and fresh-key bits of a box. One service; its table is the caller's.
pub struct Datapath {
    cpus: u32,
    by_client: bool,
    slots: u32,
    scale: u64,
    /// By index as in `SEEDS`.
    pub seeds: Vec<Seed>,
    /// Of flow fingerprints and witnesses.
    witness: FingerprintKey,
    /// By index as in `FRESH`: a region for each seed.
    fresh: Vec<u64>,
    /// 64-bit words of a region; a power of two.
    words: u32,
}

/// A choice of the datapath.
#[derive(Clone, Copy)]
pub struct Pick {
    pub cpu: u32,
    pub seed_index: u32,
    pub hash: u64,
    pub slot: u32,
    pub bucket: u32,
    /// Whether the key was seen for the first time in its seed's life.
    pub fresh: bool,
}

impl Datapath {
    /// For tables of `slots` slots.
    pub fn new(cpus: u32, by_client: bool, slots: u32, rng: &mut Rng) -> Self {
        let words = WantedCapacity::default().fresh_words;
        let mut datapath = Self {
            cpus,
            by_client,
            slots,
            scale: bucket_scale(slots),
            seeds: vec![Seed::default(); cpus as usize + 1],
            witness: FingerprintKey::expand(key(rng)),
            fresh: vec![0; (cpus as usize + 1) * words as usize],
            words,
        };
        datapath.rotate(|_| true, rng);
        datapath
    }

    /// New seeds for those indices that take them, then fresh-key bits from nothing there.
    pub fn rotate(&mut self, takes: impl Fn(u32) -> bool, rng: &mut Rng) {
        for (index, seed) in (0..).zip(&mut self.seeds) {
            let Key { k0, k1 } = key(rng);
            if takes(index) {
                let generation = seed.generation + 1;
                *seed = Seed {
                    k0,
                    k1,
                    generation,
                    reserved: 0,
                };
                let region = (index * self.words) as usize;
                self.fresh[region..region + self.words as usize].fill(0);
            }
        }
    }

    /// Picks for a flow. `distort` is what a fault makes of a CPU's hash.
    #[inline]
    pub fn pick(&mut self, tuple: &FlowTuple, distort: impl FnOnce(u32, u64) -> u64) -> Pick {
        let fingerprint = self.witness.of_flow(tuple);
        // The network card spreads flows by a hash of its own.
        let cpu = ((fingerprint >> 40) % u64::from(self.cpus)) as u32;
        let seed_index = if self.by_client { SHARED } else { of_cpu(cpu) };
        let Seed { k0, k1, .. } = self.seeds[seed_index as usize];
        let seed = Key { k0, k1 };
        let (hash, witness) = match self.by_client {
            true => (tuple.hash_client(seed), self.witness.of_client(tuple)),
            false => (tuple.hash(seed), fingerprint),
        };
        let hash = distort(cpu, hash);
        let slot = slot_of(hash, self.slots);
        Pick {
            cpu,
            seed_index,
            hash,
            slot,
            bucket: bucket_of(slot, self.scale),
            fresh: self.mark_fresh(seed_index, witness),
        }
    }

    fn mark_fresh(&mut self, seed_index: u32, witness: u64) -> bool {
        let word = seed_index * self.words + ((witness >> 6) as u32 & (self.words - 1));
        let (word, bit) = (&mut self.fresh[word as usize], 1 << (witness & 63));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }
}

fn key(rng: &mut Rng) -> Key {
    Key {
        k0: rng.next_u64(),
        k1: rng.next_u64(),
    }
}

#[cfg(test)]
mod tests {
    use lb_user::skew::{classical, shares::histogram_shares};

    use super::*;
    use crate::{
        chance,
        traffic::{Source, Traffic},
    };

    #[test]
    fn keys_are_fresh_once_in_a_seeds_life() {
        let mut rng = chance::rng(1, "fresh", 0);
        for traffic in [
            Traffic::Again { pool: 50, part: 1.0 },
            Traffic::Clients {
                count: 50,
                exponent: 0.0,
            },
        ] {
            let mut datapath = Datapath::new(4, traffic.by_client(), 1021, &mut rng);
            let source = Source::new(traffic, &mut rng);
            let mut fresh = || {
                let picks =
                    (0..5000).map(|_| datapath.pick(&source.next(&mut rng).tuple, |_, hash| hash).fresh);
                let count = picks.filter(|fresh| *fresh).count();
                datapath.rotate(|_| true, &mut rng);
                count
            };
            assert_eq!([fresh(), fresh()], [50, 50]);
        }
    }

    #[test]
    fn picks_spread_over_buckets_and_cpus() {
        let mut rng = chance::rng(1, "picks", 0);
        let mut datapath = Datapath::new(4, false, 1021, &mut rng);
        let source = Source::new(Traffic::Unique, &mut rng);
        let (mut buckets, mut cpus) = (vec![0; 256], vec![0; 4]);
        for _ in 0..50_000 {
            let pick = datapath.pick(&source.next(&mut rng).tuple, |_, hash| hash);
            buckets[pick.bucket as usize] += 1;
            cpus[pick.cpu as usize] += 1;
        }
        for (counts, p) in [(buckets, histogram_shares(1021)), (cpus, vec![0.25; 4])] {
            let ln_p = classical::ln_p(classical::chi2(&counts, &p), classical::degrees(&p));
            assert!(ln_p > -7.0, "ln p = {ln_p}: {counts:?}");
        }
    }
}
