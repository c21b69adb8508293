//! What sources that speak HTTP share: a client with bounds, secrets from files, bodies and lines with a limit.

use std::{
    error::Error,
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, header::HeaderValue, redirect::Policy};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::discovery::SourceError;

const CONNECT: Duration = Duration::from_secs(5);
/// From the request to the last octet of an answer that is no stream.
pub const TOTAL: Duration = Duration::from_secs(10);
/// A server that is gone without a word is noticed after some 30 s, also below a silent stream.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
const MAX_REDIRECTS: usize = 3;
/// Of a secret's file.
const MAX_SECRET: u64 = 64 << 10;
/// What is shown of an error's body.
const MAX_SAID: usize = 200;

/// Reads the URL of a server; a fault in it is an operator's and named as such.
pub fn url(text: &str) -> Result<Url, SourceError> {
    let fault = |why: &dyn std::fmt::Display| SourceError::Unreachable(format!("{text:?} is no URL: {why}"));
    let url = Url::parse(text).map_err(|error| fault(&error))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(fault(&"it begins neither with http:// nor with https://"));
    }
    Ok(url)
}

/// A URL for people, without what may be secret in it.
pub fn shown(url: &str) -> String {
    match Url::parse(url) {
        Ok(mut url) => {
            // Fails for URLs that cannot have any.
            let _ = url.set_password(None);
            let _ = url.set_username("");
            url.set_query(None);
            url.to_string()
        }
        Err(_) => url.to_owned(),
    }
}

/// A client that trusts the certificates of `ca_file`, or the system's. Certificates are read now and kept.
pub fn client(ca_file: Option<&Path>, secure: bool) -> Result<Client, SourceError> {
    Client::builder()
        .tls_backend_preconfigured(tls(ca_file, secure)?)
        .no_proxy()
        .connect_timeout(CONNECT)
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE_INTERVAL)
        .tcp_keepalive_retries(KEEPALIVE_RETRIES)
        .redirect(redirects())
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| SourceError::Unreachable(format!("no HTTP client: {}", chain(&error))))
}

fn tls(ca_file: Option<&Path>, secure: bool) -> Result<ClientConfig, SourceError> {
    // Given here and not as the process's default, which is not a library's to set.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SourceError::Unreachable(format!("no TLS: {error}")))?;
    let builder = match ca_file {
        Some(file) => builder.with_root_certificates(authorities(file)?),
        // A machine without any certificate can still speak plain HTTP.
        None if !secure => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.with_platform_verifier().map_err(|error| {
            SourceError::Unreachable(format!("the system's certificates cannot be read: {error}"))
        })?,
    };
    Ok(builder.with_no_client_auth())
}

fn authorities(file: &Path) -> Result<RootCertStore, SourceError> {
    let fault = |why: &dyn std::fmt::Display| {
        SourceError::Unreachable(format!("the certificates of {}: {why}", file.display()))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| fault(&error))? {
        let certificate = certificate.map_err(|error| fault(&error))?;
        roots.add(certificate).map_err(|error| fault(&error))?;
    }
    if roots.is_empty() {
        return Err(fault(&"there is none in the file"));
    }
    Ok(roots)
}

/// Redirects stay on their host, and what was encrypted stays so: a source names the server that is trusted.
fn redirects() -> Policy {
    Policy::custom(|attempt| {
        let Some(from) = attempt.previous().last() else {
            return attempt.stop();
        };
        let (from_host, from_secure) = (from.host_str().map(str::to_owned), from.scheme() == "https");
        let to = attempt.url();
        if attempt.previous().len() > MAX_REDIRECTS {
            return attempt.error("too many redirects");
        }
        if to.host_str().map(str::to_owned) != from_host {
            let why = format!(
                "it redirects to another host, {}",
                to.host_str().unwrap_or("none")
            );
            return attempt.error(why);
        }
        if from_secure && to.scheme() != "https" {
            return attempt.error("it redirects from https to http");
        }
        attempt.follow()
    })
}

/// A secret as its file has it now, without white space around.
pub fn secret(file: &Path) -> Result<String, SourceError> {
    let fault = |why: &dyn std::fmt::Display| SourceError::Unreachable(format!("{}: {why}", file.display()));
    let mut text = String::new();
    fs::File::open(file)
        .and_then(|file| file.take(MAX_SECRET).read_to_string(&mut text))
        .map_err(|error| fault(&error))?;
    let text = text.trim();
    if text.is_empty() {
        return Err(fault(&"the file is empty"));
    }
    Ok(text.to_owned())
}

/// Adds `Authorization: Bearer` with what the file has now.
pub fn bearer(request: RequestBuilder, token_file: Option<&PathBuf>) -> Result<RequestBuilder, SourceError> {
    let Some(file) = token_file else {
        return Ok(request);
    };
    let value = header(&format!("Bearer {}", secret(file)?), file)?;
    Ok(request.header(reqwest::header::AUTHORIZATION, value))
}

/// A header's value that is kept out of logs.
pub fn header(value: &str, from: &Path) -> Result<HeaderValue, SourceError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        let file = from.display();
        SourceError::Unreachable(format!("{file} holds octets that no HTTP header can carry"))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Sends a request; the answer's head must come within `limit`.
pub async fn send(request: RequestBuilder, limit: Duration) -> Result<Response, SourceError> {
    match tokio::time::timeout(limit, request.send()).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(unreachable(error)),
        Err(_) => Err(SourceError::Unreachable(format!("no answer within {limit:?}"))),
    }
}

/// The answer if it is a success, otherwise an error with the status and the beginning of what the server said.
pub async fn success(response: Response) -> Result<Response, SourceError> {
    if response.status().is_success() {
        return Ok(response);
    }
    Err(refusal(response).await.1)
}

/// The status, and the error it means, with the beginning of what the server said.
pub async fn refusal(mut response: Response) -> (StatusCode, SourceError) {
    let status = response.status();
    let mut said = Vec::new();
    let read = async {
        while said.len() < MAX_SAID
            && let Ok(Some(chunk)) = response.chunk().await
        {
            said.extend_from_slice(&chunk);
        }
    };
    // The status alone says enough when the rest does not come.
    let _ = tokio::time::timeout(TOTAL, read).await;
    said.truncate(MAX_SAID);
    let said = String::from_utf8_lossy(&said);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let error = match said.as_str() {
        "" => format!("the server answers {status}"),
        said => format!("the server answers {status}: {said}"),
    };
    (status, SourceError::Unreachable(error))
}

/// All of a body, refused when it has more octets than `most` after decompression.
pub async fn body(mut response: Response, most: usize) -> Result<Vec<u8>, SourceError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > most {
            return Err(SourceError::Unreadable(format!(
                "the answer has more than {most} octets"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Lines of an answer that goes on, each bounded.
pub struct Lines {
    response: Response,
    buffer: Vec<u8>,
    /// Octets of the buffer known to hold no end of a line.
    searched: usize,
    most: usize,
}

impl Lines {
    pub fn new(response: Response, most: usize) -> Self {
        Self {
            response,
            buffer: Vec::new(),
            searched: 0,
            most,
        }
    }

    /// The next line without its end; `None` when the server has ended the answer. A call that is given up loses nothing.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, SourceError> {
        loop {
            if let Some(end) = self.buffer[self.searched..]
                .iter()
                .position(|octet| *octet == b'\n')
            {
                let rest = self.buffer.split_off(self.searched + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                line.pop();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > self.most {
                return Err(SourceError::Unreadable(format!(
                    "a line of the answer has more than {} octets",
                    self.most
                )));
            }
            match self.response.chunk().await.map_err(unreachable)? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None if self.buffer.is_empty() => return Ok(None),
                None => {
                    return Err(SourceError::Unreachable(
                        "the answer ends within a line".to_owned(),
                    ));
                }
            }
        }
    }
}

/// A failed request in one line.
pub fn unreachable(error: reqwest::Error) -> SourceError {
    // The source's description has the URL.
    SourceError::Unreachable(chain(&error.without_url()))
}

fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        // Some errors repeat what they stem from.
        if !said.contains(&next) {
            said.push_str(": ");
            said.push_str(&next);
        }
        source = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(chunks: &'static str) -> Response {
        let response = axum::http::Response::new(reqwest::Body::from(chunks));
        response.into()
    }

    #[test]
    fn urls_are_shown_without_secrets() {
        assert_eq!(
            shown("https://me:secret@192.0.2.1:8500/a?token=b"),
            "https://192.0.2.1:8500/a"
        );
        assert!(url("ftp://192.0.2.1/").is_err());
        assert!(url("192.0.2.1:80").is_err());
    }

    #[test]
    fn a_secret_is_read_trimmed_and_never_empty() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        assert!(secret(&file).unwrap_err().to_string().contains("token"));
        fs::write(&file, "\n").unwrap();
        assert!(secret(&file).unwrap_err().to_string().contains("empty"));
        fs::write(&file, " abc\n").unwrap();
        assert_eq!(secret(&file).unwrap(), "abc");
    }

    #[test]
    fn a_file_without_certificates_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        fs::write(&file, "nothing of the kind").unwrap();
        for file in [file, directory.path().join("missing.pem")] {
            let said = client(Some(&file), true).unwrap_err().to_string();
            assert!(said.contains(&file.display().to_string()), "{said}");
        }
    }

    #[tokio::test]
    async fn lines_are_cut_and_bounded() {
        let mut lines = Lines::new(answer("one\n\n two\r\n"), 10);
        assert_eq!(lines.next().await.unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(lines.next().await.unwrap().as_deref(), Some(&b" two\r"[..]));
        assert_eq!(lines.next().await.unwrap(), None);
        let half = Lines::new(answer("one"), 10).next().await;
        assert!(matches!(half, Err(SourceError::Unreachable(_))), "{half:?}");
        let long = Lines::new(answer("12345678901"), 10).next().await;
        assert!(matches!(long, Err(SourceError::Unreadable(_))), "{long:?}");
    }

    #[tokio::test]
    async fn a_body_is_bounded() {
        assert_eq!(body(answer("12345"), 5).await, Ok(b"12345".to_vec()));
        assert!(body(answer("123456"), 5).await.is_err());
    }
}
