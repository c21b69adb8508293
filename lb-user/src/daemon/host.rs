//! Does a configuration fit this host: interfaces that exist, backends that are not the host itself.

use crate::{
    config::{
        Config,
        check::{self, HostFacts},
        problem::{Problem, Problems},
        spec::ServiceSpec,
    },
    net,
};

/// Why a configuration does not fit.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot look at this host's interfaces")]
    Look(#[from] net::NetError),
    #[error(transparent)]
    Unfit(#[from] Problems),
}

/// Compares a configuration with the host as it is now.
pub fn check(config: &Config) -> Result<(), HostError> {
    refuse(check::check_host(config, &facts()?))
}

/// Compares backends with the host as it is now.
pub fn check_backends(services: &[ServiceSpec]) -> Result<(), HostError> {
    refuse(check::check_backends_on_host(services, &facts()?))
}

fn facts() -> Result<HostFacts, HostError> {
    let facts = net::HostFacts::gather()?;
    Ok(HostFacts {
        addresses: facts.addresses,
        interfaces: facts.interfaces.into_keys().collect(),
    })
}

fn refuse(problems: Vec<Problem>) -> Result<(), HostError> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Problems(problems).into())
    }
}
