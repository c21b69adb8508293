//! Plans on paper: what they do, that they converge, and that breaking their rules is noticed.

mod compact;
mod convergence;
mod failures;
mod rules;
mod shown;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use lb_common::{fingerprint::FingerprintKey, ids::BackendRef, seed::Seed, service::ServiceKey, vip_filter};

use super::{Plan, Scope, SlotTableCache, make_plan, simulate::simulate};
use crate::state::{
    desired::{
        Affinity, BackendState, Desired, DesiredBackend, DesiredService, DesiredSettings, Mode, NextHop,
        Protocol, Selection, service_key,
    },
    observed::{Capacity, Observed},
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn backend(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn web() -> ServiceKey {
    service_key(address("192.0.2.10"), Some(443), Protocol::Tcp)
}

fn dns() -> ServiceKey {
    service_key(address("2001:db8::53"), None, Protocol::Udp)
}

fn serving(weight: u32) -> DesiredBackend {
    DesiredBackend {
        weight,
        mode: Mode::Dsr,
        state: BackendState::Serving,
        udp_idle: 120,
        next_hop: Some(NextHop {
            interface: 2,
            mac_source: [2, 0, 0, 0, 0, 1],
            mac_destination: [2, 0, 0, 0, 0, 9],
            source: address("10.0.0.1"),
            mtu: 1500,
            gateway: false,
        }),
        sources: ["static".to_owned()].into(),
    }
}

fn service(name: &str, backends: impl IntoIterator<Item = (IpAddr, DesiredBackend)>) -> DesiredService {
    DesiredService {
        name: name.to_owned(),
        selection: Selection::PerCpu,
        affinity: Affinity::None,
        slots: None,
        backends: backends.into_iter().collect(),
    }
}

/// `web` with backends 11 to 13 of weights 1, 1 and 2.
fn desired() -> Desired {
    let backends = [
        (backend(11), serving(1)),
        (backend(12), serving(1)),
        (backend(13), serving(2)),
    ];
    Desired {
        services: BTreeMap::from([(web(), service("web", backends))]),
        settings: DesiredSettings {
            table_key: FingerprintKey::from_words([1; _]),
            ..DesiredSettings::default()
        },
        seeds: (0..3).map(|index| (index, seed(1))).collect(),
    }
}

fn web_of(desired: &mut Desired) -> &mut DesiredService {
    desired.services.get_mut(&web()).unwrap()
}

fn seed(generation: u32) -> Seed {
    Seed {
        k0: u64::from(generation),
        k1: 7,
        generation,
        reserved: 0,
    }
}

fn empty() -> Observed {
    Observed {
        capacity: Capacity {
            services: 4,
            backends: 17,
            slots: 20_000,
            possible_cpus: 2,
            flow_buckets: 1024,
            fresh_words: 1024,
            hz: 250,
        },
        settings: Default::default(),
        services: BTreeMap::new(),
        vip_marks: BTreeSet::new(),
        backends: BTreeMap::new(),
        slots: BTreeMap::new(),
        seeds: vec![Seed::default(); 3],
        vip_filter: Box::new([0; vip_filter::WORDS]),
        now: 1000,
    }
}

fn plan(desired: &Desired, observed: &Observed) -> Plan {
    make_plan(desired, observed, &Scope::All, &mut SlotTableCache::default()).unwrap()
}

fn plan_one(desired: &Desired, observed: &Observed, key: ServiceKey) -> Plan {
    make_plan(
        desired,
        observed,
        &Scope::Services([key].into()),
        &mut SlotTableCache::default(),
    )
    .unwrap()
}

/// The maps after [`desired`] was carried out on empty ones.
fn running() -> Observed {
    simulate(&empty(), &plan(&desired(), &empty()))
}

/// Slots by backend id.
fn shares(observed: &Observed, key: ServiceKey) -> BTreeMap<u32, usize> {
    let service = observed.services[&key];
    let mut shares = BTreeMap::new();
    for slot in &observed.slots[&service.id] {
        *shares.entry(BackendRef::id(*slot)).or_default() += 1;
    }
    shares
}
