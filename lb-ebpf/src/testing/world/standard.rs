//! The world that cases start from: at least one service for each thing the datapath can do.

use lb_common::{
    backend::mode,
    service::{ServiceKey, flag},
};

use super::{OTHER_INTERFACE, World, edit::service_key};
use crate::{headers::protocol, testing::packet::Packet};

/// A service; its id is that of its first backend.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    pub id: u32,
    pub vip: &'static str,
    pub protocol: u8,
    /// 0: all ports.
    pub port: u16,
}

const fn tcp(id: u32, vip: &'static str, port: u16) -> Named {
    Named {
        id,
        vip,
        protocol: protocol::TCP,
        port,
    }
}

const fn udp(id: u32, vip: &'static str, port: u16) -> Named {
    Named {
        id,
        vip,
        protocol: protocol::UDP,
        port,
    }
}

pub const WEB: Named = tcp(1, "198.51.100.10", 80);
pub const DNS: Named = udp(2, "198.51.100.10", 53);
pub const WEB6: Named = tcp(3, "2001:db8:1::10", 80);
pub const DNS6: Named = udp(4, "2001:db8:1::10", 53);
/// Backends 5 to 7.
pub const SPREAD: Named = tcp(5, "198.51.100.11", 80);
/// Backends 8 to 10, picked with the shared seed.
pub const FLEET: Named = tcp(8, "198.51.100.12", 80);
/// Backends 11 to 13, picked by client.
pub const AFFINITY: Named = tcp(11, "198.51.100.13", 80);
pub const EXACT: Named = tcp(14, "198.51.100.20", 443);
pub const ALL_PORTS: Named = tcp(15, "198.51.100.20", 0);
pub const TUNNEL_4IN4: Named = tcp(16, "198.51.100.30", 80);
pub const TUNNEL_UDP: Named = udp(17, "198.51.100.30", 53);
pub const TUNNEL_4IN6: Named = tcp(18, "198.51.100.31", 80);
pub const TUNNEL_6IN4: Named = tcp(19, "2001:db8:1::31", 80);
pub const TUNNEL_6IN6: Named = tcp(20, "2001:db8:1::30", 80);
/// Its backend is behind another interface.
pub const ELSEWHERE: Named = tcp(21, "198.51.100.42", 80);
pub const TUNNEL_ELSEWHERE: Named = tcp(22, "198.51.100.43", 80);
/// No backend at all.
pub const EMPTY: Named = tcp(23, "198.51.100.40", 80);
/// Its backend's next hop has no MAC address yet.
pub const UNRESOLVED: Named = tcp(24, "198.51.100.41", 80);
/// Backends 26 to 28, picked by client.
pub const AFFINITY6: Named = tcp(26, "2001:db8:1::13", 80);
pub const ALL_PORTS_UDP: Named = udp(29, "198.51.100.21", 0);

/// No VIP, but its bit in the filter is set.
pub const FILTER_MISTAKE: &str = "203.0.113.66";
pub const FILTER_MISTAKE6: &str = "2001:db8:f00::66";
/// No VIP, and the filter knows.
pub const FOREIGN: &str = "203.0.113.5";
pub const FOREIGN6: &str = "2001:db8:f00::5";

impl Named {
    pub fn key(self) -> ServiceKey {
        service_key(self.vip, self.protocol, self.port)
    }

    /// A packet to the service (port 80 for one with all ports): without SYN, from the usual client.
    pub fn packet(self) -> Packet {
        let packet = match (self.protocol == protocol::TCP, self.vip.contains(':')) {
            (true, false) => Packet::tcp_v4(),
            (true, true) => Packet::tcp_v6(),
            (false, false) => Packet::udp_v4(),
            (false, true) => Packet::udp_v6(),
        };
        packet.to(self.vip, if self.port == 0 { 80 } else { self.port })
    }
}

impl World {
    /// The standard world for a CPU; `salt` makes its seeds.
    pub fn standard(cpu: u32, salt: u64) -> Self {
        let mut world = Self::empty(cpu, salt);
        let simple = [
            WEB,
            DNS,
            WEB6,
            DNS6,
            EXACT,
            ALL_PORTS,
            ELSEWHERE,
            UNRESOLVED,
            ALL_PORTS_UDP,
        ];
        for service in simple {
            world.add_simple(service.id, service.vip, service.protocol, service.port);
        }
        world.add_spread(SPREAD, 0);
        world.add_spread(FLEET, flag::FLEET);
        world.add_spread(AFFINITY, flag::CLIENT_AFFINITY);
        world.add_spread(AFFINITY6, flag::CLIENT_AFFINITY);
        world.add_tunnel(TUNNEL_4IN4, "10.9.0.16");
        world.add_tunnel(TUNNEL_UDP, "10.9.0.17");
        world.add_tunnel(TUNNEL_4IN6, "2001:db8:b::18");
        world.add_tunnel(TUNNEL_6IN4, "10.9.0.19");
        world.add_tunnel(TUNNEL_6IN6, "2001:db8:b::20");
        world.add_tunnel(TUNNEL_ELSEWHERE, "10.9.0.22");
        world.add_service(EMPTY.id, EMPTY.vip, EMPTY.protocol, EMPTY.port, &[]);
        world.set_interface(ELSEWHERE.id, OTHER_INTERFACE);
        world.set_interface(TUNNEL_ELSEWHERE.id, OTHER_INTERFACE);
        world.backends[UNRESOLVED.id as usize].mac_destination = [0; 6];
        world.set_filter_bit(FILTER_MISTAKE);
        world.set_filter_bit(FILTER_MISTAKE6);
        world
    }

    /// Three dsr backends, the first with the service's id.
    fn add_spread(&mut self, service: Named, flags: u32) {
        let ids = [service.id, service.id + 1, service.id + 2];
        for id in ids {
            self.add_backend(id, service.id, mode::DSR, &format!("10.0.1.{id}"));
        }
        let entry = self.add_service(service.id, service.vip, service.protocol, service.port, &ids);
        entry.flags = flags;
    }

    fn add_tunnel(&mut self, service: Named, backend: &str) {
        self.add_backend(service.id, service.id, mode::IPIP, backend);
        self.add_service(
            service.id,
            service.vip,
            service.protocol,
            service.port,
            &[service.id],
        );
    }
}
