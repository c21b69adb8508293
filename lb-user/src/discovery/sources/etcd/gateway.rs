//! The part of etcd's JSON gateway that is used (<https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/>).
//!
//! Keys and values are base64, 64-bit numbers are strings, and fields with their default value are left out.

use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Client, RequestBuilder, Url, header::AUTHORIZATION};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Value, json};

use super::super::http_client::{self, Lines, TOTAL};
use crate::discovery::SourceError;

/// Octets of one answer to a listing. etcd refuses values of more than 1.5 MiB, and most are far smaller.
const MAX_PAGE: usize = 64 << 20;
/// Octets of one answer of a watch: etcd splits them at its limit of 1.5 MiB for a request, before base64 adds a third.
const MAX_LINE: usize = 4 << 20;
/// Octets of a key.
const MAX_KEY: usize = 4 << 10;

/// One member's gateway, for the keys below one prefix.
pub struct Gateway {
    client: Client,
    url: Url,
    /// First key, and the one after the last.
    range: (Vec<u8>, Vec<u8>),
    token: Option<reqwest::header::HeaderValue>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Header {
    #[serde(default)]
    pub cluster_id: String,
    #[serde(default, deserialize_with = "whole")]
    pub revision: i64,
}

#[derive(Debug, Deserialize)]
pub struct Page {
    pub header: Header,
    #[serde(default)]
    pub kvs: Vec<Key>,
    #[serde(default)]
    pub more: bool,
    /// Keys of the range, also those not in this answer.
    #[serde(default, deserialize_with = "whole")]
    pub count: i64,
}

#[derive(Debug, Default, Deserialize)]
pub struct Key {
    #[serde(default, deserialize_with = "key")]
    pub key: Vec<u8>,
    #[serde(default, deserialize_with = "octets")]
    pub value: Vec<u8>,
    #[serde(default, deserialize_with = "whole")]
    pub mod_revision: i64,
}

#[derive(Debug, Deserialize)]
pub struct Event {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    pub kv: Key,
}

/// An answer of a watch.
#[derive(Debug)]
pub enum Watched {
    Events {
        header: Header,
        events: Vec<Event>,
        /// No more of the same revision follow.
        whole: bool,
    },
    /// The revision to watch from is no longer there.
    Compacted,
}

/// The answers of a watch.
pub struct Watch {
    lines: Lines,
}

#[derive(Deserialize)]
struct Line {
    result: Option<Answer>,
    error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Answer {
    header: Header,
    canceled: bool,
    cancel_reason: String,
    #[serde(deserialize_with = "whole")]
    compact_revision: i64,
    fragment: bool,
    events: Vec<Event>,
}

impl Key {
    /// The key as text; octets that are none are replaced, which keeps different keys different enough to count.
    pub fn name(&self) -> String {
        match str::from_utf8(&self.key) {
            Ok(name) => name.to_owned(),
            Err(_) => self.key.escape_ascii().to_string(),
        }
    }
}

impl Event {
    pub fn is_delete(&self) -> bool {
        self.kind == "DELETE"
    }
}

impl Gateway {
    pub fn new(url: &str, prefix: &str, ca_file: Option<&Path>) -> Result<Self, SourceError> {
        let url = http_client::url(url)?;
        Ok(Self {
            client: http_client::client(ca_file, url.scheme() == "https")?,
            url,
            range: below(prefix.as_bytes()),
            token: None,
        })
    }

    /// Gets a token that further requests carry.
    pub async fn authenticate(&mut self, user: &str, password: Option<&Path>) -> Result<(), SourceError> {
        #[derive(Deserialize)]
        struct Token {
            token: String,
        }
        let secret = password.map(http_client::secret).transpose()?;
        let login = json!({"name": user, "password": secret.unwrap_or_default()});
        let Token { token } = self.ask("v3/auth/authenticate", &login).await?;
        let from = password.unwrap_or(Path::new("etcd's answer"));
        self.token = Some(http_client::header(&token, from)?);
        Ok(())
    }

    /// Keys in order, after `after` if given, as they were at a revision; 0 is the newest.
    pub async fn list(&self, limit: u32, after: Option<&[u8]>, revision: i64) -> Result<Page, SourceError> {
        let from = match after {
            Some(key) => [key, &[0]].concat(),
            None => self.range.0.clone(),
        };
        let asked = json!({
            "key": STANDARD.encode(from), "range_end": STANDARD.encode(&self.range.1),
            "limit": limit.to_string(), "revision": revision.to_string(),
            "sort_target": "KEY", "sort_order": "ASCEND",
        });
        self.ask("v3/kv/range", &asked).await
    }

    /// How many keys there are, and the one that changed last.
    pub async fn newest(&self) -> Result<Page, SourceError> {
        let asked = json!({
            "key": STANDARD.encode(&self.range.0), "range_end": STANDARD.encode(&self.range.1),
            "limit": "1", "keys_only": true, "sort_target": "MOD", "sort_order": "DESCEND",
        });
        self.ask("v3/kv/range", &asked).await
    }

    /// Watches from a revision on, that included.
    pub async fn watch(&self, revision: i64) -> Result<Watch, SourceError> {
        let asked = json!({"create_request": {
            "key": STANDARD.encode(&self.range.0), "range_end": STANDARD.encode(&self.range.1),
            "start_revision": revision.to_string(), "progress_notify": true, "fragment": true,
        }});
        let response = http_client::send(self.request("v3/watch", &asked)?, TOTAL).await?;
        let response = http_client::success(response).await?;
        Ok(Watch {
            lines: Lines::new(response, MAX_LINE),
        })
    }

    async fn ask<T: for<'de> Deserialize<'de>>(&self, path: &str, asked: &Value) -> Result<T, SourceError> {
        let response = http_client::send(self.request(path, asked)?.timeout(TOTAL), TOTAL).await?;
        let response = http_client::success(response).await?;
        let body = http_client::body(response, MAX_PAGE).await?;
        serde_json::from_slice(&body).map_err(|error| unreadable(path, &error))
    }

    fn request(&self, path: &str, asked: &Value) -> Result<RequestBuilder, SourceError> {
        let mut url = self.url.clone();
        url.path_segments_mut()
            .map_err(|()| SourceError::Unreachable(format!("{} has no path", self.url)))?
            .pop_if_empty()
            .extend(path.split('/'));
        let request = self.client.post(url).body(asked.to_string());
        Ok(match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        })
    }
}

impl Watch {
    /// The next answer. A call that is given up loses nothing.
    pub async fn next(&mut self) -> Result<Watched, SourceError> {
        match self.lines.next().await? {
            Some(line) => read(&line),
            None => Err(SourceError::Unreachable("the watch has ended".to_owned())),
        }
    }
}

fn read(line: &[u8]) -> Result<Watched, SourceError> {
    let line: Line = serde_json::from_slice(line).map_err(|error| unreadable("v3/watch", &error))?;
    if let Some(error) = line.error {
        let said = error.get("message").and_then(Value::as_str);
        let said = said.map_or_else(|| error.to_string(), str::to_owned);
        return Err(SourceError::Unreachable(format!("the watch fails: {said}")));
    }
    let Some(answer) = line.result else {
        return Err(SourceError::Unreadable(
            "the watch answers neither a result nor an error".to_owned(),
        ));
    };
    if answer.compact_revision > 0 {
        return Ok(Watched::Compacted);
    }
    if answer.canceled {
        return Err(SourceError::Unreachable(format!(
            "the watch is cancelled: {}",
            answer.cancel_reason
        )));
    }
    Ok(Watched::Events {
        header: answer.header,
        events: answer.events,
        whole: !answer.fragment,
    })
}

fn unreadable(path: &str, error: &serde_json::Error) -> SourceError {
    SourceError::Unreadable(format!("the answer to {path} cannot be read: {error}"))
}

/// The keys that begin with a prefix, as etcd counts ranges: from the first to the one before the second.
fn below(prefix: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    let or_all = |key: Vec<u8>| if key.is_empty() { vec![0] } else { key };
    (or_all(prefix.to_vec()), or_all(end))
}

fn whole<'de, D: Deserializer<'de>>(number: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }
    match Either::deserialize(number)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

fn octets<'de, D: Deserializer<'de>>(text: D) -> Result<Vec<u8>, D::Error> {
    STANDARD
        .decode(String::deserialize(text)?)
        .map_err(D::Error::custom)
}

fn key<'de, D: Deserializer<'de>>(text: D) -> Result<Vec<u8>, D::Error> {
    let key = octets(text)?;
    if key.len() > MAX_KEY {
        return Err(D::Error::custom(format!(
            "a key has {} octets, of at most {MAX_KEY}",
            key.len()
        )));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range() {
        for (prefix, first, end) in [
            (&b"/web/"[..], &b"/web/"[..], &b"/web0"[..]),
            (b"a\xff", b"a\xff", b"b"),
            (b"\xff", b"\xff", b"\0"),
            (b"", b"\0", b"\0"),
        ] {
            assert_eq!(below(prefix), (first.to_vec(), end.to_vec()));
        }
    }

    #[test]
    fn a_watch_says_puts_and_deletes() {
        let line = br#"{"result":{"header":{"cluster_id":"7","revision":"5"},"events":[
            {"kv":{"key":"YQ==","mod_revision":"4","value":"Yg=="}},{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"5"}}]}}"#;
        let Ok(Watched::Events {
            header,
            events,
            whole,
        }) = read(line)
        else {
            panic!("no events");
        };
        assert_eq!(
            (header.cluster_id.as_str(), header.revision, whole),
            ("7", 5, true)
        );
        assert_eq!(
            (events[0].is_delete(), events[0].kv.value.as_slice()),
            (false, &b"b"[..])
        );
        assert_eq!((events[1].is_delete(), events[1].kv.mod_revision), (true, 5));
    }

    #[test]
    fn a_watch_that_cannot_go_on_says_why() {
        let compacted = br#"{"result":{"header":{"revision":"9"},"canceled":true,"compact_revision":"8"}}"#;
        assert!(matches!(read(compacted), Ok(Watched::Compacted)));
        for (line, why) in [
            (
                &br#"{"result":{"canceled":true,"cancel_reason":"permission denied"}}"#[..],
                "permission denied",
            ),
            (
                br#"{"error":{"grpc_code":14,"message":"no leader"}}"#,
                "no leader",
            ),
            (b"{}", "neither"),
            (b"<html>", "cannot be read"),
            (br#"{"result":{"events":[{"kv":{"key":"?"}}]}}"#, "cannot be read"),
        ] {
            let said = read(line).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_huge_key_is_refused() {
        let line = json!({"result": {"events": [{"kv": {"key": STANDARD.encode(vec![b'a'; MAX_KEY + 1])}}]}});
        assert!(read(line.to_string().as_bytes()).is_err());
    }
}
