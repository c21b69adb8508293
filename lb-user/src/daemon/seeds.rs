//! New seeds: by the clock, on command, or because the fresh-key bitmap is nearly full.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use lb_common::seed::{self, SHARED, Seed};

use super::{
    controller::{Controller, failed},
    edits,
    ledger::BringError,
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{Done, Rotate},
    },
    events::Kind,
    maps::Scope,
    metrics::{RotationCause, Trigger},
    seeds::{self, SeedError, Which},
};

/// A fuller bitmap of fresh keys asks for an early rotation: beyond it, repeated keys hide new ones.
const FRESH_LIMIT: f64 = 0.9;
/// A failed rotation by the clock is tried again after this.
const RETRY: Duration = Duration::from_secs(30);

/// Why seeds could not be rotated.
#[derive(Debug, thiserror::Error)]
pub(super) enum RotateError {
    #[error(transparent)]
    Random(#[from] SeedError),
    #[error("cannot write the new seeds")]
    Write(#[source] BringError),
}

impl Controller {
    /// Rotates the seeds whose time has come.
    pub(super) fn rotate_due(&mut self) {
        let due = self.seed_clock.due(Instant::now());
        self.rotate_or_retry(&due, RotationCause::Timer);
    }

    /// Rotates the CPU seeds whose bitmap of fresh keys is nearly full.
    pub(super) fn rotate_full(&mut self) {
        let cpus = seed::of_cpu(0)..self.seed_clock.views().len() as u32;
        let full: Vec<u32> = cpus
            .filter(|index| self.shared.counters.fresh_fill(*index) > FRESH_LIMIT)
            .collect();
        self.rotate_or_retry(&full, RotationCause::FreshKeysFull);
    }

    fn rotate_or_retry(&mut self, indices: &[u32], cause: RotationCause) {
        if indices.is_empty() {
            return;
        }
        if let Err(error) = self.rotate(&indices.iter().copied().collect(), cause) {
            self.seed_clock.postpone(indices, Instant::now() + RETRY);
            self.shared
                .events
                .record(Kind::Degraded, "seeds", edits::with_sources(&error));
        }
    }

    /// Rotates what a client asked for.
    pub(super) fn rotate_on_command(&mut self, which: Rotate) -> Result<Done, Refusal> {
        let cpus = self.shared.counters.cpus();
        let indices: BTreeSet<u32> = match which {
            Rotate::Cpu(cpu) if cpu < cpus => [seed::of_cpu(cpu)].into(),
            Rotate::Cpu(cpu) => {
                let error = format!("there is no CPU {cpu}");
                let next_step = format!("give a number from 0 to {}", cpus.saturating_sub(1));
                return Err(Refusal::new(RefusalKind::NotFound, error, next_step));
            }
            Rotate::Shared => [SHARED].into(),
            Rotate::Cpus => (0..cpus).map(seed::of_cpu).collect(),
            Rotate::All => (0..=cpus).collect(),
        };
        if indices.contains(&SHARED) && self.config.seeds.fleet_secret_file.is_some() {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                "the shared seed comes from the fleet's secret, so that every node picks alike",
                "change the file named by fleet_secret_file on every node, then `evenkeel reload`",
            ));
        }
        let start = Instant::now();
        let steps = self
            .rotate(&indices, RotationCause::Command)
            .map_err(|error| failed(&error))?;
        if let Some(watch) = self.shared.skew.get() {
            watch.rotated();
        }
        self.shared.recorder.change_applied(start.elapsed());
        Ok(Done {
            revision: self.ledger.overlay.revision(),
            steps,
            text: written(&indices),
            notes: Vec::new(),
        })
    }

    pub(super) fn rotate(
        &mut self,
        indices: &BTreeSet<u32>,
        cause: RotationCause,
    ) -> Result<usize, RotateError> {
        // Generations go on from what was written, whatever else may stand in the maps.
        let mut known = self.ledger.maps.seeds();
        for (index, seed) in &self.ledger.desired.seeds {
            if let Some(known) = known.get_mut(*index as usize) {
                *known = *seed;
            }
        }
        let mut renewed = seeds::rotate(&known, Which::All)?;
        renewed.retain(|index, _| indices.contains(index));
        self.write_seeds(renewed, cause)
    }

    fn write_seeds(
        &mut self,
        renewed: BTreeMap<u32, Seed>,
        cause: RotationCause,
    ) -> Result<usize, RotateError> {
        if renewed.is_empty() {
            return Ok(0);
        }
        let indices: BTreeSet<u32> = renewed.keys().copied().collect();
        let before = self.ledger.desired.seeds.clone();
        self.ledger.desired.seeds.extend(renewed);
        let result = self.bring_about(&Scope::Services(BTreeSet::new()), Trigger::Seeds);
        if result.is_err() {
            self.ledger.desired.seeds = before;
        }
        self.look_at_seeds();
        let steps = result.map_err(RotateError::Write)?;
        self.shared.recorder.rotated(cause, indices.len());
        self.shared.events.record(
            Kind::Seeds,
            "seeds",
            format!("{} ({})", written(&indices), cause.name()),
        );
        Ok(steps)
    }

    /// Takes ages and due times from what the maps hold.
    pub(super) fn look_at_seeds(&mut self) {
        let now = Instant::now();
        self.seed_clock.observe(&self.ledger.maps.seeds(), now, || {
            seeds::random().unwrap_or(u64::MAX / 2)
        });
        self.publish(Some(&BTreeSet::new()));
    }

    /// At the start and after a reload: seeds that are unset or unfit, and the shared one from the fleet's secret.
    pub(super) fn fill_seeds(
        &mut self,
        secret: Option<&[u8]>,
        cause: RotationCause,
    ) -> Result<usize, Refusal> {
        let observed = self.ledger.maps.seeds();
        let missing = seeds::missing(&observed, secret).map_err(|error| failed(&error))?;
        let kept = (0u32..)
            .zip(observed)
            .filter(|(index, seed)| seed.generation != 0 && !missing.contains_key(index));
        for (index, seed) in kept {
            self.ledger.desired.seeds.insert(index, seed);
        }
        self.write_seeds(missing, cause).map_err(|error| failed(&error))
    }

    /// The fleet's secret as configured.
    pub(super) fn secret(config: &crate::config::Config) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(path) = &config.seeds.fleet_secret_file else {
            return Ok(None);
        };
        let refuse = |error: String| {
            let next_step =
                "put the fleet's secret (16 octets or more) there, readable by the daemon".to_owned();
            Refusal::new(RefusalKind::Invalid, error, next_step)
        };
        let secret = std::fs::read(path)
            .map_err(|error| refuse(format!("cannot read {}: {error}", path.display())))?;
        let secret = secret.trim_ascii().to_vec();
        if secret.len() < 16 {
            return Err(refuse(format!(
                "{} holds only {} octets",
                path.display(),
                secret.len()
            )));
        }
        Ok(Some(secret))
    }
}

fn written(indices: &BTreeSet<u32>) -> String {
    let cpus = indices.iter().filter(|index| **index != SHARED).count();
    match (cpus, indices.contains(&SHARED)) {
        (0, _) => "new shared seed".to_owned(),
        (1, false) => "new seed for 1 CPU".to_owned(),
        (cpus, false) => format!("new seeds for {cpus} CPUs"),
        (cpus, true) => format!("new seeds for {cpus} CPUs and new shared seed"),
    }
}
