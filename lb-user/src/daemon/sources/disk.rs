//! What sources say, kept on disk for the next start.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use futures_util::FutureExt;
use tokio::task::{block_in_place, spawn_blocking};

use super::{
    super::{bring::unix_now, controller::Controller, edits::with_sources},
    Sources,
};
use crate::{
    api::types::Problem,
    config::ServiceSpec,
    discovery::registry::SavedSources,
    events::Kind,
    state::last_known_good::{Durable, Store, StoreError},
};

/// Services whose states are each put on the medium; more at once are left to the file system's own time.
const EACH_DURABLE: usize = 8;

/// A directory a service; no name of a service is one that means something to the file system.
fn store(directory: &Path, service: &str) -> Store<SavedSources> {
    Store::new(directory.join(format!("{service}.service")))
}

pub(super) fn load<'a>(
    directory: &Path,
    services: impl Iterator<Item = &'a ServiceSpec>,
    notes: &mut Vec<String>,
) -> BTreeMap<String, (u64, SavedSources)> {
    let loaded = services.filter_map(|spec| match store(directory, &spec.name).load() {
        Ok(loaded) => {
            notes.extend(loaded.notes);
            Some((spec.name.clone(), (loaded.saved_at?, loaded.state?)))
        }
        Err(error) => {
            notes.push(with_sources(&error));
            None
        }
    });
    loaded.collect()
}

impl Sources {
    /// Writes what is believed of these services to disk: a daemon that is killed from now on starts from it. What a host
    /// starts from that loses power follows by [`Self::flush`]; with its power it loses the maps, too, so they need not wait.
    /// What cannot be written is tried again by the next call.
    pub(super) fn save(&mut self, names: &BTreeSet<String>) -> Result<(), StoreError> {
        self.unsaved.extend(names.iter().cloned());
        let each_durable = self.unsaved.len() <= EACH_DURABLE;
        while let Some(name) = self.unsaved.first() {
            let store = store(&self.directory, name);
            store.save(&self.registry.to_save(name), unix_now(), Durable::Later)?;
            if let Some(name) = self.unsaved.pop_first()
                && each_durable
            {
                self.unflushed.insert(name);
            }
        }
        Ok(())
    }

    /// Begins to put on the medium what is not there yet, unless that goes on already. Answers how the last time ended.
    pub(super) fn flush(&mut self) -> Option<Result<(), StoreError>> {
        let ended = match &mut self.flushing {
            Some(task) => {
                let ended = task.now_or_never()?;
                self.flushing = None;
                // A task that panicked has flushed nothing; so it says in the log.
                ended.ok()
            }
            None => None,
        };
        if !self.unflushed.is_empty() {
            let names = std::mem::take(&mut self.unflushed);
            let directory = self.directory.clone();
            let flush = move || names.iter().try_for_each(|name| store(&directory, name).flush());
            self.flushing = Some(spawn_blocking(flush));
        }
        ended
    }
}

impl Controller {
    /// Writes what could not be written before.
    pub(super) fn save_again(&mut self) {
        if !self.sources.unsaved.is_empty() {
            let saved = block_in_place(|| self.sources.save(&BTreeSet::new()));
            self.note_disk(saved);
        }
    }

    /// Puts what the sources say on the medium, in its own time.
    pub(super) fn flush_sources(&mut self) {
        if let Some(ended) = self.sources.flush() {
            self.note_disk(ended);
        }
    }

    /// A full disk must not keep backends out: the next start may then begin with what was known before.
    pub(super) fn note_disk(&mut self, result: Result<(), StoreError>) {
        match result {
            Ok(()) => drop(self.troubles.remove("sources on disk")),
            Err(error) => {
                let problem = Problem {
                    object: "state directory".to_owned(),
                    problem: format!("what the sources say is not kept: {}", with_sources(&error)),
                    next_step: "make room there: a restart would begin with older backends".to_owned(),
                };
                if self.troubles.insert("sources on disk", problem.clone()).as_ref() != Some(&problem) {
                    self.shared
                        .events
                        .record(Kind::Degraded, problem.object, problem.problem);
                }
            }
        }
    }
}
