//! Instances of a Consul service that pass all their checks, by blocking queries.
//!
//! <https://developer.hashicorp.com/consul/api-docs/health#list-service-instances-for-service> and
//! <https://developer.hashicorp.com/consul/api-docs/features/blocking>. A query returns when something has changed or
//! after a minute; each call begins with one that does not block.

use std::{convert::Infallible, path::PathBuf, time::Duration};

use reqwest::{Client, Response, Url};
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use super::{
    address, entry,
    http_client::{self, TOTAL},
    listing::Listing,
};
use crate::discovery::{
    Endpoint, Refused, Sink, Source, SourceError, Update,
    endpoint::{MAX_TAGS, MAX_WEIGHT},
};

const WAIT: Duration = Duration::from_secs(60);
/// Consul adds up to a sixteenth of the wait by chance.
const LIMIT: Duration = Duration::from_secs(60 + 60 / 16 + 10);
/// Between the beginnings of two queries, for an index that changes all the time.
const LEAST: Duration = Duration::from_millis(200);
/// Instances come with the output of their checks, several KiB each.
const MAX_BODY: usize = 64 << 20;

/// What is asked of whom.
#[derive(Clone, Debug)]
pub struct Asked {
    pub url: String,
    pub service: String,
    pub datacenter: Option<String>,
    pub tag: Option<String>,
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
}

/// Follows one service.
#[derive(Debug)]
pub struct ConsulSource {
    asked: Asked,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    node: Node,
    service: Service,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    #[serde(default)]
    address: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(default, rename = "ID")]
    id: String,
    /// The node's unless given.
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: i64,
    tags: Option<Vec<String>>,
    weights: Option<Weights>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Weights {
    passing: i64,
}

impl ConsulSource {
    pub fn new(asked: Asked) -> Self {
        Self { asked }
    }

    fn url(&self) -> Result<Url, SourceError> {
        let mut url = http_client::url(&self.asked.url)?;
        url.path_segments_mut()
            .map_err(|()| SourceError::Unreachable(format!("{:?} has no path", self.asked.url)))?
            .pop_if_empty()
            .extend(["v1", "health", "service", &self.asked.service]);
        let mut query = url.query_pairs_mut();
        query.append_pair("passing", "1");
        for (key, value) in [("dc", &self.asked.datacenter), ("tag", &self.asked.tag)] {
            if let Some(value) = value {
                query.append_pair(key, value);
            }
        }
        drop(query);
        Ok(url)
    }

    async fn ask(&self, client: &Client, url: &Url, index: u64) -> Result<Response, SourceError> {
        let mut url = url.clone();
        let limit = match index {
            0 => TOTAL,
            _ => {
                url.query_pairs_mut()
                    .append_pair("index", &index.to_string())
                    .append_pair("wait", &format!("{}s", WAIT.as_secs()));
                LIMIT
            }
        };
        let mut request = client.get(url).timeout(limit);
        if let Some(file) = &self.asked.token_file {
            let token = http_client::header(&http_client::secret(file)?, file)?;
            request = request.header("X-Consul-Token", token);
        }
        http_client::success(http_client::send(request, limit).await?).await
    }
}

impl Source for ConsulSource {
    fn describe(&self) -> String {
        let mut said = format!("consul service {}", self.asked.service);
        if let Some(tag) = &self.asked.tag {
            said.push_str(&format!(" with tag {tag}"));
        }
        if let Some(datacenter) = &self.asked.datacenter {
            said.push_str(&format!(" in {datacenter}"));
        }
        said.push_str(&format!(" at {}", http_client::shown(&self.asked.url)));
        said
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let url = self.url()?;
        let client = http_client::client(self.asked.ca_file.as_deref(), url.scheme() == "https")?;
        let mut index = 0;
        loop {
            let next_at = Instant::now() + LEAST;
            let response = self.ask(&client, &url, index).await?;
            let answered = index_of(&response)?;
            let body = http_client::body(response, MAX_BODY).await?;
            if index != 0 && answered == index {
                sink.send(Update::Confirmed).await?;
            } else {
                let revision = Some(format!("index {answered}"));
                sink.send(parse(&body, sink.most())?.snapshot(revision)?).await?;
            }
            index = next(index, answered);
            sleep_until(next_at).await;
        }
    }
}

fn index_of(response: &Response) -> Result<u64, SourceError> {
    let index = response.headers().get("X-Consul-Index");
    index
        .and_then(|index| index.to_str().ok()?.parse().ok())
        .ok_or_else(|| {
            SourceError::Unreadable("the answer has no X-Consul-Index: is this Consul's API?".to_owned())
        })
}

/// The index to block on next: none when it went backwards, and never 0 otherwise, which would not block.
fn next(index: u64, answered: u64) -> u64 {
    if answered < index { 0 } else { answered.max(1) }
}

fn parse(body: &[u8], most: u32) -> Result<Listing, SourceError> {
    let instances: Vec<Instance> = serde_json::from_slice(body)
        .map_err(|error| SourceError::Unreadable(format!("the answer is no list of instances: {error}")))?;
    let mut listing = Listing::new(most);
    for instance in instances {
        listing.push(endpoint(instance));
    }
    Ok(listing)
}

fn endpoint(instance: Instance) -> Result<Endpoint, Refused> {
    let Instance { node, service } = instance;
    let address = if service.address.is_empty() {
        &node.address
    } else {
        &service.address
    };
    let refuse = |reason: String| Refused::new(format!("{} at {address}", service.id), reason);
    let (ip, _) = address::parse(address).map_err(|why| refuse(format!("the address {why}")))?;
    let port = match service.port {
        // No port, as for a service that is reached in another way.
        0 => None,
        port => Some(u16::try_from(port).map_err(|_| refuse(format!("port {port} is none")))?),
    };
    let mut endpoint = address::endpoint(ip, port).map_err(refuse)?;
    if let Some(weights) = service.weights {
        endpoint.weight = match u32::try_from(weights.passing) {
            Ok(weight) if (1..=MAX_WEIGHT).contains(&weight) => weight,
            _ => {
                let why = format!("weight {} is not from 1 to {MAX_WEIGHT}", weights.passing);
                return Err(refuse(why));
            }
        };
    }
    // Consul allows any number of tags, of any length; an instance is not refused for them.
    let tags = service.tags.unwrap_or_default().into_iter();
    endpoint.tags = tags.filter(|tag| entry::is_word(tag)).take(MAX_TAGS).collect();
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn indexes_follow_the_rules_of_the_documentation() {
        for (index, answered, expected) in [(0, 7, 7), (7, 7, 7), (7, 9, 9), (7, 3, 0), (0, 0, 1), (7, 0, 0)]
        {
            assert_eq!(next(index, answered), expected, "{index} {answered}");
        }
    }

    #[test]
    fn instances_become_endpoints() {
        let tags: Vec<_> = (0..20).map(|tag| format!("tag-{tag:02}")).collect();
        let body = json!([
            {"Node": {"Node": "a", "Address": "192.0.2.1"}, "Service": {"ID": "web-1", "Address": "", "Port": 80,
                "Tags": tags, "Weights": {"Passing": 10, "Warning": 1}}, "Checks": [{"Status": "passing"}]},
            {"Node": {"Address": "192.0.2.1"}, "Service": {"ID": "web-2", "Address": "2001:db8::2", "Port": 0, "Tags": null}},
            {"Node": {"Address": "192.0.2.3"}, "Service": {"ID": "web-3", "Weights": {"Passing": 0, "Warning": 1}}},
            {"Node": {"Address": "192.0.2.4"}, "Service": {"ID": "web-4", "Port": 70_000}},
            {"Node": {"Address": "192.0.2.5"}, "Service": {"ID": "web-5", "Address": "web.example"}}
        ]);
        let listing = parse(body.to_string().as_bytes(), 9).unwrap();
        let Update::Snapshot {
            endpoints, refused, ..
        } = listing.snapshot(None).unwrap()
        else {
            panic!("a snapshot is one");
        };
        let seen: Vec<_> = endpoints
            .iter()
            .map(|endpoint| (endpoint.address.to_string(), endpoint.port, endpoint.weight))
            .collect();
        assert_eq!(
            seen,
            [
                ("192.0.2.1".to_owned(), Some(80), 10),
                ("2001:db8::2".to_owned(), None, 1)
            ]
        );
        assert_eq!(endpoints[0].tags.len(), MAX_TAGS);
        let reasons: Vec<_> = refused.iter().map(|refused| refused.reason.as_str()).collect();
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        for (reason, why) in reasons.iter().zip(["weight 0", "port 70000", "no IP address"]) {
            assert!(reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn names_are_escaped_in_the_url() {
        let source = ConsulSource::new(Asked {
            url: "http://192.0.2.1:8500/consul/".to_owned(),
            service: "a/b c".to_owned(),
            datacenter: Some("d&e".to_owned()),
            tag: None,
            token_file: None,
            ca_file: None,
        });
        assert_eq!(
            source.url().unwrap().as_str(),
            "http://192.0.2.1:8500/consul/v1/health/service/a%2Fb%20c?passing=1&dc=d%26e"
        );
    }
}
