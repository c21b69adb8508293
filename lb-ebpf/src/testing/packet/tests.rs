//! The builder against an independent parser of packets.

use etherparse::{SlicedPacket, TransportSlice};

use super::Packet;

/// Parses strictly, compares both checksums, and answers the packet's payload.
fn verify(packet: &Packet) -> Vec<u8> {
    let bytes = packet.bytes();
    let sliced = SlicedPacket::from_ethernet(&bytes).expect("etherparse takes the packet");
    let headers = etherparse::PacketHeaders::from_ethernet_slice(&bytes).expect("headers");
    if let Some(etherparse::NetHeaders::Ipv4(header, _)) = &headers.net {
        assert_eq!(header.header_checksum, header.calc_header_checksum());
    }
    let net = headers.net.expect("a network header");
    match sliced.transport.expect("a transport header") {
        TransportSlice::Tcp(tcp) => {
            let header = tcp.to_header();
            let sum = match &net {
                etherparse::NetHeaders::Ipv4(ip, _) => header.calc_checksum_ipv4(ip, tcp.payload()),
                etherparse::NetHeaders::Ipv6(ip, _) => header.calc_checksum_ipv6(ip, tcp.payload()),
                _ => panic!("not IP"),
            };
            assert_eq!(sum.expect("a sum"), header.checksum);
            tcp.payload().to_vec()
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            let sum = match &net {
                etherparse::NetHeaders::Ipv4(ip, _) => header.calc_checksum_ipv4(ip, udp.payload()),
                etherparse::NetHeaders::Ipv6(ip, _) => header.calc_checksum_ipv6(ip, udp.payload()),
                _ => panic!("not IP"),
            };
            assert_eq!(sum.expect("a sum"), header.checksum);
            udp.payload().to_vec()
        }
        other => panic!("unexpected transport {other:?}"),
    }
}

#[test]
fn an_independent_parser_agrees_with_the_builder() {
    let bases = [
        Packet::tcp_v4().syn(),
        Packet::tcp_v6(),
        Packet::udp_v4(),
        Packet::udp_v6(),
    ];
    for base in bases {
        for payload in [&b""[..], b"x", b"hello, world"] {
            let base = base.clone().payload(payload).traffic_class(0xb8);
            assert_eq!(verify(&base), payload);
            assert_eq!(verify(&base.clone().vlan(5)), payload);
            assert_eq!(verify(&base.clone().service_vlan(7).vlan(5).trailing(9)), payload);
        }
    }
}

#[test]
fn an_independent_parser_agrees_on_options_and_extension_headers() {
    let options = Packet::tcp_v4()
        .options(&[148, 4, 0, 0])
        .tcp_options(&[2, 4, 5, 0xb4, 1]);
    assert_eq!(verify(&options.payload(b"data")), b"data");
    let chain = Packet::udp_v6()
        .hop_by_hop()
        .destination_options()
        .routing()
        .fragment(0, false)
        .authentication();
    assert_eq!(verify(&chain.payload(b"data")), b"data");
}

#[test]
fn the_tuple_is_what_the_parser_reads() {
    let packet = Packet::tcp_v4().from("192.0.2.9", 4711).to("198.51.100.1", 443);
    let bytes = packet.bytes();
    let tuple = packet.tuple().expect("a tuple");
    assert_eq!(tuple.words[0].to_ne_bytes(), bytes[26..34]);
    assert_eq!(tuple.ports.to_ne_bytes(), bytes[34..38]);
    let bytes = Packet::tcp_v6().bytes();
    let tuple = Packet::tcp_v6().tuple().expect("a tuple");
    assert_eq!(tuple.words.map(u64::to_ne_bytes).concat(), bytes[22..54]);
}

#[test]
fn a_tunnel_has_the_packet_inside() {
    let inner = Packet::tcp_v6().payload(b"inside");
    let outer =
        Packet::tunnel("10.0.0.1".parse().expect("v4"), "10.0.0.2".parse().expect("v4")).carrying(&inner);
    let bytes = outer.bytes();
    let sliced = SlicedPacket::from_ethernet(&bytes).expect("an outer packet");
    assert_eq!(sliced.ip_payload().expect("a payload").payload, inner.ip_bytes());
    assert_eq!(
        sliced.ip_payload().expect("a payload").ip_number,
        etherparse::IpNumber::IPV6
    );
}
