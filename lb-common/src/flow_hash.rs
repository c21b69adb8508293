//! The hash that picks: SipHash-1-3 of a flow's 5-tuple, or of the client's address alone.
//!
//! Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), with one compression and three
//! finalisation rounds. The message is the bytes `source ‖ destination ‖ source port ‖ destination port ‖
//! protocol` as they stand in the packet: 13 bytes for IPv4, 37 for IPv6.

/// A flow's 5-tuple as loaded from the packet (network bytes in a native little-endian word).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTuple {
    /// IPv6; else all words but the first are 0.
    pub v6: bool,
    /// IPv4: source in the low half of word 0, destination in the high half; the other words are 0.
    /// IPv6: source in words 0 and 1, destination in 2 and 3.
    pub words: [u64; 4],
    /// Source port in the low 16 bits, destination port in the high.
    pub ports: u32,
    /// IP protocol number.
    pub protocol: u8,
}

/// A 128-bit SipHash key.
#[derive(Clone, Copy)]
pub struct Key {
    pub k0: u64,
    pub k1: u64,
}

impl FlowTuple {
    #[inline(always)]
    pub const fn v4(source: u32, destination: u32, ports: u32, protocol: u8) -> Self {
        Self {
            v6: false,
            words: [source as u64 | (destination as u64) << 32, 0, 0, 0],
            ports,
            protocol,
        }
    }

    #[inline(always)]
    pub const fn v6(source: [u64; 2], destination: [u64; 2], ports: u32, protocol: u8) -> Self {
        Self {
            v6: true,
            words: [source[0], source[1], destination[0], destination[1]],
            ports,
            protocol,
        }
    }

    /// SipHash-1-3 of the 13 or 37 bytes of the 5-tuple.
    #[inline(always)]
    pub fn hash(&self, key: Key) -> u64 {
        let tail = self.ports as u64 | (self.protocol as u64) << 32;
        let mut sip = Sip::new(key);
        sip.compress(self.words[0]);
        if self.v6 {
            sip.compress(self.words[1]);
            sip.compress(self.words[2]);
            sip.compress(self.words[3]);
            sip.finish(tail, 37)
        } else {
            sip.finish(tail, 13)
        }
    }

    /// SipHash-1-3 of the 4 or 16 bytes of the source address: what client affinity picks by.
    #[inline(always)]
    pub fn hash_client(&self, key: Key) -> u64 {
        let mut sip = Sip::new(key);
        if self.v6 {
            sip.compress(self.words[0]);
            sip.compress(self.words[1]);
            sip.finish(0, 16)
        } else {
            sip.finish(self.words[0] & 0xffff_ffff, 4)
        }
    }
}

struct Sip {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl Sip {
    #[inline(always)]
    fn new(key: Key) -> Self {
        Self {
            v0: key.k0 ^ 0x736f_6d65_7073_6575,
            v1: key.k1 ^ 0x646f_7261_6e64_6f6d,
            v2: key.k0 ^ 0x6c79_6765_6e65_7261,
            v3: key.k1 ^ 0x7465_6462_7974_6573,
        }
    }

    #[inline(always)]
    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }

    #[inline(always)]
    fn compress(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    /// The last, short block (its bytes in the low end of `tail`), the message's length, three rounds.
    #[inline(always)]
    fn finish(mut self, tail: u64, length: u64) -> u64 {
        self.compress(tail | length << 56);
        self.v2 ^= 0xff;
        self.round();
        self.round();
        self.round();
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;

    use super::*;

    fn independent(key: Key, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(key.k0, key.k1);
        hasher.write(bytes);
        hasher.finish()
    }

    fn half(bytes: [u8; 16], at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }

    proptest! {
        #[test]
        fn ipv4_agrees_with_an_independent_siphash(
            k0: u64, k1: u64, source: [u8; 4], destination: [u8; 4], ports: [u8; 4], protocol: u8,
        ) {
            let key = Key { k0, k1 };
            let tuple = FlowTuple::v4(
                u32::from_le_bytes(source),
                u32::from_le_bytes(destination),
                u32::from_le_bytes(ports),
                protocol,
            );
            let mut bytes = [0; 13];
            bytes[..4].copy_from_slice(&source);
            bytes[4..8].copy_from_slice(&destination);
            bytes[8..12].copy_from_slice(&ports);
            bytes[12] = protocol;
            prop_assert_eq!(tuple.hash(key), independent(key, &bytes));
            prop_assert_eq!(tuple.hash_client(key), independent(key, &source));
        }

        #[test]
        fn ipv6_agrees_with_an_independent_siphash(
            k0: u64, k1: u64, source: [u8; 16], destination: [u8; 16], ports: [u8; 4], protocol: u8,
        ) {
            let key = Key { k0, k1 };
            let tuple = FlowTuple::v6(
                [half(source, 0), half(source, 8)],
                [half(destination, 0), half(destination, 8)],
                u32::from_le_bytes(ports),
                protocol,
            );
            let mut bytes = [0; 37];
            bytes[..16].copy_from_slice(&source);
            bytes[16..32].copy_from_slice(&destination);
            bytes[32..36].copy_from_slice(&ports);
            bytes[36] = protocol;
            prop_assert_eq!(tuple.hash(key), independent(key, &bytes));
            prop_assert_eq!(tuple.hash_client(key), independent(key, &source));
        }
    }

    /// 192.0.2.1:40000 → 198.51.100.7:443, TCP; fixed, so that a change of the hash cannot pass unseen.
    #[test]
    fn known_answer() {
        let tuple = FlowTuple::v4(
            u32::from_le_bytes([192, 0, 2, 1]),
            u32::from_le_bytes([198, 51, 100, 7]),
            u32::from_le_bytes([0x9c, 0x40, 0x01, 0xbb]),
            6,
        );
        let key = Key {
            k0: 0x0706_0504_0302_0100,
            k1: 0x0f0e_0d0c_0b0a_0908,
        };
        let bytes = [192, 0, 2, 1, 198, 51, 100, 7, 0x9c, 0x40, 0x01, 0xbb, 6];
        assert_eq!(tuple.hash(key), independent(key, &bytes));
    }
}
