//! A server of `grpc.health.v1.Health` on loopback.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
};

use anyhow::Result;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpListener, runtime::Runtime};

/// How it answers.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// With a `ServingStatus` to those who ask for the server or for "shop", and "not found" to others.
    Status(u8),
    /// As a server without this service.
    Unimplemented,
    /// With SERVING, but no status of the call.
    NoTrailers,
    /// With much more than a health check has.
    Long,
    /// As a web server.
    Page,
}

/// Stopped on drop.
pub struct GrpcServer {
    pub address: SocketAddr,
    _runtime: Runtime,
}

impl GrpcServer {
    pub fn start(answer: Answer) -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), answer)
    }

    /// At an address of the calling thread's namespace.
    pub fn start_at(address: SocketAddr, answer: Answer) -> Result<Self> {
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(move |request| respond(answer, request));
                let server = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self {
            address,
            _runtime: runtime,
        })
    }
}

async fn respond(answer: Answer, request: Request<Incoming>) -> Result<Response<AnyBody>, hyper::Error> {
    let (head, body) = request.into_parts();
    let asked = body.collect().await?.to_bytes();
    let right = head.uri.path() == "/grpc.health.v1.Health/Check"
        && head.method == "POST"
        && head
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/grpc")
        && head.headers.get("te").is_some_and(|te| te == "trailers");
    let known = [&b"\0\0\0\0\0"[..], b"\0\0\0\0\x06\x0a\x04shop"].contains(&&asked[..]);
    Ok(match answer {
        // INVALID_ARGUMENT and NOT_FOUND.
        _ if !right => without_message("3"),
        Answer::Status(_) if !known => without_message("5"),
        Answer::Status(status) => with_message(vec![0, 0, 0, 0, 2, 8, status], true),
        Answer::Unimplemented => without_message("12"),
        Answer::NoTrailers => with_message(vec![0, 0, 0, 0, 2, 8, 1], false),
        Answer::Long => with_message(vec![0; 1 << 20], true),
        Answer::Page => page(),
    })
}

type AnyBody = UnsyncBoxBody<Bytes, Infallible>;

fn with_message(message: Vec<u8>, trailers: bool) -> Response<AnyBody> {
    let mut ok = HeaderMap::new();
    ok.insert("grpc-status", HeaderValue::from_static("0"));
    let ok = trailers.then_some(ok);
    let body = Full::new(Bytes::from(message)).with_trailers(async move { ok.map(Ok) });
    grpc(Response::new(body.boxed_unsync()))
}

/// "Trailers-Only": the status is in the headers.
fn without_message(status: &'static str) -> Response<AnyBody> {
    let mut response = Response::new(Full::default().boxed_unsync());
    response
        .headers_mut()
        .insert("grpc-status", HeaderValue::from_static(status));
    grpc(response)
}

fn page() -> Response<AnyBody> {
    let mut response = Response::new(Full::from("hello").boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
    response
}

fn grpc(mut response: Response<AnyBody>) -> Response<AnyBody> {
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
