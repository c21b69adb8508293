//! The file: JSON lines, the first of which is the header; each other is one check.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{
    skew::attribution::{self, SeedFinding},
    state::desired::BackendState,
};

/// Version of the format. Readers refuse any other.
pub const VERSION: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`VERSION`].
    pub evenkeel_skew_record: u32,
    /// Of the daemon that was read.
    pub daemon_version: String,
    /// When the first check was taken, in milliseconds since 1970.
    pub time_ms: u64,
    /// CPUs that may count; those without a flow are left out of the checks.
    pub cpus: u32,
    /// Between checks when none is late.
    pub interval_ms: u64,
    /// Budget of false alarms of the whole box in a year, as configured.
    pub false_alarms_per_year: f64,
}

/// `GET /v1/skew/counters`: the counters as they are now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The first line of a file that begins with this reading.
    pub header: Header,
    pub check: Check,
}

/// One check: cumulative counters and the control plane's state as they were read. What is not known is left empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Milliseconds by a clock that is never set, from any origin.
    pub at_ms: u64,
    /// Tells counters apart: another number when they are others than before.
    pub source: u64,
    /// In order of names.
    pub services: Vec<ServiceRecord>,
    /// In rising order.
    pub cpus: Vec<CpuRecord>,
    /// In order of their places.
    pub seeds: Vec<SeedRecord>,
    /// What is wrong with seeds in the datapath, where they were read back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seed_faults: Vec<SeedFaultRecord>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceRecord {
    pub name: String,
    /// Of its entry in the datapath.
    pub id: u32,
    /// Slots of the table as published; 0 while no backend is eligible.
    pub slots: u32,
    /// Moves with every new table.
    pub table_generation: u32,
    /// Bits of `lb_common::service::flag`: fleet selection, client affinity.
    #[serde(default)]
    pub flags: u32,
    /// In order of addresses.
    pub backends: Vec<BackendRecord>,
    /// How its table in the datapath differs from the published one, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_fault: Option<TableFaultRecord>,
    /// Choices computed again lately, by CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audits: Vec<AuditRecord>,
    /// Keys with the most new flows lately, most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_keys: Vec<HeavyRecord>,
    /// Flows with the most packets lately, most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_flows: Vec<HeavyFlowRecord>,
}

/// One backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendRecord {
    pub endpoint: IpAddr,
    /// Id and generation of its entry: with another one its counters are other counters.
    pub id: u32,
    pub generation: u8,
    pub state: BackendState,
    pub weight: u32,
    /// Slots that it owns in the table as published.
    pub owned: u32,
    /// Fresh flows by CPU, in the order of [`Check::cpus`].
    pub fresh: Vec<u64>,
    /// Of all CPUs.
    pub flows: u64,
    pub packets: u64,
}

/// A CPU's hash histogram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuRecord {
    pub cpu: u32,
    /// Fresh flows by bucket of their slot; 256.
    pub fresh: Vec<u64>,
}

/// A seed, without its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedRecord {
    pub place: Place,
    /// As written last; 0 is unset.
    pub generation: u32,
}

/// Whose seed it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    Shared,
    Cpu(u32),
}

/// A seed that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedFaultRecord {
    pub place: Place,
    pub fault: SeedFault,
}

/// See [`attribution::SeedFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeedFault {
    Zero,
    Generation { found: u32, wanted: u32 },
    Key,
    Equal { to: Place },
}

/// A table that differs from the published one: checksums wanted and found, wrong slots of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFaultRecord {
    pub wanted: u64,
    pub found: u64,
    pub wrong: u32,
    pub slots: u32,
}

/// Choices of one CPU that were computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRecord {
    pub cpu: u32,
    pub checked: u64,
    pub wrong_slot: u64,
    pub wrong_backend: u64,
}

/// A key with many new flows, and the backend that it goes to. The key itself is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeavyRecord {
    pub count: u64,
    /// Id and generation of the backend's entry.
    pub id: u32,
    pub generation: u8,
}

/// A flow with many packets, and the backend that it has. The flow itself is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeavyFlowRecord {
    /// Of the service's packets, 0 to 1.
    pub part: f64,
    /// Id and generation of the backend's entry.
    pub id: u32,
    pub generation: u8,
}

impl From<attribution::Place> for Place {
    fn from(place: attribution::Place) -> Self {
        match place {
            attribution::Place::Shared => Self::Shared,
            attribution::Place::Cpu(cpu) => Self::Cpu(cpu),
        }
    }
}

impl From<Place> for attribution::Place {
    fn from(place: Place) -> Self {
        match place {
            Place::Shared => Self::Shared,
            Place::Cpu(cpu) => Self::Cpu(cpu),
        }
    }
}

impl From<SeedFinding> for SeedFaultRecord {
    fn from(SeedFinding { place, fault }: SeedFinding) -> Self {
        let fault = match fault {
            attribution::SeedFault::Zero => SeedFault::Zero,
            attribution::SeedFault::Generation { found, wanted } => SeedFault::Generation { found, wanted },
            attribution::SeedFault::Key => SeedFault::Key,
            attribution::SeedFault::Equal { to } => SeedFault::Equal { to: to.into() },
        };
        Self {
            place: place.into(),
            fault,
        }
    }
}

impl From<SeedFaultRecord> for SeedFinding {
    fn from(SeedFaultRecord { place, fault }: SeedFaultRecord) -> Self {
        let fault = match fault {
            SeedFault::Zero => attribution::SeedFault::Zero,
            SeedFault::Generation { found, wanted } => attribution::SeedFault::Generation { found, wanted },
            SeedFault::Key => attribution::SeedFault::Key,
            SeedFault::Equal { to } => attribution::SeedFault::Equal { to: to.into() },
        };
        Self {
            place: place.into(),
            fault,
        }
    }
}
