//! `/metrics`, `/healthz` and `/readyz` over TCP.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use tokio::net::TcpListener;

use super::{Collector, backends};
use crate::daemon::shared::Shared;

/// Everything a scrape needs.
pub struct Metrics {
    shared: Arc<Shared>,
    registry: Registry,
    /// Beyond it, a service's backends are folded into one.
    max_series: usize,
}

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error("cannot register the metrics")]
    Register(#[from] prometheus::Error),
    #[error("cannot listen on {0} for metrics; free it, or set another `listen` under [metrics]")]
    Bind(SocketAddr, #[source] std::io::Error),
}

impl Metrics {
    pub fn new(shared: Arc<Shared>, max_series: usize) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        shared.recorder.register(&registry)?;
        registry.register(Box::new(Collector::new(Arc::clone(&shared))))?;
        Ok(Self {
            shared,
            registry,
            max_series,
        })
    }

    /// The whole exposition as text.
    pub fn scrape(&self) -> Result<String, prometheus::Error> {
        let mut text = String::new();
        TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text)?;
        backends::write(&self.shared, self.max_series, &mut text);
        Ok(text)
    }
}

/// Listens, then serves in a task of its own.
pub async fn serve(listen: SocketAddr, metrics: Metrics) -> Result<SocketAddr, MetricsError> {
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| MetricsError::Bind(listen, error))?;
    let bound = listener.local_addr().unwrap_or(listen);
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(Arc::new(metrics));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the metrics server ended");
        }
    });
    Ok(bound)
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> Response {
    match tokio::task::block_in_place(|| metrics.scrape()) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn ready(State(metrics): State<Arc<Metrics>>) -> Response {
    let reasons = metrics.shared.view().not_ready.clone();
    if reasons.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n").into_response()
}
