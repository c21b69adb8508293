//! A service and its backends as people write them, in the file, on the command line and over the API.

use std::{collections::BTreeSet, fmt, net::IpAddr, num::NonZeroU16, str::FromStr};

use lb_common::service::ServiceKey;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::seconds::Seconds;
use crate::{
    discovery::SourceSpec,
    health::HealthSpec,
    state::desired::{Affinity, BackendState, Mode, Protocol, Selection, service_key},
};

/// A service. JSON calls its backends `backends`; TOML tables read better as `backend`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// 1 to 63 of `a-z0-9._-`, unique.
    pub name: String,
    pub vip: IpAddr,
    pub port: Port,
    pub protocol: Protocol,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub selection: Selection,
    #[serde(default)]
    pub affinity: Affinity,
    /// How long a datagram flow lives without a packet.
    #[serde(default = "default_udp_idle")]
    pub udp_idle: Seconds,
    /// Slots instead of 100 a backend; rounded up to a prime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    #[serde(default, alias = "backend")]
    pub backends: Vec<BackendSpec>,
    /// Where more backends come from.
    #[serde(default, alias = "source", skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceSpec>,
    /// Unless given, every backend counts as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSpec>,
    /// Unless given, something else attracts the VIP's traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announce: Option<Announce>,
}

/// How the VIP's traffic is attracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Announce {
    /// The VIP is an address of this host while the service can serve, for a routing daemon to find.
    Address,
}

/// A backend of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendSpec {
    pub address: IpAddr,
    /// 1..=65535: its share of new flows among the service's backends.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// Instead of the service's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Serving or draining.
    #[serde(default = "default_state")]
    pub state: BackendState,
    /// Who named it, if not the file.
    #[serde(skip)]
    pub discovered: Option<Discovered>,
}

/// What is known of a backend because sources named it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovered {
    /// Names of the sources.
    pub sources: BTreeSet<String>,
    /// The port that they name.
    pub port: Option<u16>,
}

/// The port or ports of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Every port of the VIP and protocol that no other service has.
    All,
    Number(NonZeroU16),
}

pub(super) const fn default_udp_idle() -> Seconds {
    Seconds(120)
}

const fn default_weight() -> u32 {
    1
}

const fn default_state() -> BackendState {
    BackendState::Serving
}

impl ServiceSpec {
    /// A service without backends, everything else as if it were left out.
    pub fn new(name: impl Into<String>, vip: IpAddr, port: Port, protocol: Protocol) -> Self {
        Self {
            name: name.into(),
            vip,
            port,
            protocol,
            mode: Mode::default(),
            selection: Selection::default(),
            affinity: Affinity::default(),
            udp_idle: default_udp_idle(),
            slots: None,
            backends: Vec::new(),
            sources: Vec::new(),
            health: None,
            announce: None,
        }
    }

    pub fn key(&self) -> ServiceKey {
        service_key(self.vip, self.port.number(), self.protocol)
    }
}

impl BackendSpec {
    /// A serving backend of weight 1 in the service's mode.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            weight: default_weight(),
            mode: None,
            state: default_state(),
            discovered: None,
        }
    }
}

impl Port {
    /// `None` means all.
    pub fn number(self) -> Option<u16> {
        match self {
            Self::All => None,
            Self::Number(number) => Some(number.get()),
        }
    }
}

impl TryFrom<u64> for Port {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match u16::try_from(number).map(NonZeroU16::new) {
            Ok(Some(number)) => Ok(Self::Number(number)),
            Ok(None) => Err("port 0 is no port; use port = \"all\" for every port".to_owned()),
            Err(_) => Err(format!("port {number} is no port; use 1 to 65535, or \"all\"")),
        }
    }
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            number => number
                .parse::<u64>()
                .map_err(|_| format!("{number:?} is no port; use 1 to 65535, or \"all\""))
                .and_then(Self::try_from),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Number(number) => number.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrAll;
        impl de::Visitor<'_> for NumberOrAll {
            type Value = Port;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port from 1 to 65535, or \"all\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Port, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Port, E> {
                Port::try_from(number).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Port, E> {
                let number = u64::try_from(number);
                number.map_or_else(
                    |_| Err(E::custom("a port is not negative; use 1 to 65535, or \"all\"")),
                    |number| self.visit_u64(number),
                )
            }
        }
        deserializer.deserialize_any(NumberOrAll)
    }
}
