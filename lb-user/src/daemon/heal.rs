//! What the watch asks of the controller: remedies, and how many flows to sample.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use lb_common::seed::{SHARED, Seed, of_cpu};

use super::{controller::Controller, edits};
use crate::{
    maps::{MapError, Scope},
    metrics::{RotationCause, Trigger},
    program::ProbeError,
    skew::{
        attribution::{Place, seed_findings},
        state::Remedy,
    },
    state::desired::Sampling,
    watch::{Desk, Watch, source::Mapped},
};

impl Controller {
    /// Carries out a remedy; answers how many steps that took.
    pub(super) fn heal(&mut self, remedy: &Remedy) -> Result<usize, String> {
        let result = match remedy {
            Remedy::RotateSeeds { cpus } => self.rotate_against_skew(cpus.as_ref()),
            Remedy::RewriteSeeds => self.rewrite_seeds(),
            Remedy::RewriteSlots { service } => self.rewrite_slots(service),
        };
        if result.is_ok() {
            self.publish(None);
        }
        result
    }

    /// The shared seed is left out where every node of a fleet must have the same.
    fn rotate_against_skew(&mut self, cpus: Option<&BTreeSet<u32>>) -> Result<usize, String> {
        let possible = self.shared.counters.cpus();
        let mut indices: BTreeSet<u32> = match cpus {
            Some(cpus) => cpus
                .iter()
                .filter(|cpu| **cpu < possible)
                .map(|cpu| of_cpu(*cpu))
                .collect(),
            None => (0..=possible).collect(),
        };
        if self.config.seeds.fleet_secret_file.is_some() {
            indices.remove(&SHARED);
        }
        self.rotate(&indices, RotationCause::Skew)
            .map_err(|error| edits::with_sources(&error))
    }

    /// A CPU's seed that is not as written gets a new one: whatever wrote it may know the old one. The shared one is
    /// written as it was, since clients stay where they are by it.
    fn rewrite_seeds(&mut self) -> Result<usize, String> {
        let wanted: &BTreeMap<u32, Seed> = &self.ledger.desired.seeds;
        let findings = seed_findings(&self.ledger.maps.seeds(), wanted);
        // Any change in between, of samples even, has written the old one again; the watch knows what it found.
        let found = self.shared.skew.get().map(|desk| desk.cpus_with_wrong_seed());
        let cpus: BTreeSet<u32> = findings
            .iter()
            .filter_map(|finding| match finding.place {
                Place::Cpu(cpu) => Some(cpu),
                Place::Shared => None,
            })
            .chain(found.into_iter().flatten())
            .map(of_cpu)
            .collect();
        let rotated = match cpus.is_empty() {
            true => 0,
            false => self
                .rotate(&cpus, RotationCause::Skew)
                .map_err(|error| edits::with_sources(&error))?,
        };
        let nothing = Scope::Services(BTreeSet::new());
        let rewritten = self
            .bring_about(&nothing, Trigger::Heal)
            .map_err(|error| edits::with_sources(&error))?;
        self.look_at_seeds();
        Ok(rotated + rewritten)
    }

    fn rewrite_slots(&mut self, service: &str) -> Result<usize, String> {
        let effective = self.ledger.effective.services.get(service);
        let key = effective
            .ok_or_else(|| format!("there is no service {service:?} any more"))?
            .spec
            .key();
        let result = self.bring_about(&Scope::Services([key].into()), Trigger::Heal);
        self.note_outcome(&result, service);
        result.map_err(|error| edits::with_sources(&error))
    }

    /// Has another part of the traffic sampled.
    pub(super) fn sample(&mut self, sampling: Sampling) -> Result<(), String> {
        let before = std::mem::replace(&mut self.ledger.desired.settings.sampling, sampling);
        let nothing = Scope::Services(BTreeSet::new());
        self.bring_about(&nothing, Trigger::Samples).map_err(|error| {
            self.ledger.desired.settings.sampling = before;
            edits::with_sources(&error)
        })?;
        Ok(())
    }

    /// The datapath goes on without a reader of samples.
    pub(super) fn stop_sampling(&mut self) {
        if let Err(error) = self.sample(Sampling::OFF) {
            tracing::warn!("the datapath goes on taking samples that nobody reads: {error}");
        }
    }

    /// Whether a service's slots are written again without being asked for.
    pub(super) fn heals(&self, service: &str) -> bool {
        let skew = &self.config.skew;
        let own = skew.auto_heal_services.get(service);
        own.copied().unwrap_or(skew.auto_heal)
    }

    /// Half as much again as the longest interval, and a minute: rotations are looked for each second.
    pub(super) fn limit_seed_age(&self) {
        let seeds = &self.config.seeds;
        let longest = seeds.interval.duration().mul_f64(1.0 + seeds.jitter);
        self.shared
            .set_seed_age_limit(longest.mul_f64(1.5) + Duration::from_secs(60));
    }

    /// What watches the spread, over the maps and what was published.
    pub(super) fn make_watch(&mut self) -> Result<Watch, MapError> {
        self.limit_seed_age();
        let source = Mapped::open(&self.config.datapath.pin_directory)?;
        let board = Arc::clone(&self.ledger.board);
        let desk = Arc::new(Desk::new(board, source, self.config.watch_settings()));
        // A second desk would be a second start.
        let _ = self.shared.skew.set(Arc::clone(&desk));
        Ok(Watch {
            desk,
            shared: Arc::clone(&self.shared),
            commands: self.commands.clone(),
            probe: self
                .datapath
                .probe()
                .map_err(|error: ProbeError| edits::with_sources(&error)),
            samples: self.datapath.take_samples(),
        })
    }
}
