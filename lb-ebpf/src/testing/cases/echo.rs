//! Echo requests to VIPs: answered in place, so many a second; what is odd about them is left to the kernel.

use lb_common::settings::flag;

use crate::{
    testing::{
        case::{Case, Expect},
        packet::{HOST_MAC, Packet, ROUTER_MAC},
        world::{
            World,
            standard::{EMPTY, FILTER_MISTAKE, FOREIGN, WEB, WEB6},
        },
    },
    verdict::{Answer, Drop, Pass},
};

pub fn cases(world: &World) -> Vec<Case> {
    [
        answered(world),
        sums(world),
        limited(world),
        left(world),
        malformed(world),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Identifier 0x1234, sequence number 1.
const REST: [u8; 4] = [0x12, 0x34, 0, 1];

fn request() -> Packet {
    Packet::icmp_v4(8, 0, REST).payload(b"abcdefgh")
}

fn request6() -> Packet {
    Packet::icmp_v6(128, 0, REST).payload(b"abcdefgh")
}

/// RFC 792: addresses reversed, type 0, checksum computed anew; the rest stays.
fn reply() -> Packet {
    Packet::icmp_v4(0, 0, REST).payload(b"abcdefgh").back()
}

/// RFC 4443, section 4.2.
fn reply6() -> Packet {
    Packet::icmp_v6(129, 0, REST).payload(b"abcdefgh").back()
}

fn echo(reply: Packet) -> Expect {
    Expect::answer(Answer::EchoReply, reply)
}

fn answered(world: &World) -> Vec<Case> {
    let case = |sentence: &str, request: Packet, reply: Packet| {
        Case::new(sentence, world).sends(&request, echo(reply))
    };
    vec![
        case("an echo request to a VIP is answered", request(), reply()),
        case(
            "an ICMPv6 echo request to a VIP is answered",
            request6(),
            reply6(),
        ),
        case(
            "an echo request without data is answered",
            request().payload(&[]),
            reply().payload(&[]),
        ),
        case(
            "an odd number of echoed octets comes back",
            request().payload(b"odd"),
            reply().payload(b"odd"),
        ),
        case(
            "an echo request as long as an Ethernet frame takes is answered",
            request().filled_to(1500),
            reply().filled_to(1500),
        ),
        case(
            "an ICMPv6 echo request as long as an Ethernet frame takes is answered",
            request6().filled_to(1500),
            reply6().filled_to(1500),
        ),
        case(
            "a reply has hops of its own, whatever the request has left",
            request().hops(1),
            reply().hops(64),
        ),
        case(
            "an ICMPv6 reply has hops of its own, too",
            request6().hops(255),
            reply6().hops(64),
        ),
        case(
            "a reply keeps the request's class, identification and DF",
            request()
                .traffic_class(0xb8)
                .identification(0xabcd)
                .dont_fragment(),
            reply().traffic_class(0xb8).identification(0xabcd).dont_fragment(),
        ),
        case(
            "a reply leaves with the request's VLAN tag",
            request().vlan(0x6005),
            reply().vlan(0x6005),
        ),
        case(
            "a reply leaves with both tags",
            request6().service_vlan(7).vlan(5),
            reply6().service_vlan(7).vlan(5),
        ),
        case(
            "what Ethernet padded the request with stays behind the reply",
            request().payload(&[]).trailing(18),
            reply().payload(&[]).trailing(18),
        ),
        Case::new("a VIP without backends answers pings", world)
            .sends(&request().to(EMPTY.vip, 80), echo(reply().from(EMPTY.vip, 80))),
    ]
}

/// The two representations of zero (RFC 1624).
fn sums(world: &World) -> Vec<Case> {
    let raw = |octets: &[u8]| Packet::ip_v4(1).payload(octets);
    vec![
        Case::new("a reply of nothing but zeros has the checksum 0xffff", world).sends(
            &raw(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
            echo(raw(&[0, 0, 0xff, 0xff, 0, 0, 0, 0]).back()),
        ),
        Case::new("a reply whose words add up to 0xffff has it, too", world).sends(
            &raw(&[8, 0, 0xf7, 0xff, 0xff, 0xff, 0, 0]),
            echo(raw(&[0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]).back()),
        ),
        Case::new("a checksum that carries is right", world).sends(
            &Packet::icmp_v4(8, 0, [0xff, 0xff, 0xff, 0xfe]).payload(&[0xff; 6]),
            echo(
                Packet::icmp_v4(0, 0, [0xff, 0xff, 0xff, 0xfe])
                    .payload(&[0xff; 6])
                    .back(),
            ),
        ),
        Case::new(
            "a request with a wrong checksum has a reply with a wrong one",
            world,
        )
        .sends(
            &raw(&[8, 0, 0xf7, 0xfe, 0, 0, 0, 0]),
            echo(raw(&[0, 0, 0xff, 0xfe, 0, 0, 0, 0]).back()),
        ),
    ]
}

fn limited(world: &World) -> Vec<Case> {
    let limit = || Expect::drop(Drop::IcmpRate);
    vec![
        Case::new("echo requests beyond the rate of a second are dropped", world)
            .with(|world| world.settings.icmp_rate = 2)
            .sends(&request(), echo(reply()))
            .sends(&request6(), echo(reply6()))
            .sends(&request(), limit())
            .sends(&request6(), limit())
            .waits(1)
            .sends(&request(), echo(reply()))
            .sends(&request(), echo(reply()))
            .sends(&request(), limit()),
        Case::new("a rate of 0 answers no echo request", world)
            .with(|world| world.settings.icmp_rate = 0)
            .sends(&request(), limit()),
        Case::new("what is left to the kernel takes nothing of the rate", world)
            .with(|world| world.settings.icmp_rate = 1)
            .sends(&request().from("0.0.0.0", 0), Expect::pass(Pass::Icmp))
            .sends(&request(), echo(reply())),
    ]
}

fn left(world: &World) -> Vec<Case> {
    let case = |sentence: &str, packets: &[Packet]| {
        packets.iter().fold(Case::new(sentence, world), |case, packet| {
            case.sends(packet, Expect::pass(Pass::Icmp))
        })
    };
    let from = |source: &str| request().from(source, 0);
    let from6 = |source: &str| request6().from(source, 0);
    let everybody = [0xff; 6];
    vec![
        case(
            "pings are left to the kernel if it is to answer them",
            &[request(), request6()],
        )
        .with(|world| world.settings.flags = flag::PING_KERNEL),
        case(
            "an echo request with a code is left to the kernel",
            &[Packet::icmp_v4(8, 1, REST), Packet::icmp_v6(128, 1, REST)],
        ),
        case(
            "an echo request with IPv4 options is left to the kernel",
            &[request().options(&[7, 7, 4, 0, 0, 0, 0])],
        ),
        case(
            "an echo request with extension headers is left to the kernel",
            &[request6().destination_options(), request6().fragment(0, false)],
        ),
        case(
            "an echo request from no single host is left to the kernel",
            &[
                from("0.0.0.0"),
                from("0.1.2.3"),
                from("127.0.0.1"),
                from("224.0.0.1"),
                from("239.255.255.255"),
                from("240.0.0.1"),
                from("255.255.255.255"),
            ],
        ),
        case(
            "an ICMPv6 echo request from no single host is left to the kernel",
            &[from6("::"), from6("::1"), from6("ff02::1")],
        ),
        case(
            "an echo request of a VIP to itself is left to the kernel",
            &[from(WEB.vip), from6(WEB6.vip)],
        ),
        case(
            "an echo request in a frame to many is left to the kernel",
            &[
                request().macs(everybody, ROUTER_MAC),
                request6().macs([0x33, 0x33, 0, 0, 0, 1], ROUTER_MAC),
            ],
        ),
        case(
            "an echo request in a frame from many is left to the kernel",
            &[request().macs(HOST_MAC, everybody)],
        ),
        case(
            "an echo reply to a VIP is left to the kernel",
            &[Packet::icmp_v4(0, 0, REST), Packet::icmp_v6(129, 0, REST)],
        ),
        case(
            "ICMP queries, redirects and source quench are left to the kernel",
            &[
                Packet::icmp_v4(4, 0, [0; 4]).payload(&[0x45; 28]),
                Packet::icmp_v4(5, 1, [192, 0, 2, 254]).payload(&[0x45; 28]),
                Packet::icmp_v4(13, 0, REST).payload(&[0; 12]),
                Packet::icmp_v4(17, 0, REST).payload(&[0; 4]),
            ],
        ),
        case(
            "unknown ICMPv6 errors and other messages are left to the kernel",
            &[
                Packet::icmp_v6(100, 0, [0; 4]).payload(&[0x60; 48]),
                Packet::icmp_v6(5, 0, [0; 4]).payload(&[0x60; 48]),
                Packet::icmp_v6(130, 0, [0; 4]).payload(&[0; 16]),
                Packet::icmp_v6(135, 0, [0; 4]).payload(&[0; 16]),
            ],
        ),
        case(
            "ICMP's number in IPv6 is left to the kernel",
            &[Packet::ip_v6(1).payload(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0])],
        ),
        Case::new("an echo request to an address that is no VIP passes", world)
            .sends(&request().to(FOREIGN, 0), Expect::pass(Pass::NotVip))
            .sends(&request().to(FILTER_MISTAKE, 0), Expect::pass(Pass::NotVip)),
    ]
}

fn malformed(world: &World) -> Vec<Case> {
    let case = |sentence: &str, packet: Packet| {
        Case::new(sentence, world).sends(&packet, Expect::drop(Drop::Malformed))
    };
    vec![
        case(
            "an ICMP message of seven octets is dropped",
            Packet::ip_v4(1).payload(&[8; 7]),
        ),
        case("an ICMP packet without a message is dropped", Packet::ip_v4(1)),
        case(
            "an ICMP message that ends before its padding is dropped",
            Packet::ip_v4(1).payload(&[8; 7]).trailing(30),
        ),
        case(
            "an ICMPv6 message of seven octets is dropped",
            Packet::ip_v6(58).payload(&[128; 7]),
        ),
        case(
            "an ICMP message that the frame cuts is dropped",
            request().truncate_to(14 + 20 + 12),
        ),
    ]
}
