//! What sources speak of.

use std::{collections::BTreeSet, net::IpAddr};

use serde::{Deserialize, Serialize};

use crate::state::desired::BackendState;

/// Heaviest weight, as for backends of the file.
pub const MAX_WEIGHT: u32 = 65_535;
/// Tags kept of an endpoint, and octets of a tag or zone.
pub const MAX_TAGS: usize = 16;
pub const MAX_WORD: usize = 128;

/// A backend as a source names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Where packets go; canonical (an IPv4-mapped IPv6 address is IPv4).
    pub address: IpAddr,
    /// The port that the source names. `dsr` and `ipip` leave ports as they are: only health checks use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Serving or draining.
    pub state: BackendState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
}

/// An entry of a source that is no endpoint; the others count all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The entry as the source wrote it, shortened.
    pub entry: String,
    pub reason: String,
}

/// What a source saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// All endpoints there are now.
    Snapshot {
        endpoints: Vec<Endpoint>,
        refused: Vec<Refused>,
        /// The server's own name for this state (revision, index, ETag), for people.
        revision: Option<String>,
    },
    /// What changed since the update before.
    Delta {
        /// New or different.
        set: Vec<Endpoint>,
        gone: Vec<IpAddr>,
        refused: Vec<Refused>,
        revision: Option<String>,
    },
    /// Everything is still as it was.
    Confirmed,
}

impl Endpoint {
    /// A serving endpoint of weight 1.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address: address.to_canonical(),
            port: None,
            weight: 1,
            state: BackendState::Serving,
            zone: None,
            tags: BTreeSet::new(),
        }
    }
}

impl Refused {
    pub fn new(entry: impl Into<String>, reason: impl Into<String>) -> Self {
        let mut entry = entry.into();
        if entry.len() > MAX_WORD {
            let end = (0..=MAX_WORD).rev().find(|end| entry.is_char_boundary(*end));
            entry.truncate(end.unwrap_or(0));
            entry.push('…');
        }
        Self {
            entry,
            reason: reason.into(),
        }
    }
}
