//! The way of health checks through VIPs: open while a service asks for it, and held by this process alone.
//!
//! Nothing of them is pinned: with the process go its descriptors, and with these the links, the programs and the map.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lb_common::check::{CHECKS, CheckEntry, CheckKey};

use super::check_programs::{CheckPathError, Loaded, Refused};

/// How long the port of a check without an answer is not used again: the answer may come late, and from a VIP, which does
/// not say which backend it is of.
const QUARANTINE: Duration = Duration::from_secs(5);
/// What the kernel refused to load is tried again after this time.
const AGAIN: Duration = Duration::from_secs(60);
/// Most ports that are kept so; beyond, the oldest is given up.
const MOST_QUARANTINED: usize = 4096;

/// The way of checks through VIPs: closed until [`follow`](Self::follow) opens it.
#[derive(Default)]
pub struct CheckPath {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    /// Why it is not loaded although it should be, and when it is tried again.
    refused: Option<(String, Instant)>,
    quarantine: VecDeque<(Instant, CheckKey, OwnedFd)>,
}

/// A check that is under way; on drop no more.
pub struct Entered {
    path: Arc<CheckPath>,
    key: CheckKey,
    /// Its port and entry are in quarantine.
    kept: bool,
}

impl CheckPath {
    /// Attaches to these interfaces, by index, and to no others; with none the programs are unloaded. Programs of others
    /// stay, and come after. What cannot be attached to is left out, and the first reason given back.
    ///
    /// # Errors
    /// Why checks, or those by some interface, cannot be handed over.
    pub fn follow(&self, interfaces: &BTreeSet<u32>) -> Result<(), CheckPathError> {
        let mut state = self.state();
        if interfaces.is_empty() {
            *state = State::default();
            return Ok(());
        }
        if state.loaded.is_none() {
            state.load(Instant::now())?;
        }
        match &mut state.loaded {
            Some(loaded) => loaded.attach(interfaces),
            None => Ok(()),
        }
    }

    /// Has the packets of a socket with this end handed over until the answer is dropped. `None`: the check that had the
    /// port before is just about to leave it; another port is to be tried.
    ///
    /// # Errors
    /// Why this host cannot do it, as a sentence.
    pub fn enter(self: &Arc<Self>, key: CheckKey, entry: CheckEntry) -> Result<Option<Entered>, String> {
        let mut state = self.state();
        state.end_quarantine(Instant::now());
        let Some(loaded) = &mut state.loaded else {
            return Err(match &state.refused {
                Some((reason, _)) => reason.clone(),
                None => "checks through the VIP are not prepared yet".to_owned(),
            });
        };
        match loaded.insert(key, entry) {
            Ok(()) => Ok(Some(Entered {
                path: Arc::clone(self),
                key,
                kept: false,
            })),
            Err(Refused::Taken) => Ok(None),
            Err(Refused::Full) => Err(format!(
                "{} checks through VIPs are under way, and no more can be",
                CHECKS.capacity
            )),
            Err(Refused::Other(error)) => Err(format!(
                "the check cannot be handed over to the VIP: {}",
                with_causes(&error)
            )),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entered {
    /// Whether a packet of the check was handed over to the VIP; without that an answer says nothing about it.
    pub fn was_handed(&self) -> bool {
        let state = self.path.state();
        state
            .loaded
            .as_ref()
            .is_some_and(|loaded| loaded.was_handed(&self.key))
    }

    /// Keeps the check's socket, and with it its port and entry, for as long as an answer may be late.
    pub fn keep_port(mut self, socket: OwnedFd) {
        let mut state = self.path.state();
        if state.quarantine.len() >= MOST_QUARANTINED {
            state.release_oldest();
        }
        let end = Instant::now() + QUARANTINE;
        state.quarantine.push_back((end, self.key, socket));
        drop(state);
        self.kept = true;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Some(loaded) = &mut self.path.state().loaded {
            loaded.remove(&self.key);
        }
    }
}

impl State {
    fn load(&mut self, now: Instant) -> Result<(), CheckPathError> {
        if self.refused.as_ref().is_some_and(|(_, again)| now < *again) {
            return Err(CheckPathError::Waiting);
        }
        match Loaded::new() {
            Ok(loaded) => {
                self.loaded = Some(loaded);
                self.refused = None;
                Ok(())
            }
            Err(error) => {
                self.refused = Some((with_causes(&error), now + AGAIN));
                Err(error)
            }
        }
    }

    fn end_quarantine(&mut self, now: Instant) {
        while self.quarantine.front().is_some_and(|(end, ..)| *end <= now) {
            self.release_oldest();
        }
    }

    fn release_oldest(&mut self) {
        let Some((_, key, _socket)) = self.quarantine.pop_front() else {
            return;
        };
        if let Some(loaded) = &mut self.loaded {
            // Before the port is free for another.
            loaded.remove(&key);
        }
    }
}

/// An error and what led to it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl fmt::Debug for CheckPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("CheckPath")
            .field("open", &state.loaded.is_some())
            .field("refused", &state.refused)
            .finish()
    }
}
