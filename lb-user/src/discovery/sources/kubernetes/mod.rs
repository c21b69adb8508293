//! The EndpointSlices of a Kubernetes Service: listed once, then watched.
//!
//! API: <https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes> and
//! <https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/>. A watch goes on from the resource version of
//! the last event or bookmark; when the server no longer has it (410 Gone), all slices are listed again.

mod api;
mod slice;

use std::{collections::HashSet, convert::Infallible, path::PathBuf, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use self::{
    api::{Api, Refusal, failed, unreadable},
    slice::Slice,
};
use super::{
    http_client,
    pool::{Changes, Pool},
};
use crate::discovery::{Sink, Source, SourceError, Update};

/// …and is taken for gone when it has said nothing for longer.
const SILENCE: Duration = Duration::from_secs(270);
/// A watch that ends earlier without having said anything is a failure.
const SHORTEST: Duration = Duration::from_secs(5);
/// Expired resource versions in a row before a call fails.
const MAX_EXPIRED: u32 = 3;

/// What is asked of whom.
#[derive(Clone, Debug)]
pub struct Asked {
    pub url: Option<String>,
    pub namespace: String,
    pub service: String,
    pub port: Option<String>,
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
}

/// Follows one Service.
#[derive(Debug)]
pub struct KubernetesSource {
    asked: Asked,
    known: Option<Known>,
}

/// All slices as of a resource version.
#[derive(Debug)]
struct Known {
    pool: Pool,
    version: String,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// What a bookmark has of an object.
#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: String,
}

impl KubernetesSource {
    pub fn new(asked: Asked) -> Self {
        Self { asked, known: None }
    }

    /// Watches until the server ends that, which it does now and then.
    async fn watch(&mut self, api: &Api, sink: &mut Sink) -> Result<(), Refusal> {
        let Some(known) = &mut self.known else {
            return Ok(());
        };
        let began = Instant::now();
        let mut lines = api.watch(&known.version).await?;
        // The server has the version that is known: what comes is all that has changed since.
        sink.send(Update::Confirmed).await?;
        let mut silent = true;
        loop {
            let line = match timeout(SILENCE, lines.next()).await {
                Ok(line) => line?,
                Err(_) => {
                    let why = format!("the watch has been silent for {SILENCE:?}");
                    return Err(SourceError::Unreachable(why).into());
                }
            };
            match line {
                Some(line) => known.event(&line, self.asked.port.as_deref(), sink).await?,
                None if silent && began.elapsed() < SHORTEST => {
                    let why = "the watch ends at once".to_owned();
                    return Err(SourceError::Unreachable(why).into());
                }
                None => return Ok(()),
            }
            silent = false;
        }
    }
}

impl Source for KubernetesSource {
    fn describe(&self) -> String {
        let server = self.asked.url.as_deref().map(http_client::shown);
        format!(
            "kubernetes service {}/{} at {}",
            self.asked.namespace,
            self.asked.service,
            server.as_deref().unwrap_or("this cluster")
        )
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let api = Api::new(&self.asked)?;
        let mut expired = 0;
        loop {
            let outcome = match self.known {
                Some(_) => self.watch(&api, sink).await,
                None => match list(&api, self.asked.port.as_deref(), sink).await {
                    Ok(known) => {
                        self.known = Some(known);
                        continue;
                    }
                    Err(refusal) => Err(refusal),
                },
            };
            match outcome {
                Ok(()) => expired = 0,
                Err(Refusal::Expired) if expired < MAX_EXPIRED => {
                    expired += 1;
                    self.known = None;
                }
                Err(Refusal::Expired) => {
                    self.known = None;
                    let why = "the server forgets resource versions faster than slices can be listed";
                    return Err(SourceError::Unreachable(why.to_owned()));
                }
                Err(Refusal::Failed(error)) => {
                    // Only a lost connection leaves what is known in order.
                    if !matches!(error, SourceError::Unreachable(_)) {
                        self.known = None;
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// Lists all slices, page by page.
async fn list(api: &Api, port: Option<&str>, sink: &mut Sink) -> Result<Known, Refusal> {
    let mut pool = Pool::new(sink.most());
    let mut changes = Changes::default();
    let mut pages = HashSet::new();
    let mut from = String::new();
    loop {
        let page = api.list(&from).await?;
        for slice in page.items.unwrap_or_default() {
            let endpoints = slice.endpoints(port, &mut changes.refused);
            pool.put(slice.name(), endpoints, &mut changes)?;
            sink.check(changes.refused.len())?;
        }
        from = page.metadata.r#continue;
        if from.is_empty() {
            let version = page.metadata.resource_version;
            let update = pool.snapshot(changes.refused, Some(version.clone()));
            sink.send(update).await?;
            return Ok(Known { pool, version });
        }
        if !pages.insert(from.clone()) {
            let why = "the server gives the same page again and again".to_owned();
            return Err(SourceError::Unreadable(why).into());
        }
    }
}

impl Known {
    async fn event(&mut self, line: &[u8], port: Option<&str>, sink: &mut Sink) -> Result<(), Refusal> {
        let what = "an event of the watch cannot be read";
        let event: Event<'_> = serde_json::from_slice(line).map_err(|error| unreadable(what, &error))?;
        let object = event.object.get();
        let mut changes = Changes::default();
        let version = match event.r#type.as_str() {
            "BOOKMARK" => {
                let bookmark: Bookmark =
                    serde_json::from_str(object).map_err(|error| unreadable(what, &error))?;
                self.version = bookmark.metadata.resource_version;
                return Ok(sink.send(Update::Confirmed).await?);
            }
            "ERROR" => return Err(failed(object)),
            kind @ ("ADDED" | "MODIFIED" | "DELETED") => {
                let slice: Slice = serde_json::from_str(object).map_err(|error| unreadable(what, &error))?;
                if kind == "DELETED" {
                    self.pool.remove(slice.name(), &mut changes);
                } else {
                    let endpoints = slice.endpoints(port, &mut changes.refused);
                    self.pool.put(slice.name(), endpoints, &mut changes)?;
                }
                slice.version().to_owned()
            }
            other => {
                let why = format!("{what}: its type is {other:?}");
                return Err(SourceError::Unreadable(why).into());
            }
        };
        if let Some(delta) = self.pool.delta(changes, Some(version.clone())) {
            sink.send(delta).await?;
        }
        self.version = version;
        Ok(())
    }
}
