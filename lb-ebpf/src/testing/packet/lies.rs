//! Fields that say something else than what is there.

use super::{Packet, Transport};

impl Packet {
    pub fn raw_ethertype(mut self, ethertype: u16) -> Self {
        self.ethertype = Some(ethertype);
        self
    }

    pub fn raw_version(mut self, version: u8) -> Self {
        self.ip_mut().version = Some(version);
        self
    }

    /// The IPv4 header's length field, in words.
    pub fn raw_header_words(mut self, words: u8) -> Self {
        self.ip_mut().header_words = Some(words);
        self
    }

    /// The IPv4 total length or the IPv6 payload length.
    pub fn raw_length(mut self, length: u16) -> Self {
        self.ip_mut().length = Some(length);
        self
    }

    /// Protocol or last "next header", whatever follows.
    pub fn raw_protocol(mut self, protocol: u8) -> Self {
        self.ip_mut().protocol = protocol;
        self
    }

    /// TCP's data offset, in words.
    pub fn raw_data_offset(mut self, words: u8) -> Self {
        match &mut self.transport {
            Transport::Tcp { data_offset, .. } => *data_offset = Some(words),
            _ => panic!("only TCP has a data offset"),
        }
        self
    }

    pub fn raw_udp_length(mut self, octets: u16) -> Self {
        match &mut self.transport {
            Transport::Udp { length } => *length = Some(octets),
            _ => panic!("only UDP has this length"),
        }
        self
    }
}
