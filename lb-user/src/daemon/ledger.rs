//! The wanted state, the maps that follow it and the disk that remembers it: every change of the datapath goes through here.
//!
//! A change of services is planned, written to disk, applied, and only then in force:
//!
//! * without a plan, or without room on the disk, nothing was touched;
//! * killed in between, the next start finds the change on disk and finishes it. Applied first, a backend whose removal
//!   was cut short would come back under another id, and its flows would be lost;
//! * when a step fails, disk and maps are taken back to what is in force. What was removed before the failure comes back
//!   under other ids, without its flows; removals are among the last steps.

mod hands_off;
#[cfg(test)]
mod tests;
mod undo;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use super::{
    bring::{Changed, unix_now},
    next_hops::{self, NextHops},
    publish,
};
use crate::{
    apply::{Applier, ApplyError},
    config::ServiceSpec,
    maps::{MapError, MapReader, MapWriter, Scope},
    metrics::{Recorder, Trigger},
    net::Resolution,
    plan::{Plan, PlanError, SlotTableCache, make_plan, make_stretch, remove_leftovers, simulate::simulate},
    state::{
        desired::{Desired, DesiredSettings, desired_from, desired_service},
        fitness::Fitness,
        last_known_good::{Durable, Store, StoreError},
        observed::Observed,
        overlay::{Effective, Overlay},
    },
    watch::published::Board,
};
use undo::{Undo, put};

/// What is in force, and the one way to something else.
pub(super) struct Ledger<M> {
    pub overlay: Overlay,
    /// File and overlay together.
    pub effective: Effective,
    pub desired: Desired,
    pub next_hops: NextHops,
    /// The answers that `next_hops` was made from.
    pub resolutions: BTreeMap<IpAddr, Resolution>,
    pub maps: M,
    pub applier: Applier,
    pub tables: SlotTableCache,
    pub store: Store<Overlay>,
    /// What checks found.
    pub fitness: Fitness,
    /// What was written, for the watch to compare with.
    pub board: Arc<Board>,
    /// Seeds that something else wrote are left as they are, unless someone asks for a change.
    pub hands_off: bool,
    /// A change was not finished: what the maps hold is no one's wish.
    behind: bool,
}

/// A plan, and the maps that it was made from.
struct Planned {
    plan: Plan,
    observed: Observed,
    scope: Scope,
}

/// A change of services that was found in order and is not in force yet.
pub(super) struct Draft {
    pub overlay: Overlay,
    pub services: Changed,
    pub settings: DesiredSettings,
    /// What the resolver says of backends that were unknown; those without an answer are here too.
    pub answers: BTreeMap<IpAddr, Option<Resolution>>,
    pub trigger: Trigger,
}

/// A change that is in the maps and on disk.
#[derive(Debug)]
pub(super) struct Entered {
    pub steps: usize,
    /// Services that it touched.
    pub names: BTreeSet<String>,
}

/// Why the datapath could not be brought to what is wanted.
#[derive(Debug, thiserror::Error)]
pub enum BringError {
    #[error("cannot read the maps")]
    Observe(#[source] MapError),
    #[error(transparent)]
    Plan(PlanError),
    #[error(transparent)]
    Apply(ApplyError),
}

/// Why a change is not in force. What was in force is.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotEntered {
    /// Nothing was touched.
    #[error(transparent)]
    Planless(BringError),
    /// Nothing was touched.
    #[error(transparent)]
    Unsaved(StoreError),
    #[error("{}", .0.error)]
    TakenBack(Box<TakenBack>),
}

/// A change that failed while it was applied.
#[derive(Debug)]
pub(super) struct TakenBack {
    pub error: ApplyError,
    pub names: BTreeSet<String>,
    /// Whether the maps were brought back, and in how many steps.
    pub maps: Result<usize, BringError>,
    /// Whether the disk was.
    pub disk: Result<(), StoreError>,
}

impl<M: MapReader + MapWriter> Ledger<M> {
    /// What should be, beside maps that may hold anything yet.
    pub fn new(
        file: &[ServiceSpec],
        overlay: Overlay,
        settings: DesiredSettings,
        maps: M,
        store: Store<Overlay>,
    ) -> Self {
        let effective = overlay.effective(file);
        let desired = desired_from(
            &effective,
            &BTreeMap::new(),
            &Fitness::default(),
            settings,
            BTreeMap::new(),
        );
        Self {
            overlay,
            effective,
            desired,
            next_hops: BTreeMap::new(),
            resolutions: BTreeMap::new(),
            maps,
            applier: Applier::taking_over(),
            tables: SlotTableCache::default(),
            store,
            fitness: Fitness::default(),
            board: Arc::default(),
            hands_off: false,
            behind: false,
        }
    }

    /// Starts from what the maps forward by and what the resolver answered so far.
    pub fn adopt(&mut self, answers: BTreeMap<IpAddr, Resolution>) -> Result<(), BringError> {
        let nothing = Scope::Services(BTreeSet::new());
        let found = self.maps.observe(&nothing).map_err(BringError::Observe)?;
        let adopted = next_hops::adopted(found.backends.values());
        self.resolutions = answers;
        self.next_hops = next_hops::updated(&adopted, &self.resolutions, &self.addresses());
        let names = self.effective.services.keys().cloned().collect();
        self.refresh_desired(&names);
        Ok(())
    }

    /// Makes and applies the plan for `scope`; answers how many steps it had.
    pub fn bring_about(
        &mut self,
        scope: &Scope,
        trigger: Trigger,
        recorder: &Recorder,
    ) -> Result<usize, BringError> {
        let result = self.plan(scope, trigger, recorder).and_then(|mut planned| {
            self.leave_seeds(&mut planned.plan, trigger);
            let steps = self.carry_out(&planned, trigger, recorder);
            steps.map_err(BringError::Apply)
        });
        self.behind = match (&result, scope) {
            (Err(_), _) => true,
            (Ok(_), Scope::All) => false,
            (Ok(_), Scope::Services(_)) => self.behind,
        };
        result
    }

    /// Brings a change about, or leaves everything as it was.
    pub fn enter(&mut self, draft: Draft, recorder: &Recorder) -> Result<Entered, NotEntered> {
        // What sources say has a place of its own.
        let saves = draft.trigger != Trigger::Discovery;
        let undo = self.replace(draft.services, draft.answers, draft.settings);
        let scope = Scope::Services(undo.keys.clone());
        let planned = self
            .plan(&scope, draft.trigger, recorder)
            .map_err(NotEntered::Planless)
            .and_then(|plan| {
                let saved = match saves {
                    true => self.store.save(&draft.overlay, unix_now(), Durable::Now),
                    false => Ok(()),
                };
                saved.map(|()| plan).map_err(NotEntered::Unsaved)
            });
        let planned = match planned {
            Ok(planned) => planned,
            Err(error) => {
                self.restore(undo);
                return Err(error);
            }
        };
        match self.carry_out(&planned, draft.trigger, recorder) {
            Ok(steps) => {
                self.overlay = draft.overlay;
                Ok(Entered {
                    steps,
                    names: undo.names,
                })
            }
            Err(error) => Err(NotEntered::TakenBack(Box::new(
                self.take_back(undo, saves, error, recorder),
            ))),
        }
    }

    fn take_back(&mut self, undo: Undo, saved: bool, error: ApplyError, recorder: &Recorder) -> TakenBack {
        let names = undo.names.clone();
        self.restore(undo);
        TakenBack {
            error,
            names,
            disk: match saved {
                true => self.store.take_back(),
                false => Ok(()),
            },
            // All of it: entries of a service that was to come have nobody yet who would remove them.
            maps: self.bring_about(&Scope::All, Trigger::Rollback, recorder),
        }
    }

    fn plan(&mut self, scope: &Scope, trigger: Trigger, recorder: &Recorder) -> Result<Planned, BringError> {
        let start = Instant::now();
        let planned = match self.look_and_plan(scope) {
            Err(BringError::Plan(PlanError::Backends { .. })) if self.make_room(trigger, recorder)? => {
                self.look_and_plan(scope)
            }
            Err(BringError::Plan(PlanError::Slots { wanted, .. }))
                if self.make_stretch(wanted, trigger, recorder)? =>
            {
                self.look_and_plan(scope)
            }
            planned => planned,
        };
        match &planned {
            Ok(_) => recorder.planned(trigger, start.elapsed()),
            Err(BringError::Plan(_)) => recorder.plan_failed(),
            Err(_) => {}
        }
        planned
    }

    /// The plan for `scope`; nothing is written.
    pub fn dry_run(&mut self, scope: &Scope) -> Result<Plan, BringError> {
        match self.look_and_plan(scope) {
            Err(BringError::Plan(PlanError::Slots { wanted, .. })) => self.dry_run_with_moves(scope, wanted),
            planned => Ok(planned?.plan),
        }
    }

    /// The plan for `scope` behind the one that makes a stretch of `length` slots.
    fn dry_run_with_moves(&mut self, scope: &Scope, length: u32) -> Result<Plan, BringError> {
        let observed = self.maps.observe(&Scope::All).map_err(BringError::Observe)?;
        let mut plan = make_stretch(&observed, length);
        let after = simulate(&observed, &plan);
        let then = make_plan(&self.desired, &after, scope, &mut self.tables).map_err(BringError::Plan)?;
        plan.steps.extend(then.steps);
        Ok(plan)
    }

    fn look_and_plan(&mut self, scope: &Scope) -> Result<Planned, BringError> {
        let observed = self.maps.observe(scope).map_err(BringError::Observe)?;
        let plan = make_plan(&self.desired, &observed, scope, &mut self.tables).map_err(BringError::Plan)?;
        Ok(Planned {
            plan,
            observed,
            scope: scope.clone(),
        })
    }

    /// Applies a plan and publishes what the maps hold by it.
    fn carry_out(
        &mut self,
        planned: &Planned,
        trigger: Trigger,
        recorder: &Recorder,
    ) -> Result<usize, ApplyError> {
        let Planned {
            plan,
            observed,
            scope,
        } = planned;
        let board = Arc::clone(&self.board);
        let writing = board.writing();
        let steps = self.apply(plan, trigger, recorder)?;
        let before = board.read();
        writing.publish(publish::after(&before, &self.desired, scope, observed, plan));
        Ok(steps)
    }

    /// Frees the entries that an apply left to no service when it was cut short; answers whether there were any. What a
    /// plan frees it cannot use, so that without this a full map would stay full at every start.
    fn make_room(&mut self, trigger: Trigger, recorder: &Recorder) -> Result<bool, BringError> {
        let nothing = Scope::Services(BTreeSet::new());
        let observed = self.maps.observe(&nothing).map_err(BringError::Observe)?;
        let plan = remove_leftovers(&observed);
        let steps = self.apply(&plan, trigger, recorder).map_err(BringError::Apply)?;
        Ok(steps > 0)
    }

    /// Moves tables together until `length` slots are free in a row; answers whether that can be.
    fn make_stretch(
        &mut self,
        length: u32,
        trigger: Trigger,
        recorder: &Recorder,
    ) -> Result<bool, BringError> {
        let observed = self.maps.observe(&Scope::All).map_err(BringError::Observe)?;
        let plan = make_stretch(&observed, length);
        let board = Arc::clone(&self.board);
        let writing = board.writing();
        let steps = self.apply(&plan, trigger, recorder).map_err(BringError::Apply)?;
        let before = board.read();
        writing.publish(publish::moved(&before, &plan));
        Ok(steps > 0)
    }

    fn apply(&mut self, plan: &Plan, trigger: Trigger, recorder: &Recorder) -> Result<usize, ApplyError> {
        if plan.steps.is_empty() {
            return Ok(0);
        }
        let start = Instant::now();
        let applied = self
            .applier
            .apply(plan, &mut self.maps)
            .inspect_err(|_| recorder.apply_failed())?;
        recorder.applied(applied.steps, start.elapsed());
        tracing::debug!(steps = applied.steps, ?trigger, took = ?start.elapsed(), "applied");
        Ok(applied.steps)
    }
}

impl<M> Ledger<M> {
    /// Makes the wanted form of these services anew, with the next hops in use.
    pub fn refresh_desired(&mut self, names: &BTreeSet<String>) {
        for name in names {
            if let Some(effective) = self.effective.services.get(name) {
                let wanted = desired_service(effective, &self.next_hops, &self.fitness);
                self.desired.services.insert(effective.spec.key(), wanted);
            }
        }
    }

    /// Takes over what the resolver says anew; `None`: it does not follow that address any more.
    pub fn take_news(&mut self, news: BTreeMap<IpAddr, Option<Resolution>>) -> Answers {
        let mut answers = Answers::default();
        for (address, answer) in news {
            if self.resolutions.get(&address) == answer.as_ref() {
                continue;
            }
            answers.differing.insert(address);
            let in_use = self.next_hops.get(&address).copied();
            let hop = next_hops::after(in_use, answer.as_ref());
            if hop != in_use {
                answers.changed.insert(address);
            }
            put(&mut self.next_hops, address, hop);
            put(&mut self.resolutions, address, answer);
        }
        answers
    }

    /// Forgets answers about addresses that are no backend's any more.
    pub fn forget_answers(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.resolutions.retain(|address, _| addresses.contains(address));
        self.next_hops.retain(|address, _| addresses.contains(address));
    }

    /// Every backend's address.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let backends = self
            .effective
            .services
            .values()
            .flat_map(|service| &service.spec.backends);
        backends.map(|backend| backend.address.to_canonical()).collect()
    }

    pub fn services_with(&self, addresses: &BTreeSet<IpAddr>) -> BTreeSet<String> {
        let with = self.effective.services.iter().filter(|(_, service)| {
            let mut backends = service.spec.backends.iter();
            backends.any(|backend| addresses.contains(&backend.address.to_canonical()))
        });
        with.map(|(name, _)| name.clone()).collect()
    }
}

/// What new answers of the resolver came to.
#[derive(Default)]
pub(super) struct Answers {
    /// Another answer, if only in its words.
    pub differing: BTreeSet<IpAddr>,
    /// Another next hop.
    pub changed: BTreeSet<IpAddr>,
}
