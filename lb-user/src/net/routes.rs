//! What the kernel would do with a packet to a backend: `ip route get`.

use std::{io, net::IpAddr};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    AddressFamily,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia},
};
use rtnetlink::{Handle, RouteMessageBuilder};

/// The way to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Via(Way),
    /// The address is this host's own.
    Local,
    /// Why there is none.
    None(String),
}

/// A way that leads out of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub interface: u32,
    /// The router, when the address is not on the link itself.
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
    /// The route's own limit, octets.
    pub mtu: Option<u32>,
}

/// Asks for the way to `address`. A refusal by the kernel is an answer; `Err` means it could not be asked.
pub async fn look_up(handle: &Handle, address: IpAddr) -> Result<Route, rtnetlink::Error> {
    let mut answers = handle.route().get(request(address)).execute();
    match answers.try_next().await {
        Ok(Some(answer)) => Ok(read(&answer)),
        Ok(None) => Ok(Route::None("the kernel gives no route".to_owned())),
        Err(rtnetlink::Error::NetlinkError(refusal)) => Ok(Route::None(refused(refusal.to_io()))),
        Err(other) => Err(other),
    }
}

/// Whether a route's destination holds an address: a host with many routes sees many changes that matter to none.
pub fn covers(route: &RouteMessage, address: IpAddr) -> bool {
    let length = route.header.destination_prefix_length;
    let destination = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(destination) => plain(destination),
        _ => None,
    });
    match (destination, address) {
        (None, _) => length == 0 && (route.header.address_family == AddressFamily::Inet) == address.is_ipv4(),
        (Some(IpAddr::V4(prefix)), IpAddr::V4(address)) => {
            let shift = 32u32.saturating_sub(length.into());
            (prefix.to_bits() ^ address.to_bits())
                .checked_shr(shift)
                .unwrap_or(0)
                == 0
        }
        (Some(IpAddr::V6(prefix)), IpAddr::V6(address)) => {
            let shift = 128u32.saturating_sub(length.into());
            (prefix.to_bits() ^ address.to_bits())
                .checked_shr(shift)
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

fn request(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessageBuilder::<IpAddr>::new().build();
    let (family, prefix) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = prefix;
    message
        .attributes
        .push(RouteAttribute::Destination(address.into()));
    message
}

fn refused(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable => "no route".to_owned(),
        _ => format!("no route ({error})"),
    }
}

fn read(answer: &RouteMessage) -> Route {
    match answer.header.kind {
        RouteType::Unicast => {}
        RouteType::Local => return Route::Local,
        other => return Route::None(format!("the route is {other:?}").to_lowercase()),
    }
    let mut interface = None;
    let mut way = Way {
        interface: 0,
        gateway: None,
        source: None,
        mtu: None,
    };
    for attribute in &answer.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(address) => way.gateway = plain(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => way.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => way.gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => way.source = plain(address),
            RouteAttribute::Metrics(metrics) => way.mtu = mtu(metrics),
            _ => {}
        }
    }
    match interface {
        Some(interface) => Route::Via(Way { interface, ..way }),
        None => Route::None("the route names no interface".to_owned()),
    }
}

fn mtu(metrics: &[RouteMetric]) -> Option<u32> {
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
        _ => None,
    })
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.kind = kind;
        message.attributes = attributes;
        message
    }

    #[test]
    fn gateway_source_and_mtu_are_read() {
        let gateway = IpAddr::from([10, 0, 0, 1]);
        let source = IpAddr::from([10, 0, 0, 7]);
        let route = read(&answer(
            RouteType::Unicast,
            vec![
                RouteAttribute::Oif(3),
                RouteAttribute::Gateway(gateway.into()),
                RouteAttribute::PrefSource(source.into()),
                RouteAttribute::Metrics(vec![RouteMetric::Advmss(1360), RouteMetric::Mtu(1400)]),
            ],
        ));
        assert_eq!(
            route,
            Route::Via(Way {
                interface: 3,
                gateway: Some(gateway),
                source: Some(source),
                mtu: Some(1400),
            })
        );
    }

    #[test]
    fn a_route_covers_the_addresses_of_its_prefix() {
        let route = |prefix: &str, length| {
            let prefix: IpAddr = prefix.parse().unwrap();
            let mut message = answer(
                RouteType::Unicast,
                vec![RouteAttribute::Destination(prefix.into())],
            );
            message.header.destination_prefix_length = length;
            message
        };
        let address: IpAddr = "10.1.2.3".parse().unwrap();
        assert!(covers(&route("10.1.0.0", 16), address));
        assert!(covers(&route("10.1.2.3", 32), address));
        assert!(!covers(&route("10.2.0.0", 16), address));
        assert!(!covers(&route("2001:db8::", 32), address));
        assert!(covers(&route("2001:db8::", 32), "2001:db8::5".parse().unwrap()));
        let mut default = answer(RouteType::Unicast, vec![]);
        default.header.address_family = AddressFamily::Inet;
        assert!(covers(&default, address));
        assert!(!covers(&default, "2001:db8::5".parse().unwrap()));
    }

    #[test]
    fn other_routes_lead_nowhere() {
        assert_eq!(read(&answer(RouteType::Local, vec![])), Route::Local);
        assert_eq!(
            read(&answer(RouteType::Unreachable, vec![])),
            Route::None("the route is unreachable".to_owned())
        );
        assert_eq!(
            read(&answer(RouteType::Unicast, vec![])),
            Route::None("the route names no interface".to_owned())
        );
    }
}
