//! Serves the interface: checks who asks, hands reads to the view and changes to the controller.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{
        ConnectInfo, DefaultBodyLimit, FromRequest, FromRequestParts, Request, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::{StatusCode, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixListener;

pub use super::types::RefusalKind;
use super::{
    peer::{Allowed, Peer},
    types::{
        ApplyFile, Change, Done, Event, EventsQuery, ExplainQuery, Explanation, Failure, Filter, Flows,
        PlanText, Rotate, Seed, SourceRequest, Status,
    },
};
use crate::{
    api::types,
    watch::{record::Reading, report::SkewReport},
};

/// Octets of the largest body: a file of some ten thousand backends.
const BODY_LIMIT: usize = 16 << 20;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.error)]
pub struct Refusal(pub Failure);

/// What the daemon offers to the interface.
pub trait Backend: Send + Sync + 'static {
    fn status(&self) -> Status;
    fn services(&self) -> Vec<types::Service>;
    fn backends(&self, filter: &Filter) -> Result<Vec<types::Backend>, Refusal>;
    fn seeds(&self) -> Vec<Seed>;
    fn flows(&self, filter: &Filter) -> Result<Flows, Refusal>;
    fn skew(&self, filter: &Filter) -> Result<SkewReport, Refusal>;
    fn skew_counters(&self) -> Result<Reading, Refusal>;
    fn events(&self, query: EventsQuery) -> Vec<Event>;
    fn plan(&self) -> impl Future<Output = Result<PlanText, Refusal>> + Send;
    fn explain(&self, query: ExplainQuery) -> impl Future<Output = Result<Explanation, Refusal>> + Send;
    fn change(&self, change: Change) -> impl Future<Output = Result<Done, Refusal>> + Send;
    fn apply(&self, file: ApplyFile) -> impl Future<Output = Result<Done, Refusal>> + Send;
    fn reload(&self) -> impl Future<Output = Result<Done, Refusal>> + Send;
    fn discovery(&self, filter: &Filter) -> Result<Vec<types::Source>, Refusal>;
    fn order_sources(&self, request: SourceRequest) -> impl Future<Output = Result<Done, Refusal>> + Send;
    fn rotate(&self, rotate: Rotate) -> impl Future<Output = Result<Done, Refusal>> + Send;
}

impl Refusal {
    pub fn new(kind: RefusalKind, error: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self(Failure {
            error: error.into(),
            reason: kind,
            next_step: Some(next_step.into()),
        })
    }

    pub fn kind(&self) -> RefusalKind {
        self.0.reason
    }
}

impl RefusalKind {
    const fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::NotFound | Self::Unsupported => StatusCode::NOT_FOUND,
            Self::Exists | Self::Conflict => StatusCode::CONFLICT,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.kind().status(), Json(self.0)).into_response()
    }
}

/// Serves until the future is dropped.
pub async fn serve<B: Backend>(
    listener: UnixListener,
    allowed: Allowed,
    backend: Arc<B>,
) -> std::io::Result<()> {
    let service = router(allowed, backend).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).await
}

fn router<B: Backend>(allowed: Allowed, backend: Arc<B>) -> Router {
    Router::new()
        .route("/v1/status", get(|State(b): State<Arc<B>>| async move { blocking(move || b.status()) }))
        .route("/v1/services", get(|State(b): State<Arc<B>>| async move { blocking(move || b.services()) }))
        .route("/v1/seeds", get(|State(b): State<Arc<B>>| async move { blocking(move || b.seeds()) }))
        .route(
            "/v1/backends",
            get(|State(b): State<Arc<B>>, Query(filter): Query<Filter>| async move {
                tokio::task::block_in_place(|| b.backends(&filter)).map(Json)
            }),
        )
        .route(
            "/v1/flows",
            get(|State(b): State<Arc<B>>, Query(filter): Query<Filter>| async move {
                tokio::task::block_in_place(|| b.flows(&filter)).map(Json)
            }),
        )
        .route(
            "/v1/skew",
            get(|State(b): State<Arc<B>>, Query(filter): Query<Filter>| async move {
                tokio::task::block_in_place(|| b.skew(&filter)).map(Json)
            }),
        )
        .route(
            "/v1/skew/counters",
            get(|State(b): State<Arc<B>>| async move { tokio::task::block_in_place(|| b.skew_counters()).map(Json) }),
        )
        .route(
            "/v1/discovery",
            get(|State(b): State<Arc<B>>, Query(filter): Query<Filter>| async move {
                tokio::task::block_in_place(|| b.discovery(&filter)).map(Json)
            })
            .post(|State(b): State<Arc<B>>, Body(request): Body<SourceRequest>| async move {
                b.order_sources(request).await.map(Json)
            }),
        )
        .route(
            "/v1/events",
            get(|State(b): State<Arc<B>>, Query(query): Query<EventsQuery>| async move { Json(b.events(query)) }),
        )
        .route("/v1/plan", get(|State(b): State<Arc<B>>| async move { b.plan().await.map(Json) }))
        .route(
            "/v1/explain",
            get(|State(b): State<Arc<B>>, Query(query): Query<ExplainQuery>| async move {
                b.explain(query).await.map(Json)
            }),
        )
        .route(
            "/v1/change",
            post(|State(b): State<Arc<B>>, Body(change): Body<Change>| async move { b.change(change).await.map(Json) }),
        )
        .route(
            "/v1/apply",
            post(|State(b): State<Arc<B>>, Body(file): Body<ApplyFile>| async move { b.apply(file).await.map(Json) }),
        )
        .route("/v1/reload", post(|State(b): State<Arc<B>>| async move { b.reload().await.map(Json) }))
        .route(
            "/v1/seeds/rotate",
            post(|State(b): State<Arc<B>>, Body(rotate): Body<Rotate>| async move { b.rotate(rotate).await.map(Json) }),
        )
        .fallback(|| async {
            Refusal::new(
                RefusalKind::Unsupported,
                "the daemon does not know this request",
                "use the `evenkeel` of the same version as the daemon",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(middleware::from_fn_with_state(allowed, admit))
        .with_state(backend)
}

fn blocking<T: Serialize>(read: impl FnOnce() -> T) -> Json<T> {
    Json(tokio::task::block_in_place(read))
}

async fn admit(
    State(allowed): State<Allowed>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if allowed.admits(&peer) {
        return next.run(request).await;
    }
    tracing::warn!(
        uid = peer.uid,
        pid = peer.pid,
        path = request.uri().path(),
        "refused a request"
    );
    let error = match &peer.unknown {
        Some(reason) => format!("the kernel did not say who is asking: {reason}"),
        None => format!("user id {} may not use this daemon", peer.uid),
    };
    let next_step = match allowed.group {
        Some(group) => format!("ask as root or as a member of the group {group}"),
        None => "ask as root, or set `group` under [api] in the configuration".to_owned(),
    };
    Refusal::new(RefusalKind::Forbidden, error, next_step).into_response()
}

/// As axum's `Query`, refusing in our own words.
struct Query<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let axum::extract::Query(value) = axum::extract::Query::from_request_parts(parts, state).await?;
        Ok(Self(value))
    }
}

/// As axum's `Json`, refusing in our own words.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let Json(value) = Json::from_request(request, state).await?;
        Ok(Self(value))
    }
}

/// For requests that are not in the form of this version.
const MISREAD: &str = "correct what is named, or ask with the `evenkeel` of the daemon's version";

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(RefusalKind::Invalid, rejection.body_text(), MISREAD)
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(RefusalKind::Invalid, rejection.body_text(), MISREAD)
    }
}
