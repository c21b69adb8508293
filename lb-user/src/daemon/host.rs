//! Does a configuration fit this host: interfaces that exist, backends that are not the host itself, a kernel that can do it.

use rustix::system::uname;

use super::check_path::wants_vip;
use crate::{
    config::{
        Config,
        check::{self, HostFacts},
        problem::{Place, Problem, Problems},
        spec::ServiceSpec,
    },
    net,
    program::has_tcx,
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
    let mut problems = check::check_host(config, &facts()?);
    let mut of_kernel = check_kernel(&config.services);
    of_kernel
        .iter_mut()
        .for_each(|problem| problem.file = Some(config.file.clone()));
    problems.extend(of_kernel);
    refuse(problems)
}

/// Compares backends with the host as it is now.
pub fn check_backends(services: &[ServiceSpec]) -> Result<(), HostError> {
    let mut problems = check::check_backends_on_host(services, &facts()?);
    problems.extend(check_kernel(services));
    refuse(problems)
}

/// Checks through the VIP take links for TC programs. A process that may not ask the kernel lets them be.
fn check_kernel(services: &[ServiceSpec]) -> Vec<Problem> {
    let asking = services.iter().enumerate().filter(|(_, spec)| wants_vip(spec));
    let asking: Vec<_> = asking.collect();
    if asking.is_empty() || has_tcx() != Some(false) {
        return Vec::new();
    }
    let release = uname().release().to_string_lossy().into_owned();
    let told = asking.into_iter().map(|(index, spec)| {
        let place = Place::Service {
            index,
            name: spec.name.clone(),
            key: "health".to_owned(),
        };
        Problem::new(
            place,
            format!("health: via = \"vip\" needs Linux 6.6 or later, and this is {release}"),
            "leave via out: checks then go to the backends' own addresses",
        )
    });
    told.collect()
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
