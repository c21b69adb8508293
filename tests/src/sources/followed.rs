//! A followed source, and the pool that its updates make.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lb_user::discovery::{
    Endpoint, Follower, GuardSpec, Refused, Report, Seen, SourceKind, SourceSpec, Update, follow,
};
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};

/// How long something may take that is certain to happen.
const DEADLINE: Duration = Duration::from_secs(40);

pub struct Followed {
    runtime: Runtime,
    reports: mpsc::Receiver<Report>,
    follower: Option<Follower>,
    /// What snapshots and deltas add up to.
    pub pool: BTreeMap<IpAddr, Endpoint>,
    /// Of the last snapshot or delta.
    pub refused: Vec<Refused>,
    pub revision: Option<String>,
    /// All that was seen, for people.
    seen: Vec<String>,
}

impl Followed {
    pub fn start(kind: SourceKind) -> Result<Self> {
        Self::with_most(kind, 10_000)
    }

    pub fn with_most(kind: SourceKind, max_endpoints: u32) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (sender, reports) = mpsc::channel(64);
        let spec = SourceSpec {
            name: Some("tested".to_owned()),
            kind,
            guard: GuardSpec::default(),
            max_endpoints,
        };
        let follower = {
            let _entered = runtime.enter();
            follow("web", &spec, sender)
        };
        Ok(Self {
            runtime,
            reports,
            follower: Some(follower),
            pool: BTreeMap::new(),
            refused: Vec::new(),
            revision: None,
            seen: Vec::new(),
        })
    }

    /// The next thing it says.
    pub fn hear(&mut self) -> Result<Seen> {
        let report = self
            .receive()
            .with_context(|| format!("nothing within {DEADLINE:?}; before: {:#?}", self.seen))?
            .context("the follower has ended")?;
        ensure!((&*report.service, &*report.source) == ("web", "tested"));
        self.take(&report.seen)?;
        Ok(report.seen)
    }

    /// Goes on until something is so.
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&Self, &Seen) -> bool) -> Result<()> {
        let end = Instant::now() + DEADLINE;
        loop {
            let seen = self.hear().with_context(|| format!("waiting until {what}"))?;
            if is(self, &seen) {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "not within {DEADLINE:?} that {what}: {:#?}",
                self.seen
            );
        }
    }

    /// Goes on until the pool has these addresses and no others.
    pub fn until_pool(&mut self, addresses: &[&str]) -> Result<()> {
        let mut wanted = Vec::new();
        for address in addresses {
            wanted.push(address.parse::<IpAddr>()?);
        }
        wanted.sort();
        self.until(&format!("the pool is {addresses:?}"), |followed, seen| {
            matches!(seen, Seen::Update(_)) && followed.pool.keys().copied().eq(wanted.iter().copied())
        })
    }

    /// Goes on until it fails with a message that has this in it; no update that changes the pool may come before.
    pub fn until_failed(&mut self, with: &str) -> Result<()> {
        let before = self.pool.clone();
        self.until(
            &format!("it fails with {with:?}"),
            |_, seen| matches!(seen, Seen::Failed(error) if error.to_string().contains(with)),
        )?;
        ensure!(self.pool == before, "the pool changed: {:#?}", self.seen);
        Ok(())
    }

    pub fn until_confirmed(&mut self) -> Result<()> {
        self.until("it is confirmed", |_, seen| {
            matches!(seen, Seen::Update(Update::Confirmed))
        })
    }

    /// Whether anything like this was ever seen.
    pub fn saw(&self, what: &str) -> bool {
        self.seen.iter().any(|seen| seen.contains(what))
    }

    /// Snapshots so far.
    pub fn snapshots(&self) -> usize {
        self.seen
            .iter()
            .filter(|seen| seen.starts_with("snapshot"))
            .count()
    }

    pub fn endpoint(&self, address: &str) -> Result<&Endpoint> {
        self.pool
            .get(&address.parse()?)
            .with_context(|| format!("{address} is not in the pool; seen: {:#?}", self.seen))
    }

    /// Drops the follower; what it had said already is still there, then nothing more.
    pub fn end(mut self) -> Result<()> {
        self.follower = None;
        while let Some(report) = self
            .receive()
            .context("the follower goes on after it was dropped")?
        {
            self.take(&report.seen)?;
        }
        Ok(())
    }

    /// The next report; `None` when there will be none any more, an error after the deadline.
    fn receive(&mut self) -> Result<Option<Report>> {
        let reports = &mut self.reports;
        // Within the runtime, whose clock it is.
        let next = self
            .runtime
            .block_on(async { timeout(DEADLINE, reports.recv()).await });
        Ok(next?)
    }

    fn take(&mut self, seen: &Seen) -> Result<()> {
        self.seen.push(shown(seen));
        let Seen::Update(update) = seen else {
            return Ok(());
        };
        match update.clone() {
            Update::Snapshot {
                endpoints,
                refused,
                revision,
            } => {
                self.pool.clear();
                for endpoint in endpoints {
                    let address = endpoint.address;
                    ensure!(
                        self.pool.insert(address, endpoint).is_none(),
                        "{address} comes twice"
                    );
                }
                (self.refused, self.revision) = (refused, revision);
            }
            Update::Delta {
                set,
                gone,
                refused,
                revision,
            } => {
                for endpoint in set {
                    self.pool.insert(endpoint.address, endpoint);
                }
                for address in gone {
                    if self.pool.remove(&address).is_none() {
                        bail!("{address} goes but was not there: {:#?}", self.seen);
                    }
                }
                (self.refused, self.revision) = (refused, revision);
            }
            Update::Confirmed => {}
        }
        Ok(())
    }
}

fn shown(seen: &Seen) -> String {
    match seen {
        Seen::Failed(error) => format!("failed: {error}"),
        Seen::Update(Update::Confirmed) => "confirmed".to_owned(),
        Seen::Update(Update::Snapshot {
            endpoints, revision, ..
        }) => {
            let addresses: Vec<_> = endpoints
                .iter()
                .map(|endpoint| endpoint.address)
                .take(9)
                .collect();
            format!("snapshot {revision:?}: {} {addresses:?}", endpoints.len())
        }
        Seen::Update(Update::Delta {
            set, gone, revision, ..
        }) => {
            let set: Vec<_> = set.iter().map(|endpoint| endpoint.address).take(9).collect();
            format!("delta {revision:?}: set {set:?}, gone {gone:?}")
        }
    }
}
