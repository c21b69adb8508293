//! The changes people ask for: edits, files of services, another configuration.

use std::{collections::BTreeSet, time::Instant};

use tokio::task::block_in_place;

use super::{
    bring::Proposal,
    controller::{Controller, failed},
    edits, host,
    start::attach_options,
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{ApplyFile, Change, Done, Problem},
    },
    config::{self, Config, ConfigError},
    events::Kind,
    metrics::{RotationCause, Trigger},
};

impl Controller {
    /// Edits through the interface.
    pub(super) async fn change(&mut self, change: &Change) -> Result<Done, Refusal> {
        self.ledger.overlay.check_revision(change.if_revision)?;
        let overlay = edits::edited(&self.ledger.overlay, &self.sources.base, &change.edits)?;
        self.bring(Proposal {
            config: None,
            overlay,
            trigger: Trigger::Edit,
            text: edits::describe(&change.edits),
            names: Some(edits::services_of(&change.edits)),
            since: Instant::now(),
        })
        .await
    }

    /// Services and backends of a file, kept like edits.
    pub(super) async fn apply_file(&mut self, file: &ApplyFile) -> Result<Done, Refusal> {
        self.ledger.overlay.check_revision(file.if_revision)?;
        let specs = config::parse_services(&file.toml, &file.file).map_err(|problems| invalid(&problems))?;
        let count = match specs.len() {
            1 => "1 service".to_owned(),
            count => format!("{count} services"),
        };
        let text = format!("{}: {count} applied", file.file);
        let mut overlay = self.ledger.overlay.clone();
        overlay.apply_file(&self.sources.base, specs)?;
        self.bring(Proposal {
            config: None,
            overlay,
            trigger: Trigger::Edit,
            text,
            names: None,
            since: Instant::now(),
        })
        .await
        .map(|done| self.put_right(done, Trigger::Edit))
    }

    /// Reads the configuration file again. A file that does not fit changes nothing.
    pub(super) async fn reload(&mut self) -> Result<Done, Refusal> {
        let result = self.reload_file().await;
        self.shared.recorder.reloaded(result.is_ok());
        let file = self.shared.config_file.display().to_string();
        match &result {
            Ok(_) => {
                self.troubles.remove("config");
            }
            Err(refusal) => {
                let text = format!("not reloaded, nothing changed: {refusal}");
                self.shared
                    .events
                    .record(Kind::Config, file.clone(), text.clone());
                let problem = Problem {
                    object: file,
                    problem: text,
                    next_step: "correct the file (see `evenkeel check`), then `evenkeel reload`".to_owned(),
                };
                self.troubles.insert("config", problem);
            }
        }
        self.publish(Some(&BTreeSet::new()));
        result
    }

    async fn reload_file(&mut self) -> Result<Done, Refusal> {
        let config = Config::load(&self.shared.config_file).map_err(|error| match error {
            ConfigError::Problems(problems) => invalid(&problems),
            error @ ConfigError::Read { .. } => {
                let next_step = "make the file readable, then `evenkeel reload`";
                Refusal::new(RefusalKind::Invalid, edits::with_sources(&error), next_step)
            }
        })?;
        let secret = Self::secret(&config)?;
        let on_disk = block_in_place(|| self.sources.configure(&config.services));
        let result = self.bring_config(config, secret, on_disk).await;
        if result.is_err() {
            let before = self.config.services.clone();
            block_in_place(|| self.sources.configure(&before));
        }
        result
    }

    async fn bring_config(
        &mut self,
        config: Config,
        secret: Option<Vec<u8>>,
        on_disk: Vec<String>,
    ) -> Result<Done, Refusal> {
        let mut overlay = self.ledger.overlay.clone();
        let mut notes = overlay.settle(&self.sources.inject(&config.services));
        notes.extend(on_disk);
        notes.extend(waiting_for_restart(&self.config, &config));
        let old = self.config.clone();
        let text = format!("{} reloaded", config.file);
        let proposal = Proposal {
            config: Some(config.clone()),
            overlay,
            trigger: Trigger::Reload,
            text,
            names: None,
            since: Instant::now(),
        };
        // A file that is refused must not have moved the program to other interfaces.
        block_in_place(|| self.differences(&proposal))?;
        self.attach_again(&config)?;
        let mut done = match self.bring(proposal).await {
            Ok(done) => done,
            Err(refusal) => {
                if let Err(error) = self.attach_again(&old) {
                    tracing::error!("cannot go back to the interfaces of before: {error}");
                }
                return Err(refusal);
            }
        };
        if let Some(watch) = self.shared.skew.get() {
            watch.configure(self.config.watch_settings());
        }
        self.limit_seed_age();
        let rhythm = &self.config.seeds;
        let random = || crate::seeds::random().unwrap_or(u64::MAX / 2);
        if (rhythm.interval, rhythm.jitter) != (old.seeds.interval, old.seeds.jitter) {
            self.seed_clock
                .set_rhythm(rhythm.interval.duration(), rhythm.jitter, Instant::now(), random);
        }
        if let Some(secret) = secret {
            done.steps += block_in_place(|| self.fill_seeds(Some(&secret), RotationCause::Command))?;
        }
        done.notes.extend(notes);
        Ok(self.put_right(done, Trigger::Reload))
    }

    fn attach_again(&mut self, config: &Config) -> Result<(), Refusal> {
        let (before, after) = (&self.config.datapath, &config.datapath);
        let attached: BTreeSet<&str> = self
            .datapath
            .attached()
            .iter()
            .map(|interface| interface.name.as_str())
            .collect();
        let wanted: BTreeSet<&str> = after.interfaces.iter().map(String::as_str).collect();
        if attached == wanted && before.xdp_mode == after.xdp_mode {
            return Ok(());
        }
        let options = attach_options(config, &self.options);
        block_in_place(|| self.datapath.attach(&options)).map_err(|error| {
            let next_step = "look at `interfaces` and `xdp_mode` under [datapath]";
            Refusal::new(RefusalKind::Invalid, edits::with_sources(&error), next_step)
        })?;
        Ok(())
    }
}

pub(super) fn invalid(problems: &config::Problems) -> Refusal {
    Refusal::new(RefusalKind::Invalid, problems.statement(), problems.next_step())
}

impl From<host::HostError> for Refusal {
    fn from(error: host::HostError) -> Self {
        match error {
            host::HostError::Unfit(problems) => invalid(&problems),
            host::HostError::Look(_) => failed(&error),
        }
    }
}

/// Settings that the running daemon does not take over.
fn waiting_for_restart(before: &Config, after: &Config) -> Vec<String> {
    let (old, new) = (&before.datapath, &after.datapath);
    let capacity = |of: &config::Datapath| (of.max_flows, of.max_services, of.max_backends, of.max_slots);
    let rows = [
        (
            old.pin_directory != new.pin_directory,
            "datapath.pin_directory",
            "a restart",
        ),
        (
            capacity(old) != capacity(new),
            "max_flows, max_services, max_backends or max_slots",
            "`evenkeel detach` and a start",
        ),
        (before.api != after.api, "[api]", "a restart"),
        (before.metrics != after.metrics, "[metrics]", "a restart"),
        (before.state != after.state, "[state]", "a restart"),
    ];
    let changed = rows.into_iter().filter(|(changed, ..)| *changed);
    changed
        .map(|(_, what, when)| format!("{what} takes effect after {when}"))
        .collect()
}
