//! Lengths that lie, headers that end early: dropped to a VIP, left to the kernel otherwise.

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS, DNS6, FILTER_MISTAKE, FILTER_MISTAKE6, FOREIGN, WEB, WEB6},
        },
    },
    verdict::{Drop, Pass},
};

pub fn cases(world: &World) -> Vec<Case> {
    [ip(world), tcp(world), udp(world), not_ours(world)]
        .into_iter()
        .flatten()
        .collect()
}

fn malformed() -> Expect {
    Expect::drop(Drop::Malformed)
}

fn ip(world: &World) -> Vec<Case> {
    let syn = WEB.packet().syn();
    let syn6 = WEB6.packet().syn();
    let case = |sentence: &str, packet: Packet| Case::new(sentence, world).sends(&packet, malformed());
    vec![
        case(
            "an IPv4 packet that says it is version 6 is dropped",
            syn.clone().raw_version(6),
        ),
        case(
            "an IPv4 packet of version 0 is dropped",
            syn.clone().raw_version(0),
        ),
        case(
            "an IPv4 header of four words is dropped",
            syn.clone().raw_header_words(4),
        ),
        case(
            "an IPv4 header longer than its packet is dropped",
            syn.clone().raw_header_words(15),
        ),
        case(
            "an IPv4 total length beyond the frame is dropped",
            syn.clone().raw_length(41),
        ),
        case(
            "an IPv4 total length of 65535 in a short frame is dropped",
            syn.clone().raw_length(65535),
        ),
        case(
            "an IPv4 total length shorter than its header is dropped",
            syn.clone().raw_length(19),
        ),
        case(
            "an IPv4 total length of 0 (segmentation left to the card) is dropped",
            syn.raw_length(0),
        ),
        case(
            "an IPv6 packet that says it is version 4 is dropped",
            syn6.clone().raw_version(4),
        ),
        case(
            "an IPv6 payload length one beyond the frame is dropped",
            syn6.clone().raw_length(21),
        ),
        case(
            "an IPv6 payload length of 65535 in a short frame is dropped",
            syn6.clone().raw_length(65535),
        ),
        case(
            "an IPv6 payload length of 0 with TCP is dropped",
            syn6.raw_length(0),
        ),
    ]
}

fn tcp(world: &World) -> Vec<Case> {
    let syn = WEB.packet().syn();
    let syn6 = WEB6.packet().syn();
    let case = |sentence: &str, packet: Packet| Case::new(sentence, world).sends(&packet, malformed());
    vec![
        case(
            "a frame cut inside its TCP header is dropped",
            syn.clone().truncate_to(14 + 20 + 13),
        ),
        case(
            "an IP packet too short for a TCP header is dropped, whatever follows it",
            syn.clone().raw_length(39),
        ),
        case(
            "an IPv6 packet too short for a TCP header is dropped, whatever follows it",
            syn6.clone().raw_length(19),
        ),
        case(
            "a TCP data offset of four words is dropped",
            syn.clone().raw_data_offset(4),
        ),
        case(
            "a TCP data offset of zero is dropped",
            syn.clone().raw_data_offset(0),
        ),
        case(
            "a TCP data offset beyond the packet is dropped",
            syn.clone().raw_data_offset(6),
        ),
        case(
            "a TCP data offset beyond the packet, but inside the frame, is dropped",
            syn.clone().raw_data_offset(6).trailing(10),
        ),
        case(
            "IPv4 options that push TCP out of the packet are dropped",
            syn.options(&[1; 40]).raw_length(20 + 40 + 19),
        ),
        case(
            "a TCP header over IPv6 cut by the frame is dropped",
            syn6.truncate_to(14 + 40 + 10),
        ),
    ]
}

fn udp(world: &World) -> Vec<Case> {
    let datagram = DNS.packet().payload(b"query");
    let datagram6 = DNS6.packet().payload(b"query");
    let case = |sentence: &str, packet: Packet| Case::new(sentence, world).sends(&packet, malformed());
    vec![
        case(
            "a UDP length of zero is dropped",
            datagram.clone().raw_udp_length(0),
        ),
        case(
            "a UDP length of seven is dropped",
            datagram.clone().raw_udp_length(7),
        ),
        case(
            "a UDP length beyond the IP packet is dropped",
            datagram.clone().raw_udp_length(14),
        ),
        case(
            "a UDP length beyond the IP packet, but inside the frame, is dropped",
            datagram.clone().raw_udp_length(14).trailing(10),
        ),
        case(
            "an IP packet too short for a UDP header is dropped",
            datagram.raw_length(27),
        ),
        case(
            "a UDP length of zero over IPv6 is dropped",
            datagram6.clone().raw_udp_length(0),
        ),
        case(
            "a UDP length beyond the IPv6 packet is dropped",
            datagram6.raw_udp_length(14),
        ),
    ]
}

fn not_ours(world: &World) -> Vec<Case> {
    let foreign = || Expect::pass(Pass::MalformedForeign);
    vec![
        Case::new(
            "a frame cut inside its IPv4 header passes: its destination is not known",
            world,
        )
        .sends(&WEB.packet().truncate_to(33), foreign()),
        Case::new(
            "a frame cut inside its IPv6 header passes: its destination is not known",
            world,
        )
        .sends(&WEB6.packet().truncate_to(53), foreign()),
        Case::new("lying lengths to an address that is no VIP pass", world).sends(
            &Packet::tcp_v4().to(FOREIGN, 80).raw_length(9999),
            Expect::pass(Pass::NotVip),
        ),
        Case::new(
            "lying lengths to an address that the filter mistakes for a VIP pass",
            world,
        )
        .sends(
            &Packet::tcp_v4().to(FILTER_MISTAKE, 80).raw_length(9999),
            foreign(),
        )
        .sends(
            &Packet::tcp_v6().to(FILTER_MISTAKE6, 80).raw_length(9999),
            foreign(),
        ),
        Case::new("too many extension headers to such an address pass", world).sends(
            &(0..9).fold(Packet::tcp_v6().to(FILTER_MISTAKE6, 80), |packet, _| {
                packet.hop_by_hop()
            }),
            Expect::pass(Pass::NotVip),
        ),
        Case::new(
            "a truncated packet to a VIP is dropped, whether its port has a service or not",
            world,
        )
        .sends(&WEB.packet().to(WEB.vip, 9).truncate_to(40), malformed()),
    ]
}
