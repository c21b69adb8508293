//! What was changed of one service, and what comes out of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use super::{BackendSettings, EffectiveService, FROM_CLI, FROM_FILE, OverlayError, ServiceSettings};
use crate::{
    config::{BackendSpec, ServiceSpec},
    state::desired::key_text,
};

/// What was changed of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceOverlay {
    /// The service itself, without backends, if only the command line knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<ServiceSpec>,
    /// What was set of a service of the file.
    #[serde(default, skip_serializing_if = "ServiceSettings::is_empty")]
    pub set: ServiceSettings,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backends: BTreeMap<IpAddr, BackendOverlay>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackendOverlay {
    /// Added here; else only changed.
    #[serde(default)]
    pub added: bool,
    #[serde(default)]
    pub set: BackendSettings,
}

impl ServiceOverlay {
    pub fn owning(mut spec: ServiceSpec) -> Self {
        let backends = std::mem::take(&mut spec.backends);
        let added = backends
            .iter()
            .map(|spec| (spec.address.to_canonical(), BackendOverlay::adding(spec)));
        Self {
            backends: added.collect(),
            own: Some(spec),
            set: ServiceSettings::default(),
        }
    }

    /// What makes the file's service into the one that is wanted.
    pub fn between(in_file: &ServiceSpec, wanted: &ServiceSpec) -> Result<Self, OverlayError> {
        if in_file.key() != wanted.key() {
            return Err(OverlayError::OtherIdentity {
                service: in_file.name.clone(),
                in_file: key_text(&in_file.key()),
                wanted: key_text(&wanted.key()),
            });
        }
        let set = ServiceSettings {
            mode: (in_file.mode != wanted.mode).then_some(wanted.mode),
            selection: (in_file.selection != wanted.selection).then_some(wanted.selection),
            affinity: (in_file.affinity != wanted.affinity).then_some(wanted.affinity),
            udp_idle: (in_file.udp_idle != wanted.udp_idle).then_some(wanted.udp_idle),
            slots: (in_file.slots != wanted.slots).then_some(wanted.slots.unwrap_or(0)),
        };
        let mut backends = BTreeMap::new();
        for spec in &wanted.backends {
            let address = spec.address.to_canonical();
            let Some(known) = backend_of(in_file, address) else {
                backends.insert(address, BackendOverlay::adding(spec));
                continue;
            };
            let set = BackendSettings {
                weight: (known.weight != spec.weight).then_some(spec.weight),
                mode: spec.mode.filter(|mode| known.mode != Some(*mode)),
                state: (known.state != spec.state).then_some(spec.state),
            };
            if set != BackendSettings::default() {
                backends.insert(address, BackendOverlay { added: false, set });
            }
        }
        Ok(Self {
            own: None,
            set,
            backends,
        })
    }
}

impl BackendOverlay {
    pub fn adding(spec: &BackendSpec) -> Self {
        let set = BackendSettings {
            weight: Some(spec.weight),
            mode: spec.mode,
            state: Some(spec.state),
        };
        Self { added: true, set }
    }
}

/// The file's service with its changes, or an own service. Where both name a backend, the command line has the
/// last word: it spoke later.
pub(super) fn merge(
    in_file: Option<&ServiceSpec>,
    overlay: Option<&ServiceOverlay>,
) -> Option<EffectiveService> {
    let mut spec = in_file.or_else(|| overlay?.own.as_ref())?.clone();
    let mut sources = BTreeMap::<IpAddr, BTreeSet<String>>::new();
    let mut backends = BTreeMap::new();
    for backend in spec.backends.drain(..) {
        let address = backend.address.to_canonical();
        let named = sources.entry(address).or_default();
        match &backend.discovered {
            None => drop(named.insert(FROM_FILE.to_owned())),
            Some(by) => named.extend(by.sources.iter().cloned()),
        }
        backends.insert(address, backend);
    }
    if let Some(overlay) = overlay {
        overlay.set.apply(&mut spec);
        for (address, change) in &overlay.backends {
            if change.added {
                sources.entry(*address).or_default().insert(FROM_CLI.to_owned());
                backends
                    .entry(*address)
                    .or_insert_with(|| BackendSpec::new(*address));
            }
            if let Some(backend) = backends.get_mut(address) {
                change.set.apply(backend);
            }
        }
    }
    spec.backends = backends.into_values().collect();
    Some(EffectiveService {
        spec,
        from_file: in_file.is_some(),
        sources,
    })
}

pub(super) fn backend_of(spec: &ServiceSpec, address: IpAddr) -> Option<&BackendSpec> {
    spec.backends
        .iter()
        .find(|backend| backend.address.to_canonical() == address)
}
