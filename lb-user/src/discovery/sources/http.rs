//! JSON over HTTP, asked for again and again: Prometheus' http_sd format with weights, or plain entries.
//!
//! The format is documented at <https://prometheus.io/docs/prometheus/latest/http_sd/>; what else is understood, in
//! [`Listing::read`]. An answer with the ETag of the one before (RFC 9110, section 13.1.2) confirms it.

use std::{convert::Infallible, path::PathBuf, time::Duration};

use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, ETAG, HeaderValue, IF_NONE_MATCH},
};
use tokio::time::sleep;

use super::{
    http_client::{self, TOTAL},
    listing::Listing,
};
use crate::{
    config::Seconds,
    discovery::{Sink, Source, SourceError, Update, driver::chance},
};

/// Longest ETag that is remembered.
const MAX_TAG: usize = 1 << 10;

/// Asks one URL.
#[derive(Debug)]
pub struct HttpSource {
    url: String,
    interval: Seconds,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    /// Of the answer that was last handed on.
    tag: Option<HeaderValue>,
}

impl HttpSource {
    pub fn new(
        url: String,
        interval: Seconds,
        token_file: Option<PathBuf>,
        ca_file: Option<PathBuf>,
    ) -> Self {
        Self {
            url,
            interval,
            token_file,
            ca_file,
            tag: None,
        }
    }

    async fn ask(&mut self, client: &Client, url: &Url, sink: &mut Sink) -> Result<(), SourceError> {
        let mut request = client
            .get(url.clone())
            .timeout(TOTAL)
            .header(ACCEPT, "application/json")
            // As Prometheus does, for servers that answer for several clients.
            .header("X-Prometheus-Refresh-Interval-Seconds", self.interval.get());
        request = http_client::bearer(request, self.token_file.as_ref())?;
        if let Some(tag) = &self.tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let response = http_client::send(request, TOTAL).await?;
        match response.status() {
            StatusCode::NOT_MODIFIED if self.tag.is_some() => sink.send(Update::Confirmed).await,
            StatusCode::OK => self.read(response, sink).await,
            _ => Err(http_client::refusal(response).await.1),
        }
    }

    async fn read(&mut self, response: Response, sink: &mut Sink) -> Result<(), SourceError> {
        let tag = response.headers().get(ETAG).cloned();
        let tag = tag.filter(|tag| tag.len() <= MAX_TAG);
        let body = http_client::body(response, Listing::octets(sink.most())).await?;
        let revision = tag.as_ref().and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        sink.send(parse(&body, sink.most())?.snapshot(revision)?).await?;
        // Only now: what was not handed on must come again.
        self.tag = tag;
        Ok(())
    }
}

impl Source for HttpSource {
    fn describe(&self) -> String {
        format!("http {}", http_client::shown(&self.url))
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let url = http_client::url(&self.url)?;
        let client = http_client::client(self.ca_file.as_deref(), url.scheme() == "https")?;
        loop {
            self.ask(&client, &url, sink).await?;
            sleep(jittered(self.interval.duration(), chance())).await;
        }
    }
}

/// Reads a body.
pub fn parse(body: &[u8], most: u32) -> Result<Listing, SourceError> {
    let mut listing = Listing::new(most);
    let mut json = serde_json::Deserializer::from_slice(body);
    listing
        .read(&mut json)
        .and_then(|()| json.end())
        .map_err(|error| SourceError::Unreadable(format!("the answer is no list of endpoints: {error}")))?;
    Ok(listing)
}

/// 90 % to 110 % of a time, so that many daemons do not ask together.
fn jittered(time: Duration, chance: u64) -> Duration {
    let share = chance as f64 / u64::MAX as f64;
    time.mul_f64(0.9 + 0.2 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_vary_by_a_tenth() {
        let second = Duration::from_secs(1);
        for (chance, expected) in [(0, 900), (u64::MAX / 2, 1_000), (u64::MAX, 1_100)] {
            assert_eq!(
                jittered(second, chance).as_secs_f64().mul_add(1e3, 0.5) as u32,
                expected
            );
        }
    }

    #[test]
    fn an_answer_in_the_format_of_prometheus_is_read() {
        let body = br#"[{"targets": ["192.0.2.1:9100", "[2001:db8::1]:9100"], "labels": {"weight": "3"}}]"#;
        match parse(body, 9)
            .unwrap()
            .snapshot(Some("\"v1\"".to_owned()))
            .unwrap()
        {
            Update::Snapshot {
                endpoints, refused, ..
            } => {
                assert_eq!(
                    endpoints
                        .iter()
                        .map(|endpoint| endpoint.weight)
                        .collect::<Vec<_>>(),
                    [3, 3]
                );
                assert_eq!(refused, []);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(parse(b"<html>", 9), Err(SourceError::Unreadable(_))));
    }
}
