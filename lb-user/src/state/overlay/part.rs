//! What was changed of one service, and what comes out of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use super::{EffectiveService, FROM_CLI, FROM_FILE, OverlayError};
use crate::{
    config::{BackendSpec, Seconds, ServiceSpec},
    state::desired::{Affinity, BackendState, Mode, Selection, key_text},
};

/// What was changed of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceOverlay {
    /// The service itself, without backends, if only the command line knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<ServiceSpec>,
    /// What was set of a service of the file.
    #[serde(default, skip_serializing_if = "ServicePatch::is_empty")]
    pub set: ServicePatch,
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
    pub set: BackendPatch,
}

/// Changes to a service; what is left out stays. VIP, port and protocol are its identity and cannot be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServicePatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_idle: Option<Seconds>,
    /// 0 goes back to the default size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// Changes to a backend; what is left out stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendPatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BackendState>,
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
            set: ServicePatch::default(),
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
        let set = ServicePatch {
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
            let set = BackendPatch {
                weight: (known.weight != spec.weight).then_some(spec.weight),
                mode: spec.mode.filter(|mode| known.mode != Some(*mode)),
                state: (known.state != spec.state).then_some(spec.state),
            };
            if set != BackendPatch::default() {
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
        let set = BackendPatch {
            weight: Some(spec.weight),
            mode: spec.mode,
            state: Some(spec.state),
        };
        Self { added: true, set }
    }
}

impl ServicePatch {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn apply(&self, spec: &mut ServiceSpec) {
        spec.mode = self.mode.unwrap_or(spec.mode);
        spec.selection = self.selection.unwrap_or(spec.selection);
        spec.affinity = self.affinity.unwrap_or(spec.affinity);
        spec.udp_idle = self.udp_idle.unwrap_or(spec.udp_idle);
        if let Some(slots) = self.slots {
            spec.slots = Some(slots).filter(|slots| *slots != 0);
        }
    }

    pub(super) fn take_over(&mut self, newer: Self) {
        self.mode = newer.mode.or(self.mode);
        self.selection = newer.selection.or(self.selection);
        self.affinity = newer.affinity.or(self.affinity);
        self.udp_idle = newer.udp_idle.or(self.udp_idle);
        self.slots = newer.slots.or(self.slots);
    }
}

impl BackendPatch {
    pub(super) fn apply(&self, spec: &mut BackendSpec) {
        spec.weight = self.weight.unwrap_or(spec.weight);
        spec.mode = self.mode.or(spec.mode);
        spec.state = self.state.unwrap_or(spec.state);
    }

    pub(super) fn take_over(&mut self, newer: Self) {
        self.weight = newer.weight.or(self.weight);
        self.mode = newer.mode.or(self.mode);
        self.state = newer.state.or(self.state);
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
        sources.entry(address).or_default().insert(FROM_FILE.to_owned());
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
