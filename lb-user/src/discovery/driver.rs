//! Keeps a source running, whatever becomes of its server.

use std::{any::Any, convert::Infallible, panic::AssertUnwindSafe, sync::Arc, time::Instant};

use futures_util::FutureExt;
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

use super::{
    Update,
    backoff::Backoff,
    sources::AnySource,
    spec::{SourceKind, SourceSpec},
};

/// Something that names endpoints.
pub trait Source: Send + 'static {
    /// What it follows, for people: `dns web.example (A) at 192.0.2.53:53`.
    fn describe(&self) -> String;

    /// Follows its server until something fails. What it remembers (a revision, an index) makes the next call go on where
    /// this one ended.
    fn follow(&mut self, sink: &mut Sink) -> impl Future<Output = Result<Infallible, SourceError>> + Send;
}

/// Why a source could not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No answer: unreachable, timed out, refused, an error of the server's.
    #[error("{0}")]
    Unreachable(String),
    /// An answer that cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// More than is allowed.
    #[error("{found} endpoints are more than max_endpoints = {most} allows")]
    TooMany { found: usize, most: u32 },
    /// The daemon no longer wants to know.
    #[error("no longer followed")]
    Ended,
}

/// What a source said, and which.
#[derive(Clone, Debug)]
pub struct Report {
    pub service: Arc<str>,
    /// [`SourceSpec::name`].
    pub source: Arc<str>,
    pub seen: Seen,
    /// When it was seen.
    pub at: Instant,
}

#[derive(Clone, Debug)]
pub enum Seen {
    Update(Update),
    Failed(SourceError),
}

/// A source that is being followed, until this is dropped.
#[derive(Debug)]
pub struct Follower {
    describe: String,
    task: JoinHandle<()>,
}

/// Follows what `spec` names in a task of its own, and reports what it sees under the service's name.
///
/// A failure is reported as [`Seen::Failed`] and the source asked again after a pause that grows while nothing gets
/// through. A source that panics is reported and made anew. Must be called within a Tokio runtime; the task ends when the
/// [`Follower`] is dropped or nobody receives reports any more.
pub fn follow(service: &str, spec: &SourceSpec, reports: mpsc::Sender<Report>) -> Follower {
    let sink = Sink::new(service, spec, reports);
    let kind = spec.kind.clone();
    let make = move || AnySource::new(&kind);
    Follower {
        describe: describe(&spec.kind),
        task: tokio::spawn(keep(make, sink)),
    }
}

/// What a source of this kind follows, for people; starts nothing.
pub fn describe(kind: &SourceKind) -> String {
    AnySource::new(kind).describe()
}

impl Follower {
    /// [`Source::describe`].
    pub fn describe(&self) -> &str {
        &self.describe
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Follows a source again and again, until nobody receives reports.
async fn keep<S: Source>(make: impl Fn() -> S, mut sink: Sink) {
    let mut source = make();
    let mut backoff = Backoff::default();
    loop {
        let sent = sink.sent;
        let error = match AssertUnwindSafe(source.follow(&mut sink)).catch_unwind().await {
            Ok(Err(SourceError::Ended)) => return,
            Ok(Err(error)) => error,
            Err(panic) => {
                let error = panicked(panic.as_ref());
                tracing::error!(service = %sink.service, source = %sink.source, %error, "a source panicked");
                // What it remembers may be half of something.
                source = make();
                error
            }
        };
        if sink.sent > sent {
            backoff.reset();
        }
        if sink.failed(error).await.is_err() {
            return;
        }
        tokio::select! {
            () = sleep(backoff.pause(chance())) => {}
            () = sink.reports.closed() => return,
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> SourceError {
    let said = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a word");
    SourceError::Unreadable(format!(
        "the source panicked, which is a fault of Evenkeel's: {said}"
    ))
}

/// The kernel's randomness; without it the longest pause, which is safe.
pub(super) fn chance() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX)
}

/// Where a source says what it saw.
#[derive(Clone, Debug)]
pub struct Sink {
    service: Arc<str>,
    source: Arc<str>,
    most: u32,
    /// Updates that got through.
    sent: u64,
    reports: mpsc::Sender<Report>,
}

impl Sink {
    pub fn new(service: &str, spec: &SourceSpec, reports: mpsc::Sender<Report>) -> Self {
        Self {
            service: service.into(),
            source: spec.name().into(),
            most: spec.max_endpoints,
            sent: 0,
            reports,
        }
    }

    /// Endpoints that are allowed, refused entries included.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Updates that got through since it was made.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Hands an update on.
    pub async fn send(&mut self, update: Update) -> Result<(), SourceError> {
        let found = match &update {
            Update::Snapshot { endpoints, .. } => endpoints.len(),
            Update::Delta { set, .. } => set.len(),
            Update::Confirmed => 0,
        };
        self.check(found)?;
        self.report(Seen::Update(update)).await?;
        self.sent += 1;
        Ok(())
    }

    /// Says what went wrong, for a source that goes on watching all the same.
    pub async fn failed(&mut self, error: SourceError) -> Result<(), SourceError> {
        self.report(Seen::Failed(error)).await
    }

    /// Refuses more endpoints than are allowed; sources ask before they have read all of them.
    pub fn check(&self, found: usize) -> Result<(), SourceError> {
        if found > self.most as usize {
            return Err(SourceError::TooMany {
                found,
                most: self.most,
            });
        }
        Ok(())
    }

    async fn report(&mut self, seen: Seen) -> Result<(), SourceError> {
        let report = Report {
            service: Arc::clone(&self.service),
            source: Arc::clone(&self.source),
            seen,
            at: Instant::now(),
        };
        self.reports.send(report).await.map_err(|_| SourceError::Ended)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::discovery::GuardSpec;

    /// Says what it is told to, once a call.
    struct Scripted {
        calls: Arc<AtomicU32>,
        made_call: u32,
    }

    impl Source for Scripted {
        fn describe(&self) -> String {
            "a script".to_owned()
        }

        async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
            match self.calls.fetch_add(1, Ordering::SeqCst) {
                0 => Err(SourceError::Unreachable("nobody there".to_owned())),
                1 => panic!("lost the thread"),
                // Only a source that was made anew knows of the call before.
                2 if self.made_call == 2 => {
                    sink.send(Update::Confirmed).await?;
                    std::future::pending().await
                }
                call => Err(SourceError::Unreadable(format!("call {call}"))),
            }
        }
    }

    fn spec() -> SourceSpec {
        SourceSpec {
            name: None,
            kind: SourceKind::File {
                path: "/nonexistent.json".into(),
            },
            guard: GuardSpec::default(),
            max_endpoints: 2,
        }
    }

    #[tokio::test]
    async fn a_failure_and_a_panic_are_reported_and_the_source_runs_again() {
        let (reports, mut seen) = mpsc::channel(8);
        let calls = Arc::new(AtomicU32::new(0));
        let shared = Arc::clone(&calls);
        let make = move || Scripted {
            made_call: shared.load(Ordering::SeqCst),
            calls: Arc::clone(&shared),
        };
        let task = tokio::spawn(keep(make, Sink::new("web", &spec(), reports)));
        let first = seen.recv().await.unwrap();
        assert_eq!((&*first.service, &*first.source), ("web", "file"));
        assert!(matches!(first.seen, Seen::Failed(SourceError::Unreachable(said)) if said == "nobody there"));
        let second = seen.recv().await.unwrap();
        assert!(
            matches!(&second.seen, Seen::Failed(SourceError::Unreadable(said)) if said.contains("lost the thread")),
            "{second:?}"
        );
        let third = seen.recv().await.unwrap();
        assert!(matches!(third.seen, Seen::Update(Update::Confirmed)), "{third:?}");
        task.abort();
    }

    #[tokio::test]
    async fn a_source_nobody_listens_to_ends() {
        let (reports, seen) = mpsc::channel(1);
        drop(seen);
        let make = || Scripted {
            calls: Arc::new(AtomicU32::new(0)),
            made_call: 0,
        };
        keep(make, Sink::new("web", &spec(), reports)).await;
    }

    #[tokio::test]
    async fn too_many_endpoints_are_refused_whole() {
        let (reports, _seen) = mpsc::channel(1);
        let mut sink = Sink::new("web", &spec(), reports);
        let endpoints = (1..=3)
            .map(|host| super::super::Endpoint::new([192, 0, 2, host].into()))
            .collect();
        let update = Update::Snapshot {
            endpoints,
            refused: Vec::new(),
            revision: None,
        };
        assert_eq!(
            sink.send(update).await,
            Err(SourceError::TooMany { found: 3, most: 2 })
        );
        assert_eq!(sink.sent(), 0);
    }
}
