//! The sections of the file beside services, with their defaults.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use lb_common::flow::{FlowBucket, WAYS};
use serde::{Deserialize, Serialize};

use super::seconds::Seconds;

/// `[datapath]`: where the program runs and how large its maps are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Datapath {
    pub interfaces: Vec<String>,
    #[serde(default)]
    pub xdp_mode: XdpMode,
    /// Replace an XDP program that is not Evenkeel's.
    #[serde(default)]
    pub replace: bool,
    #[serde(default = "default_pin_directory")]
    pub pin_directory: PathBuf,
    /// Where announced VIPs are put.
    #[serde(default = "default_announce_interface")]
    pub announce_interface: String,
    /// Flows that find room for sure. The table has at least twice as many entries, in a power of two.
    #[serde(default = "default_max_flows")]
    pub max_flows: u32,
    #[serde(default = "default_max_services")]
    pub max_services: u32,
    #[serde(default = "default_max_backends")]
    pub max_backends: u32,
    #[serde(default = "default_max_slots")]
    pub max_slots: u32,
    /// A TCP flow of which only a SYN was seen.
    #[serde(default = "default_new_timeout")]
    pub new_timeout: Seconds,
    #[serde(default = "default_established_timeout")]
    pub established_timeout: Seconds,
    /// A TCP flow after FIN or RST.
    #[serde(default = "default_closing_timeout")]
    pub closing_timeout: Seconds,
    #[serde(default)]
    pub ping: Ping,
    /// ICMP messages that each CPU may make in a second: answers to pings, and to packets too big for their backend.
    #[serde(default = "default_icmp_rate")]
    pub icmp_rate: u32,
}

/// Who answers echo requests to VIPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ping {
    /// The datapath, for every VIP.
    #[default]
    Answer,
    /// This host's own stack, for VIPs that are on one of its interfaces.
    Kernel,
}

/// How the program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Native where the driver can, else generic; status says which.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel's stack: with every driver, more slowly.
    Generic,
}

/// `[api]`: the socket of the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    pub socket: PathBuf,
    /// Members may use the API beside root.
    pub group: Option<String>,
}

/// `[metrics]`: the Prometheus endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    pub listen: Listen,
    /// Beyond this, series of backends are summed up by service.
    pub max_series: usize,
}

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    Off,
    At(SocketAddr),
}

/// `[state]`: what survives a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StateSettings {
    pub directory: PathBuf,
}

/// `[seeds]`: how often the seeds of the CPUs change, and where the shared one comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Seeds {
    pub interval: Seconds,
    /// Each interval is longer or shorter by at most this share.
    pub jitter: f64,
    /// Nodes with the same secret pick alike in `fleet` selection.
    pub fleet_secret_file: Option<PathBuf>,
}

/// `[skew]`: how the spread of new flows is watched, and what is done about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Skew {
    /// Between checks.
    pub interval: Seconds,
    /// Of the whole host, on average at most so many.
    pub false_alarms_per_year: f64,
    /// Whether remedies are carried out without being asked for. If not, seeds and slots that something else wrote are
    /// told of and left until a command writes them (`reload`, `apply`, `seeds rotate`), or the daemon starts.
    pub auto_heal: bool,
    /// Services for which that is otherwise, as far as their slots are concerned.
    pub auto_heal_services: BTreeMap<String, bool>,
    /// New seeds because of an alarm, at most so often; 0: never. Writing again what was falsified takes nothing of it.
    pub rotations_per_hour: u32,
    /// Between two of them.
    pub cooldown: Seconds,
}

fn default_pin_directory() -> PathBuf {
    "/sys/fs/bpf/evenkeel".into()
}

fn default_announce_interface() -> String {
    "lo".to_owned()
}

const fn default_max_flows() -> u32 {
    1_000_000
}

const fn default_max_services() -> u32 {
    4096
}

const fn default_max_backends() -> u32 {
    16_384
}

const fn default_max_slots() -> u32 {
    4_194_304
}

const fn default_new_timeout() -> Seconds {
    Seconds(30)
}

const fn default_established_timeout() -> Seconds {
    Seconds(6 * 3600)
}

const fn default_closing_timeout() -> Seconds {
    Seconds(10)
}

const fn default_icmp_rate() -> u32 {
    1000
}

impl Datapath {
    /// Buckets of the flow table: the next power of two that holds twice `max_flows`. More than half full, new
    /// flows would push out others too often.
    pub fn flow_buckets(&self) -> u32 {
        (u64::from(self.max_flows) * 2)
            .div_ceil(WAYS as u64)
            .next_power_of_two() as u32
    }

    /// Flows that a table of this size promises: `max_flows` or, by rounding, up to twice that.
    pub fn promised_flows(&self) -> u64 {
        u64::from(self.flow_buckets()) * WAYS as u64 / 2
    }

    /// Octets of the flow table: 32 for each of [`promised_flows`](Self::promised_flows).
    pub fn flow_table_bytes(&self) -> u64 {
        u64::from(self.flow_buckets()) * size_of::<FlowBucket>() as u64
    }

    /// Entries of `BACKENDS`: id 0 is never used.
    pub fn backend_entries(&self) -> u32 {
        self.max_backends + 1
    }
}

impl Default for Api {
    fn default() -> Self {
        Self {
            socket: "/run/evenkeel/api.sock".into(),
            group: None,
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 9890))),
            max_series: 100_000,
        }
    }
}

impl Default for StateSettings {
    fn default() -> Self {
        Self {
            directory: "/var/lib/evenkeel".into(),
        }
    }
}

impl Default for Seeds {
    fn default() -> Self {
        Self {
            interval: Seconds(600),
            jitter: 0.2,
            fleet_secret_file: None,
        }
    }
}

impl Default for Skew {
    fn default() -> Self {
        Self {
            interval: Seconds(1),
            false_alarms_per_year: 1.0,
            auto_heal: true,
            auto_heal_services: BTreeMap::new(),
            rotations_per_hour: 4,
            cooldown: Seconds(60),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "off" => Ok(Self::Off),
            address => address.parse().map(Self::At).map_err(|_| {
                format!("{address:?} is no address and port; use one like \"127.0.0.1:9890\", or \"off\"")
            }),
        }
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        match listen {
            Listen::Off => "off".to_owned(),
            Listen::At(address) => address.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_table_costs_at_most_34_octets_a_promised_flow() {
        let table = |max_flows| Datapath {
            max_flows,
            ..toml::from_str("interfaces = [\"eth0\"]").unwrap()
        };
        for (max_flows, buckets) in [
            (1_000_000, 524_288),
            (1 << 20, 524_288),
            (1, 1),
            (1024, 512),
            (1 << 28, 1 << 27),
        ] {
            let table = table(max_flows);
            assert_eq!(table.flow_buckets(), buckets);
            assert!(table.promised_flows() >= u64::from(max_flows));
            assert_eq!(table.flow_table_bytes(), 32 * table.promised_flows());
        }
        let default = table(default_max_flows());
        assert!(default.flow_table_bytes() as f64 / f64::from(default.max_flows) <= 34.0);
    }
}
