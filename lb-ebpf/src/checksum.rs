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

#[cfg(test)]
mod tests {
    use super::*;

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
