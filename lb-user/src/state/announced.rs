//! Which VIPs were put on an interface, kept so that a daemon started later takes them off again.

use std::{collections::BTreeSet, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::last_known_good::Kept;

/// VIPs on the interface that are Evenkeel's to take off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announced {
    pub addresses: BTreeSet<IpAddr>,
}

impl Kept for Announced {
    const NAME: &str = "announced";
}
