//! Talks to a running daemon over its Unix socket.

use std::{
    io,
    path::{Path, PathBuf},
};

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

use super::types::{Failure, RefusalKind};

/// A daemon's address. Each request opens its own connection.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no daemon answers on {}", .0.display())]
    Unreachable(PathBuf, #[source] io::Error),
    #[error("no permission to use {}", .0.display())]
    Forbidden(PathBuf, #[source] io::Error),
    #[error("the daemon broke off while answering {0}")]
    Broken(String, #[source] hyper::Error),
    #[error("the daemon's answer to {0} is not understood; use the `evenkeel` of the daemon's version")]
    Answer(String, #[source] serde_json::Error),
    #[error("cannot put the request {0} into words")]
    Request(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{}", failure.error)]
    Refused { status: StatusCode, failure: Failure },
}

impl ClientError {
    /// What to do about it.
    pub fn next_step(&self) -> Option<String> {
        match self {
            Self::Unreachable(..) => Some(
                "start it with `evenkeel run --config FILE`, or name its socket with --socket".to_owned(),
            ),
            Self::Forbidden(..) => {
                Some("ask as root, or as a member of the group set under [api]".to_owned())
            }
            Self::Refused { failure, .. } => failure.next_step.clone(),
            Self::Broken(..) => Some("look into the daemon's log".to_owned()),
            Self::Answer(..) | Self::Request(..) => None,
        }
    }
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_path_buf(),
        }
    }

    /// `GET path`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// `GET path?query`.
    pub async fn query<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<T, ClientError> {
        let query = serde_urlencoded::to_string(query)
            .map_err(|error| ClientError::Request(path.to_owned(), error.into()))?;
        self.get(&format!("{path}?{query}")).await
    }

    /// `POST path` with a JSON body.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body =
            serde_json::to_vec(body).map_err(|error| ClientError::Request(path.to_owned(), error.into()))?;
        self.ask(Method::POST, path, body.into()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let named = || format!("{method} {path}");
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => ClientError::Forbidden(self.socket.clone(), error),
                _ => ClientError::Unreachable(self.socket.clone(), error),
            })?;
        let request = Request::builder()
            .method(&method)
            .uri(path)
            .header("host", "evenkeel")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| ClientError::Request(named(), error.into()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ClientError::Broken(named(), error))?;
        let driver = tokio::spawn(connection);
        let answer = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        let answer = answer.await.map_err(|error| ClientError::Broken(named(), error));
        driver.abort();
        let (status, body) = answer?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| ClientError::Answer(named(), error));
        }
        let failure = serde_json::from_slice(&body).unwrap_or_else(|_| Failure {
            error: format!("the daemon answered {status}"),
            reason: RefusalKind::Failed,
            next_step: Some("look into the daemon's log".to_owned()),
        });
        Err(ClientError::Refused { status, failure })
    }
}
