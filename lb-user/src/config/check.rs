//! What services may not be, whoever defines them: the file, the command line or the API.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    Config,
    problem::{Place, Problem},
    spec::{BackendSpec, ServiceSpec},
};
use crate::{
    plan::slot_table::{Member, check_weights, size_for},
    state::desired::{BackendState, Mode, key_text},
};

const MAX_WEIGHT: u32 = 65_535;
const MAX_NAME: usize = 63;

/// Checks each service and all together; every problem is listed.
pub fn validate(services: &[ServiceSpec]) -> Result<(), Vec<Problem>> {
    let mut problems: Vec<Problem> = services
        .iter()
        .enumerate()
        .flat_map(|(index, service)| check_service(index, service))
        .collect();
    check_together(services, &mut problems);
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

/// Checks what one service says, without the others.
pub fn check_service(index: usize, service: &ServiceSpec) -> Vec<Problem> {
    let at = |key: &str| service_place(index, service, key);
    let mut problems = Vec::new();
    if !is_name(&service.name) {
        let what = format!("{:?} is no name", service.name);
        let remedy = format!("use 1 to {MAX_NAME} of a-z, 0-9, '.', '_' and '-'");
        problems.push(Problem::new(at("name"), what, remedy));
    }
    if let Some((what, remedy)) = unusable(service.vip) {
        problems.push(Problem::new(
            at("vip"),
            format!("the VIP {} is {what}", service.vip),
            remedy,
        ));
    }
    if service.udp_idle.get() > u32::from(u16::MAX) {
        let what = format!("udp_idle = {} is too long", service.udp_idle);
        problems.push(Problem::new(at("udp_idle"), what, "use at most 65535s"));
    }
    problems.extend(super::check_sources::check(service, at));
    let mut seen = BTreeSet::new();
    for (place, backend) in service.backends.iter().enumerate() {
        let at = |key: &str| backend_place(index, service, place, key);
        check_backend(service, backend, at, &mut problems);
        if !seen.insert(backend.address.to_canonical()) {
            let remedy = "write each address once, and give it the weight it should have";
            problems.push(Problem::new(at("address"), "the backend is there twice", remedy));
        }
    }
    if problems.is_empty() {
        check_table(index, service, &mut problems);
    }
    problems
}

/// Why a backend cannot be one of the service's, in one line; `None`: it can.
pub fn refusal(service: &ServiceSpec, backend: &BackendSpec) -> Option<String> {
    let mut problems = Vec::new();
    check_backend(service, backend, |_| Place::File, &mut problems);
    problems.pop().map(|problem| problem.what)
}

fn check_backend(
    service: &ServiceSpec,
    backend: &BackendSpec,
    at: impl Fn(&str) -> Place,
    problems: &mut Vec<Problem>,
) {
    let address = backend.address;
    if let Some((what, remedy)) = unusable(address) {
        problems.push(Problem::new(
            at("address"),
            format!("the address is {what}"),
            remedy,
        ));
    } else if address.to_canonical() == service.vip.to_canonical() {
        problems.push(backend_is_vip(at("address"), &service.name));
    } else {
        check_family(service, backend, &at, problems);
    }
    if backend.weight == 0 {
        let remedy = "use a weight from 1, or state = \"draining\" to send it no new flows";
        problems.push(Problem::new(
            at("weight"),
            "weight 0 would give it nothing",
            remedy,
        ));
    } else if backend.weight > MAX_WEIGHT {
        let remedy = format!("use 1 to {MAX_WEIGHT}; only the ratios count");
        problems.push(Problem::new(
            at("weight"),
            format!("weight {} is too large", backend.weight),
            remedy,
        ));
    }
    if backend.state == BackendState::Down {
        let remedy = "use \"serving\" or \"draining\", or remove the backend";
        problems.push(Problem::new(
            at("state"),
            "down is what the balancer finds out, not a setting",
            remedy,
        ));
    }
}

fn check_family(
    service: &ServiceSpec,
    backend: &BackendSpec,
    at: impl Fn(&str) -> Place,
    problems: &mut Vec<Problem>,
) {
    let address = backend.address;
    let dsr = backend.mode.unwrap_or(service.mode) == Mode::Dsr;
    if dsr && address.is_ipv4() != service.vip.is_ipv4() {
        let what = format!(
            "dsr hands on packets as they are, and {address} does not speak the family of {}",
            service.vip
        );
        problems.push(Problem::new(
            at("address"),
            what,
            "use mode = \"ipip\", or an address of the VIP's family",
        ));
    }
}

/// Whether every backend can own a slot; asked of all backends, since fewer only get more slots each.
fn check_table(index: usize, service: &ServiceSpec, problems: &mut Vec<Problem>) {
    let total: u64 = service
        .backends
        .iter()
        .map(|backend| u64::from(backend.weight))
        .sum();
    if total > u64::from(u32::MAX) {
        let what = format!("the weights sum up to {total}");
        let remedy = format!("keep the sum at most {}: only the ratios count", u32::MAX);
        problems.push(Problem::new(
            service_place(index, service, "backend"),
            what,
            remedy,
        ));
    }
    let members: Vec<Member> = service
        .backends
        .iter()
        .map(|backend| Member {
            address: backend.address,
            weight: backend.weight,
        })
        .collect();
    let checked = size_for(members.len(), service.slots).and_then(|size| check_weights(&members, size));
    if let Err(error) = checked {
        problems.push(Problem::new(
            service_place(index, service, "slots"),
            error.to_string(),
            error.remedy(),
        ));
    }
}

/// Names, keys and VIPs of all services beside each other.
fn check_together(services: &[ServiceSpec], problems: &mut Vec<Problem>) {
    let mut names = BTreeSet::new();
    let mut keys = BTreeMap::new();
    let mut vips = BTreeMap::new();
    for (index, service) in services.iter().enumerate() {
        if !names.insert(&service.name) {
            let place = service_place(index, service, "name");
            problems.push(Problem::new(
                place,
                "another service has this name",
                "give each service its own",
            ));
        }
        if let Some(first) = keys.insert(service.key(), service) {
            keys.insert(service.key(), first);
            problems.push(same_key(index, service, &first.name));
        }
        vips.entry(service.vip.to_canonical())
            .or_insert(service.name.as_str());
    }
    for (index, service) in services.iter().enumerate() {
        for (place, backend) in service.backends.iter().enumerate() {
            let address = backend.address.to_canonical();
            // The service's own VIP was looked at with the service.
            if let Some(name) = vips
                .get(&address)
                .filter(|_| address != service.vip.to_canonical())
            {
                problems.push(backend_is_vip(
                    backend_place(index, service, place, "address"),
                    name,
                ));
            }
        }
    }
}

/// Checks one service beside one other; what [`validate`] would say of the pair.
pub fn check_beside(
    service: &ServiceSpec,
    other: &ServiceSpec,
    other_backends: impl IntoIterator<Item = IpAddr>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    if service.key() == other.key() {
        problems.push(same_key(0, service, &other.name));
    }
    for (place, backend) in service.backends.iter().enumerate() {
        if backend.address.to_canonical() == other.vip.to_canonical() {
            problems.push(backend_is_vip(
                backend_place(0, service, place, "address"),
                &other.name,
            ));
        }
    }
    if other_backends
        .into_iter()
        .any(|address| address.to_canonical() == service.vip.to_canonical())
    {
        let what = format!("the VIP {} is a backend of service {}", service.vip, other.name);
        problems.push(Problem::new(
            service_place(0, service, "vip"),
            what,
            "use an address that no backend has",
        ));
    }
    problems
}

/// What of the host a configuration depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Addresses of this host's interfaces.
    pub addresses: BTreeSet<IpAddr>,
    pub interfaces: BTreeSet<String>,
}

/// Checks a configuration against the host it is to run on.
pub fn check_host(config: &Config, host: &HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    for interface in &config.datapath.interfaces {
        if !host.interfaces.contains(interface) {
            let place = Place::Section {
                section: "datapath".into(),
                key: "interfaces".into(),
            };
            let known: Vec<&str> = host.interfaces.iter().map(String::as_str).collect();
            let remedy = format!("this host has {}", known.join(", "));
            problems.push(Problem::new(
                place,
                format!("there is no interface {interface}"),
                remedy,
            ));
        }
    }
    problems.extend(check_backends_on_host(&config.services, host));
    problems
        .iter_mut()
        .for_each(|problem| problem.file = Some(config.file.clone()));
    problems
}

/// The part of [`check_host`] that holds for services from anywhere.
pub fn check_backends_on_host(services: &[ServiceSpec], host: &HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, service) in services.iter().enumerate() {
        for (place, backend) in service.backends.iter().enumerate() {
            if host.addresses.contains(&backend.address.to_canonical()) {
                let remedy = "a backend must be another host: remove it, or give it its own address";
                let place = backend_place(index, service, place, "address");
                problems.push(Problem::new(place, "the address is this host's own", remedy));
            }
        }
    }
    problems
}

fn same_key(index: usize, service: &ServiceSpec, other: &str) -> Problem {
    let what = format!("{} is taken by service {other}", key_text(&service.key()));
    let remedy = "give it another VIP, port or protocol, or put the backends into one service";
    Problem::new(service_place(index, service, "vip"), what, remedy)
}

fn backend_is_vip(place: Place, service: &str) -> Problem {
    let what = format!("the address is the VIP of service {service}");
    Problem::new(
        place,
        what,
        "use the backend's own address; packets would come back here",
    )
}

fn service_place(index: usize, service: &ServiceSpec, key: &str) -> Place {
    Place::Service {
        index,
        name: service.name.clone(),
        key: key.to_owned(),
    }
}

fn backend_place(service: usize, spec: &ServiceSpec, index: usize, key: &str) -> Place {
    let address = spec.backends[index].address;
    Place::Backend {
        service,
        name: spec.name.clone(),
        index,
        address,
        key: key.to_owned(),
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
}

/// Why an address cannot be a VIP or a backend, and what to do.
pub(crate) fn unusable(address: IpAddr) -> Option<(&'static str, &'static str)> {
    let one_host = "use the address of one host";
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Some(("an IPv4-mapped IPv6 address", "write it as IPv4"))
        }
        address if address.is_unspecified() => Some(("unspecified", one_host)),
        address if address.is_multicast() => Some(("multicast", one_host)),
        address if address.is_loopback() => Some(("loopback, which no packet on a wire has", one_host)),
        IpAddr::V4(v4) if v4.is_broadcast() => Some(("broadcast", one_host)),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some((
            "link-local, which depends on an interface",
            "use a global or unique local address",
        )),
        _ => None,
    }
}
