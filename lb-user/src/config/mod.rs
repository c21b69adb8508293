//! The configuration: TOML as written, checked as a whole, with every error on its line.

pub mod check;
mod check_sources;
mod document;
mod file;
mod keys;
pub mod problem;
pub mod seconds;
pub mod sections;
pub mod spec;

#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

pub use check::{HostFacts, check_host, validate};
pub use problem::{Place, Problem, Problems};
pub use seconds::{Millis, Seconds};
pub use sections::{Api, Datapath, Listen, Metrics, Ping, Seeds, Skew, StateSettings, XdpMode};
pub use spec::{BackendSpec, Port, ServiceSpec};

use lb_common::fingerprint::FingerprintKey;

use crate::{
    skew::state::Limits,
    state::desired::{DesiredSettings, Sampling},
    watch::monitor,
};

/// A configuration without known faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file's name, for messages.
    pub file: String,
    pub datapath: Datapath,
    pub api: Api,
    pub metrics: Metrics,
    pub state: StateSettings,
    pub seeds: Seeds,
    pub skew: Skew,
    pub services: Vec<ServiceSpec>,
}

/// Why a configuration file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0}")]
    Problems(Problems),
}

impl Config {
    /// Reads and checks a configuration; `file` is its name in messages. All problems are reported at once.
    pub fn from_str(text: &str, file: &str) -> Result<Self, Problems> {
        file::read(text, file)
    }

    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?;
        Self::from_str(&text, &path.display().to_string()).map_err(ConfigError::Problems)
    }

    /// How the spread of new flows is watched.
    pub fn watch_settings(&self) -> monitor::Settings {
        let Skew {
            interval,
            false_alarms_per_year,
            auto_heal,
            rotations_per_hour,
            cooldown,
            ..
        } = self.skew;
        monitor::Settings {
            interval: interval.duration(),
            false_alarms_per_year,
            auto_heal,
            auto_heal_services: self.skew.auto_heal_services.clone(),
            limits: Limits {
                most: rotations_per_hour,
                window: Duration::from_secs(3600),
                cooldown: cooldown.duration(),
            },
        }
    }

    /// What the datapath is told; the key is used only while its maps hold none.
    pub fn desired_settings(&self, table_key: FingerprintKey, sampling: Sampling) -> DesiredSettings {
        DesiredSettings {
            table_key,
            sampling,
            new_timeout: self.datapath.new_timeout.get(),
            established_timeout: self.datapath.established_timeout.get(),
            closing_timeout: self.datapath.closing_timeout.get(),
            ping_kernel: self.datapath.ping == Ping::Kernel,
            icmp_rate: self.datapath.icmp_rate,
        }
    }
}

/// Reads a file that holds `[[service]]` and nothing else, as `evenkeel apply -f` takes it.
pub fn parse_services(text: &str, file: &str) -> Result<Vec<ServiceSpec>, Problems> {
    file::read_services(text, file)
}

/// [`parse_services`] of a file.
pub fn load_services(path: &Path) -> Result<Vec<ServiceSpec>, ConfigError> {
    let text = read(path)?;
    parse_services(&text, &path.display().to_string()).map_err(ConfigError::Problems)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}
