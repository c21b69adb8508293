//! What of a service and of a backend can be set: asked for by the command line, kept in the overlay, applied to specs.

use serde::{Deserialize, Serialize};

use crate::{
    config::{BackendSpec, Seconds, ServiceSpec},
    state::desired::{Affinity, BackendState, Mode, Selection},
};

/// What is left out stays as it is. VIP, port and protocol are a service's identity and cannot be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct ServiceSettings {
    /// How packets reach the backends.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Which seed picks.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// What of a packet is hashed.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Slots of the table, rounded up to a prime; 0 goes back to the default.
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// How long a UDP flow lives without a packet, as in 120s.
    #[arg(long, value_name = "TIME")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_idle: Option<Seconds>,
}

/// What is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct BackendSettings {
    /// Its part of the new flows, beside the weights of the others.
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// How packets reach it, if not as the service says.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// serving or draining.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BackendState>,
}

impl ServiceSettings {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn apply(&self, spec: &mut ServiceSpec) {
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

impl BackendSettings {
    pub fn apply(&self, spec: &mut BackendSpec) {
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
