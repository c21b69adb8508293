//! Where a service is: chains of entries behind an array of heads, walked in memory without a call into the kernel.
//!
//! `SERVICE_HEADS[h]` names the first entry of the chain of all keys with hash `h`, each entry of `SERVICES` the next one;
//! 0 ends a chain, and entry 0 is never used. Key and service of an entry do not change while a chain leads to it: a
//! change fills another entry and swings the one word that leads to the old one, so that a walk finds the old service or
//! the new one, whole. An entry that was taken out of its chain rests before it is filled again, since walks may still be in
//! it; what no chain leads to is free, whoever died when.

use crate::{
    service::{Service, ServiceKey},
    shared::Word,
};

/// Entries of a chain that a walk looks at; a longer one is never made. With as many heads as [`heads_for`] says, a
/// random key finds its chain this long with probability 10⁻⁹.
pub const MAX_CHAIN: usize = 8;

/// Entries in use that a service takes: its own, and the mark of its VIP unless another service has it too.
pub const ENTRIES_A_SERVICE: u32 = 2;

/// Entries of `SERVICES` for so many services: entry 0, those in use, and one more a service, so that a change of every
/// service finds entries that have not been used a moment ago.
pub const fn entries_for(services: u32) -> u32 {
    services.saturating_mul(ENTRIES_A_SERVICE + 1).saturating_add(1)
}

/// Services that so many entries of `SERVICES` are made for.
pub const fn services_in(entries: u32) -> u32 {
    entries.saturating_sub(1) / (ENTRIES_A_SERVICE + 1)
}

/// Entries of `SERVICE_HEADS` for so many services: at least twice the entries in use.
pub const fn heads_for(services: u32) -> u32 {
    let twice = services.saturating_mul(2 * ENTRIES_A_SERVICE);
    match twice.checked_next_power_of_two() {
        Some(heads) => heads,
        None => 1 << 31,
    }
}

/// Entry of `SERVICES`, one cache line.
#[repr(C)]
pub struct ServiceEntry {
    /// [`ServiceKey::words`].
    pub key: [u64; 3],
    pub service: Service,
    /// The next entry of the chain; 0: none.
    pub next: Word,
}

/// Words of a [`ServiceEntry`], and the one that may change while a chain leads to it.
pub const ENTRY_WORDS: usize = 8;
pub const NEXT_WORD: usize = 7;

const _: () = assert!(size_of::<ServiceEntry>() == 8 * ENTRY_WORDS);
const _: () = assert!(core::mem::offset_of!(ServiceEntry, next) == 8 * NEXT_WORD);

/// What stands in front of an entry's `next`.
pub const fn entry_words(key: &ServiceKey, service: &Service) -> [u64; NEXT_WORD] {
    let [a, b, c] = key.words();
    let [d, e, f, g] = service.words();
    [a, b, c, d, e, f, g]
}

/// The other way round.
pub const fn entry_of([a, b, c, d, e, f, g]: [u64; NEXT_WORD]) -> (ServiceKey, Service) {
    (
        ServiceKey::from_words([a, b, c]),
        Service::from_words([d, e, f, g]),
    )
}

/// What [`head_of`] shifts by when there are so many heads: a power of two, at least 2.
pub const fn head_shift(heads: u32) -> u32 {
    64 - heads.ilog2()
}

/// The golden ratio in 64 bits, and another odd constant (Steele, Lea and Flood 2014).
const MULTIPLIERS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// The head of a key's chain. No secret: the operator chooses the keys. One multiplication would do for keys at random;
/// those of a network count up, and their products too.
#[inline(always)]
pub const fn head_of(key: &ServiceKey, shift: u32) -> u32 {
    let [first, second, last] = key.words();
    // An IPv4 address and the rest of the key, 32 bits each, do not overlap.
    let joined = first ^ last.rotate_left(32) ^ second.wrapping_mul(MULTIPLIERS[1]);
    let mixed = joined.wrapping_mul(MULTIPLIERS[0]);
    (mixed ^ mixed >> 32)
        .wrapping_mul(MULTIPLIERS[1])
        .wrapping_shr(shift) as u32
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_survives_as_words(key: [u64; 3], service: [u64; 4]) {
            let (key, service) = (ServiceKey::from_words(key), Service::from_words(service));
            prop_assert_eq!(entry_of(entry_words(&key, &service)), (key, service));
            let heads = heads_for(100);
            prop_assert!(head_of(&key, head_shift(heads)) < heads);
        }
    }

    #[test]
    fn sizes_fit_each_other() {
        for services in [1, 10, 512, 1024, 1 << 20] {
            assert_eq!(services_in(entries_for(services)), services);
            assert!(heads_for(services) >= 4 * services && heads_for(services).is_power_of_two());
        }
    }

    fn key(address: [u8; 4], port: u16, protocol: u8) -> ServiceKey {
        let mut words = [0; 16];
        words[..4].copy_from_slice(&address);
        ServiceKey {
            port: port.to_be_bytes(),
            protocol,
            ..ServiceKey::vip_mark(words, 4)
        }
    }

    fn key6(host: u16, port: u16, protocol: u8) -> ServiceKey {
        let mut words = [0; 16];
        words[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        words[14..].copy_from_slice(&host.to_be_bytes());
        ServiceKey {
            port: port.to_be_bytes(),
            protocol,
            ..ServiceKey::vip_mark(words, 6)
        }
    }

    /// The longest chain, and the mean length that a look-up of one of the keys walks.
    fn chains(keys: &[ServiceKey]) -> (usize, f64) {
        let heads = heads_for(keys.len() as u32 / ENTRIES_A_SERVICE);
        let mut lengths = vec![0usize; heads as usize];
        let mut walked = 0;
        for key in keys {
            let length = &mut lengths[head_of(key, head_shift(heads)) as usize];
            *length += 1;
            walked += *length;
        }
        (
            lengths.into_iter().max().unwrap_or(0),
            walked as f64 / keys.len() as f64,
        )
    }

    #[test]
    fn chains_of_usual_services_are_short() {
        let layouts: [(&str, Vec<ServiceKey>); 5] = [
            (
                "one address, many ports",
                (0..1000).map(|n| key([198, 51, 100, 7], 1000 + n, 6)).collect(),
            ),
            (
                "TCP and UDP and the mark of a network's addresses",
                (0..250u8)
                    .flat_map(|n| {
                        [(80, 6), (443, 6), (443, 17), (0, 0)].map(|(p, t)| key([198, 51, 100, n], p, t))
                    })
                    .collect(),
            ),
            (
                "a large network",
                (0..65_536u32)
                    .flat_map(|n| {
                        [(443, 6), (0, 0)].map(|(p, t)| key([10, 1, (n >> 8) as u8, n as u8], p, t))
                    })
                    .collect(),
            ),
            (
                "IPv6 hosts",
                (0..1000)
                    .flat_map(|n| [(443, 6), (0, 0)].map(|(p, t)| key6(n, p, t)))
                    .collect(),
            ),
            ("IPv6 ports", (0..1000).map(|n| key6(7, n, 17)).collect()),
        ];
        for (name, keys) in layouts {
            let (longest, mean) = chains(&keys);
            std::println!("{name}: longest {longest}, mean {mean:.2}");
            // At half load a random hash walks 1.25 entries.
            assert!(
                longest < MAX_CHAIN && mean < 1.4,
                "{name}: longest {longest}, mean {mean}"
            );
        }
    }
}
