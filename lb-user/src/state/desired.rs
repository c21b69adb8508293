//! What the datapath should hold: the union of all sources, after validation and next-hop resolution.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use lb_common::{backend, fingerprint::FingerprintKey, seed::Seed, service::ServiceKey};
use serde::{Deserialize, Serialize};

use super::{
    fitness::Fitness,
    overlay::{Effective, EffectiveService},
};

/// Everything the plan works towards. Ordered throughout, so that equal input gives equal plans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    pub services: BTreeMap<ServiceKey, DesiredService>,
    pub settings: DesiredSettings,
    /// By index into `SEEDS` (0 = shared, 1 + cpu); entries not named here stay as they are.
    pub seeds: BTreeMap<u32, Seed>,
}

/// The parts of [`lb_common::settings::Settings`] that are policy; capacities and the clock come with the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredSettings {
    /// Key of the flow fingerprint; only written while the maps hold none, since it lives as long as the table. May be
    /// unset when they do.
    pub table_key: FingerprintKey,
    pub sampling: Sampling,
    /// Seconds.
    pub new_timeout: u32,
    pub established_timeout: u32,
    pub closing_timeout: u32,
    /// Whether pings are left to the kernel.
    pub ping_kernel: bool,
    /// ICMP messages that each CPU may make in a second.
    pub icmp_rate: u32,
}

/// Which part of the traffic the daemon is shown: one in 2^bits; 64 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Of new flows.
    pub flow_bits: u32,
    /// Of packets.
    pub packet_bits: u32,
}

impl Sampling {
    pub const OFF: Self = Self {
        flow_bits: 64,
        packet_bits: 64,
    };
}

impl Default for DesiredSettings {
    fn default() -> Self {
        Self {
            table_key: FingerprintKey::UNSET,
            sampling: Sampling::OFF,
            new_timeout: 30,
            established_timeout: 6 * 3600,
            closing_timeout: 10,
            ping_kernel: false,
            icmp_rate: 1000,
        }
    }
}

/// A service as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredService {
    pub name: String,
    pub selection: Selection,
    pub affinity: Affinity,
    /// Slots wanted instead of the default size; rounded up to a prime.
    pub slots: Option<u32>,
    /// By address: the same endpoint from two sources is one backend.
    pub backends: BTreeMap<IpAddr, DesiredBackend>,
}

/// A backend of one service as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredBackend {
    /// 1..=65535.
    pub weight: u32,
    pub mode: Mode,
    pub state: BackendState,
    /// Seconds.
    pub udp_idle: u16,
    /// `None` while unresolved: the backend then owns no slots.
    pub next_hop: Option<NextHop>,
    /// Where the backend comes from, for people.
    pub sources: BTreeSet<String>,
}

/// How a frame reaches a backend, as rtnetlink answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop {
    /// Index of the outgoing interface.
    pub interface: u32,
    pub mac_source: [u8; 6],
    pub mac_destination: [u8; 6],
    /// This host's address towards the backend: outer source of `ipip`.
    pub source: IpAddr,
    /// Largest IP packet, octets.
    pub mtu: u16,
    /// A router stands in between. It would route a `dsr` packet by its destination, the VIP: back to here.
    pub gateway: bool,
}

/// What the operator and the sources want of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendState {
    /// Takes new flows.
    Serving,
    /// Keeps its flows, takes no new ones.
    Draining,
    /// Its flows are picked anew.
    Down,
}

/// Forwarding mode, see `lb-ebpf`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Dsr,
    Ipip,
}

/// Which seed picks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// The seed of the CPU that got the packet.
    #[default]
    PerCpu,
    /// The shared seed: every CPU and every node with the same secret picks alike.
    Fleet,
}

/// What of a packet is hashed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// The 5-tuple.
    #[default]
    None,
    /// The client's address only, always with the shared seed.
    Client,
}

/// Transport of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
}

impl NextHop {
    /// Whether frames of that mode reach the backend this way.
    pub fn fits(&self, mode: Mode) -> bool {
        mode == Mode::Ipip || !self.gateway
    }
}

impl BackendState {
    pub fn in_map(self) -> u8 {
        match self {
            Self::Serving => backend::state::SERVING,
            Self::Draining => backend::state::DRAINING,
            Self::Down => backend::state::DOWN,
        }
    }
}

impl Mode {
    pub fn in_map(self) -> u8 {
        match self {
            Self::Dsr => backend::mode::DSR,
            Self::Ipip => backend::mode::IPIP,
        }
    }
}

impl Protocol {
    /// The IP protocol number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// The 16-byte form of an address in map values, and its family (4 or 6). An IPv4-mapped IPv6 address is IPv4.
pub fn address_bytes(address: IpAddr) -> ([u8; 16], u8) {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            (bytes, 4)
        }
        IpAddr::V6(v6) => (v6.octets(), 6),
    }
}

/// The address behind [`address_bytes`].
pub fn address_from(bytes: &[u8; 16], family: u8) -> IpAddr {
    if family == 6 {
        IpAddr::from(*bytes)
    } else {
        IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// The map key of a service; `port` `None` means all ports.
pub fn service_key(vip: IpAddr, port: Option<u16>, protocol: Protocol) -> ServiceKey {
    let (address, family) = address_bytes(vip);
    ServiceKey {
        address,
        port: port.unwrap_or(0).to_be_bytes(),
        protocol: protocol.number(),
        family,
        reserved: [0; 4],
        align: [],
    }
}

/// A service key for people: `192.0.2.10:443/tcp`, `[2001:db8::1]:all/udp`.
pub fn key_text(key: &ServiceKey) -> String {
    let port = match key.port() {
        0 => "all".to_owned(),
        port => port.to_string(),
    };
    let protocol = match key.protocol {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        other => other.to_string(),
    };
    match address_from(&key.address, key.family) {
        IpAddr::V4(v4) => format!("{v4}:{port}/{protocol}"),
        IpAddr::V6(v6) => format!("[{v6}]:{port}/{protocol}"),
    }
}

/// Everything that should be: the services of all sources with the next hops that are known, and the rest.
pub fn desired_from(
    effective: &Effective,
    next_hops: &BTreeMap<IpAddr, NextHop>,
    fitness: &Fitness,
    settings: DesiredSettings,
    seeds: BTreeMap<u32, Seed>,
) -> Desired {
    let services = effective.services.values();
    let services = services
        .map(|service| (service.spec.key(), desired_service(service, next_hops, fitness)))
        .collect();
    Desired {
        services,
        settings,
        seeds,
    }
}

/// One service of [`desired_from`].
pub fn desired_service(
    service: &EffectiveService,
    next_hops: &BTreeMap<IpAddr, NextHop>,
    fitness: &Fitness,
) -> DesiredService {
    let spec = &service.spec;
    let fitness = fitness.of(&spec.name);
    let backends = spec.backends.iter().map(|backend| {
        let address = backend.address.to_canonical();
        let mode = backend.mode.unwrap_or(spec.mode);
        let (state, weight) = fitness.applied(address, backend.state, backend.weight);
        let desired = DesiredBackend {
            weight,
            mode,
            state,
            udp_idle: u16::try_from(spec.udp_idle.get()).unwrap_or(u16::MAX),
            next_hop: next_hops.get(&address).filter(|hop| hop.fits(mode)).copied(),
            sources: service.sources.get(&address).cloned().unwrap_or_default(),
        };
        (address, desired)
    });
    DesiredService {
        name: spec.name.clone(),
        selection: spec.selection,
        affinity: spec.affinity,
        slots: spec.slots,
        backends: backends.collect(),
    }
}
