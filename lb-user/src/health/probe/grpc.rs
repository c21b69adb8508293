//! `grpc`: `grpc.health.v1.Health/Check` over plain HTTP/2 (gRPC Health Checking Protocol; gRPC over HTTP/2).

mod message;
mod nursery;

use std::pin::pin;

use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http2,
    header,
};
use hyper_util::rt::TokioIo;

use super::{Failure, Stage, Target, Waiting, failure::quoted};
use nursery::Nursery;

/// Most of an answer that is read, in octets; it has seven.
const ANSWER_LIMIT: usize = 4096;
/// Most of its headers and trailers.
const HEADERS_LIMIT: u32 = 16 * 1024;
const WINDOW: u32 = 64 * 1024 - 1;

/// What is asked.
pub struct Asking {
    service: String,
    message: Bytes,
}

impl Asking {
    pub fn new(service: &str) -> Self {
        Self {
            service: service.to_owned(),
            message: message::request(service).into(),
        }
    }

    fn request(&self, target: &Target) -> Result<Request<Full<Bytes>>, Failure> {
        let authority = target.host(80);
        Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(
                header::USER_AGENT,
                concat!("evenkeel/", env!("CARGO_PKG_VERSION")),
            )
            .body(Full::new(self.message.clone()))
            .map_err(|error| Failure::Ours(format!("{authority} cannot be asked: {error}")))
    }
}

pub async fn probe(asking: &Asking, target: &Target, waiting: &Waiting) -> Result<(), Failure> {
    let request = asking.request(target)?;
    let stream = target.connect().await?;
    waiting.at(Stage::Answer);
    let nursery = Nursery::default();
    let handshake = http2::Builder::new(nursery.executor())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADERS_LIMIT)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(failure)?;
    let exchange = pin!(async {
        let response = sender.send_request(request).await.map_err(failure)?;
        waiting.at(Stage::Rest);
        judge(&asking.service, response).await
    });
    nursery.run(exchange, pin!(connection)).await
}

async fn judge(service: &str, response: Response<Incoming>) -> Result<(), Failure> {
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(Failure::Backend(format!(
            "HTTP status {}, wanted 200",
            head.status.as_u16()
        )));
    }
    let kind = head
        .headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], |kind| kind.as_bytes());
    if !kind.starts_with(b"application/grpc") {
        return Err(Failure::Backend(format!(
            "the answer is not gRPC but {:?}",
            quoted(kind)
        )));
    }
    // An answer without a message has its status in the headers ("Trailers-Only").
    if head.headers.contains_key("grpc-status") {
        call_status(service, &head.headers)?;
    }
    let (answer, trailers) = read(body).await?;
    if !head.headers.contains_key("grpc-status") {
        call_status(service, &trailers)?;
    }
    message::serving(&answer).map_err(Failure::Backend)
}

async fn read(mut body: Incoming) -> Result<(Vec<u8>, HeaderMap), Failure> {
    let mut answer = Vec::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        match frame.map_err(failure)?.into_data() {
            Ok(data) if answer.len() + data.len() > ANSWER_LIMIT => {
                return Err(Failure::backend("the answer is too long for a health check"));
            }
            Ok(data) => answer.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    Ok((answer, trailers))
}

/// The status of the call, as opposed to that of the server.
fn call_status(service: &str, headers: &HeaderMap) -> Result<(), Failure> {
    let Some(status) = headers.get("grpc-status") else {
        return Err(Failure::backend("the answer ends without a grpc-status"));
    };
    let message = headers
        .get("grpc-message")
        .map_or(&b""[..], |text| text.as_bytes());
    let why = match status.as_bytes() {
        b"0" => return Ok(()),
        b"5" => format!("the server knows no service {service:?} (grpc status 5)"),
        b"12" => "the server has no grpc.health.v1.Health (grpc status 12)".to_owned(),
        other => format!("grpc status {}", quoted(other)),
    };
    Err(Failure::Backend(match message {
        b"" => why,
        text => format!("{why}: {}", quoted(text)),
    }))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` calls")]
fn failure(error: hyper::Error) -> Failure {
    Failure::from_hyper(&error, "HTTP/2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_the_call_is_told() {
        let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            let parsed = pairs.iter().map(|&(name, value)| {
                (
                    header::HeaderName::from_static(name),
                    header::HeaderValue::from_static(value),
                )
            });
            parsed.collect()
        };
        let told = |pairs| call_status("shop", &headers(pairs)).map_err(|failure| failure.to_string());
        assert_eq!(told(&[("grpc-status", "0")]), Ok(()));
        for (pairs, reason) in [
            (&[][..], "the answer ends without a grpc-status"),
            (
                &[("grpc-status", "5")],
                "the server knows no service \"shop\" (grpc status 5)",
            ),
            (
                &[("grpc-status", "12")],
                "the server has no grpc.health.v1.Health (grpc status 12)",
            ),
            (
                &[("grpc-status", "14"), ("grpc-message", "going%20away")],
                "grpc status 14: going%20away",
            ),
        ] {
            assert_eq!(told(pairs), Err(reason.to_owned()));
        }
    }
}
