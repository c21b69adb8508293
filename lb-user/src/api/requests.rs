//! What the command line asks: queries and bodies of requests.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::state::desired::Protocol;
pub use crate::state::overlay::{BackendSettings, ServiceSettings};

/// Query of `GET /v1/explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainQuery {
    pub protocol: Protocol,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// TCP: the first packet of a connection.
    #[serde(default)]
    pub syn: bool,
}

/// Query of `GET /v1/backends` and `GET /v1/flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<IpAddr>,
    /// Flow state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Flows to list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Count the flow table now instead of answering from the last count.
    #[serde(default)]
    pub now: bool,
}

/// Query of `GET /v1/events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsQuery {
    /// Only events with a higher id.
    #[serde(default)]
    pub after: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Body of `POST /v1/change`: edits that are accepted together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Refused with 409 unless the revision is still this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_revision: Option<u64>,
    pub edits: Vec<Edit>,
}

/// One edit of services or backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "edit", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Edit {
    ServiceAdd {
        name: String,
        vip: IpAddr,
        port: Option<u16>,
        protocol: Protocol,
        #[serde(default)]
        settings: ServiceSettings,
    },
    ServiceSet {
        name: String,
        settings: ServiceSettings,
    },
    ServiceRemove {
        name: String,
    },
    BackendAdd {
        service: String,
        address: IpAddr,
        #[serde(default)]
        settings: BackendSettings,
    },
    BackendSet {
        service: String,
        address: IpAddr,
        settings: BackendSettings,
    },
    BackendDrain {
        service: String,
        address: IpAddr,
    },
    BackendUndrain {
        service: String,
        address: IpAddr,
    },
    BackendRemove {
        service: String,
        address: IpAddr,
    },
}

/// Body of `POST /v1/apply`: services and backends in the form of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyFile {
    /// For messages.
    pub file: String,
    pub toml: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_revision: Option<u64>,
}

/// Body of `POST /v1/discovery`: what is to become of what a service's sources say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRequest {
    pub service: String,
    /// One of its sources; all of them unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    pub action: SourceAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceAction {
    /// Let go what is held.
    Accept,
    /// Let nothing go until it is accepted.
    Hold,
}

/// Body of `POST /v1/seeds/rotate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotate {
    /// The seed of one CPU.
    Cpu(u32),
    /// The shared seed: picks of `fleet` and client affinity change.
    Shared,
    /// Every CPU's seed, not the shared one.
    Cpus,
    /// Every CPU's seed and the shared one.
    All,
}
