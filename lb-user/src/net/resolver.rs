//! Follows routes, neighbours and interfaces, and keeps the next hop of every wanted backend current.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, future::join_all};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{
    Handle, MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use super::{
    NetError, connect,
    interfaces::{self, Interface},
    neighbours::{self, Neighbour, NeighbourKey, Neighbours},
    resolution::{Answer, Resolution, resolve},
    routes::{self, Route},
};

/// Every wanted backend that was looked at, by canonical address.
pub type Resolutions = BTreeMap<IpAddr, Resolution>;

/// Backends whose answer is another one, or gone, since somebody asked for this last.
type News = Arc<Mutex<BTreeSet<IpAddr>>>;

/// Routes and interfaces change in bursts; they are read again this long after the first change.
const SETTLE: Duration = Duration::from_millis(20);
/// How often missing and failed neighbours are asked for.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// XDP traffic does not refresh the kernel's neighbour table: known neighbours are confirmed this often.
const CONFIRM_EVERY: Duration = Duration::from_secs(5);
/// Everything is read again this often, in case a notification was lost.
const READ_EVERY: Duration = Duration::from_secs(60);
/// Route questions in flight at once.
const BATCH: usize = 64;

/// Starts the actor that follows the kernel.
pub struct Resolver;

/// Tells the actor which backends are wanted; the actor ends with its last handle.
#[derive(Clone, Debug)]
pub struct ResolverHandle {
    wanted: mpsc::UnboundedSender<Want>,
    news: News,
}

/// Backends that are wanted.
#[derive(Debug)]
enum Want {
    /// These and no others.
    Only(BTreeSet<IpAddr>),
    /// These too.
    Also(BTreeSet<IpAddr>),
}

impl ResolverHandle {
    /// From now on wants these backends and no others.
    pub fn want(&self, backends: BTreeSet<IpAddr>) {
        // Fails only when the runtime is shutting down.
        let _ = self.wanted.send(Want::Only(canonical(backends)));
    }

    /// Wants these backends too.
    pub fn want_also(&self, backends: BTreeSet<IpAddr>) {
        // As above.
        let _ = self.wanted.send(Want::Also(canonical(backends)));
    }

    /// What has changed in `answers` since the call before; `None` for an answer that is gone.
    pub fn news(&self, answers: &mut watch::Receiver<Resolutions>) -> BTreeMap<IpAddr, Option<Resolution>> {
        // In this order: the actor notes what it changes while it holds the answers.
        let answers = answers.borrow_and_update();
        let news = std::mem::take(&mut *locked(&self.news));
        let answer = |backend| (backend, answers.get(&backend).cloned());
        news.into_iter().map(answer).collect()
    }
}

fn locked(news: &News) -> MutexGuard<'_, BTreeSet<IpAddr>> {
    news.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Resolver {
    /// Follows the caller's network namespace on the current runtime.
    pub fn start(
        backends: BTreeSet<IpAddr>,
    ) -> Result<(ResolverHandle, watch::Receiver<Resolutions>), NetError> {
        let (connection, _handle, messages) = rtnetlink::new_multicast_connection(&[
            MulticastGroup::Link,
            MulticastGroup::Neigh,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ])
        .map_err(|source| NetError::Socket { source })?;
        tokio::spawn(connection);
        let (wanted, wants) = mpsc::unbounded_channel();
        let (publish, receiver) = watch::channel(Resolutions::new());
        let news = News::default();
        let actor = Actor {
            handle: connect()?,
            wanted: canonical(backends),
            interfaces: BTreeMap::new(),
            neighbours: Neighbours::default(),
            routes: BTreeMap::new(),
            answers: BTreeMap::new(),
            news: Arc::clone(&news),
            publish,
        };
        tokio::spawn(actor.run(wants, messages.map(|(message, _)| message)));
        Ok((ResolverHandle { wanted, news }, receiver))
    }
}

/// Waits until every wanted backend is resolved or refused, or until the limit.
pub async fn settle(receiver: &mut watch::Receiver<Resolutions>, wanted: &BTreeSet<IpAddr>, limit: Duration) {
    let wanted = canonical(wanted.clone());
    let settled = |seen: &Resolutions| {
        wanted
            .iter()
            .all(|backend| seen.get(backend).is_some_and(|known| !known.is_pending()))
    };
    let _ = timeout(limit, receiver.wait_for(settled)).await;
}

fn canonical(backends: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    backends.iter().map(IpAddr::to_canonical).collect()
}

struct Actor {
    handle: Handle,
    wanted: BTreeSet<IpAddr>,
    interfaces: BTreeMap<u32, Interface>,
    neighbours: Neighbours,
    routes: BTreeMap<IpAddr, Route>,
    answers: BTreeMap<IpAddr, Answer>,
    news: News,
    publish: watch::Sender<Resolutions>,
}

/// What a notification asks for.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    /// A neighbour is another one than before.
    Neighbour(NeighbourKey),
    /// The kernel dropped a neighbour.
    Forgotten(NeighbourKey),
    /// Routes must be looked up again.
    Routes,
    /// Notifications were lost.
    Everything,
}

impl Actor {
    async fn run(
        mut self,
        mut wants: mpsc::UnboundedReceiver<Want>,
        messages: impl futures_util::Stream<Item = NetlinkMessage<RouteNetlinkMessage>>,
    ) {
        let mut messages = std::pin::pin!(messages);
        let mut ask = ticker(ASK_EVERY);
        let mut confirm = ticker(CONFIRM_EVERY);
        let mut read = ticker(READ_EVERY);
        // Before the first reading every interface would seem to be gone, and every backend be refused.
        self.read_everything().await;
        read.reset();
        let mut routes_due: Option<Instant> = None;
        loop {
            let due = routes_due.unwrap_or_else(Instant::now);
            tokio::select! {
                want = wants.recv() => match want {
                    Some(Want::Only(backends)) => self.want(backends).await,
                    Some(Want::Also(backends)) => self.want_also(backends).await,
                    None => return,
                },
                message = messages.next() => match message.map(|message| self.take_in(message)) {
                    Some(Change::Nothing) => {}
                    Some(Change::Neighbour(key)) => self.neighbour_changed(key),
                    Some(Change::Forgotten(key)) => {
                        self.neighbour_changed(key);
                        if self.needed().contains(&key) {
                            neighbours::ask(&self.handle, key).await;
                        }
                    }
                    Some(Change::Routes) => {
                        routes_due.get_or_insert_with(|| Instant::now() + SETTLE);
                    }
                    Some(Change::Everything) => self.read_everything().await,
                    None => return,
                },
                () = sleep_until(due), if routes_due.is_some() => {
                    routes_due = None;
                    self.read_links_and_routes().await;
                }
                _ = ask.tick() => self.ask(|neighbour| {
                    !matches!(neighbour, Some(Neighbour::At { .. }))
                }).await,
                _ = confirm.tick() => self.ask(|neighbour| {
                    matches!(neighbour, Some(Neighbour::At { sure: false, .. }))
                }).await,
                _ = read.tick() => self.read_everything().await,
            }
        }
    }

    fn take_in(&mut self, message: NetlinkMessage<RouteNetlinkMessage>) -> Change {
        let inner = match message.payload {
            NetlinkPayload::InnerMessage(inner) => inner,
            NetlinkPayload::Overrun(_) => return Change::Everything,
            _ => return Change::Nothing,
        };
        match inner {
            RouteNetlinkMessage::NewNeighbour(message) => self
                .neighbours
                .update(&message)
                .map_or(Change::Nothing, Change::Neighbour),
            RouteNetlinkMessage::DelNeighbour(message) => self
                .neighbours
                .forget(&message)
                .map_or(Change::Nothing, Change::Forgotten),
            RouteNetlinkMessage::NewLink(_)
            | RouteNetlinkMessage::DelLink(_)
            | RouteNetlinkMessage::NewAddress(_)
            | RouteNetlinkMessage::DelAddress(_) => Change::Routes,
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)
                if self.wanted.iter().any(|backend| routes::covers(&route, *backend)) =>
            {
                Change::Routes
            }
            _ => Change::Nothing,
        }
    }

    async fn want(&mut self, backends: BTreeSet<IpAddr>) {
        let gone: Vec<IpAddr> = self.wanted.difference(&backends).copied().collect();
        for backend in &gone {
            self.wanted.remove(backend);
            self.routes.remove(backend);
            self.answers.remove(backend);
        }
        self.show(&gone);
        self.want_also(backends).await;
    }

    async fn want_also(&mut self, backends: BTreeSet<IpAddr>) {
        let new: Vec<IpAddr> = backends.difference(&self.wanted).copied().collect();
        if new.is_empty() {
            return;
        }
        self.wanted.extend(&new);
        self.look_up(&new).await;
        self.decide(&new);
        let stand_on: BTreeSet<NeighbourKey> = new
            .iter()
            .filter_map(|backend| self.answers.get(backend)?.neighbour)
            .collect();
        self.ask_of(stand_on, |neighbour| neighbour.is_none()).await;
    }

    async fn read_everything(&mut self) {
        match Neighbours::list(&self.handle).await {
            Ok(table) => {
                let needed = self.needed();
                self.neighbours.replace(table, &needed);
            }
            Err(error) => tracing::warn!(%error, "cannot read the neighbour table"),
        }
        self.read_links_and_routes().await;
    }

    async fn read_links_and_routes(&mut self) {
        match interfaces::list(&self.handle).await {
            Ok(list) => self.interfaces = list,
            Err(error) => tracing::warn!(%error, "cannot read the interfaces"),
        }
        self.look_up(&self.wanted.iter().copied().collect::<Vec<_>>())
            .await;
        self.decide_all();
        self.ask(|neighbour| neighbour.is_none()).await;
    }

    async fn look_up(&mut self, backends: &[IpAddr]) {
        for batch in backends.chunks(BATCH) {
            let asked = batch
                .iter()
                .map(|backend| routes::look_up(&self.handle, *backend));
            for (backend, answer) in batch.iter().zip(join_all(asked).await) {
                match answer {
                    Ok(route) => drop(self.routes.insert(*backend, route)),
                    Err(error) => tracing::warn!(%backend, %error, "cannot ask for a route"),
                }
            }
        }
    }

    /// Asks the kernel for the neighbours that backends stand on and whose state is `wanted`.
    async fn ask(&self, wanted: impl Fn(Option<Neighbour>) -> bool) {
        self.ask_of(self.needed(), wanted).await;
    }

    async fn ask_of(&self, keys: BTreeSet<NeighbourKey>, wanted: impl Fn(Option<Neighbour>) -> bool) {
        for key in keys {
            if wanted(self.neighbours.get(&key)) {
                neighbours::ask(&self.handle, key).await;
            }
        }
    }

    /// The neighbours that backends stand on.
    fn needed(&self) -> BTreeSet<NeighbourKey> {
        self.answers
            .values()
            .filter_map(|answer| answer.neighbour)
            .collect()
    }

    fn neighbour_changed(&mut self, key: NeighbourKey) {
        let standing: Vec<IpAddr> = self
            .answers
            .iter()
            .filter(|(_, answer)| answer.neighbour == Some(key))
            .map(|(backend, _)| *backend)
            .collect();
        if !standing.is_empty() {
            self.decide(&standing);
        }
    }

    fn decide_all(&mut self) {
        self.decide(&self.routes.keys().copied().collect::<Vec<_>>());
    }

    fn decide(&mut self, backends: &[IpAddr]) {
        for backend in backends {
            if let Some(route) = self.routes.get(backend) {
                let answer = resolve(*backend, route, &self.interfaces, &self.neighbours);
                self.answers.insert(*backend, answer);
            }
        }
        self.show(backends);
    }

    /// Publishes the answers for these backends.
    fn show(&self, backends: &[IpAddr]) {
        self.publish.send_if_modified(|shown| {
            let mut news = locked(&self.news);
            let mut changed = false;
            for backend in backends {
                let answer = self.answers.get(backend).map(|answer| &answer.resolution);
                if shown.get(backend) == answer {
                    continue;
                }
                changed = true;
                news.insert(*backend);
                match answer {
                    Some(answer) => drop(shown.insert(*backend, answer.clone())),
                    None => drop(shown.remove(backend)),
                }
            }
            changed
        });
    }
}

fn ticker(every: Duration) -> tokio::time::Interval {
    let mut ticker = interval(every);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}
