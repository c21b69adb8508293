//! The EndpointSlices of a Kubernetes Service: listed once, then watched.
//!
//! API: <https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes> and
//! <https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/>. A watch goes on from the resource version of
//! the last event or bookmark; when the server no longer has it (410 Gone), all slices are listed again.

mod slice;

use std::{collections::HashSet, convert::Infallible, env, path::PathBuf, time::Duration};

use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use self::slice::Slice;
use super::{
    http_client::{self, Lines, TOTAL},
    pool::{Changes, Pool},
};
use crate::discovery::{Sink, Source, SourceError, Update};

/// Where a pod finds its credentials
/// (<https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>).
const POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Slices of one answer; a slice has up to 1,000 endpoints.
const PAGE: u32 = 50;
const MAX_PAGE: usize = 64 << 20;
/// Octets of one event. An object has at most some 1.5 MiB, etcd's limit.
const MAX_LINE: usize = 4 << 20;
/// The server ends a watch after so long…
const WATCH: Duration = Duration::from_secs(240);
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

/// The server and what to say to it.
struct Api {
    client: Client,
    slices: Url,
    token_file: Option<PathBuf>,
}

/// Why a request was not answered.
enum Refusal {
    /// The resource version is too old.
    Expired,
    Failed(SourceError),
}

impl From<SourceError> for Refusal {
    fn from(error: SourceError) -> Self {
        Self::Failed(error)
    }
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Option<Vec<Slice>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(default)]
    r#continue: String,
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

/// An error as an object.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u16,
}

impl KubernetesSource {
    pub fn new(asked: Asked) -> Self {
        Self { asked, known: None }
    }

    fn api(&self) -> Result<Api, SourceError> {
        let pod = |given: &Option<PathBuf>, file: &str| match (given, &self.asked.url) {
            (Some(given), _) => Some(given.clone()),
            (None, None) => Some(PathBuf::from(POD).join(file)),
            (None, Some(_)) => None,
        };
        let server = match &self.asked.url {
            Some(url) => url.clone(),
            None => in_cluster(|name| env::var(name).ok())?,
        };
        let mut slices = http_client::url(&server)?;
        let path = [
            "apis",
            "discovery.k8s.io",
            "v1",
            "namespaces",
            &self.asked.namespace,
            "endpointslices",
        ];
        slices
            .path_segments_mut()
            .map_err(|()| SourceError::Unreachable(format!("{server:?} has no path")))?
            .pop_if_empty()
            .extend(path);
        let selector = format!("kubernetes.io/service-name={}", self.asked.service);
        slices.query_pairs_mut().append_pair("labelSelector", &selector);
        Ok(Api {
            client: http_client::client(
                pod(&self.asked.ca_file, "ca.crt").as_deref(),
                slices.scheme() == "https",
            )?,
            slices,
            token_file: pod(&self.asked.token_file, "token"),
        })
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
        let api = self.api()?;
        let mut expired = 0;
        loop {
            let outcome = match self.known {
                Some(_) => self.watch(&api, sink).await,
                None => match api.list(self.asked.port.as_deref(), sink).await {
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

impl Api {
    async fn ask(&self, parameters: &[(&str, &str)], limit: Option<Duration>) -> Result<Response, Refusal> {
        let mut url = self.slices.clone();
        url.query_pairs_mut().extend_pairs(parameters);
        let mut request = self
            .client
            .get(url)
            .header(reqwest::header::ACCEPT, "application/json");
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        // Read each time: the kubelet renews it.
        let request = http_client::bearer(request, self.token_file.as_ref())?;
        let response = http_client::send(request, TOTAL).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        match http_client::refusal(response).await {
            (StatusCode::GONE, _) => Err(Refusal::Expired),
            (_, error) => Err(Refusal::Failed(error)),
        }
    }

    /// Lists all slices, page by page.
    async fn list(&self, port: Option<&str>, sink: &mut Sink) -> Result<Known, Refusal> {
        let mut pool = Pool::new(sink.most());
        let mut changes = Changes::default();
        let limit = PAGE.to_string();
        let mut from = String::new();
        let mut pages = HashSet::new();
        loop {
            let mut parameters = vec![("limit", limit.as_str())];
            if !from.is_empty() {
                parameters.push(("continue", &from));
            }
            let response = self.ask(&parameters, Some(TOTAL)).await?;
            let body = http_client::body(response, MAX_PAGE).await?;
            let list: List = serde_json::from_slice(&body)
                .map_err(|error| unreadable("the answer is no list of slices", &error))?;
            for slice in list.items.unwrap_or_default() {
                pool.put(
                    slice.name(),
                    slice.endpoints(port, &mut changes.refused),
                    &mut changes,
                )?;
                sink.check(changes.refused.len())?;
            }
            if list.metadata.r#continue.is_empty() {
                let version = list.metadata.resource_version;
                let update = pool.snapshot(changes.refused, Some(version.clone()));
                sink.send(update).await?;
                return Ok(Known { pool, version });
            }
            from = list.metadata.r#continue;
            if !pages.insert(from.clone()) {
                let why = "the server gives the same page again and again".to_owned();
                return Err(SourceError::Unreadable(why).into());
            }
        }
    }

    async fn watch(&self, version: &str) -> Result<Lines, Refusal> {
        let seconds = WATCH.as_secs().to_string();
        let parameters = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds),
        ];
        Ok(Lines::new(self.ask(&parameters, None).await?, MAX_LINE))
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

fn failed(object: &str) -> Refusal {
    match serde_json::from_str::<Status>(object) {
        Ok(status) if status.code == StatusCode::GONE.as_u16() => Refusal::Expired,
        Ok(status) => {
            let why = format!("the watch fails with {}: {}", status.code, status.message);
            SourceError::Unreachable(why).into()
        }
        Err(error) => unreadable("an error of the watch cannot be read", &error).into(),
    }
}

/// The API server as a pod's environment names it.
fn in_cluster(variable: impl Fn(&str) -> Option<String>) -> Result<String, SourceError> {
    let (Some(host), Some(port)) = (
        variable("KUBERNETES_SERVICE_HOST"),
        variable("KUBERNETES_SERVICE_PORT"),
    ) else {
        return Err(SourceError::Unreachable(
            "no `url` is given, and this is no pod: KUBERNETES_SERVICE_HOST and _PORT are not set".to_owned(),
        ));
    };
    Ok(match host.parse::<std::net::Ipv6Addr>() {
        Ok(v6) => format!("https://[{v6}]:{port}"),
        Err(_) => format!("https://{host}:{port}"),
    })
}

fn unreadable(what: &str, error: &serde_json::Error) -> SourceError {
    SourceError::Unreadable(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_knows_its_server() {
        let cluster = |host: &'static str| {
            in_cluster(move |name| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
                _ => None,
            })
        };
        assert_eq!(cluster("192.0.2.1").unwrap(), "https://192.0.2.1:443");
        assert_eq!(cluster("2001:db8::1").unwrap(), "https://[2001:db8::1]:443");
        assert!(in_cluster(|_| None).is_err());
    }

    #[test]
    fn an_expired_version_is_told_from_other_errors() {
        assert!(matches!(
            failed(r#"{"kind": "Status", "code": 410, "reason": "Expired"}"#),
            Refusal::Expired
        ));
        assert!(matches!(
            failed(r#"{"kind": "Status", "code": 500, "message": "no"}"#),
            Refusal::Failed(SourceError::Unreachable(said)) if said.ends_with("500: no")
        ));
        assert!(matches!(failed("7"), Refusal::Failed(SourceError::Unreadable(_))));
    }
}
