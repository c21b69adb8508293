//! The words of the interface: what the daemon answers and what `--json` prints.

use std::{collections::BTreeMap, net::IpAddr, ops::Add};

use serde::{Deserialize, Serialize};

pub use super::requests::{
    ApplyFile, BackendSettings, Change, Edit, EventsQuery, ExplainQuery, Filter, Rotate, ServiceSettings,
    SourceAction, SourceRequest,
};
pub use crate::events::Event;
use crate::state::desired::{Affinity, BackendState, Mode, Protocol, Selection};

/// Body of every answer that is not 2xx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What is wrong, naming the object.
    pub error: String,
    /// For scripts; what the exit codes of the command line are made of.
    #[serde(default)]
    pub reason: RefusalKind,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// What sort of refusal it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The request contradicts itself or what is there, or cannot be: 422.
    Invalid,
    /// No such service or backend: 404.
    NotFound,
    /// What was to be added is there already: 409.
    Exists,
    /// Another revision than expected, or the configuration file has it: 409.
    Conflict,
    /// Whoever asks may not: 403.
    Forbidden,
    /// The daemon does not know the request: 404.
    Unsupported,
    /// The daemon could not carry it out: 500.
    #[default]
    Failed,
    /// The daemon is starting or ending: 503.
    Unavailable,
}

/// `GET /v1/status`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: u64,
    pub ready: bool,
    /// Why not, when not ready.
    pub not_ready: Vec<String>,
    /// Moves with every accepted change of services and backends.
    pub revision: u64,
    pub config_file: String,
    pub pin_directory: String,
    pub program: String,
    pub interfaces: Vec<Interface>,
    pub services: Vec<Service>,
    pub flow_table: FlowTable,
    pub seeds: Vec<Seed>,
    pub problems: Vec<Problem>,
    /// The newest last.
    pub recent_events: Vec<Event>,
}

/// An interface the datapath is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    /// `native` or `generic`.
    pub mode: String,
    /// Why it is that mode, when it is not the best one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Something that wants a human.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub object: String,
    pub problem: String,
    pub next_step: String,
}

/// `GET /v1/discovery`: one source of one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub service: String,
    pub name: String,
    /// As in `type`.
    pub kind: String,
    /// What it follows, for people.
    pub follows: String,
    pub state: SourceState,
    /// How it fails, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long what is believed was not confirmed; 0 while the source does well.
    pub stale_seconds: u64,
    /// How long ago it last said something; never unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_seconds: Option<u64>,
    /// When the state from disk was saved, Unix seconds, while that is what is believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_disk: Option<u64>,
    /// The server's name for its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Endpoints that are believed.
    pub endpoints: usize,
    /// Endpoints that the source names; unless given, it has not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// Nothing goes until it is accepted.
    pub held_by_hand: bool,
    pub updates: u64,
    pub failures: u64,
    /// Entries that were no endpoints, ever.
    pub refused: u64,
    /// Some that are refused now, and why.
    pub refused_now: Vec<String>,
}

/// How a source does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceState {
    /// It answers.
    Fresh,
    /// It fails; what it said before is believed.
    Stale,
    /// It has not answered; what was on disk is believed.
    FromDisk,
    /// It has never said anything that could be believed.
    NotLoaded,
}

/// Endpoints that should go and stay for the time being.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Some of them.
    pub endpoints: Vec<IpAddr>,
    pub count: usize,
    pub why: String,
    pub since_seconds: u64,
    /// When they go by themselves; unless given, when it is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_seconds: Option<u64>,
}

/// `GET /v1/services`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    pub name: String,
    pub vip: IpAddr,
    /// `None`: all ports.
    pub port: Option<u16>,
    pub protocol: Protocol,
    pub selection: Selection,
    pub affinity: Affinity,
    /// Where the service comes from: `static` (the file) or `cli`.
    pub source: String,
    /// Slots of its table in the datapath; 0 while no backend is eligible.
    pub slots: u32,
    /// Moves with every new table.
    pub table_generation: u32,
    pub serving: u32,
    pub draining: u32,
    pub down: u32,
    /// Wanted serving or draining, but without a next hop.
    pub unresolved: u32,
    pub active_flows: u64,
    #[serde(flatten)]
    pub totals: Totals,
}

/// Counters since the maps were created (backends: since their entry was allocated).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// New flows picked.
    pub flows: u64,
    pub packets: u64,
    pub bytes: u64,
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            flows: self.flows.wrapping_add(other.flows),
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }
}

/// `GET /v1/backends`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    pub service: String,
    pub address: IpAddr,
    /// Id and generation of the entry in the datapath; `None` while it has none.
    pub id: Option<u32>,
    pub generation: Option<u8>,
    /// What the operator and the sources want, or down when checks fail.
    pub state: BackendState,
    /// What its checks find; unless given, it is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Why its checks fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
    pub mode: Mode,
    pub weight: u32,
    /// `static` (the file), `cli`, or names of sources.
    pub sources: Vec<String>,
    /// `None` while unresolved.
    pub next_hop: Option<NextHop>,
    /// Why there is no next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<String>,
    /// Part of the service's slots that it owns in the datapath, 0..=1.
    pub expected_share: f64,
    /// Part of the new flows since the service's table last changed; `None` without any.
    pub observed_share: Option<f64>,
    /// New flows of the whole service behind `observed_share`.
    pub observed_flows: u64,
    pub active_flows: u64,
    #[serde(flatten)]
    pub totals: Totals,
}

/// What checks of a backend find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Passes,
    Fails,
    Unchecked,
}

/// How frames reach a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop {
    pub interface: String,
    pub mac: String,
    /// Source address of the outer header.
    pub source: IpAddr,
    pub mtu: u16,
}

/// `GET /v1/seeds`. The secret itself is never shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seed {
    /// `None`: the shared seed.
    pub cpu: Option<u32>,
    /// 0: unset.
    pub generation: u32,
    /// Seconds since this daemon wrote or adopted it.
    pub age_seconds: u64,
    /// `None` when it changes on command only.
    pub next_rotation_seconds: Option<u64>,
    /// Part of the bits of its fresh-key bitmap that are set, 0..=1.
    pub fresh_fill: f64,
}

/// `GET /v1/flows`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    pub table: FlowTable,
    /// By service, backend and state.
    pub counts: Vec<FlowCount>,
    /// Some flows of the filter, when asked for: the table keeps a fingerprint, not the addresses.
    pub flows: Vec<Flow>,
    /// More matched than are listed.
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCount {
    pub service: String,
    pub backend: IpAddr,
    pub new: u64,
    pub established: u64,
    pub closing: u64,
    pub datagram: u64,
}

/// One entry of the flow table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// 16 hexadecimal digits.
    pub fingerprint: String,
    pub service: String,
    pub backend: IpAddr,
    pub state: String,
    pub idle_seconds: u32,
}

/// How full the flow table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTable {
    pub slots: u64,
    /// Living entries by state.
    pub used: BTreeMap<String, u64>,
    /// Entries whose time is over; they count as free.
    pub expired: u64,
    /// Flows that were pushed out or not stored, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Seconds since the table was last counted.
    pub counted_seconds_ago: u64,
}

/// `GET /v1/plan`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanText {
    pub steps: usize,
    /// One line a step.
    pub text: String,
}

/// `GET /v1/explain`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The packet in words.
    pub packet: String,
    /// The same for every CPU, unless the table says otherwise.
    pub answers: Vec<Answer>,
}

/// What happens to the packet on some CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub cpus: Vec<u32>,
    /// Stage by stage.
    pub stages: Vec<Stage>,
    /// `forward`, `drop` or `pass`, and its reason.
    pub verdict: String,
    pub reason: String,
    pub backend: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    pub stage: String,
    pub finding: String,
}

/// Answer to a change that was accepted and is in the datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// After the change.
    pub revision: u64,
    /// Steps written to the maps.
    pub steps: usize,
    /// What was done, in words.
    pub text: String,
    /// Things to know about what was accepted, such as a backend without a next hop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How much a change had to write, in words.
pub fn steps_written(steps: usize) -> String {
    match steps {
        0 => "nothing to write".to_owned(),
        1 => "1 step written".to_owned(),
        steps => format!("{steps} steps written"),
    }
}
