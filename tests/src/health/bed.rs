//! A checker with its runtime, and single checks.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use lb_user::health::{
    Change, Checker, Health, HealthSpec, Key, Wanted,
    probe::{Prober, Target},
};
use serde_json::Value;
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};

/// Generous: what is waited for comes within a second or two on a machine with nothing else to do.
const LIMIT: Duration = Duration::from_secs(30);

/// Checks once, as the file would have it in `[service.health]`.
///
/// # Errors
/// Why the check did not pass.
pub fn check(spec: &Value, address: SocketAddr) -> Result<(), String> {
    let spec: HealthSpec = serde_json::from_value(spec.clone()).map_err(|error| error.to_string())?;
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    let prober = Prober::new(&spec.check);
    let target = Target::direct(address);
    let result = runtime.block_on(prober.probe(&target, spec.timeout));
    result.map_err(|failure| failure.to_string())
}

/// A running checker.
pub struct Bed {
    runtime: Runtime,
    pub checker: Checker,
    changes: mpsc::Receiver<Change>,
}

impl Bed {
    pub fn new() -> Result<Self> {
        let (sender, changes) = mpsc::channel(16);
        Ok(Self {
            runtime: Runtime::new()?,
            checker: Checker::start(sender),
            changes,
        })
    }

    /// Wants the backends at these addresses, in the service "web". They have their number in the list as their
    /// address: 192.0.2.1 for the first.
    pub fn want(&self, backends: &[(u8, &Value, SocketAddr)]) -> Result<()> {
        let _context = self.runtime.enter();
        let wanted = |&(number, spec, target): &(u8, &Value, SocketAddr)| {
            let wanted = Wanted {
                spec: Arc::new(serde_json::from_value::<HealthSpec>(spec.clone())?),
                target,
                through: None,
                starts_up: false,
            };
            Ok((key(number), wanted))
        };
        let wanted: Result<BTreeMap<Key, Wanted>> = backends.iter().map(wanted).collect();
        self.checker.want(wanted?);
        Ok(())
    }

    /// The next change: the backend's number, whether it is up, and why not.
    pub fn change(&mut self) -> Result<(u8, bool, Option<String>)> {
        let next = self
            .runtime
            .block_on(async { timeout(LIMIT, self.changes.recv()).await });
        let change = next
            .with_context(|| format!("no change within {LIMIT:?}: {:?}", self.checker.snapshot()))?
            .context("the checker is gone")?;
        let number = match change.key.1 {
            std::net::IpAddr::V4(v4) => v4.octets()[3],
            std::net::IpAddr::V6(_) => 0,
        };
        ensure!(
            change.key == key(number),
            "a change of an unknown backend: {change:?}"
        );
        Ok((number, change.up, change.reason))
    }

    /// Fails when a change is waiting.
    pub fn no_change(&mut self) -> Result<()> {
        let change = self.changes.try_recv();
        ensure!(change.is_err(), "a change that should not be: {change:?}");
        Ok(())
    }

    /// What is known of a backend.
    pub fn health(&self, number: u8) -> Result<Health> {
        let mut snapshot = self.checker.snapshot();
        let health = snapshot.remove(&key(number));
        health.with_context(|| {
            format!(
                "backend {number} is not checked; these are: {:?}",
                snapshot.keys()
            )
        })
    }
}

/// The backend of a number.
pub fn key(number: u8) -> Key {
    (Arc::from("web"), [192, 0, 2, number].into())
}
