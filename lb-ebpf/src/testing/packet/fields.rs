//! What a packet's headers say: tags, flags, options, extension headers, payload.

use super::{Packet, Transport};
use crate::headers::{protocol, tcp_flag};

impl Packet {
    /// One more 802.1Q tag, inside those before it.
    pub fn vlan(mut self, id: u16) -> Self {
        self.tags.push((0x8100, id));
        self
    }

    /// One more 802.1ad service tag.
    pub fn service_vlan(mut self, id: u16) -> Self {
        self.tags.push((0x88a8, id));
        self
    }

    /// The same tags as another packet.
    pub fn tags_of(mut self, other: &Self) -> Self {
        self.tags = other.tags.clone();
        self
    }

    pub fn flags(mut self, new: u8) -> Self {
        match &mut self.transport {
            Transport::Tcp { flags, .. } => *flags = new,
            _ => panic!("only TCP has flags"),
        }
        self
    }

    pub fn syn(self) -> Self {
        self.flags(tcp_flag::SYN)
    }

    pub fn fin(self) -> Self {
        self.flags(tcp_flag::FIN | tcp_flag::ACK)
    }

    pub fn rst(self) -> Self {
        self.flags(tcp_flag::RST)
    }

    pub fn tcp_options(mut self, new: &[u8]) -> Self {
        match &mut self.transport {
            Transport::Tcp { options, .. } => options.extend_from_slice(new),
            _ => panic!("only TCP has these options"),
        }
        self
    }

    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Payload that makes the IP packet, header included, `octets` long.
    pub fn filled_to(mut self, octets: usize) -> Self {
        let bare = self.clone().payload(&[]).ip_bytes().len();
        assert!(
            octets >= bare,
            "{octets} octets are too few: the headers take {bare}"
        );
        self.payload = (0..octets - bare).map(|index| index as u8).collect();
        self
    }

    /// TOS (RFC 791) or traffic class (RFC 8200).
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.ip_mut().traffic_class = class;
        self
    }

    pub fn hops(mut self, hops: u8) -> Self {
        self.ip_mut().hops = hops;
        self
    }

    pub fn flow_label(mut self, label: u32) -> Self {
        self.ip_mut().flow_label = label;
        self
    }

    pub fn identification(mut self, identification: u16) -> Self {
        self.ip_mut().identification = identification;
        self
    }

    pub fn dont_fragment(mut self) -> Self {
        self.ip_mut().fragment |= 0x4000;
        self
    }

    /// Sets DF, which IPv6 does without.
    pub fn dont_fragment_v4(self) -> Self {
        if self.source().is_ipv4() {
            self.dont_fragment()
        } else {
            self
        }
    }

    /// IPv4 options, padded to whole words.
    pub fn options(mut self, options: &[u8]) -> Self {
        let ip = self.ip_mut();
        ip.options = options.to_vec();
        ip.options.resize(options.len().next_multiple_of(4), 0);
        self
    }

    /// One more IPv6 extension header: `body` is everything after its "next header" octet.
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Self {
        self.ip_mut().extensions.push((kind, body.to_vec()));
        self
    }

    pub fn hop_by_hop(self) -> Self {
        self.extension(protocol::HOP_BY_HOP, &[0, 1, 4, 0, 0, 0, 0])
    }

    pub fn destination_options(self) -> Self {
        self.extension(protocol::DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0])
    }

    /// A routing header of type 4 with one segment, none left.
    pub fn routing(self) -> Self {
        let mut body = vec![2, 4, 0, 0, 0, 0, 0];
        body.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10]);
        self.extension(protocol::ROUTING, &body)
    }

    /// An authentication header with 12 octets of check value (RFC 4302: length in words, minus 2).
    pub fn authentication(self) -> Self {
        self.extension(protocol::AUTHENTICATION, &[&[4, 0, 0][..], &[7; 20]].concat())
    }

    /// Makes this a fragment: `offset` in octets, a multiple of 8.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        if self.ip_mut().source.is_ipv4() {
            let ip = self.ip_mut();
            ip.fragment = ip.fragment & 0x4000 | (u16::from(more) << 13) | (offset / 8);
            return self;
        }
        let [high, low] = (offset | u16::from(more)).to_be_bytes();
        self.extension(protocol::FRAGMENT, &[0, high, low, 1, 2, 3, 4])
    }

    /// The packet in fragments of at most `size` octets behind the headers, as a sender makes them.
    pub fn fragments(&self, size: u16) -> Vec<Self> {
        let size = usize::from(size);
        let transport = self.transport_octets();
        let parts = transport.chunks(size).enumerate();
        let last = transport.len().div_ceil(size) - 1;
        parts
            .map(|(number, part)| {
                let mut fragment = self.clone().payload(part);
                fragment.transport = Transport::Raw;
                fragment.fragment((number * size) as u16, number < last)
            })
            .collect()
    }
}
