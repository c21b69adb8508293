//! Sources as people write them: `[[service.source]]`.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::config::Seconds;

/// One source of a service's backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// Unique in the service; the type unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(flatten)]
    pub kind: SourceKind,
    #[serde(flatten)]
    pub guard: GuardSpec,
    /// A source that names more is refused whole.
    #[serde(default = "default_max_endpoints")]
    pub max_endpoints: u32,
}

/// Where endpoints come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum SourceKind {
    /// A file of JSON or TOML (by its ending), followed by inotify.
    File { path: PathBuf },
    /// A, AAAA or SRV records, asked again when their time to live is over.
    Dns {
        host: String,
        #[serde(default)]
        record: Record,
        /// Instead of those of `/etc/resolv.conf`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<SocketAddr>,
        /// Never asks more often, however short the time to live.
        #[serde(default = "default_least_interval")]
        min_interval: Seconds,
        /// Never asks less often.
        #[serde(default = "default_dns_interval")]
        max_interval: Seconds,
    },
    /// JSON over HTTP or HTTPS, as Prometheus' http_sd gives it, with weights.
    Http {
        url: String,
        #[serde(default = "default_http_interval")]
        interval: Seconds,
        /// Sent as `Authorization: Bearer`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_file: Option<PathBuf>,
        /// PEM, instead of the system's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<PathBuf>,
    },
    /// Keys below a prefix, one endpoint each, watched.
    Etcd {
        /// Like `http://192.0.2.1:2379`; tried in turn.
        urls: Vec<String>,
        prefix: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        password_file: Option<PathBuf>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<PathBuf>,
    },
    /// Instances of a service that pass their checks, by blocking queries.
    Consul {
        url: String,
        service: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        datacenter: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tag: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_file: Option<PathBuf>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<PathBuf>,
    },
    /// EndpointSlices of a Service, by list and watch.
    Kubernetes {
        /// The API server; unless given, the one of the pod this runs in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        namespace: String,
        service: String,
        /// Named port whose number endpoints get; unless given, the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_file: Option<PathBuf>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<PathBuf>,
    },
}

/// Which records name the endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Record {
    #[default]
    A,
    Aaaa,
    /// Both address families.
    Both,
    /// Target, port and weight; of the lowest priority that there is.
    Srv,
}

/// What of a source's updates is believed at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuardSpec {
    /// Largest share of a source's endpoints that may go at once or within `window`.
    #[serde(default = "default_max_removal")]
    pub max_removal: f64,
    #[serde(default = "default_window")]
    pub window: Seconds,
    /// How long a held removal must stay the same to go through.
    #[serde(default = "default_hold")]
    pub hold: Hold,
    /// The same of an answer without any endpoint.
    #[serde(default)]
    pub hold_empty: Hold,
    /// Whether a first answer without any endpoint is a state.
    #[serde(default)]
    pub allow_empty: bool,
}

/// How long something is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Hold {
    /// Until health checks agree or somebody accepts it.
    #[default]
    UntilAccepted,
    For(Seconds),
}

const fn default_max_endpoints() -> u32 {
    10_000
}

const fn default_least_interval() -> Seconds {
    Seconds(1)
}

const fn default_dns_interval() -> Seconds {
    Seconds(30)
}

const fn default_http_interval() -> Seconds {
    Seconds(10)
}

const fn default_max_removal() -> f64 {
    0.5
}

const fn default_window() -> Seconds {
    Seconds(60)
}

const fn default_hold() -> Hold {
    Hold::For(Seconds(300))
}

impl SourceSpec {
    /// What people call it.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.kind.name())
    }
}

impl SourceKind {
    /// As in `type`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Dns { .. } => "dns",
            Self::Http { .. } => "http",
            Self::Etcd { .. } => "etcd",
            Self::Consul { .. } => "consul",
            Self::Kubernetes { .. } => "kubernetes",
        }
    }
}

/// Shares are numbers: checked when they are read.
impl Eq for GuardSpec {}

impl Default for GuardSpec {
    fn default() -> Self {
        Self {
            max_removal: default_max_removal(),
            window: default_window(),
            hold: default_hold(),
            hold_empty: Hold::default(),
            allow_empty: false,
        }
    }
}

impl FromStr for Hold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::UntilAccepted),
            time => time
                .parse()
                .map(Self::For)
                .map_err(|error| format!("{error}, or \"off\" to hold until accepted")),
        }
    }
}

impl TryFrom<String> for Hold {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Hold> for String {
    fn from(hold: Hold) -> Self {
        hold.to_string()
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UntilAccepted => f.write_str("off"),
            Self::For(time) => time.fmt(f),
        }
    }
}
