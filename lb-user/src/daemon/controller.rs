//! The controller: owns configuration, overlay, wanted state and the writer of the maps, and does one thing at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::block_in_place,
    time::{MissedTickBehavior, interval},
};

use super::{
    Options,
    announce::Announcer,
    edits,
    handle::Command,
    health::Checks,
    ledger::{BringError, Ledger},
    seed_clock::SeedClock,
    shared::Shared,
    sources::Sources,
    view::{self, HealthView, View},
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{PlanText, Problem},
    },
    config::Config,
    discovery::Report,
    events::Kind,
    health::Change,
    maps::{MapReader, PinnedMaps, Scope},
    metrics::Trigger,
    net::{Resolution, ResolverHandle},
    plan::PlanError,
    program::Datapath,
};

/// How often the maps are compared with what they should hold.
const RECONCILE: Duration = Duration::from_secs(10);
/// How often due seeds and held endpoints are looked for.
const SECOND: Duration = Duration::from_secs(1);
/// How often the flow table is counted.
const CENSUS: Duration = Duration::from_secs(5);

/// The one writer.
pub struct Controller {
    pub(super) options: Options,
    pub(super) config: Config,
    pub(super) ledger: Ledger<PinnedMaps>,
    pub(super) resolver: ResolverHandle,
    pub(super) answers: watch::Receiver<BTreeMap<IpAddr, Resolution>>,
    pub(super) datapath: Datapath,
    pub(super) sources: Sources,
    /// What sources say.
    pub(super) reports: mpsc::Receiver<Report>,
    pub(super) checks: Checks,
    /// What checks found.
    pub(super) changes: mpsc::Receiver<Change>,
    /// Whether traffic was let in.
    pub(super) live: bool,
    /// Whether the datapath was found forwarding.
    pub(super) forwarded: bool,
    pub(super) announcer: Announcer,
    pub(super) seed_clock: SeedClock,
    pub(super) shared: Arc<Shared>,
    /// The controller's own queue, for those that it starts.
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) not_ready: Vec<String>,
    pub(super) troubles: BTreeMap<&'static str, Problem>,
}

/// What ends the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Terminated,
}

impl Controller {
    /// Serves commands, next hops, timers and signals until told to end.
    pub async fn run(&mut self, commands: &mut mpsc::Receiver<Command>) -> anyhow::Result<End> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut reconcile = ticks(RECONCILE);
        let mut seconds = ticks(SECOND);
        let mut census = ticks(CENSUS);
        loop {
            tokio::select! {
                Some(command) = commands.recv() => self.obey(command).await,
                Some(report) = self.reports.recv() => self.hear(report).await,
                Some(change) = self.changes.recv() => {
                    self.hear_checks(change);
                    // The dead may be let go.
                    if self.sources.registry.holds_anything() {
                        self.review_sources().await;
                    }
                }
                Ok(()) = self.answers.changed() => block_in_place(|| self.follow_next_hops(Instant::now())),
                _ = reconcile.tick() => block_in_place(|| {
                    self.reconcile();
                    self.sources.look_around(&self.config.services);
                    self.follow_announcements();
                }),
                _ = seconds.tick() => {
                    block_in_place(|| self.rotate_due());
                    self.review_checks();
                    self.review_sources().await;
                }
                _ = census.tick() => block_in_place(|| self.count()),
                _ = hangup.recv() => self.hang_up().await,
                _ = terminate.recv() => return Ok(End::Terminated),
                _ = received(&mut interrupt) => return Ok(End::Terminated),
            }
            if !self.live {
                self.go_live()?;
            }
        }
    }

    /// Ends: leaves the datapath forwarding, or takes it down when the command line said so.
    pub async fn end(mut self, _end: End) -> anyhow::Result<()> {
        if !self.options.detach_on_exit {
            self.stop_sampling();
        }
        let events = &self.shared.events;
        if !self.options.detach_on_exit {
            events.record(
                Kind::Lifecycle,
                "daemon",
                "ending; the datapath goes on forwarding",
            );
            return Ok(());
        }
        if self.withdraw_all() {
            let drain = self.options.drain;
            let text = format!("ending; VIPs are withdrawn, the datapath is taken down in {drain:?}");
            self.shared.events.record(Kind::Lifecycle, "daemon", text);
            tokio::time::sleep(drain).await;
        }
        let events = &self.shared.events;
        events.record(Kind::Lifecycle, "daemon", "ending; detaching the datapath");
        drop(self.ledger);
        let detached = self.datapath.detach()?;
        tracing::info!(interfaces = ?detached.interfaces, maps = detached.maps, "detached");
        Ok(())
    }

    async fn obey(&mut self, command: Command) {
        // A client that went away does not take its change back.
        match command {
            Command::Change(change, reply) => {
                let result = self.change(&change).await;
                self.report("edit refused", &result);
                let _ = reply.send(result);
            }
            Command::Apply(file, reply) => {
                let result = self.apply_file(&file).await;
                self.report("file refused", &result);
                let _ = reply.send(result);
            }
            Command::Reload(reply) => {
                let _ = reply.send(self.reload().await);
            }
            Command::Rotate(which, reply) => {
                let _ = reply.send(block_in_place(|| self.rotate_on_command(which)));
            }
            Command::Sources(request, reply) => {
                let result = self.order_sources(request).await;
                self.report("order refused", &result);
                let _ = reply.send(result);
            }
            Command::Plan(reply) => {
                let _ = reply.send(block_in_place(|| self.dry_run()));
            }
            Command::Heal(remedy, reply) => {
                let _ = reply.send(block_in_place(|| self.heal(&remedy)));
            }
            Command::Sample(sampling, reply) => {
                let _ = reply.send(block_in_place(|| self.sample(sampling)));
            }
            Command::Explain(query, reply) => {
                let view = self.shared.view();
                let _ = reply.send(block_in_place(|| {
                    crate::explain::explain(&query, &self.ledger.maps, &view)
                }));
            }
        }
    }

    fn report<T>(&self, what: &str, result: &Result<T, Refusal>) {
        if let Err(refusal) = result {
            tracing::warn!(kind = ?refusal.kind(), "{what}: {refusal}");
        }
    }

    async fn hang_up(&mut self) {
        // The refusal is in the log and among the events already.
        let _ = self.reload().await;
    }

    fn count(&mut self) {
        self.shared.count_flows();
        self.rotate_full();
    }

    /// Makes and applies the plan for `scope`; answers how many steps it had.
    pub(super) fn bring_about(&mut self, scope: &Scope, trigger: Trigger) -> Result<usize, BringError> {
        self.ledger.hands_off = !self.config.skew.auto_heal;
        self.ledger.bring_about(scope, trigger, &self.shared.recorder)
    }

    fn dry_run(&mut self) -> Result<PlanText, Refusal> {
        let plan = self.ledger.dry_run(&Scope::All).map_err(|error| match error {
            BringError::Plan(error) => unplanned(&error),
            error => failed(&error),
        })?;
        Ok(PlanText {
            steps: plan.steps.len(),
            text: plan.to_string(),
        })
    }

    /// Shows the state anew: all of it, or only what these services became.
    pub(super) fn publish(&mut self, names: Option<&BTreeSet<String>>) {
        let scope = match names {
            None => Scope::All,
            Some(names) => {
                let effective = names
                    .iter()
                    .filter_map(|name| self.ledger.effective.services.get(name));
                Scope::Services(effective.map(|service| service.spec.key()).collect())
            }
        };
        let before = self.shared.view();
        let mut services = if names.is_some() {
            before.services.clone()
        } else {
            BTreeMap::new()
        };
        match self.ledger.maps.observe(&scope) {
            Ok(observed) => {
                let sources = view::Sources::new(&observed, &self.ledger.resolutions, &self.shared.counters);
                let shown = names.unwrap_or(&BTreeSet::new()).clone();
                let shown = if names.is_some() {
                    shown
                } else {
                    self.ledger.effective.services.keys().cloned().collect()
                };
                for name in shown {
                    let Some(effective) = self.ledger.effective.services.get(&name) else {
                        services.remove(&name);
                        continue;
                    };
                    if let Some(wanted) = self.ledger.desired.services.get(&effective.spec.key()) {
                        let old = before.services.get(&name).map(Arc::as_ref);
                        let mut view = sources.service(effective, wanted, old);
                        for (address, backend) in &mut view.backends {
                            let wanted = wanted.backends.get(address);
                            backend.state = wanted.map_or(backend.state, |wanted| wanted.state);
                            let verdict = self.checks.verdict(&name, *address);
                            backend.health = verdict.map(|verdict| HealthView {
                                passes: verdict.passes(),
                                reason: verdict.reason.clone(),
                            });
                        }
                        services.insert(name, Arc::new(view));
                    }
                }
            }
            Err(error) => {
                tracing::warn!(
                    "cannot read the maps to show them: {}",
                    edits::with_sources(&error)
                );
                services.clone_from(&before.services);
            }
        }
        self.shared.publish(View {
            revision: self.ledger.overlay.revision(),
            not_ready: self.not_ready.clone(),
            attached: self.datapath.attached().to_vec(),
            program: before.program.clone(),
            services,
            seeds: self.seed_clock.views(),
            sources: self.sources.views(),
            vips: before.vips.clone(),
            panics: self.checks.panics(),
            troubles: self.troubles.clone(),
        });
        self.follow_announcements();
    }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    ticks
}

async fn received(signal: &mut Signal) -> Option<()> {
    signal.recv().await
}

/// A refusal for what is nobody's fault but the daemon's or the machine's.
pub(super) fn failed(error: &dyn std::error::Error) -> Refusal {
    let next_step = "look at `evenkeel status` and the daemon's log";
    Refusal::new(RefusalKind::Failed, edits::with_sources(error), next_step)
}

/// A refusal because the maps have no room for what is wanted.
pub(super) fn unplanned(error: &PlanError) -> Refusal {
    Refusal::new(
        RefusalKind::Invalid,
        edits::with_sources(error),
        error.next_step(),
    )
}
