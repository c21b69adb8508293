//! A stand-in for a Consul agent, because Debian has none: written from the public documentation of its HTTP API
//! (<https://developer.hashicorp.com/consul/api-docs/health>, <https://developer.hashicorp.com/consul/api-docs/features/blocking>),
//! not from Consul itself. It shows that the source speaks the documented protocol, not that every Consul does.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::wire::Wire;

/// One service, `web`.
pub struct Consul {
    wire: Wire,
    shared: Arc<Shared>,
}

struct Shared {
    now: watch::Sender<Now>,
    /// Queries, as parameters in order of their names, and the token.
    asked: Mutex<Vec<String>>,
}

#[derive(Clone)]
struct Now {
    index: u64,
    instances: Vec<Value>,
    status: StatusCode,
}

impl Consul {
    pub fn start(index: u64, instances: Vec<Value>) -> Result<Self> {
        let now = watch::Sender::new(Now {
            index,
            instances,
            status: StatusCode::OK,
        });
        let asked = Mutex::new(Vec::new());
        let shared = Arc::new(Shared { now, asked });
        let router = Router::new()
            .route("/v1/health/service/{service}", get(health))
            .with_state(Arc::clone(&shared));
        Ok(Self {
            wire: Wire::serve(router)?,
            shared,
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.wire.address)
    }

    /// Changes the state; blocked queries return.
    pub fn set(&self, index: u64, instances: Vec<Value>) {
        self.shared.now.send_replace(Now {
            index,
            instances,
            status: StatusCode::OK,
        });
    }

    /// Blocked queries return with an error, and so do all others.
    pub fn fail(&self, status: StatusCode) {
        self.shared.now.send_modify(|now| now.status = status);
    }

    /// All queries so far.
    pub fn asked(&self) -> Vec<String> {
        let asked = self.shared.asked.lock();
        asked.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An instance as the API shows it.
pub fn instance(id: &str, address: &str, weight: u32) -> Value {
    json!({
        "Node": {"ID": "40e4a748-2192-161a-0510-9bf59fe950b5", "Node": "node-1", "Address": "192.0.2.250", "Datacenter": "dc1"},
        "Service": {"ID": id, "Service": "web", "Tags": ["primary"], "Address": address, "Port": 8080,
            "Weights": {"Passing": weight, "Warning": 1}},
        "Checks": [{"Node": "node-1", "CheckID": "serfHealth", "Status": "passing", "Output": ""}]
    })
}

async fn health(
    State(shared): State<Arc<Shared>>,
    Path(service): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    note(&shared, &query, &headers);
    let mut changes = shared.now.subscribe();
    let mut now = changes.borrow_and_update().clone();
    // "The HTTP request will hang until a change in the system occurs, or the maximum timeout is reached."
    let index = query.get("index").and_then(|index| index.parse::<u64>().ok());
    if index == Some(now.index) && now.status == StatusCode::OK {
        let wait = query
            .get("wait")
            .and_then(|wait| wait.strip_suffix('s')?.parse().ok());
        let _ = timeout(Duration::from_secs(wait.unwrap_or(300)), changes.changed()).await;
        now = changes.borrow().clone();
    }
    if now.status != StatusCode::OK {
        return (now.status, "rpc error: no cluster leader").into_response();
    }
    let instances = if service == "web" {
        now.instances
    } else {
        Vec::new()
    };
    ([("X-Consul-Index", now.index.to_string())], Json(instances)).into_response()
}

fn note(shared: &Shared, query: &HashMap<String, String>, headers: &HeaderMap) {
    let mut said: Vec<_> = query
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    said.sort();
    let token = headers
        .get("X-Consul-Token")
        .and_then(|token| token.to_str().ok());
    said.extend(token.map(|token| format!("token {token}")));
    let asked = shared.asked.lock();
    asked.unwrap_or_else(PoisonError::into_inner).push(said.join(" "));
}
