//! The Internet checksum (RFC 1071) of headers the datapath writes itself.

use crate::headers::Ipv4;

/// Folds a 32-bit sum of 16-bit words to its one's-complement checksum.
#[inline(always)]
pub const fn fold(mut sum: u32) -> u16 {
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// The checksum of an option-less IPv4 header whose checksum field is 0, in packet order.
#[inline(always)]
pub const fn ipv4(header: &Ipv4) -> u16 {
    const fn halves(word: u32) -> u32 {
        (word & 0xffff) + (word >> 16)
    }
    // One's-complement sums do not care about byte order (RFC 1071, section 2 (B)).
    fold(
        u16::from_ne_bytes([header.version_and_length, header.tos]) as u32
            + header.total_length as u32
            + header.identification as u32
            + header.fragment as u32
            + u16::from_ne_bytes([header.ttl, header.protocol]) as u32
            + halves(header.source)
            + halves(header.destination),
    )
}

/// The checksum after a 16-bit word that it covers became another (RFC 1624, equation 3), all in packet order.
#[inline(always)]
pub const fn update(checksum: u16, before: u16, after: u16) -> u16 {
    fold(!checksum as u32 + !before as u32 + after as u32)
}

/// A one's-complement sum in progress, of 16-bit words in packet order that may be added four or two at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds two words; good for 2³² of them.
    #[inline(always)]
    pub const fn add(self, words: u32) -> Self {
        Self(self.0 + words as u64)
    }

    /// Adds four words.
    #[inline(always)]
    pub const fn add_long(self, words: u64) -> Self {
        self.add(words as u32).add((words >> 32) as u32)
    }

    /// The checksum. 2¹⁶ is 1 to a one's-complement sum, so 2³² is, too.
    #[inline(always)]
    pub const fn fold(self) -> u16 {
        let once = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let twice = (once & 0xffff_ffff) + (once >> 32);
        fold(((twice & 0xffff) + (twice >> 16)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071, section 4.1, word by word.
    fn by_the_book(words: &[u16]) -> u16 {
        let mut sum: u128 = words.iter().map(|word| u128::from(*word)).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    proptest! {
        #[test]
        fn sums_agree_with_the_book(words in prop::collection::vec(any::<u16>(), 4..700)) {
            let whole = &words[..words.len() / 4 * 4];
            let (mut by_two, mut by_four) = (Sum::default(), Sum::default());
            for four in whole.chunks(4) {
                let pair = |at: usize| u32::from(four[at]) | u32::from(four[at + 1]) << 16;
                by_two = by_two.add(pair(0)).add(pair(2));
                by_four = by_four.add_long(u64::from(pair(0)) | u64::from(pair(2)) << 32);
            }
            prop_assert_eq!(by_two.fold(), by_the_book(whole));
            prop_assert_eq!(by_four.fold(), by_the_book(whole));
        }

        /// Where both representations of zero could come out, a packet with a word other than 0 has only one.
        #[test]
        fn an_update_is_what_summing_again_gives(mut words in prop::collection::vec(1u16.., 2..40), after in 1u16..) {
            let before = by_the_book(&words);
            let old = std::mem::replace(&mut words[0], after);
            prop_assert_eq!(update(before, old, after), by_the_book(&words));
        }
    }

    /// The example of a 20-byte header in RFC 1071's spirit, summed by hand: 0xb861.
    #[test]
    fn known_header() {
        let header = Ipv4 {
            version_and_length: 0x45,
            tos: 0,
            total_length: 0x0073u16.to_be(),
            identification: 0,
            fragment: 0x4000u16.to_be(),
            ttl: 0x40,
            protocol: 0x11,
            checksum: 0,
            source: u32::from_ne_bytes([192, 168, 0, 1]),
            destination: u32::from_ne_bytes([192, 168, 0, 199]),
        };
        assert_eq!(u16::from_be(ipv4(&header)), 0xb861);
    }
}
