//! Why the command line's change was refused.

use std::net::IpAddr;

use crate::config::Problems;

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    #[error("there is no service {service}; `evenkeel services` lists them")]
    NoService { service: String },
    #[error("service {service} has no backend {address}; `evenkeel backends {service}` lists them")]
    NoBackend { service: String, address: IpAddr },
    #[error("service {service} is there already; change it with `evenkeel service set {service}`")]
    ServiceExists { service: String },
    #[error(
        "service {service} has backend {address} already; change it with `evenkeel backend set {service} {address}`"
    )]
    BackendExists { service: String, address: IpAddr },
    #[error("service {service} comes from the configuration file; remove it there and run `evenkeel reload`")]
    ServiceFromFile { service: String },
    #[error(
        "backend {address} of service {service} comes from the configuration file; drain it with `evenkeel backend drain \
         {service} {address}`, or remove it from the file and run `evenkeel reload`"
    )]
    BackendFromFile { service: String, address: IpAddr },
    #[error(
        "service {service} is {in_file} in the configuration file and {wanted} here; keep to the file, or choose another name"
    )]
    OtherIdentity {
        service: String,
        in_file: String,
        wanted: String,
    },
    #[error(
        "revision is {current}, not {expected}: somebody changed something in between; look again and repeat"
    )]
    Revision { current: u64, expected: u64 },
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// Kinds of [`OverlayError`] for those who answer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    Conflict,
    Invalid,
}

impl OverlayError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoService { .. } | Self::NoBackend { .. } => ErrorKind::NotFound,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::ServiceExists { .. }
            | Self::BackendExists { .. }
            | Self::ServiceFromFile { .. }
            | Self::BackendFromFile { .. }
            | Self::OtherIdentity { .. }
            | Self::Revision { .. } => ErrorKind::Conflict,
        }
    }
}
