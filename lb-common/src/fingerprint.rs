//! The flow table's key for a flow: a strongly universal hash of the 5-tuple.
//!
//! Kaser and Lemire, "Strongly universal string hashing is fast" (The Computer Journal 57(11), 2014), family
//! MULTILINEAR-HM: `(m₀ + Σ (m₂ᵢ₋₁ + s₂ᵢ₋₁)(m₂ᵢ + s₂ᵢ) mod 2⁶⁴) >> 32` over 32-bit characters `s` with random 64-bit
//! key words `m`. Two independent ones make 64 bits: whatever two flows somebody chooses without knowing the key, they
//! meet in a bucket as rarely as two random ones, and have the same fingerprint with probability 2⁻⁶² (two bits
//! tell free entries from taken ones).
//!
//! Two, but not many: flows that count up (ports of a client, clients of a network) give sums that count up by a random
//! step, and one step in a hundred crowds a table. So the joined sums are mixed last, which is a bijection and leaves
//! the above as it is. Simulated over 300 keys, 262 144 flows that count up, half of a table: flows that find no room are
//! 0.0034 % on average and 0.008 % with the worst key, as with random fingerprints; without the mixing 9 % with the worst.
//!
//! It takes a fifth of SipHash's instructions and shares neither code nor key with the hash that picks backends,
//! which is what makes the fingerprint a witness of that hash. Unlike SipHash it does not hide its key from somebody
//! who is shown many fingerprints; a client is shown none.

use crate::{
    flow::fingerprint,
    flow_hash::{FlowTuple, Key},
    pod::pod,
};

/// Products of a half: four of address words, one of ports and protocol.
const PRODUCTS: usize = 5;
/// Key words of a half: the constant term, then two a product.
const HALF: usize = 1 + 2 * PRODUCTS;
/// Words of a key.
pub const KEY_WORDS: usize = 2 * HALF;

pod!(FingerprintKey);

/// The key: random words, every one of them secret. All-zero is unset.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FingerprintKey {
    halves: [[u64; HALF]; 2],
}

const _: () = assert!(size_of::<FingerprintKey>() == 8 * KEY_WORDS);

impl FingerprintKey {
    pub const UNSET: Self = Self {
        halves: [[0; HALF]; 2],
    };

    /// From words of a source of randomness.
    pub const fn from_words(words: [u64; KEY_WORDS]) -> Self {
        // SAFETY: both are the same number of words.
        unsafe { core::mem::transmute(words) }
    }

    pub const fn words(&self) -> [u64; KEY_WORDS] {
        // SAFETY: as above.
        unsafe { core::mem::transmute(*self) }
    }

    /// A key for tests and benchmarks, which want the same one every time: word `i` is SipHash-1-3 of `i`.
    pub fn expand(secret: Key) -> Self {
        Self::from_words(core::array::from_fn(|at| {
            FlowTuple::v4(at as u32, 0, 0, 0).hash(secret)
        }))
    }

    pub fn is_unset(&self) -> bool {
        *self == Self::UNSET
    }

    /// The fingerprint of a flow, see [`crate::flow::TAKEN`].
    #[inline(always)]
    pub fn of_flow(&self, tuple: &FlowTuple) -> u64 {
        self.of(tuple, 0)
    }

    /// The fingerprint of a packet that came in fragments: its identification stands for the ports. Protocol and family
    /// of no flow are as here, so that it is independent of every flow's.
    #[inline(always)]
    pub fn of_fragments(&self, tuple: &FlowTuple) -> u64 {
        self.of(tuple, 1 << 16)
    }

    #[inline(always)]
    fn of(&self, tuple: &FlowTuple, kind: u64) -> u64 {
        // The family is part of the message, so that no IPv4 flow has the characters of an IPv6 flow.
        let family = 4 + 2 * tuple.v6 as u64;
        let last = tuple.ports as u64 | (tuple.protocol as u64 | family << 8 | kind) << 32;
        let mut sums = [0; 2];
        for (sum, key) in sums.iter_mut().zip(&self.halves) {
            *sum = key[0]
                .wrapping_add(product(key, 0, tuple.words[0]))
                .wrapping_add(product(key, 4, last));
        }
        if tuple.v6 {
            for (sum, key) in sums.iter_mut().zip(&self.halves) {
                *sum = sum
                    .wrapping_add(product(key, 1, tuple.words[1]))
                    .wrapping_add(product(key, 2, tuple.words[2]))
                    .wrapping_add(product(key, 3, tuple.words[3]));
            }
        }
        join(sums)
    }

    /// The same of the client's address alone.
    #[inline(always)]
    pub fn of_client(&self, tuple: &FlowTuple) -> u64 {
        let mut sums = [0; 2];
        for (sum, key) in sums.iter_mut().zip(&self.halves) {
            *sum = if tuple.v6 {
                key[0]
                    .wrapping_add(product(key, 0, tuple.words[0]))
                    .wrapping_add(product(key, 1, tuple.words[1]))
            } else {
                key[0].wrapping_add(product(key, 0, tuple.words[0] & 0xffff_ffff))
            };
        }
        join(sums)
    }
}

/// Whoever knows the key can make flows meet.
impl core::fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.is_unset() { "unset" } else { ".." })
    }
}

/// One product of two characters, the halves of `word`.
#[inline(always)]
fn product(key: &[u64; HALF], number: usize, word: u64) -> u64 {
    let (first, second) = (word & 0xffff_ffff, word >> 32);
    let [a, b] = [key[1 + 2 * number], key[2 + 2 * number]];
    a.wrapping_add(first).wrapping_mul(b.wrapping_add(second))
}

/// The golden ratio in 64 bits, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The upper halves of both sums, mixed, as a fingerprint.
#[inline(always)]
fn join(sums: [u64; 2]) -> u64 {
    let joined = sums[0] >> 32 | sums[1] & !0xffff_ffff;
    let folded = (joined ^ joined >> 32).wrapping_mul(MIX);
    fingerprint(folded ^ folded >> 29)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;
    use crate::flow::TAKEN;

    /// The sum with big integers, character by character, straight from the paper.
    fn by_the_book(words: &[u64; KEY_WORDS], products: &[(usize, u32, u32)]) -> u64 {
        let half = |half: usize| {
            let key: Vec<u128> = words[half * 11..][..11]
                .iter()
                .map(|word| u128::from(*word))
                .collect();
            let modulus = 1u128 << 64;
            let terms = products.iter().map(|(number, first, second)| {
                let left = (key[1 + 2 * number] + u128::from(*first)) % modulus;
                let right = (key[2 + 2 * number] + u128::from(*second)) % modulus;
                // Below 2^128, so exact.
                left * right % modulus
            });
            let sum = terms.fold(key[0], |sum, term| (sum + term) % modulus);
            (sum / (1 << 32)) as u64
        };
        let joined = half(0) + half(1) * (1 << 32);
        let product = u128::from(joined ^ (joined / (1 << 32))) * u128::from(MIX);
        let folded = (product % (1 << 64)) as u64;
        (folded ^ (folded / (1 << 29))) / 4 + TAKEN
    }

    fn halves(word: u64) -> (u32, u32) {
        (word as u32, (word >> 32) as u32)
    }

    fn tuple(v6: bool, words: [u64; 4], ports: u32, protocol: u8) -> FlowTuple {
        if v6 {
            FlowTuple::v6([words[0], words[1]], [words[2], words[3]], ports, protocol)
        } else {
            FlowTuple::v4(words[0] as u32, (words[0] >> 32) as u32, ports, protocol)
        }
    }

    proptest! {
        #[test]
        fn agrees_with_big_integers(
            words: [u64; KEY_WORDS], v6: bool, message: [u64; 4], ports: u32, protocol: u8,
        ) {
            let key = FingerprintKey::from_words(words);
            prop_assert_eq!(key.words(), words);
            let tuple = tuple(v6, message, ports, protocol);
            let numbers = if v6 { 0..4 } else { 0..1 };
            let mut products: Vec<_> = numbers
                .map(|number| (number, halves(message[number]).0, halves(message[number]).1))
                .collect();
            products.push((4, ports, u32::from(protocol) + 256 * if v6 { 6 } else { 4 }));
            prop_assert_eq!(key.of_flow(&tuple), by_the_book(&words, &products));
            products.pop();
            products.push((4, ports, u32::from(protocol) + 256 * if v6 { 6 } else { 4 } + 65_536));
            prop_assert_eq!(key.of_fragments(&tuple), by_the_book(&words, &products));

            let (low, high) = halves(message[0]);
            let client = if v6 {
                std::vec![(0, low, high), (1, halves(message[1]).0, halves(message[1]).1)]
            } else {
                std::vec![(0, low, 0)]
            };
            prop_assert_eq!(key.of_client(&tuple), by_the_book(&words, &client));
        }

        #[test]
        fn every_bit_counts(words: [u64; KEY_WORDS], v6: bool, message: [u64; 4], ports: u32, protocol: u8) {
            let key = FingerprintKey::from_words(words);
            let whole = tuple(v6, message, ports, protocol);
            let fingerprint = key.of_flow(&whole);
            let others = (0..if v6 { 256 } else { 64 }).map(|bit| {
                let mut message = message;
                message[bit / 64] ^= 1 << (bit % 64);
                tuple(v6, message, ports, protocol)
            });
            let others = others
                .chain((0..32).map(|bit| tuple(v6, message, ports ^ 1 << bit, protocol)))
                .chain((0..8).map(|bit| tuple(v6, message, ports, protocol ^ 1 << bit)));
            for other in others {
                prop_assert_ne!(key.of_flow(&other), fingerprint, "{:?}", other);
            }
            // The same words in the other family are another flow.
            let other_family = FlowTuple { v6: !v6, ..whole };
            prop_assert_ne!(key.of_flow(&other_family), fingerprint);
            prop_assert_ne!(key.of_fragments(&whole), fingerprint);
            let client = key.of_client(&whole);
            for bit in 0..if v6 { 128 } else { 32 } {
                let mut message = message;
                message[bit / 64] ^= 1 << (bit % 64);
                prop_assert_ne!(key.of_client(&tuple(v6, message, ports, protocol)), client);
            }
        }
    }

    /// SplitMix64 (Steele, Lea and Flood 2014): keys that have nothing to do with the hash.
    struct Rng(u64);

    impl Rng {
        fn word(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }

        fn key(&mut self) -> FingerprintKey {
            FingerprintKey::from_words(core::array::from_fn(|_| self.word()))
        }
    }

    const VIP: u32 = 0x0a64_33c6;

    fn v4(address: u32, port: u16) -> FlowTuple {
        FlowTuple::v4(address.to_be(), VIP, u32::from(port.to_be()) | 0x5000_0000, 6)
    }

    fn v6(host: u64, port: u16) -> FlowTuple {
        let ports = u32::from(port.to_be()) | 0x5000_0000;
        FlowTuple::v6([0x20, host.to_be()], [0x20, 0x10 << 56], ports, 6)
    }

    type Flow = fn(u32) -> FlowTuple;

    /// Flows as real clients make them, one after the other.
    const SEQUENCES: [(&str, Flow); 5] = [
        ("ports of one client", |n| v4(0x0a00_0001, 1024 + n as u16)),
        ("neighbouring clients", |n| v4(0x0a00_0000 + n, 40_000)),
        ("networks", |n| v4(n << 16, 40_000)),
        ("IPv6 ports", |n| v6(1, 1024 + n as u16)),
        ("IPv6 networks", |n| v6(u64::from(n) << 32, 40_000)),
    ];

    /// Over keys the mean of chi-square is exactly the number of buckets less one, whatever the flows, by pairwise
    /// independence. Its spread is that of random loads by the mixing: without, it is ten times as large.
    #[test]
    fn buckets_fill_as_evenly_as_by_chance() {
        const KEYS: usize = 1500;
        const FLOWS: u32 = 1024;
        const BUCKETS: usize = 64;
        let mut rng = Rng(1);
        for (name, flow) in SEQUENCES {
            for shift in [0, 32, 6] {
                let statistics = (0..KEYS).map(|_| {
                    let key = rng.key();
                    let mut loads = [0u32; BUCKETS];
                    for number in 0..FLOWS {
                        loads[(key.of_flow(&flow(number)) >> shift) as usize % BUCKETS] += 1;
                    }
                    let mean = f64::from(FLOWS) / BUCKETS as f64;
                    loads
                        .iter()
                        .map(|load| (f64::from(*load) - mean).powi(2) / mean)
                        .sum::<f64>()
                });
                let statistics: Vec<f64> = statistics.collect();
                let mean = statistics.iter().sum::<f64>() / KEYS as f64;
                let spread =
                    statistics.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (KEYS - 1) as f64;
                let error = (spread / KEYS as f64).sqrt();
                let expected = (BUCKETS - 1) as f64;
                std::println!("{name}, bits from {shift}: {mean:.2} +- {error:.2}");
                assert!(
                    (mean - expected).abs() < 5.0 * error,
                    "{name} {shift}: {mean} +- {error}"
                );
                let ratio = spread / (2.0 * expected);
                assert!(
                    ratio < 1.3,
                    "{name} {shift}: {ratio} times the spread of random loads"
                );
            }
        }
    }

    /// Pairs that a weak hash would let meet, and how often 16 bits of their fingerprints do over random keys.
    #[test]
    fn two_flows_meet_as_rarely_as_by_chance() {
        let pairs: [(&str, FlowTuple, FlowTuple); 8] = [
            ("next port", v4(1, 1024), v4(1, 1025)),
            ("next client", v4(1, 1024), v4(2, 1024)),
            (
                "top bit of a character",
                v4(1, 1024),
                FlowTuple {
                    ports: v4(1, 1024).ports ^ 1 << 31,
                    ..v4(1, 1024)
                },
            ),
            (
                "other protocol",
                v4(1, 1024),
                FlowTuple {
                    protocol: 17,
                    ..v4(1, 1024)
                },
            ),
            (
                "swapped ends",
                FlowTuple::v4(1, 2, 7, 6),
                FlowTuple::v4(2, 1, 7, 6),
            ),
            (
                "other family",
                v4(1, 1024),
                FlowTuple {
                    v6: true,
                    ..v4(1, 1024)
                },
            ),
            (
                "IPv6 words swapped",
                FlowTuple::v6([1, 2], [3, 4], 7, 6),
                FlowTuple::v6([2, 1], [4, 3], 7, 6),
            ),
            ("IPv6 network", v6(0, 1024), v6(1 << 63, 1024)),
        ];
        const KEYS: u32 = 1 << 20;
        let mut rng = Rng(2);
        // Cuts that choose the first bucket, the second, and a bit of the fresh-key map; and the top of either half.
        let mut met = [[0u32; 4]; 8];
        for _ in 0..KEYS {
            let key = rng.key();
            for ((_, one, two), met) in pairs.iter().zip(&mut met) {
                let difference = key.of_flow(one) ^ key.of_flow(two);
                for (met, shift) in met.iter_mut().zip([0, 32, 16, 46]) {
                    *met += u32::from(difference >> shift & 0xffff == 0);
                }
            }
        }
        // Poisson of mean 16 in each: less than 2 or more than 45 has probability 3e-6 and 1e-9.
        for ((name, ..), met) in pairs.iter().zip(met) {
            std::println!("{name}: {met:?}");
            assert!(met.iter().all(|met| (2..=45).contains(met)), "{name}: {met:?}");
        }
        // Of all 32 cuts together: mean 512, standard deviation 22.6.
        let all: u32 = met.iter().flatten().sum();
        assert!((399..=625).contains(&all), "{all}");
    }

    /// 192.0.2.1:40000 → 198.51.100.7:443, TCP; fixed, so that a change of the hash cannot pass unseen.
    #[test]
    fn known_answers() {
        let key = FingerprintKey::from_words(core::array::from_fn(|at| {
            (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }));
        let [source, destination] = [[192, 0, 2, 1], [198, 51, 100, 7]].map(u32::from_le_bytes);
        let tuple = FlowTuple::v4(
            source,
            destination,
            u32::from_le_bytes([0x9c, 0x40, 0x01, 0xbb]),
            6,
        );
        let products = [(0, source, destination), (4, 0xbb01_409c, 0x406)];
        assert_eq!(key.of_flow(&tuple), by_the_book(&key.words(), &products));
        assert_eq!(key.of_flow(&tuple), KNOWN_FLOW);
        assert_eq!(key.of_client(&tuple), KNOWN_CLIENT);
        assert_eq!(
            FingerprintKey::UNSET.of_client(&FlowTuple::v4(0, 0, 0, 0)),
            TAKEN,
            "never 0"
        );
    }

    const KNOWN_FLOW: u64 = 0x6869_78ce_c59b_6acf;
    const KNOWN_CLIENT: u64 = 0x629d_c4c8_b3f5_6db2;
}
