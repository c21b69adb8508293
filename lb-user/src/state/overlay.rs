//! What the command line changed, on top of what the file says.

mod error;
mod part;
mod settings;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use crate::{
    config::{
        BackendSpec, Problem, Problems, ServiceSpec,
        check::{check_beside, check_service},
        validate,
    },
    state::desired::{BackendState, key_text},
};

pub use error::{ErrorKind, OverlayError};
use part::{BackendOverlay, ServiceOverlay, backend_of, merge};
pub use settings::{BackendSettings, ServiceSettings};

/// Sources of a backend, as shown to people.
pub const FROM_FILE: &str = "static";
pub const FROM_CLI: &str = "cli";

/// The changes, by service. Every verb takes the file's services and leaves all as it was when it fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlay {
    revision: u64,
    services: BTreeMap<String, ServiceOverlay>,
}

/// All services as the file and the command line together want them, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effective {
    pub services: BTreeMap<String, EffectiveService>,
}

/// One service as it should be, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveService {
    /// Backends in the order of their addresses.
    pub spec: ServiceSpec,
    pub from_file: bool,
    /// [`FROM_FILE`], [`FROM_CLI`] or both, by backend.
    pub sources: BTreeMap<IpAddr, BTreeSet<String>>,
}

impl Overlay {
    /// Moves with every change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Refuses a change that was meant for another revision.
    pub fn check_revision(&self, expected: Option<u64>) -> Result<(), OverlayError> {
        match expected {
            Some(expected) if expected != self.revision => Err(OverlayError::Revision {
                current: self.revision,
                expected,
            }),
            _ => Ok(()),
        }
    }

    pub fn add_service(&mut self, file: &[ServiceSpec], spec: ServiceSpec) -> Result<(), OverlayError> {
        if self.effective_service(file, &spec.name).is_some() {
            return Err(OverlayError::ServiceExists { service: spec.name });
        }
        // Checked as given: as a map a backend named twice would be one.
        refuse(check_service(0, &spec))?;
        let name = spec.name.clone();
        self.change(file, &name, ServiceOverlay::owning(spec))
    }

    pub fn set_service(
        &mut self,
        file: &[ServiceSpec],
        name: &str,
        patch: ServiceSettings,
    ) -> Result<(), OverlayError> {
        let mut overlay = self.part(file, name)?;
        match &mut overlay.own {
            Some(own) => patch.apply(own),
            None => overlay.set.take_over(patch),
        }
        self.change(file, name, overlay)
    }

    pub fn remove_service(&mut self, file: &[ServiceSpec], name: &str) -> Result<(), OverlayError> {
        if find(file, name).is_some() {
            return Err(OverlayError::ServiceFromFile {
                service: name.to_owned(),
            });
        }
        match self.services.remove(name) {
            Some(_) => self.revision += 1,
            None => {
                return Err(OverlayError::NoService {
                    service: name.to_owned(),
                });
            }
        }
        Ok(())
    }

    pub fn add_backend(
        &mut self,
        file: &[ServiceSpec],
        service: &str,
        spec: BackendSpec,
    ) -> Result<(), OverlayError> {
        let mut overlay = self.part(file, service)?;
        let address = spec.address.to_canonical();
        if self.has_backend(file, service, address) {
            return Err(OverlayError::BackendExists {
                service: service.to_owned(),
                address,
            });
        }
        overlay
            .backends
            .insert(spec.address, BackendOverlay::adding(&spec));
        self.change(file, service, overlay)
    }

    pub fn set_backend(
        &mut self,
        file: &[ServiceSpec],
        service: &str,
        address: IpAddr,
        patch: BackendSettings,
    ) -> Result<(), OverlayError> {
        let mut overlay = self.part(file, service)?;
        let address = address.to_canonical();
        if !self.has_backend(file, service, address) {
            return Err(OverlayError::NoBackend {
                service: service.to_owned(),
                address,
            });
        }
        overlay.backends.entry(address).or_default().set.take_over(patch);
        self.change(file, service, overlay)
    }

    /// Stops new flows to a backend, wherever it comes from; its flows go on.
    pub fn drain(
        &mut self,
        file: &[ServiceSpec],
        service: &str,
        address: IpAddr,
    ) -> Result<(), OverlayError> {
        let patch = BackendSettings {
            state: Some(BackendState::Draining),
            ..BackendSettings::default()
        };
        self.set_backend(file, service, address, patch)
    }

    pub fn undrain(
        &mut self,
        file: &[ServiceSpec],
        service: &str,
        address: IpAddr,
    ) -> Result<(), OverlayError> {
        let patch = BackendSettings {
            state: Some(BackendState::Serving),
            ..BackendSettings::default()
        };
        self.set_backend(file, service, address, patch)
    }

    pub fn remove_backend(
        &mut self,
        file: &[ServiceSpec],
        service: &str,
        address: IpAddr,
    ) -> Result<(), OverlayError> {
        let mut overlay = self.part(file, service)?;
        let address = address.to_canonical();
        let in_file = find(file, service).is_some_and(|spec| backend_of(spec, address).is_some());
        match overlay.backends.remove(&address) {
            Some(backend) if backend.added => self.change(file, service, overlay),
            _ if in_file => Err(OverlayError::BackendFromFile {
                service: service.to_owned(),
                address,
            }),
            _ => Err(OverlayError::NoBackend {
                service: service.to_owned(),
                address,
            }),
        }
    }

    /// Makes `services` the whole of what the command line wants: services of the file are set to what is listed
    /// and keep the backends that are not, all others are the command line's own.
    pub fn apply_file(
        &mut self,
        file: &[ServiceSpec],
        services: Vec<ServiceSpec>,
    ) -> Result<(), OverlayError> {
        refuse(validate(&services).err().unwrap_or_default())?;
        let mut wanted = BTreeMap::new();
        for spec in services {
            let name = spec.name.clone();
            let overlay = match find(file, &name) {
                Some(in_file) => ServiceOverlay::between(in_file, &spec)?,
                None => ServiceOverlay::owning(spec),
            };
            if overlay != ServiceOverlay::default() {
                wanted.insert(name, overlay);
            }
        }
        let candidate = Self {
            revision: self.revision + 1,
            services: wanted,
        };
        refuse(
            validate(&candidate.effective(file).specs())
                .err()
                .unwrap_or_default(),
        )?;
        *self = candidate;
        Ok(())
    }

    /// Drops what has lost the service or backend of the file that it changed; returns a note for each. To be
    /// called when the file was read anew. What the result is must be validated all the same.
    pub fn settle(&mut self, file: &[ServiceSpec]) -> Vec<String> {
        let mut notes = Vec::new();
        self.services.retain(|name, overlay| {
            let in_file = find(file, name);
            match (in_file, &overlay.own) {
                (None, None) => {
                    notes.push(format!("service {name} is no longer in the file: what was set of it is dropped"));
                    return false;
                }
                (Some(_), Some(_)) => {
                    notes.push(format!("service {name} is now in the file: it rules, added backends stay"));
                    overlay.own = None;
                }
                _ => {}
            }
            overlay.backends.retain(|address, backend| {
                let kept = backend.added || in_file.is_some_and(|spec| backend_of(spec, *address).is_some());
                if !kept {
                    notes.push(format!(
                        "backend {address} of service {name} is no longer in the file: what was set of it is dropped"
                    ));
                }
                kept
            });
            *overlay != ServiceOverlay::default()
        });
        self.revision += u64::from(!notes.is_empty());
        notes
    }

    /// Drops own services whose VIP, port and protocol a service of the file has; returns a note for each. For
    /// starting: a reload that clashes is refused instead.
    pub fn drop_clashing(&mut self, file: &[ServiceSpec]) -> Vec<String> {
        let keys: BTreeMap<_, _> = file.iter().map(|spec| (spec.key(), &spec.name)).collect();
        let mut notes = Vec::new();
        self.services.retain(|name, overlay| {
            let clash = overlay
                .own
                .as_ref()
                .and_then(|own| keys.get(&own.key()).map(|other| (own, other)));
            if let Some((own, other)) = clash {
                let key = key_text(&own.key());
                notes.push(format!(
                    "service {name} is dropped: service {other} of the file has its {key}"
                ));
            }
            clash.is_none()
        });
        self.revision += u64::from(!notes.is_empty());
        notes
    }

    /// The union of the file's services and the command line's.
    pub fn effective(&self, file: &[ServiceSpec]) -> Effective {
        let names = file.iter().map(|spec| &spec.name).chain(self.services.keys());
        let in_file: BTreeMap<&String, &ServiceSpec> = file.iter().map(|spec| (&spec.name, spec)).collect();
        let services = names
            .filter_map(|name| {
                Some((
                    name.clone(),
                    merge(in_file.get(name).copied(), self.services.get(name))?,
                ))
            })
            .collect();
        Effective { services }
    }

    /// One service of [`effective`](Self::effective).
    pub fn effective_service(&self, file: &[ServiceSpec], name: &str) -> Option<EffectiveService> {
        merge(find(file, name), self.services.get(name))
    }

    fn has_backend(&self, file: &[ServiceSpec], service: &str, address: IpAddr) -> bool {
        let in_file = find(file, service).is_some_and(|spec| backend_of(spec, address).is_some());
        let overlay = self
            .services
            .get(service)
            .and_then(|overlay| overlay.backends.get(&address));
        in_file || overlay.is_some_and(|backend| backend.added)
    }

    /// What was changed of a service that exists.
    fn part(&self, file: &[ServiceSpec], name: &str) -> Result<ServiceOverlay, OverlayError> {
        let overlay = self.services.get(name);
        let exists = find(file, name).is_some() || overlay.is_some_and(|overlay| overlay.own.is_some());
        match exists {
            true => Ok(overlay.cloned().unwrap_or_default()),
            false => Err(OverlayError::NoService {
                service: name.to_owned(),
            }),
        }
    }

    /// Puts a service's new changes in place if what comes out is valid, by itself and beside every other service.
    fn change(
        &mut self,
        file: &[ServiceSpec],
        name: &str,
        overlay: ServiceOverlay,
    ) -> Result<(), OverlayError> {
        let Some(after) = merge(find(file, name), Some(&overlay)) else {
            return Err(OverlayError::NoService {
                service: name.to_owned(),
            });
        };
        let mut problems = check_service(0, &after.spec);
        let in_file = file.iter().map(|spec| (spec, self.services.get(&spec.name)));
        let own = self
            .services
            .values()
            .filter_map(|overlay| Some((overlay.own.as_ref()?, Some(overlay))));
        for (other, changes) in in_file.chain(own).filter(|(other, _)| other.name != name) {
            let added = changes.into_iter().flat_map(|changes| changes.backends.keys());
            let backends = other.backends.iter().map(|backend| &backend.address).chain(added);
            problems.extend(check_beside(&after.spec, other, backends.copied()));
        }
        refuse(problems)?;
        self.services.insert(name.to_owned(), overlay);
        self.revision += 1;
        Ok(())
    }
}

impl Effective {
    pub fn specs(&self) -> Vec<ServiceSpec> {
        self.services
            .values()
            .map(|service| service.spec.clone())
            .collect()
    }
}

fn find<'a>(file: &'a [ServiceSpec], name: &str) -> Option<&'a ServiceSpec> {
    file.iter().find(|spec| spec.name == name)
}

fn refuse(problems: Vec<Problem>) -> Result<(), OverlayError> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Problems(problems).into())
    }
}
