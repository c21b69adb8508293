//! From route, interface and neighbour to a next hop, or to the reason why there is none (pure).

use std::{collections::BTreeMap, net::IpAddr};

use serde::Serialize;

use super::{
    interfaces::Interface,
    neighbours::{Neighbour, NeighbourKey, Neighbours},
    routes::{Route, Way},
};
use crate::state::desired::NextHop;

/// How frames reach a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolution {
    Resolved(NextHop),
    Unresolved {
        reason: String,
        /// The kernel is still asking; neither yes nor no.
        pending: bool,
    },
}

impl Resolution {
    pub fn next_hop(&self) -> Option<NextHop> {
        match self {
            Self::Resolved(next_hop) => Some(*next_hop),
            Self::Unresolved { .. } => None,
        }
    }

    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Unresolved { pending: true, .. })
    }
}

/// The answer for one backend, and the neighbour it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub resolution: Resolution,
    pub neighbour: Option<NeighbourKey>,
}

/// Puts together what is known about one backend.
pub fn resolve(
    backend: IpAddr,
    route: &Route,
    interfaces: &BTreeMap<u32, Interface>,
    neighbours: &Neighbours,
) -> Answer {
    let no = |reason: String| Answer {
        resolution: Resolution::Unresolved {
            reason,
            pending: false,
        },
        neighbour: None,
    };
    let way = match route {
        Route::Via(way) => way,
        Route::Local => return no("is an address of this host".to_owned()),
        Route::None(reason) => return no(reason.clone()),
    };
    let Some(interface) = interfaces.get(&way.interface) else {
        return no(format!("interface {} is gone", way.interface));
    };
    let name = &interface.name;
    if !interface.up {
        return no(format!("interface {name} is down or has no carrier"));
    }
    let mac_source = match interface.mac {
        Some(mac) if interface.ethernet && !interface.loopback => mac,
        _ => return no(format!("interface {name} is not Ethernet")),
    };
    let Some(source) = source(backend, way, interface) else {
        return no(format!("interface {name} has no address of the backend's family"));
    };
    let neighbour = (way.interface, way.gateway.unwrap_or(backend));
    let resolution = match neighbours.get(&neighbour) {
        Some(Neighbour::At { mac, .. }) => Resolution::Resolved(NextHop {
            interface: way.interface,
            mac_source,
            mac_destination: mac,
            source,
            mtu: mtu(way, interface),
            gateway: way.gateway.is_some(),
        }),
        Some(Neighbour::Failed) => Resolution::Unresolved {
            reason: format!("neighbour {} on {name} failed: no answer", neighbour.1),
            pending: false,
        },
        Some(Neighbour::Asked) | None => Resolution::Unresolved {
            reason: format!("neighbour {} on {name} is being asked for", neighbour.1),
            pending: true,
        },
    };
    Answer {
        resolution,
        neighbour: Some(neighbour),
    }
}

/// The route's source address, else any address of the interface, in the backend's family.
fn source(backend: IpAddr, way: &Way, interface: &Interface) -> Option<IpAddr> {
    way.source
        .iter()
        .chain(&interface.addresses)
        .copied()
        .find(|address| address.is_ipv4() == backend.is_ipv4())
}

fn mtu(way: &Way, interface: &Interface) -> u16 {
    let mtu = way.mtu.map_or(interface.mtu, |mtu| mtu.min(interface.mtu));
    u16::try_from(mtu).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn interfaces(change: impl Fn(&mut Interface)) -> BTreeMap<u32, Interface> {
        let mut interface = Interface {
            index: 2,
            name: "eth0".to_owned(),
            mac: Some(MAC),
            mtu: 1500,
            up: true,
            ethernet: true,
            loopback: false,
            addresses: [address("10.0.0.7")].into(),
            xdp: None,
        };
        change(&mut interface);
        [(2, interface)].into()
    }

    fn way() -> Way {
        Way {
            interface: 2,
            gateway: None,
            source: Some(address("10.0.0.7")),
            mtu: None,
        }
    }

    fn reason(route: &Route, interfaces: &BTreeMap<u32, Interface>) -> String {
        let neighbours = Neighbours::default();
        match resolve(address("10.0.0.2"), route, interfaces, &neighbours).resolution {
            Resolution::Unresolved { reason, .. } => reason,
            Resolution::Resolved(_) => panic!("resolved"),
        }
    }

    #[test]
    fn a_backend_on_the_link_is_its_own_neighbour() {
        let neighbours = Neighbours::default().with(
            (2, address("10.0.0.2")),
            Neighbour::At {
                mac: ROUTER_MAC,
                sure: false,
            },
        );
        let answer = resolve(
            address("10.0.0.2"),
            &Route::Via(way()),
            &interfaces(|_| ()),
            &neighbours,
        );
        let next_hop = answer.resolution.next_hop().unwrap();
        assert_eq!(next_hop.mac_destination, ROUTER_MAC);
        assert_eq!(next_hop.mac_source, MAC);
        assert_eq!(next_hop.source, address("10.0.0.7"));
        assert_eq!(next_hop.mtu, 1500);
    }

    #[test]
    fn a_backend_beyond_a_router_stands_on_the_router() {
        let far = Way {
            gateway: Some(address("fe80::1")),
            mtu: Some(1400),
            ..way()
        };
        let neighbours = Neighbours::default().with(
            (2, address("fe80::1")),
            Neighbour::At {
                mac: ROUTER_MAC,
                sure: true,
            },
        );
        let answer = resolve(
            address("192.0.2.2"),
            &Route::Via(far),
            &interfaces(|_| ()),
            &neighbours,
        );
        assert_eq!(answer.neighbour, Some((2, address("fe80::1"))));
        assert_eq!(answer.resolution.next_hop().unwrap().mtu, 1400);
    }

    #[test]
    fn every_obstacle_has_its_reason() {
        let via = Route::Via(way());
        let up = interfaces(|_| ());
        assert_eq!(reason(&Route::Local, &up), "is an address of this host");
        assert_eq!(reason(&Route::None("no route".to_owned()), &up), "no route");
        assert_eq!(reason(&via, &BTreeMap::new()), "interface 2 is gone");
        assert_eq!(
            reason(&via, &interfaces(|i| i.up = false)),
            "interface eth0 is down or has no carrier"
        );
        assert_eq!(
            reason(&via, &interfaces(|i| i.ethernet = false)),
            "interface eth0 is not Ethernet"
        );
        assert_eq!(reason(&via, &up), "neighbour 10.0.0.2 on eth0 is being asked for");
        let sourceless = Route::Via(Way {
            source: None,
            ..way()
        });
        assert_eq!(
            reason(
                &sourceless,
                &interfaces(|i| i.addresses = [address("fe80::7")].into())
            ),
            "interface eth0 has no address of the backend's family"
        );
    }

    #[test]
    fn a_failed_neighbour_is_a_settled_no() {
        let neighbours = Neighbours::default().with((2, address("10.0.0.2")), Neighbour::Failed);
        let answer = resolve(
            address("10.0.0.2"),
            &Route::Via(way()),
            &interfaces(|_| ()),
            &neighbours,
        );
        assert!(!answer.resolution.is_pending());
        assert_eq!(answer.resolution.next_hop(), None);
    }
}
