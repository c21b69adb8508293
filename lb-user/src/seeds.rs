//! New seeds: from the operating system's random source, or for a fleet from a shared secret.

use std::{collections::BTreeMap, time::Duration};

use lb_common::{
    fingerprint::{FingerprintKey, KEY_WORDS},
    seed::{SHARED, Seed},
};
use sha2::{Digest, Sha256};

/// Which seeds to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every CPU's own.
    PerCpu,
    /// The one that `selection = "fleet"` and client affinity use.
    Shared,
    All,
}

/// Why there is no new seed.
#[derive(Debug, thiserror::Error)]
#[error("the operating system's random source gives nothing")]
pub struct SeedError(#[from] getrandom::Error);

/// New keys for the chosen entries of `SEEDS`, each one generation on.
pub fn rotate(observed: &[Seed], which: Which) -> Result<BTreeMap<u32, Seed>, SeedError> {
    let chosen = (0..observed.len() as u32).filter(|index| match which {
        Which::PerCpu => *index != SHARED,
        Which::Shared => *index == SHARED,
        Which::All => true,
    });
    renew(observed, chosen.collect(), random)
}

/// Seeds to write before traffic: those that are unset or unfit, and the shared one if `secret` asks for another.
pub fn missing(observed: &[Seed], secret: Option<&[u8]>) -> Result<BTreeMap<u32, Seed>, SeedError> {
    let unfit: Vec<u32> = (0..)
        .zip(observed)
        .filter(|(index, seed)| !is_fit(seed) || is_repeated(observed, *index))
        .map(|(index, _)| index)
        .collect();
    let mut seeds = renew(observed, unfit, random)?;
    if let (Some(secret), Some(shared)) = (secret, observed.first()) {
        seeds.remove(&SHARED);
        let wanted = from_secret(secret, *shared);
        if wanted != *shared {
            seeds.insert(SHARED, wanted);
        }
    }
    Ok(seeds)
}

/// The shared seed of every node that has this secret; a new generation only when the key is another one.
pub fn from_secret(secret: &[u8], observed: Seed) -> Seed {
    let digest = Sha256::new()
        .chain_update(b"evenkeel fleet seed 1\0")
        .chain_update(secret)
        .finalize();
    let half = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&digest[at..at + 8]);
        u64::from_le_bytes(word)
    };
    // An all-zero key must not be used; no secret gives one in practice.
    let (k0, k1) = (half(0) | 1, half(8));
    if observed.generation != 0 && (observed.k0, observed.k1) == (k0, k1) {
        return observed;
    }
    Seed {
        k0,
        k1,
        generation: next_generation(observed.generation),
        reserved: 0,
    }
}

/// A key for the flow table's fingerprints, every word of it from the operating system's random source.
pub fn fresh_table_key() -> Result<FingerprintKey, SeedError> {
    loop {
        let mut words = [0; KEY_WORDS];
        for word in &mut words {
            *word = random()?;
        }
        let key = FingerprintKey::from_words(words);
        if !key.is_unset() {
            return Ok(key);
        }
    }
}

pub fn random() -> Result<u64, SeedError> {
    Ok(getrandom::u64()?)
}

/// When the next rotation is due: `interval` give or take up to `jitter` (a share of it, 0 to 1).
pub fn next_rotation(interval: Duration, jitter: f64, random: u64) -> Duration {
    let share = random as f64 / u64::MAX as f64 * 2.0 - 1.0;
    interval.mul_f64(1.0 + share * jitter.clamp(0.0, 1.0))
}

fn is_fit(seed: &Seed) -> bool {
    seed.generation != 0 && (seed.k0, seed.k1) != (0, 0)
}

/// Whether an earlier entry has the same key: two CPUs must not pick alike.
fn is_repeated(seeds: &[Seed], index: u32) -> bool {
    let at = index as usize;
    seeds[..at]
        .iter()
        .any(|earlier| (earlier.k0, earlier.k1) == (seeds[at].k0, seeds[at].k1))
}

fn renew(
    observed: &[Seed],
    indices: Vec<u32>,
    mut random: impl FnMut() -> Result<u64, SeedError>,
) -> Result<BTreeMap<u32, Seed>, SeedError> {
    let mut used: Vec<(u64, u64)> = observed.iter().map(|seed| (seed.k0, seed.k1)).collect();
    let mut renewed = BTreeMap::new();
    for index in indices {
        let key = loop {
            let key = fresh_key(&mut random)?;
            if !used.contains(&key) {
                break key;
            }
        };
        used.push(key);
        let seed = Seed {
            k0: key.0,
            k1: key.1,
            generation: next_generation(observed[index as usize].generation),
            reserved: 0,
        };
        renewed.insert(index, seed);
    }
    Ok(renewed)
}

fn fresh_key(mut random: impl FnMut() -> Result<u64, SeedError>) -> Result<(u64, u64), SeedError> {
    loop {
        let key = (random()?, random()?);
        if key.0 != 0 && key.1 != 0 {
            return Ok(key);
        }
    }
}

fn next_generation(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
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
    fn rotation_moves_the_chosen_seeds_one_generation_on() {
        let observed = [seed(1, 2, 7), seed(3, 4, u32::MAX), seed(0, 0, 0)];
        let rotated = rotate(&observed, Which::PerCpu).unwrap();
        assert_eq!(rotated.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!((rotated[&1].generation, rotated[&2].generation), (1, 1));
        assert_eq!(rotate(&observed, Which::Shared).unwrap()[&0].generation, 8);
        assert_eq!(rotate(&observed, Which::All).unwrap().len(), 3);
    }

    #[test]
    fn keys_are_never_zero_nor_used_before() {
        // Zero, a key that CPU 0 has, the same new key twice, another.
        let mut words = [0, 9, 3, 4, 5, 6, 5, 6, 7, 8].into_iter();
        let observed = [seed(1, 2, 1), seed(3, 4, 1)];
        let renewed = renew(&observed, vec![0, 1], || Ok(words.next().unwrap())).unwrap();
        assert_eq!(renewed[&0], seed(5, 6, 2));
        assert_eq!(renewed[&1], seed(7, 8, 2));
    }

    #[test]
    fn start_fills_what_is_unset_zero_or_shared_by_two_cpus() {
        let observed = [seed(1, 2, 1), seed(0, 0, 4), seed(5, 6, 1), seed(5, 6, 1)];
        let wanted = missing(&observed, None).unwrap();
        assert_eq!(wanted.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(wanted[&1].generation, 5);
        assert!(missing(&[seed(1, 2, 1), seed(3, 4, 1)], None).unwrap().is_empty());
    }

    #[test]
    fn one_secret_gives_one_shared_seed() {
        let first = from_secret(b"secret", Seed::default());
        assert_eq!(first.generation, 1);
        assert_eq!(from_secret(b"secret", first), first);
        let other = from_secret(b"another", first);
        assert_eq!(other.generation, 2);
        assert_ne!((other.k0, other.k1), (first.k0, first.k1));
        assert!(
            missing(&[first, seed(3, 4, 1)], Some(b"secret"))
                .unwrap()
                .is_empty()
        );
        assert_eq!(missing(&[first], Some(b"another")).unwrap()[&0], other);
    }

    #[test]
    fn table_keys_are_random_in_every_word() {
        let keys = [fresh_table_key().unwrap(), fresh_table_key().unwrap()].map(|key| key.words());
        let mut words = keys.concat();
        words.sort_unstable();
        words.dedup();
        // 44 words meet with probability 2^-54.
        assert_eq!(words.len(), 2 * KEY_WORDS);
    }

    #[test]
    fn rotation_time_stays_within_its_jitter() {
        let hour = Duration::from_secs(3600);
        assert_eq!(next_rotation(hour, 0.0, 12345), hour);
        assert_eq!(next_rotation(hour, 0.1, 0).as_secs(), 3240);
        assert_eq!(next_rotation(hour, 0.1, u64::MAX).as_secs(), 3960);
        let middle = next_rotation(hour, 0.1, u64::MAX / 2);
        assert!(middle.abs_diff(hour) < Duration::from_millis(1));
    }
}
