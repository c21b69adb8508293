//! Why the command line's change was refused.

use std::net::IpAddr;

use crate::config::Problems;

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    #[error("there is no service {service}")]
    NoService { service: String },
    #[error("service {service} has no backend {address}")]
    NoBackend { service: String, address: IpAddr },
    #[error("service {service} is there already")]
    ServiceExists { service: String },
    #[error("service {service} has backend {address} already")]
    BackendExists { service: String, address: IpAddr },
    #[error("service {service} comes from the configuration file")]
    ServiceFromFile { service: String },
    #[error("backend {address} of service {service} comes from the configuration file")]
    BackendFromFile { service: String, address: IpAddr },
    #[error("service {service} is {in_file} in the configuration file and {wanted} here")]
    OtherIdentity {
        service: String,
        in_file: String,
        wanted: String,
    },
    #[error("revision is {current}, not {expected}: somebody changed something in between")]
    Revision { current: u64, expected: u64 },
    #[error("{}", .0.statement())]
    Invalid(#[from] Problems),
}

/// Kinds of [`OverlayError`] for those who answer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    /// What was to be added is there.
    Exists,
    Conflict,
    Invalid,
}

impl OverlayError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoService { .. } | Self::NoBackend { .. } => ErrorKind::NotFound,
            Self::ServiceExists { .. } | Self::BackendExists { .. } => ErrorKind::Exists,
            Self::ServiceFromFile { .. }
            | Self::BackendFromFile { .. }
            | Self::OtherIdentity { .. }
            | Self::Revision { .. } => ErrorKind::Conflict,
            Self::Invalid(_) => ErrorKind::Invalid,
        }
    }

    /// What to do about it.
    pub fn next_step(&self) -> String {
        match self {
            Self::NoService { .. } => "list them with `evenkeel services`".to_owned(),
            Self::NoBackend { service, .. } => format!("list them with `evenkeel backends {service}`"),
            Self::ServiceExists { service } => {
                format!("change it with `evenkeel service set {service}`, or choose another name")
            }
            Self::BackendExists { service, address } => {
                format!("change it with `evenkeel backend set {service} {address}`")
            }
            Self::ServiceFromFile { .. } => "remove it there and run `evenkeel reload`".to_owned(),
            Self::BackendFromFile { service, address } => format!(
                "drain it with `evenkeel backend drain {service} {address}`, or remove it from the file and run \
                 `evenkeel reload`"
            ),
            Self::OtherIdentity { .. } => "keep to the file, or choose another name".to_owned(),
            Self::Revision { .. } => "look at what is there now, and repeat".to_owned(),
            Self::Invalid(problems) => problems.next_step(),
        }
    }
}
