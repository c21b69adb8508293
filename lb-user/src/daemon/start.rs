//! From nothing to ready: no traffic before a first state, and no packet lost when there was one already.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use lb_common::{
    backend,
    ids::BackendRef,
    service::{Service, ServiceKey},
};
use sd_notify::NotifyState;
use tokio::{sync::mpsc, task::block_in_place};

use super::{
    Options,
    announce::Announcer,
    bring::unix_now,
    controller::Controller,
    edits,
    handle::{Command, Handle, QUEUE},
    health::Checks,
    host,
    ledger::Ledger,
    seed_clock::SeedClock,
    shared::Shared,
    sources::Sources,
    view::View,
};
use crate::{
    api::{
        peer::{Allowed, group_id},
        server, socket,
        types::Problem,
    },
    config::{self, Config, Listen, ServiceSpec, validate},
    discovery::{Report, registry::Registry},
    events::Kind,
    maps::{MapError, MapReader, PinnedMaps, Scope},
    metrics::{self, Metrics, RotationCause, Trigger},
    net::{Resolver, settle},
    program::{AttachOptions, Datapath, LoadOptions, WantedCapacity, XdpMode},
    seeds,
    state::{
        desired::{Sampling, address_from},
        last_known_good::{Durable, Store},
        overlay::Overlay,
    },
    watch::{Watch, published::owned},
};

/// Reports of sources that may wait for the controller.
const REPORTS: usize = 1024;
/// How long the start waits for next hops; backends without one are left out until they have it.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs the daemon from start to end.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let config = Config::load(&options.config_file)?;
    let secret = Controller::secret(&config)?;
    let store = Store::<Overlay>::new(&config.state.directory);
    let saved = block_in_place(|| store.load())?;
    let on_disk = saved.state.clone();
    let mut overlay = saved.state.unwrap_or_default();
    let mut notes = saved.notes;
    let (speak, reports) = mpsc::channel(REPORTS);
    let (sources, kept) = block_in_place(|| Sources::start(&config, Registry::new(speak)));
    notes.extend(kept);
    notes.extend(overlay.settle(&sources.base));
    notes.extend(overlay.drop_clashing(&sources.base));
    check(&config, &overlay, &sources.base)?;
    // A start that changes nothing needs no room on the disk.
    let to_save = on_disk.as_ref() != Some(&overlay) || !notes.is_empty();
    let (datapath, maps) = block_in_place(|| Datapath::load(&load_options(&config)))?;

    let not_loaded = View {
        revision: overlay.revision(),
        not_ready: vec!["the first state is not in the datapath yet".to_owned()],
        ..View::default()
    };
    let shared = Arc::new(Shared::new(
        std::path::absolute(&options.config_file).unwrap_or_else(|_| options.config_file.clone()),
        config.datapath.pin_directory.clone(),
        maps.counters(),
        not_loaded,
    ));
    for note in notes {
        shared
            .events
            .record(Kind::Degraded, config.state.directory.display().to_string(), note);
    }
    let (commands, mut queue) = mpsc::channel(QUEUE);
    let _socket = offer(&options, &config, Arc::clone(&shared), commands.clone()).await?;
    let saved_state = SavedState {
        config,
        overlay,
        store,
        sources,
        reports,
    };
    let (mut controller, forwarding) =
        Controller::new(options, saved_state, datapath, maps, shared, commands)?;
    let started = match controller
        .first_state(secret.as_deref(), to_save, &forwarding)
        .await
    {
        Ok(()) => controller.go_live(),
        Err(error) => Err(error),
    };
    if let Err(error) = started {
        controller.give_up();
        return Err(error);
    }
    let end = match controller.run(&mut queue).await {
        Ok(end) => end,
        Err(error) => {
            controller.give_up();
            return Err(error);
        }
    };
    notify(&[NotifyState::Stopping]);
    controller.end(end).await
}

fn check(config: &Config, overlay: &Overlay, base: &[ServiceSpec]) -> anyhow::Result<()> {
    host::check(config)?;
    let services = overlay.effective(base).specs();
    validate(&services)
        .map_err(config::Problems)
        .context("the changes of the command line that were kept do not fit the configuration file")?;
    Ok(())
}

fn load_options(config: &Config) -> LoadOptions {
    let defaults = WantedCapacity::default();
    let capacity = WantedCapacity {
        services: config.datapath.max_services,
        backends: config.datapath.backend_entries(),
        slots: config.datapath.max_slots,
        flow_buckets: config.datapath.flow_buckets(),
        ..defaults
    };
    LoadOptions {
        pin_directory: config.datapath.pin_directory.clone(),
        capacity,
    }
}

/// What to attach to, from file and command line.
pub(super) fn attach_options(config: &Config, options: &Options) -> AttachOptions {
    let xdp_mode = match config.datapath.xdp_mode {
        config::XdpMode::Auto => XdpMode::Auto,
        config::XdpMode::Native => XdpMode::Native,
        config::XdpMode::Generic => XdpMode::Generic,
    };
    AttachOptions {
        interfaces: config.datapath.interfaces.clone(),
        xdp_mode,
        replace: config.datapath.replace || options.replace,
    }
}

/// Opens the interface and the metrics; both answer "not ready" until the first state is there.
async fn offer(
    options: &Options,
    config: &Config,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
) -> anyhow::Result<socket::SocketFile> {
    let group = config
        .api
        .group
        .as_deref()
        .map(group_id)
        .transpose()
        .context("api.group")?;
    let path = options.socket.as_ref().unwrap_or(&config.api.socket);
    let bound = socket::bind(path, group)?;
    let handle = Arc::new(Handle {
        shared: Arc::clone(&shared),
        commands,
    });
    let allowed = Allowed { group };
    tokio::spawn(async move {
        if let Err(error) = server::serve(bound.listener, allowed, handle).await {
            tracing::error!(%error, "the interface ended");
        }
    });
    tracing::info!(socket = %path.display(), "listening");
    if let Listen::At(address) = config.metrics.listen {
        let metrics = Metrics::new(shared, config.metrics.max_series)?;
        let bound = metrics::serve(address, metrics).await?;
        tracing::info!(address = %bound, "serving /metrics, /healthz and /readyz");
    }
    Ok(bound.file)
}

/// What was on disk.
struct SavedState {
    config: Config,
    overlay: Overlay,
    store: Store<Overlay>,
    sources: Sources,
    reports: mpsc::Receiver<Report>,
}

impl Controller {
    fn new(
        options: Options,
        saved: SavedState,
        mut datapath: Datapath,
        maps: PinnedMaps,
        shared: Arc<Shared>,
        commands: mpsc::Sender<Command>,
    ) -> anyhow::Result<(Self, Forwarding)> {
        // The task ends with the runtime.
        let _log = datapath.forward_log()?;
        let SavedState {
            config,
            overlay,
            store,
            mut sources,
            reports,
        } = saved;
        let mut forwarding = BTreeMap::new();
        if datapath.adopted() {
            forwarding = forwarding_to(&maps).context("cannot read what the datapath forwards to")?;
            for note in sources.recover(&config.services, &forwarding) {
                shared.events.record(Kind::Degraded, "sources", note);
            }
        }
        let (tell, changes) = mpsc::channel(REPORTS);
        let checks = Checks::start(tell);
        // One start makes one checker.
        let _ = shared.checker.set(checks.checker());
        let config_state = config.state.directory.clone();
        let key = match maps.settings().held_key() {
            Some(held) => held,
            None => seeds::fresh_table_key()?,
        };
        let settings = config.desired_settings(key, Sampling::OFF);
        let ledger = Ledger::new(&sources.base, overlay, settings, maps, store);
        let (resolver, answers) =
            Resolver::start(BTreeSet::new()).context("cannot follow routes and neighbours")?;
        let seed_clock = SeedClock::new(config.seeds.interval.duration(), config.seeds.jitter);
        let mut troubles = BTreeMap::new();
        if !datapath.notes().is_empty() {
            let next_step = "run `evenkeel detach` when flows may end, then start again".to_owned();
            let problem = datapath.notes().join("; ");
            troubles.insert(
                "maps",
                Problem {
                    object: "maps".to_owned(),
                    problem,
                    next_step,
                },
            );
        }
        let not_ready = shared.view().not_ready.clone();
        let controller = Self {
            options,
            config,
            ledger,
            resolver,
            answers,
            datapath,
            sources,
            reports,
            live: false,
            forwarded: forwarding.values().any(|backends| !backends.is_empty()),
            checks,
            changes,
            announcer: Announcer::new(Store::new(&config_state)),
            seed_clock,
            shared,
            commands,
            not_ready,
            troubles,
        };
        Ok((controller, forwarding))
    }

    /// Brings the first state into the maps, before anything is attached.
    async fn first_state(
        &mut self,
        secret: Option<&[u8]>,
        to_save: bool,
        forwarding: &Forwarding,
    ) -> anyhow::Result<()> {
        let wanted = self.ledger.addresses();
        self.resolver.want(wanted.clone());
        settle(&mut self.answers, &wanted, SETTLE).await;
        let answers = self.answers.borrow_and_update().clone();
        block_in_place(|| {
            self.ledger.adopt(answers)?;
            self.judge_at_start(forwarding);
            self.fill_seeds(secret, RotationCause::Start)?;
            self.bring_about(&Scope::All, Trigger::Start)?;
            self.look_at_seeds();
            if to_save {
                self.ledger
                    .store
                    .save(&self.ledger.overlay, unix_now(), Durable::Now)?;
            }
            anyhow::Ok(())
        })
    }

    /// Lets traffic in once there is something to serve by: never before every service has had a first state. A datapath
    /// that has been forwarding all along goes on.
    pub(super) fn go_live(&mut self) -> anyhow::Result<()> {
        let mut missing = self.services_without_state();
        if missing.is_empty() {
            missing = self.services_without_check();
        }
        if !missing.is_empty() && !self.forwarded {
            if missing != self.not_ready {
                notify(&[NotifyState::Status(&format!("waiting: {}", missing.join("; ")))]);
                for reason in missing.iter().filter(|reason| !self.not_ready.contains(reason)) {
                    self.shared
                        .events
                        .record(Kind::Lifecycle, "daemon", format!("not ready: {reason}"));
                }
                self.not_ready = missing;
                self.publish(None);
            }
            return Ok(());
        }
        let watch = self.watch_and_attach()?;
        self.live = true;
        self.follow_announcements();
        watch.start();
        notify(&[NotifyState::Ready, NotifyState::Status("forwarding")]);
        Ok(())
    }

    /// Lets traffic in. The watch has looked before that, so that no flow is missed.
    fn watch_and_attach(&mut self) -> anyhow::Result<Watch> {
        let watch = block_in_place(|| self.make_watch()).context("cannot watch the spread of new flows")?;
        watch.desk.tick(&self.shared.recorder);
        self.attach()?;
        Ok(watch)
    }

    /// Lets traffic in.
    fn attach(&mut self) -> anyhow::Result<()> {
        let options = attach_options(&self.config, &self.options);
        block_in_place(|| self.datapath.attach(&options))?;
        let identity = self.datapath.identity()?;
        let mut view = View::clone(&self.shared.view());
        view.program = format!(
            "program {} (tag {}, version {})",
            identity.id, identity.tag, identity.version
        );
        self.shared.publish(view);
        self.not_ready.clear();
        block_in_place(|| {
            self.shared.count_flows();
            self.publish(None);
        });
        let how = if self.datapath.adopted() {
            "ready; adopted the maps and flows that were there"
        } else {
            "ready"
        };
        self.shared.events.record(Kind::Lifecycle, "daemon", how);
        Ok(())
    }
}

impl Controller {
    /// A first start that failed leaves nothing behind; a datapath that was there before goes on as it was.
    fn give_up(self) {
        if self.datapath.adopted() {
            return;
        }
        drop(self.ledger);
        if let Err(error) = self.datapath.detach() {
            tracing::warn!(
                "cannot take back what was pinned: {}",
                edits::with_sources(&error)
            );
        }
    }
}

/// Backends that take new flows, by service, with the slots that they own.
pub(super) type Forwarding = BTreeMap<ServiceKey, BTreeMap<IpAddr, u32>>;

fn forwarding_to(maps: &PinnedMaps) -> Result<Forwarding, MapError> {
    let observed = maps.observe(&Scope::All)?;
    let of = |service: &Service| {
        let slots = observed
            .slots
            .get(&service.id)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let backends = owned(slots).into_iter().filter_map(|(reference, owned)| {
            let entry = observed.backends.get(&reference.id())?;
            let serves = reference == BackendRef::new(reference.id(), entry.generation)
                && entry.service == service.id
                && entry.state == backend::state::SERVING;
            serves.then(|| (address_from(&entry.address, entry.family), owned))
        });
        backends.collect()
    };
    Ok(observed
        .services
        .iter()
        .map(|(key, service)| (*key, of(service)))
        .collect())
}

fn notify(state: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
