//! Health checks as people write them: `[service.health]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::{Millis, Seconds};

/// How a service's backends are checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthSpec {
    #[serde(flatten)]
    pub check: Check,
    /// Instead of the endpoint's or the service's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// From the start of one check to the start of the next.
    #[serde(default = "default_interval")]
    pub interval: Millis,
    /// A check that takes longer has failed.
    #[serde(default = "default_timeout")]
    pub timeout: Millis,
    /// Checks in a row that must pass to bring a backend up.
    #[serde(default = "default_rise")]
    pub rise: u32,
    /// Checks in a row that must fail to take a backend down.
    #[serde(default = "default_fall")]
    pub fall: u32,
    /// Each interval is shorter by up to this share, so that checks do not come all at once.
    #[serde(default = "default_jitter")]
    pub jitter: f64,
    #[serde(default)]
    pub via: Via,
    /// What a backend is before its first check; one that serves already when checks begin is up.
    #[serde(default)]
    pub initial: Initial,
    /// How long the weight of a backend that came up takes to grow to what it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<Seconds>,
    /// With a smaller share of backends up than this, checks are not believed any more.
    #[serde(default = "default_panic_threshold")]
    pub panic_threshold: f64,
    #[serde(default)]
    pub on_panic: OnPanic,
}

/// Shares are numbers: checked when they are read.
impl Eq for HealthSpec {}

/// What is asked of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Check {
    /// A connection.
    Tcp,
    /// An answer to GET.
    Http {
        #[serde(flatten)]
        request: Request,
    },
    /// The same over TLS.
    Https {
        #[serde(flatten)]
        request: Request,
        /// Name in the certificate and in SNI; unless given, the host of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server_name: Option<String>,
        /// Whether the certificate must be good.
        #[serde(default)]
        verify: bool,
        /// PEM, instead of the system's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<PathBuf>,
    },
    /// `grpc.health.v1.Health/Check` over plain HTTP/2.
    Grpc {
        /// Name of the service asked for; the server as a whole unless given.
        #[serde(default)]
        service: String,
    },
    /// A datagram and its answer.
    Udp {
        payload: String,
        /// What the answer must contain; any answer will do unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<String>,
    },
}

/// What `http` and `https` ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    #[serde(default = "default_path")]
    pub path: String,
    /// `Host`; the backend's address unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Least and greatest status that is well.
    #[serde(default = "default_status")]
    pub status: (u16, u16),
    /// What the first 64 KiB of the body must contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// Which way a check takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// To the backend's own address.
    #[default]
    Direct,
    /// To the VIP, handed to that one backend as the datapath would.
    Vip,
}

/// What a backend is before its first check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Initial {
    /// Takes flows after its first check that passes.
    #[default]
    Down,
    Up,
}

/// What happens when too few backends are up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnPanic {
    /// Backends are picked as if all were up.
    #[default]
    Serve,
    /// The VIP is taken away, for others to serve.
    Withdraw,
}

impl OnPanic {
    /// What happens, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Serve => "too few backends pass their checks: all are picked as if they did",
            Self::Withdraw => "too few backends pass their checks: its VIP is withdrawn",
        }
    }
}

const fn default_interval() -> Millis {
    Millis(2000)
}

const fn default_timeout() -> Millis {
    Millis(1000)
}

const fn default_rise() -> u32 {
    2
}

const fn default_fall() -> u32 {
    3
}

const fn default_jitter() -> f64 {
    0.1
}

const fn default_panic_threshold() -> f64 {
    0.5
}

fn default_path() -> String {
    "/".to_owned()
}

const fn default_status() -> (u16, u16) {
    (200, 399)
}
