//! Packets too big for the way to their backend: the answers, to the last bit, and who gets none.

use lb_common::{counters::Event, flow::state};

use crate::{
    testing::{
        case::{Case, Expect},
        packet::{HOST_MAC, Packet, ROUTER_MAC},
        world::{
            World,
            standard::{
                DNS, Named, TUNNEL_4IN4, TUNNEL_4IN6, TUNNEL_6IN4, TUNNEL_6IN6, TUNNEL_UDP, WEB, WEB6,
            },
        },
    },
    verdict::{Answer, Drop},
};

pub fn cases(world: &World) -> Vec<Case> {
    let mut cases: Vec<Case> = [
        ("4in4", TUNNEL_4IN4, 1480),
        ("4in6", TUNNEL_4IN6, 1460),
        ("6in4", TUNNEL_6IN4, 1480),
        ("6in6", TUNNEL_6IN6, 1460),
    ]
    .into_iter()
    .flat_map(|(shape, service, room)| of_shape(world, shape, service, room))
    .collect();
    cases.extend(others(world));
    cases.extend(silent(world));
    cases.extend(sizes(world));
    cases.extend(fragments(world));
    cases
}

/// The answer of the VIP to its sender. IPv4: type 3, code 4, the MTU in the lower half (RFC 1191, section 4), TOS
/// "internetwork control" and 576 octets together (RFC 1812, sections 4.3.2.3 and 4.3.2.5). IPv6: type 2, the MTU in
/// four octets (RFC 4443, section 3.2) and 1280 octets together.
fn answer(packet: &Packet, mtu: u16) -> Packet {
    let [high, low] = mtu.to_be_bytes();
    let quote = packet.ip_bytes();
    let (source, destination) = (packet.destination().to_string(), packet.source().to_string());
    let message = if packet.source().is_ipv6() {
        Packet::icmp_v6(2, 0, [0, 0, high, low]).payload(&quote[..quote.len().min(1232)])
    } else {
        let quote = &quote[..quote.len().min(548)];
        let message = Packet::icmp_v4(3, 4, [0, 0, high, low]).payload(quote);
        message.traffic_class(0xc0).identification(0).dont_fragment()
    };
    message
        .from(&source, 0)
        .to(&destination, 0)
        .macs(ROUTER_MAC, HOST_MAC)
        .tags_of(packet)
}

fn told(service: Named, packet: &Packet, mtu: u16) -> Expect {
    Expect::answer_for(service.id, Answer::PacketTooBig, answer(packet, mtu))
}

fn of_shape(world: &World, shape: &str, service: Named, room: u16) -> Vec<Case> {
    let case = |sentence: &str| Case::new(format!("{shape}: {sentence}"), world);
    let size = usize::from(room) + 1;
    let packet = service.packet().dont_fragment_v4().filled_to(size);
    let full = service.packet().dont_fragment_v4().filled_to(1500);
    let told = |packet: &Packet| told(service, packet, room);
    let tagged = packet.clone().vlan(0x6005);
    let twice = packet.clone().service_vlan(7).vlan(5);
    vec![
        case("the sender of a packet one octet too long is told what fits").sends(
            &packet,
            told(&packet).new_flow().flow(state::ESTABLISHED, service.id),
        ),
        case("a flow's later packets that are too long are told of, too")
            .sends(&full, told(&full).new_flow())
            .sends(&full, told(&full)),
        case("an answer leaves with the packet's VLAN tag").sends(&tagged, told(&tagged).new_flow()),
        case("an answer leaves with both tags").sends(&twice, told(&twice).new_flow()),
        case("a driver without room for the answer's headers costs the packet")
            .only_on_the_host("the kernel's test run always leaves room")
            .headroom(if service.vip.contains(':') { 47 } else { 27 })
            .sends(&packet, Expect::drop_for(service.id, Drop::NoHeadroom).new_flow()),
    ]
}

fn others(world: &World) -> Vec<Case> {
    let small = |mtu: u16| move |world: &mut World| world.backends[WEB.id as usize].mtu = mtu;
    let packet = WEB.packet().dont_fragment().filled_to(1401);
    let padded = packet.clone().trailing(9);
    let optional = packet
        .clone()
        .options(&[148, 4, 0, 0])
        .traffic_class(0xb8)
        .hops(1);
    let datagram = TUNNEL_UDP.packet().dont_fragment().filled_to(1481);
    let extended = TUNNEL_6IN6.packet().hop_by_hop().routing().filled_to(1500);
    let limit = || Expect::drop_for(WEB.id, Drop::IcmpRate);
    vec![
        Case::new("a backend on a link with a smaller MTU is told of in dsr", world)
            .with(small(1400))
            .sends(&packet, told(WEB, &packet, 1400).new_flow()),
        Case::new("what Ethernet padded the packet with is not quoted", world)
            .with(small(1400))
            .sends(&padded, told(WEB, &packet, 1400).new_flow()),
        Case::new(
            "options are quoted, and nothing of the packet's TOS and TTL is in the answer",
            world,
        )
        .with(small(1400))
        .sends(&optional, told(WEB, &optional, 1400).new_flow()),
        Case::new("a datagram too long for its tunnel is told of", world)
            .sends(&datagram, told(TUNNEL_UDP, &datagram, 1480).new_flow()),
        Case::new("extension headers are quoted", world)
            .sends(&extended, told(TUNNEL_6IN6, &extended, 1460).new_flow()),
        Case::new("answers beyond the rate of a second are left out", world)
            .with(small(1400))
            .with(|world| world.settings.icmp_rate = 1)
            .sends(&packet, told(WEB, &packet, 1400).new_flow())
            .sends(&packet, limit())
            .waits(1)
            .sends(&packet, told(WEB, &packet, 1400))
            .sends(&packet, limit()),
        Case::new("a rate of 0 tells nobody", world)
            .with(small(1400))
            .with(|world| world.settings.icmp_rate = 0)
            .sends(&packet, limit().new_flow()),
        Case::new("packets that fit after all go their way", world)
            .with(small(1400))
            .sends(&packet, told(WEB, &packet, 1400).new_flow())
            .then(|world| world.backends[WEB.id as usize].mtu = 1401)
            .sends(&packet, Expect::dsr(WEB.id)),
    ]
}

/// RFC 1122, section 3.2.2, and RFC 4443, section 2.4 (e).
fn silent(world: &World) -> Vec<Case> {
    let dropped = || Expect::drop_for(WEB.id, Drop::TooBig);
    let dropped6 = || Expect::drop_for(WEB6.id, Drop::TooBig);
    let case = |sentence: &str| {
        Case::new(sentence, world).with(|world| {
            world.backends[WEB.id as usize].mtu = 1400;
            world.backends[WEB6.id as usize].mtu = 1400;
        })
    };
    let packet = WEB.packet().dont_fragment().filled_to(1401);
    let packet6 = WEB6.packet().filled_to(1401);
    let everybody = [0xff; 6];
    let from = |source: &str| packet.clone().from(source, 40000);
    let from6 = |source: &str| packet6.clone().from(source, 40000);
    vec![
        case("without DF the sender is not told: it could do nothing")
            .sends(&WEB.packet().filled_to(1401), dropped().new_flow()),
        ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"]
            .iter()
            .fold(case("a packet from no single host is dropped"), |case, source| {
                case.sends(&from(source), dropped().new_flow())
            }),
        ["::", "::1", "ff02::1"].iter().fold(
            case("an IPv6 packet from no single host is dropped"),
            |case, source| case.sends(&from6(source), dropped6().new_flow()),
        ),
        case("a packet of a VIP to itself is dropped").sends(&from(WEB.vip), dropped().new_flow()),
        case("a packet in a frame to many is dropped")
            .sends(&packet.clone().macs(everybody, ROUTER_MAC), dropped().new_flow()),
        case("an IPv6 packet in a frame to many is dropped").sends(
            &packet6.macs([0x33, 0x33, 0, 0, 0, 1], ROUTER_MAC),
            dropped6().new_flow(),
        ),
        case("a packet in a frame from many is dropped")
            .sends(&packet.macs(HOST_MAC, everybody), dropped().new_flow()),
        Case::new(
            "a datagram whose flow finds no room in the table is dropped",
            world,
        )
        .with(|world| {
            world.backends[DNS.id as usize].mtu = 1400;
            world.fill_buckets(&DNS.packet(), WEB.id, |_| (state::ESTABLISHED, 5));
        })
        .sends(
            &DNS.packet().dont_fragment().filled_to(1401),
            Expect::drop_for(DNS.id, Drop::TooBig)
                .picked_and(Event::FlowNotStored)
                .fresh(),
        ),
    ]
}

/// The smallest MTUs, and quotes shorter than they might be.
fn sizes(world: &World) -> Vec<Case> {
    let with_mtu = |sentence: &str, service: Named, mtu: u16| {
        Case::new(sentence, world).with(move |world| world.backends[service.id as usize].mtu = mtu)
    };
    let web = |octets| WEB.packet().dont_fragment().filled_to(octets);
    let web6 = |octets| WEB6.packet().filled_to(octets);
    let dropped = |service: Named| Expect::drop_for(service.id, Drop::TooBig).new_flow();
    let cut = |packet: &Packet, octets: usize, mtu| {
        let quote = packet.ip_bytes();
        Expect::answer_for(
            WEB.id,
            Answer::PacketTooBig,
            answer(packet, mtu).payload(&quote[..octets]),
        )
    };
    vec![
        with_mtu("an MTU of 68 is the smallest that is told", WEB, 68)
            .sends(&web(72), told(WEB, &web(72), 68).new_flow()),
        with_mtu("an MTU below 68 is not told", WEB, 67).sends(&web(1500), dropped(WEB)),
        with_mtu("an MTU of 0 is not told", WEB, 0).sends(&web(1500), dropped(WEB)),
        with_mtu(
            "a tunnel that leaves no room at all is not told of",
            TUNNEL_4IN4,
            19,
        )
        .sends(&TUNNEL_4IN4.packet().dont_fragment(), dropped(TUNNEL_4IN4)),
        with_mtu("an IPv6 MTU of 1280 is the smallest that is told", WEB6, 1280)
            .sends(&web6(1281), told(WEB6, &web6(1281), 1280).new_flow()),
        with_mtu("an IPv6 MTU below 1280 is not told", WEB6, 1279).sends(&web6(1500), dropped(WEB6)),
        with_mtu(
            "a packet shorter than a quote may be is quoted in whole words",
            WEB,
            100,
        )
        .sends(&web(101), cut(&web(101), 100, 100).new_flow())
        .sends(&web(103), cut(&web(103), 100, 100))
        .sends(&web(104), cut(&web(104), 104, 100)),
        with_mtu(
            "a packet as long as a quote may be is quoted to its end",
            WEB,
            500,
        )
        .sends(&web(548), told(WEB, &web(548), 500).new_flow())
        .sends(&web(549), told(WEB, &web(549), 500)),
        with_mtu("a jumbo frame's sender is told of 1500 octets", WEB, 1500)
            .sends(&web(3000), told(WEB, &web(3000), 1500).new_flow()),
        with_mtu("an IPv6 jumbo frame's sender is told of 1500 octets", WEB6, 1500)
            .sends(&web6(3000), told(WEB6, &web6(3000), 1500).new_flow()),
    ]
}

fn fragments(world: &World) -> Vec<Case> {
    let datagram = TUNNEL_UDP
        .packet()
        .dont_fragment()
        .filled_to(2000)
        .fragments(1480);
    let plain = TUNNEL_UDP.packet().filled_to(2000).fragments(1480);
    let stream = TUNNEL_6IN6.packet().filled_to(2000).fragments(1448);
    let overtaken = TUNNEL_6IN6.packet().filled_to(3000).fragments(1448);
    let dropped = |service: Named| Expect::drop_for(service.id, Drop::TooBig);
    let stored = |expect: Expect| expect.new_flow().event(Event::FragmentStored, 1);
    vec![
        Case::new("the sender of a first fragment with DF is told what fits", world)
            .with(|world| world.backends[TUNNEL_UDP.id as usize].mtu = 1400)
            .sends(&datagram[0], stored(told(TUNNEL_UDP, &datagram[0], 1380))),
        Case::new("the sender of fragments without DF is not told", world)
            .with(|world| world.backends[TUNNEL_UDP.id as usize].mtu = 1400)
            .sends(&plain[0], stored(dropped(TUNNEL_UDP))),
        Case::new("the sender of a first IPv6 fragment is told what fits", world)
            .sends(&stream[0], stored(told(TUNNEL_6IN6, &stream[0], 1460))),
        Case::new("a later fragment that is too big is not told of", world)
            .sends(&overtaken[0], stored(told(TUNNEL_6IN6, &overtaken[0], 1460)))
            .sends(&overtaken[1], dropped(TUNNEL_6IN6)),
    ]
}
