//! Ethernet and VLAN tags; frames that are none of the balancer's business.

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS6, FILTER_MISTAKE, FILTER_MISTAKE6, FOREIGN, FOREIGN6, WEB, WEB6},
        },
    },
    verdict::Pass,
};

pub fn cases(world: &World) -> Vec<Case> {
    [tagged(world), not_ip(world), foreign(world), neighbours(world)]
        .into_iter()
        .flatten()
        .collect()
}

fn tagged(world: &World) -> Vec<Case> {
    let syn = WEB.packet().syn();
    let to_web = || Expect::dsr(WEB.id).new_flow();
    vec![
        Case::new(
            "a SYN to a dsr service gets the backend's MAC addresses and is otherwise unchanged",
            world,
        )
        .sends(&syn, to_web()),
        Case::new("a VLAN tag stays where it is", world).sends(&syn.clone().vlan(5), to_web()),
        Case::new(
            "a VLAN tag's priority and drop bits do not matter and stay",
            world,
        )
        .sends(&syn.clone().vlan(0xf005), to_web()),
        Case::new("a service tag with a VLAN tag inside stays", world)
            .sends(&syn.clone().service_vlan(7).vlan(5), to_web()),
        Case::new("two 802.1Q tags stay, too", world).sends(&syn.clone().vlan(7).vlan(5), to_web()),
        Case::new("an IPv6 packet with two tags is found behind them", world).sends(
            &DNS6.packet().service_vlan(7).vlan(5),
            Expect::dsr(DNS6.id).new_flow(),
        ),
        Case::new("a flow is the same with and without a tag", world)
            .sends(&syn, to_web())
            .sends(&syn.clone().vlan(5), Expect::dsr(WEB.id)),
        Case::new("a third tag is not looked behind", world)
            .sends(&syn.clone().vlan(1).vlan(2).vlan(3), Expect::pass(Pass::NotIp)),
        Case::new("a frame that ends inside its VLAN tag passes", world)
            .sends(&syn.clone().vlan(5).truncate_to(16), Expect::pass(Pass::NotIp)),
        Case::new("a frame that ends inside its second tag passes", world)
            .sends(&syn.vlan(7).vlan(5).truncate_to(20), Expect::pass(Pass::NotIp)),
    ]
}

fn not_ip(world: &World) -> Vec<Case> {
    let arp = [
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0xfe, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 198, 51, 100, 10,
    ];
    let not_ip = || Expect::pass(Pass::NotIp);
    vec![
        Case::new("ARP passes", world).sends(&Packet::ethernet(0x0806, &arp), Expect::pass(Pass::Arp)),
        Case::new("ARP passes behind a tag, too", world)
            .sends(&Packet::ethernet(0x0806, &arp).vlan(5), Expect::pass(Pass::Arp)),
        Case::new("LLDP passes", world)
            .sends(&Packet::ethernet(0x88cc, &[2, 7, 4, 2, 0, 0, 0, 0, 1]), not_ip()),
        Case::new("an 802.3 length instead of an ethertype passes", world)
            .sends(&Packet::ethernet(39, &[0x42, 0x42, 3, 0, 0]), not_ip()),
        Case::new("MPLS passes", world).sends(&Packet::ethernet(0x8847, &[0, 1, 0x41, 64]), not_ip()),
        Case::new("a frame of nothing but an Ethernet header passes", world)
            .sends(&Packet::ethernet(0x88cc, &[]), not_ip()),
        Case::new("a frame shorter than an Ethernet header passes", world)
            .only_on_the_host("the kernel hands no frame this short to a program")
            .sends(&WEB.packet().truncate_to(13), not_ip()),
    ]
}

fn foreign(world: &World) -> Vec<Case> {
    let not_vip = || Expect::pass(Pass::NotVip);
    vec![
        Case::new("IPv4 to an address that is no VIP passes", world)
            .sends(&Packet::tcp_v4().to(FOREIGN, 80).syn(), not_vip()),
        Case::new("IPv6 to an address that is no VIP passes", world)
            .sends(&Packet::udp_v6().to(FOREIGN6, 53), not_vip()),
        Case::new("IPv4 from a VIP is not to it", world)
            .sends(&Packet::tcp_v4().from(WEB.vip, 80).to(FOREIGN, 40000), not_vip()),
        Case::new(
            "a filter that mistakes an IPv4 address for a VIP costs nothing but time",
            world,
        )
        .sends(
            &Packet::tcp_v4().to(FILTER_MISTAKE, 80).syn(),
            Expect::pass(Pass::NoService),
        ),
        Case::new(
            "a filter that mistakes an IPv6 address for a VIP costs nothing but time",
            world,
        )
        .sends(
            &Packet::udp_v6().to(FILTER_MISTAKE6, 53),
            Expect::pass(Pass::NoService),
        ),
        Case::new(
            "ICMP to an address that the filter mistakes passes as foreign",
            world,
        )
        .sends(
            &Packet::ip_v4(1).to(FILTER_MISTAKE, 0).payload(&[8, 0, 0, 0]),
            not_vip(),
        ),
        Case::new(
            "IPv6 of a protocol without ports to such an address passes as foreign",
            world,
        )
        .sends(
            &Packet::ip_v6(50).to(FILTER_MISTAKE6, 0).payload(&[0; 16]),
            not_vip(),
        ),
        Case::new("broadcast and multicast IPv4 pass", world)
            .sends(&Packet::udp_v4().to("255.255.255.255", 67), not_vip())
            .sends(&Packet::udp_v4().to("224.0.0.251", 5353), not_vip()),
    ]
}

fn neighbours(world: &World) -> Vec<Case> {
    let icmp = |to: &str, kind: u8| {
        Packet::ip_v6(58)
            .to(to, 0)
            .hops(255)
            .payload(&[kind, 0, 0, 0, 0, 0, 0, 0])
    };
    let discovery = || Expect::pass(Pass::NeighbourDiscovery);
    vec![
        Case::new("a neighbour solicitation passes", world).sends(&icmp("ff02::1:ff00:10", 135), discovery()),
        Case::new("neighbour and router advertisements pass", world)
            .sends(&icmp("ff02::1", 136), discovery())
            .sends(&icmp("ff02::1", 134), discovery()),
        Case::new("an ICMPv6 redirect passes", world).sends(&icmp(FOREIGN6, 137), discovery()),
        Case::new("a multicast listener report passes", world).sends(&icmp("ff02::16", 143), discovery()),
        Case::new(
            "an echo request to a foreign address is no neighbour discovery",
            world,
        )
        .sends(&icmp(FOREIGN6, 128), Expect::pass(Pass::NotVip)),
        Case::new("a neighbour solicitation to the VIP itself passes as ICMP", world)
            .sends(&icmp(WEB6.vip, 135), Expect::pass(Pass::Icmp)),
        Case::new("ICMPv6 cut off before its type passes", world)
            .sends(&icmp("ff02::1", 136).truncate_to(54), Expect::pass(Pass::NotVip)),
    ]
}
