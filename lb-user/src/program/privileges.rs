//! Whether this process may load and attach BPF programs.

use rustix::thread::{CapabilitySet, capabilities};

/// Capabilities that the process lacks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too little privilege: {} missing; run as root, or give the service these capabilities \
     (AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_PERFMON)",
    .0.join(", ")
)]
pub struct MissingPrivilege(pub Vec<&'static str>);

/// Checks the effective capabilities of this thread.
pub fn check_privileges() -> Result<(), MissingPrivilege> {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let missing = missing(held);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(MissingPrivilege(missing))
    }
}

/// CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON (capabilities(7)), not CAP_NET_ADMIN.
fn missing(held: CapabilitySet) -> Vec<&'static str> {
    let admin = held.contains(CapabilitySet::SYS_ADMIN);
    [
        ("CAP_BPF", admin || held.contains(CapabilitySet::BPF)),
        ("CAP_NET_ADMIN", held.contains(CapabilitySet::NET_ADMIN)),
        ("CAP_PERFMON", admin || held.contains(CapabilitySet::PERFMON)),
    ]
    .into_iter()
    .filter(|(_, held)| !held)
    .map(|(name, _)| name)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(missing(CapabilitySet::NET_ADMIN), ["CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(missing(CapabilitySet::SYS_ADMIN), ["CAP_NET_ADMIN"]);
        let enough = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
        assert!(missing(enough).is_empty());
        assert!(
            MissingPrivilege(missing(CapabilitySet::empty()))
                .to_string()
                .starts_with(
                    "too little privilege: CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON missing; run as root"
                )
        );
    }
}
