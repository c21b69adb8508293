//! A stand-in for the API server of Kubernetes, because Debian has none: written from the public documentation of the API
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/>,
//! <https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/>), not from Kubernetes itself.
//! It shows that the source speaks the documented protocol, not that every API server does.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::wire::Wire;

const TOKEN: &str = "Bearer pod-token";

/// EndpointSlices of the service `web` in the namespace `shop`, for those with the token `pod-token`.
pub struct Kubernetes {
    wire: Wire,
    shared: Arc<Shared>,
}

struct Shared {
    store: Mutex<Store>,
    /// Counts changes, to wake watches.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Store {
    version: u64,
    slices: BTreeMap<String, Value>,
    /// Events and the version each made.
    history: Vec<(u64, String)>,
    /// Versions before this one are forgotten.
    oldest: u64,
    /// Watches of former generations end.
    generation: u64,
    asked: Vec<String>,
}

impl Kubernetes {
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Shared {
            store: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let path = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices";
        let router = Router::new()
            .route(path, get(slices))
            .with_state(Arc::clone(&shared));
        Ok(Self {
            wire: Wire::serve(router)?,
            shared,
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.wire.address)
    }

    /// Adds or changes a slice of these endpoints.
    pub fn put(&self, name: &str, endpoints: &Value) {
        self.change(|store| {
            let version = store.version.to_string();
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": name, "namespace": "shop", "resourceVersion": version,
                    "labels": {"kubernetes.io/service-name": "web"}},
                "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]
            });
            let before = store.slices.insert(name.to_owned(), slice.clone());
            let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
            Some(json!({"type": kind, "object": slice}))
        });
    }

    pub fn delete(&self, name: &str) {
        self.change(|store| {
            let mut slice = store.slices.remove(name)?;
            // "The resourceVersion of the deletion."
            slice["metadata"]["resourceVersion"] = json!(store.version.to_string());
            Some(json!({"type": "DELETED", "object": slice}))
        });
    }

    /// Something else changes, and watches are told how far they are.
    pub fn bookmark(&self) {
        self.change(|store| {
            let version = store.version.to_string();
            Some(json!({"type": "BOOKMARK", "object": {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": version, "creationTimestamp": null}, "endpoints": null, "ports": null}}))
        });
    }

    /// Sends an octet sequence that is no event.
    pub fn garble(&self) {
        self.change(|_| Some(json!("no event")));
    }

    /// Forgets all older versions, and ends all watches.
    pub fn compact(&self) {
        self.store().oldest = u64::MAX;
        self.end_watches();
        // The list that follows is of a new version.
        self.change(|_| None);
        let mut store = self.store();
        store.oldest = store.version;
    }

    /// As the server does now and then.
    pub fn end_watches(&self) {
        self.store().generation += 1;
        self.wake();
    }

    /// Requests so far: `list`, `list from N` or `watch N`.
    pub fn asked(&self) -> Vec<String> {
        self.store().asked.clone()
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.shared.store()
    }

    fn change(&self, change: impl FnOnce(&mut Store) -> Option<Value>) {
        let mut store = self.store();
        store.version += 1;
        if let Some(event) = change(&mut store) {
            let version = store.version;
            store.history.push((version, format!("{event}\n")));
        }
        drop(store);
        self.wake();
    }

    fn wake(&self) {
        self.shared.changed.send_modify(|count| *count += 1);
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An endpoint as the API shows it.
pub fn endpoint(address: &str, ready: bool, serving: bool, terminating: bool) -> Value {
    json!({
        "addresses": [address], "zone": "zone-a", "nodeName": "node-1",
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating}
    })
}

async fn slices(
    State(shared): State<Arc<Shared>>,
    Path(namespace): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    if headers.get(AUTHORIZATION).is_none_or(|given| given != TOKEN) {
        return status(StatusCode::UNAUTHORIZED, "Unauthorized");
    }
    let selector = query.get("labelSelector").map(String::as_str);
    if (namespace.as_str(), selector) != ("shop", Some("kubernetes.io/service-name=web")) {
        return status(StatusCode::FORBIDDEN, "endpointslices is forbidden");
    }
    match query.get("watch") {
        Some(_) => watched(shared, &query),
        None => listed(&shared, &query),
    }
}

/// Pages of at most two slices, whatever the limit: "servers may return fewer".
fn listed(shared: &Shared, query: &HashMap<String, String>) -> Response {
    const PAGE: usize = 2;
    let mut store = shared.store();
    let from = query.get("continue").map_or("", String::as_str).to_owned();
    store.asked.push(match from.as_str() {
        "" => "list".to_owned(),
        from => format!("list from {from}"),
    });
    let rest: Vec<_> = store.slices.range(from..).collect();
    let items: Vec<_> = rest.iter().take(PAGE).map(|(_, slice)| *slice).collect();
    let mut metadata = json!({"resourceVersion": store.version.to_string()});
    if let Some((next, _)) = rest.get(PAGE) {
        metadata["continue"] = json!(next);
    }
    Json(json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata, "items": items}))
        .into_response()
}

fn watched(shared: Arc<Shared>, query: &HashMap<String, String>) -> Response {
    let version = query
        .get("resourceVersion")
        .and_then(|version| version.parse().ok());
    let version: u64 = version.unwrap_or(0);
    let generation = {
        let mut store = shared.store();
        store.asked.push(format!("watch {version}"));
        if version < store.oldest {
            return status(StatusCode::GONE, "too old resource version");
        }
        store.generation
    };
    let changes = shared.changed.subscribe();
    let state = (shared, changes, version, generation);
    let events = stream::unfold(state, |(shared, mut changes, version, generation)| async move {
        loop {
            changes.borrow_and_update();
            {
                let store = shared.store();
                if store.generation != generation {
                    return None;
                }
                if let Some((version, event)) = store.history.iter().find(|(at, _)| *at > version) {
                    let (version, event) = (*version, event.clone());
                    drop(store);
                    let state = (shared, changes, version, generation);
                    return Some((Ok::<_, Infallible>(event), state));
                }
            }
            changes.changed().await.ok()?;
        }
    });
    Body::from_stream(events).into_response()
}

fn status(code: StatusCode, message: &str) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code.as_u16()});
    (code, Json(status)).into_response()
}
