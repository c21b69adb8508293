//! `http` and `https`: a GET over HTTP/1.1 on a connection of its own.

use std::pin::pin;

use http_body_util::{BodyExt, Empty};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{BODY_LIMIT, Failure, Stage, Target, Waiting, contains, tls::Tls};
use crate::health::spec;

/// Most of an answer's head, in octets.
const HEAD_LIMIT: usize = 64 * 1024;

/// What is asked, and what is well.
pub struct Asking {
    request: spec::Request,
    /// The port that `Host` need not name.
    usual_port: u16,
}

impl Asking {
    pub fn new(request: &spec::Request, usual_port: u16) -> Self {
        Self {
            request: request.clone(),
            usual_port,
        }
    }

    fn request(&self, target: &Target) -> Result<Request<Empty<Bytes>>, Failure> {
        let path = &self.request.path;
        let wrong =
            |why: &dyn std::fmt::Display| Failure::Ours(format!("{path:?} cannot be asked for: {why}"));
        if !path.starts_with('/') {
            return Err(wrong(&"a path begins with /"));
        }
        let host = match &self.request.host {
            Some(host) => HeaderValue::from_str(host)
                .map_err(|error| Failure::Ours(format!("host {host:?} cannot be sent: {error}")))?,
            None => HeaderValue::from_str(&target.host(self.usual_port)).map_err(|error| wrong(&error))?,
        };
        Request::get(path)
            .header(header::HOST, host)
            .header(
                header::USER_AGENT,
                concat!("evenkeel/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::ACCEPT, "*/*")
            .header(header::CONNECTION, "close")
            .body(Empty::new())
            .map_err(|error| wrong(&error))
    }

    fn status_is_well(&self, status: u16) -> Result<(), Failure> {
        let (least, greatest) = self.request.status;
        if (least..=greatest).contains(&status) {
            return Ok(());
        }
        Err(Failure::Backend(if least == greatest {
            format!("status {status}, wanted {least}")
        } else {
            format!("status {status}, wanted {least} to {greatest}")
        }))
    }
}

pub async fn probe(asking: &Asking, target: &Target, waiting: &Waiting) -> Result<(), Failure> {
    let request = asking.request(target)?;
    let stream = target.connect().await?;
    ask(asking, request, stream, waiting).await
}

pub async fn probe_tls(
    asking: &Asking,
    tls: &Tls,
    target: &Target,
    waiting: &Waiting,
) -> Result<(), Failure> {
    let request = asking.request(target)?;
    let tls = tls.ready(target).await?;
    let stream = target.connect().await?;
    waiting.at(Stage::Tls);
    let stream = tls.handshake(stream).await?;
    ask(asking, request, stream, waiting).await
}

async fn ask<S>(
    asking: &Asking,
    request: Request<Empty<Bytes>>,
    stream: S,
    waiting: &Waiting,
) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    waiting.at(Stage::Answer);
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_LIMIT);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failure)?;
    let mut exchange = pin!(async {
        let response = sender.send_request(request).await.map_err(failure)?;
        waiting.at(Stage::Rest);
        judge(asking, response).await
    });
    // The connection moves the exchange on. It may end first, with the end of the answer still to be looked at.
    tokio::select! {
        biased;
        result = &mut exchange => result,
        _ = connection => exchange.await,
    }
}

async fn judge(asking: &Asking, response: Response<Incoming>) -> Result<(), Failure> {
    asking.status_is_well(response.status().as_u16())?;
    match &asking.request.body {
        Some(text) => find(text, response.into_body()).await,
        None => Ok(()),
    }
}

/// Reads until the text is found, the body ends, or there is too much of it.
async fn find(text: &str, mut body: Incoming) -> Result<(), Failure> {
    if text.is_empty() {
        return Ok(());
    }
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(failure)?.into_data() else {
            continue;
        };
        // The text may have begun in what was there before.
        let from = read.len().saturating_sub(text.len());
        let room = BODY_LIMIT - read.len();
        read.extend_from_slice(&data[..data.len().min(room)]);
        if contains(&read[from..], text.as_bytes()) {
            return Ok(());
        }
        if read.len() == BODY_LIMIT {
            return Err(Failure::Backend(format!(
                "the first {} KiB of the body do not contain {text:?}",
                BODY_LIMIT / 1024
            )));
        }
    }
    Err(Failure::Backend(format!("the body does not contain {text:?}")))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` calls")]
fn failure(error: hyper::Error) -> Failure {
    Failure::from_hyper(&error, "HTTP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_is_told_by_name() {
        let target = Target::direct(([192, 0, 2, 1], 8080).into());
        let asked = |path: &str, host: Option<&str>| {
            let request = spec::Request {
                path: path.to_owned(),
                host: host.map(str::to_owned),
                status: (200, 399),
                body: None,
            };
            let request = Asking::new(&request, 80).request(&target);
            request.map(|request| request.headers()[header::HOST].clone())
        };
        assert_eq!(
            asked("/a?b=c", None),
            Ok(HeaderValue::from_static("192.0.2.1:8080"))
        );
        assert_eq!(
            asked("/", Some("example.org")),
            Ok(HeaderValue::from_static("example.org"))
        );
        for (path, host, begins) in [
            ("a", None, "\"a\" cannot be asked for: a path begins with /"),
            ("/a b", None, "\"/a b\" cannot be asked for: "),
            ("/", Some("a\r\nx: y"), "host \"a\\r\\nx: y\" cannot be sent: "),
        ] {
            let Err(Failure::Ours(reason)) = asked(path, host) else {
                panic!("{path} {host:?} was asked");
            };
            assert!(reason.starts_with(begins), "{reason}");
        }
    }
}
