//! Which endpoints may become backends of a service: what the configuration would refuse is refused here too, one by one.

use std::{collections::BTreeSet, net::IpAddr};

use super::Endpoint;
use crate::{
    config::{BackendSpec, ServiceSpec, check::refusal, spec::Discovered},
    plan::slot_table::{Member, check_weights, size_for},
};

/// What of the rest of the world decides about an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// Every service's VIP.
    pub vips: BTreeSet<IpAddr>,
    /// Addresses of this host.
    pub own: BTreeSet<IpAddr>,
}

impl Admission {
    /// Why an endpoint cannot be a backend of this service; `None`: it can.
    pub fn refuses(&self, service: &ServiceSpec, endpoint: &Endpoint) -> Option<String> {
        if self.vips.contains(&endpoint.address) {
            return Some("the address is a VIP: packets would come back here".to_owned());
        }
        if self.own.contains(&endpoint.address) {
            return Some("the address is this host's own".to_owned());
        }
        refusal(service, &backend(endpoint, BTreeSet::new()))
    }
}

/// The backend that an endpoint becomes.
pub fn backend(endpoint: &Endpoint, sources: BTreeSet<String>) -> BackendSpec {
    BackendSpec {
        weight: endpoint.weight,
        state: endpoint.state,
        discovered: Some(Discovered {
            sources,
            port: endpoint.port,
        }),
        ..BackendSpec::new(endpoint.address)
    }
}

/// Brings weights that differ too much for the slots there are closer together, the light ones up; whether it had to.
///
/// Every backend must own a slot; a source that gives one backend 65535 and another 1 must not keep both out.
pub fn fit_weights(service: &mut ServiceSpec) -> bool {
    let fits = |service: &ServiceSpec| {
        let members: Vec<Member> = service
            .backends
            .iter()
            .map(|backend| Member {
                address: backend.address,
                weight: backend.weight,
            })
            .collect();
        size_for(members.len(), service.slots)
            .and_then(|size| check_weights(&members, size))
            .is_ok()
    };
    let mut floor = 1;
    let mut raised = false;
    while !fits(service) {
        floor *= 2;
        let heaviest = service.backends.iter().map(|backend| backend.weight).max();
        if heaviest.is_none_or(|heaviest| floor > 2 * heaviest) {
            // Not the weights' fault: there are more backends than slots.
            break;
        }
        for backend in service
            .backends
            .iter_mut()
            .filter(|backend| backend.discovered.is_some())
        {
            backend.weight = backend.weight.max(floor);
        }
        raised = true;
    }
    raised
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Port,
        state::desired::{Mode, Protocol},
    };

    fn service() -> ServiceSpec {
        ServiceSpec::new("web", IpAddr::from([192, 0, 2, 10]), Port::All, Protocol::Tcp)
    }

    fn endpoint(address: &str, weight: u32) -> Endpoint {
        Endpoint {
            weight,
            ..Endpoint::new(address.parse().expect("an address"))
        }
    }

    #[test]
    fn what_cannot_be_a_backend_is_refused() {
        let admission = Admission {
            vips: [IpAddr::from([192, 0, 2, 10])].into(),
            own: [IpAddr::from([10, 0, 0, 1])].into(),
        };
        let refused = |address: &str| admission.refuses(&service(), &endpoint(address, 1));
        assert_eq!(refused("10.0.0.2"), None);
        for (address, reason) in [
            ("192.0.2.10", "VIP"),
            ("10.0.0.1", "own"),
            ("2001:db8::1", "family"),
            ("127.0.0.1", "loopback"),
            ("224.0.0.1", "multicast"),
        ] {
            assert!(
                refused(address).is_some_and(|words| words.contains(reason)),
                "{address}"
            );
        }
        let tunnelled = ServiceSpec {
            mode: Mode::Ipip,
            ..service()
        };
        assert_eq!(admission.refuses(&tunnelled, &endpoint("2001:db8::1", 1)), None);
        assert!(admission.refuses(&service(), &endpoint("10.0.0.2", 0)).is_some());
    }

    #[test]
    fn weights_too_far_apart_are_brought_together() {
        let mut web = service();
        web.backends = [("10.0.0.2", 65_535), ("10.0.0.3", 1), ("10.0.0.4", 30_000)]
            .map(|(address, weight)| backend(&endpoint(address, weight), BTreeSet::new()))
            .into();
        assert!(fit_weights(&mut web));
        let weights: Vec<u32> = web.backends.iter().map(|backend| backend.weight).collect();
        assert_eq!((weights[0], weights[2]), (65_535, 30_000));
        assert!(
            (2..=1024).contains(&weights[1]),
            "no more than needed: {weights:?}"
        );
        assert!(!fit_weights(&mut web), "and now they fit");
    }
}
