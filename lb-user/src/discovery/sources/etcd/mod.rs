//! Keys below a prefix of an etcd v3 store: listed once, then watched.
//!
//! The value of a key is an [entry](super::entry) in JSON; when it is empty, the last part of the key is the address.
//! Several URLs are tried in turn. After a lost connection the watch goes on where it ended; only when the store has
//! compacted that revision away, or is another one, are all keys listed again. A watch that is silent proves nothing (a
//! member without a quorum is silent too), so the store is asked now and then whether anything has changed.

mod gateway;

use std::{convert::Infallible, path::PathBuf, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use self::gateway::{Event, Gateway, Header, Key, Watched};
use super::{
    entry, http_client,
    pool::{Changes, Pool},
};
use crate::discovery::{Endpoint, Refused, Sink, Source, SourceError, Update};

/// Keys of one answer when all are listed.
const PAGE: u32 = 500;
/// How often the store is asked whether the watch has missed something.
const CONFIRM: Duration = Duration::from_secs(10);
/// Doubtful answers in a row, without an event between them, that end a watch.
const MAX_DOUBTS: u32 = 2;
/// Compactions that overtake one call before it fails.
const MAX_COMPACTIONS: u32 = 3;

/// Follows one prefix.
#[derive(Debug)]
pub struct EtcdSource {
    urls: Vec<String>,
    prefix: String,
    /// A user, and where the password is.
    login: Option<(String, Option<PathBuf>)>,
    ca_file: Option<PathBuf>,
    /// The URL whose turn it is.
    turn: usize,
    known: Option<Known>,
}

/// The store as of a revision.
#[derive(Debug)]
struct Known {
    pool: Pool,
    revision: i64,
    cluster: String,
}

impl EtcdSource {
    pub fn new(
        urls: Vec<String>,
        prefix: String,
        login: Option<(String, Option<PathBuf>)>,
        ca_file: Option<PathBuf>,
    ) -> Self {
        Self {
            urls,
            prefix,
            login,
            ca_file,
            turn: 0,
            known: None,
        }
    }

    /// Follows the store at one URL.
    async fn attempt(&mut self, url: &str, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let mut gateway = Gateway::new(url, &self.prefix, self.ca_file.as_deref())?;
        if let Some((user, password_file)) = &self.login {
            gateway.authenticate(user, password_file.as_deref()).await?;
        }
        for _ in 0..=MAX_COMPACTIONS {
            if self.known.is_none() {
                self.known = Some(list(&gateway, sink).await?);
            }
            self.watch(&gateway, sink).await?;
            self.known = None;
        }
        Err(SourceError::Unreachable(
            "the store is compacted faster than it can be listed".to_owned(),
        ))
    }

    /// Watches from the known revision on; ends well when that has been compacted.
    async fn watch(&mut self, gateway: &Gateway, sink: &mut Sink) -> Result<(), SourceError> {
        let Some(known) = &mut self.known else {
            return Ok(());
        };
        let mut watch = gateway.watch(known.revision + 1).await?;
        let mut confirm = interval(CONFIRM);
        confirm.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut doubts = 0;
        loop {
            tokio::select! {
                watched = watch.next() => match watched? {
                    Watched::Compacted => return Ok(()),
                    Watched::Events { header, events, whole } => {
                        known.same(&header)?;
                        if !events.is_empty() {
                            doubts = 0;
                            known.apply(events, whole, sink).await?;
                        }
                    }
                },
                _ = confirm.tick() => {
                    if known.confirmed(gateway).await? {
                        doubts = 0;
                        sink.send(Update::Confirmed).await?;
                    } else {
                        doubts += 1;
                        if doubts > MAX_DOUBTS {
                            return Err(SourceError::Unreadable(
                                "keys have changed, but the watch does not say so; all are listed anew".to_owned(),
                            ));
                        }
                    }
                }
            }
        }
    }
}

impl Source for EtcdSource {
    fn describe(&self) -> String {
        let urls: Vec<_> = self.urls.iter().map(|url| http_client::shown(url)).collect();
        format!("etcd keys below {:?} at {}", self.prefix, urls.join(", "))
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let mut failures = Vec::new();
        for _ in 0..self.urls.len() {
            let url = self.urls[self.turn % self.urls.len()].clone();
            let sent = sink.sent();
            let Err(error) = self.attempt(&url, sink).await;
            self.turn = (self.turn + 1) % self.urls.len();
            match error {
                // Only a lost connection leaves what is known in order.
                SourceError::Unreachable(why) => {
                    failures.push(format!("{}: {why}", http_client::shown(&url)));
                    if sink.sent() > sent {
                        break;
                    }
                }
                other => {
                    self.known = None;
                    return Err(other);
                }
            }
        }
        Err(SourceError::Unreachable(match failures.is_empty() {
            true => "there is no URL to ask".to_owned(),
            false => failures.join("; "),
        }))
    }
}

/// Lists all keys as they are at one revision.
async fn list(gateway: &Gateway, sink: &mut Sink) -> Result<Known, SourceError> {
    let mut page = gateway.list(PAGE, None, 0).await?;
    let mut known = Known {
        pool: Pool::new(sink.most()),
        revision: page.header.revision,
        cluster: page.header.cluster_id.clone(),
    };
    // Refuses what is too much before it is fetched.
    sink.check(usize::try_from(page.count).unwrap_or(usize::MAX))?;
    let mut changes = Changes::default();
    loop {
        let last = page.kvs.last().map(|key| key.key.clone());
        for key in page.kvs {
            known.put(&key, &mut changes)?;
        }
        match last {
            Some(last) if page.more => page = gateway.list(PAGE, Some(&last), known.revision).await?,
            _ => break,
        }
    }
    let revision = Some(known.revision.to_string());
    let snapshot = known.pool.snapshot(changes.refused, revision);
    sink.send(snapshot).await?;
    Ok(known)
}

impl Known {
    /// Refuses what another store says.
    fn same(&self, header: &Header) -> Result<(), SourceError> {
        if header.cluster_id == self.cluster {
            return Ok(());
        }
        Err(SourceError::Unreadable(format!(
            "cluster {} answers instead of {}; all keys are listed anew",
            header.cluster_id, self.cluster
        )))
    }

    fn put(&mut self, key: &Key, changes: &mut Changes) -> Result<(), SourceError> {
        let name = key.name();
        let endpoints = match endpoint(&name, &key.value) {
            Ok(endpoint) => {
                if let Some(other) = self.pool.other(&name, endpoint.address) {
                    let reason = format!("{} is also named by {other}", endpoint.address);
                    changes.refused.push(Refused::new(&*name, reason));
                }
                vec![endpoint]
            }
            Err(refused) => {
                changes.refused.push(refused);
                Vec::new()
            }
        };
        self.pool.put(&name, endpoints, changes)
    }

    /// Takes events in; `whole` is false when more of the same revision follow.
    async fn apply(&mut self, events: Vec<Event>, whole: bool, sink: &mut Sink) -> Result<(), SourceError> {
        let mut changes = Changes::default();
        let mut newest = self.revision;
        for event in events {
            if event.kv.mod_revision <= self.revision {
                continue;
            }
            newest = newest.max(event.kv.mod_revision);
            if event.is_delete() {
                self.pool.remove(&event.kv.name(), &mut changes);
            } else {
                self.put(&event.kv, &mut changes)?;
            }
        }
        if let Some(delta) = self.pool.delta(changes, Some(newest.to_string())) {
            sink.send(delta).await?;
        }
        if whole {
            self.revision = newest;
        }
        Ok(())
    }

    /// Whether the store, asked by a linearizable read, holds just what is known; if so, what is known is that new.
    async fn confirmed(&mut self, gateway: &Gateway) -> Result<bool, SourceError> {
        let newest = gateway.newest().await?;
        self.same(&newest.header)?;
        if newest.header.revision < self.revision {
            return Err(SourceError::Unreadable(format!(
                "the store went back from revision {} to {}; all keys are listed anew",
                self.revision, newest.header.revision
            )));
        }
        let changed = newest
            .kvs
            .first()
            .is_some_and(|key| key.mod_revision > self.revision);
        let count = usize::try_from(newest.count).unwrap_or(usize::MAX);
        if changed || count != self.pool.objects() {
            return Ok(false);
        }
        // A compaction of revisions that are not ours does not hurt the next watch then.
        self.revision = newest.header.revision;
        Ok(true)
    }
}

/// What one key says.
fn endpoint(name: &str, value: &[u8]) -> Result<Endpoint, Refused> {
    let refuse = |reason: String| Refused::new(name, reason);
    if value.iter().all(u8::is_ascii_whitespace) {
        let address = name.rsplit('/').next().unwrap_or_default();
        return entry::at(address, &entry::Traits::default()).map_err(|refused| refuse(refused.reason));
    }
    let value =
        serde_json::from_slice(value).map_err(|error| refuse(format!("the value is no JSON: {error}")))?;
    entry::endpoint(&value).map_err(|refused| refuse(refused.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_its_value_or_its_name_says() {
        let host: std::net::IpAddr = [192, 0, 2, 1].into();
        for (name, value, port) in [
            ("/web/192.0.2.1:80", "", Some(80)),
            ("/web/192.0.2.1", "\n", None),
            ("/web/a", r#"{"address": "192.0.2.1", "port": 81}"#, Some(81)),
            ("/web/a", r#""192.0.2.1:82""#, Some(82)),
        ] {
            let endpoint = endpoint(name, value.as_bytes()).unwrap();
            assert_eq!((endpoint.address, endpoint.port), (host, port), "{name} {value}");
        }
        for (name, value) in [
            ("/web/a", ""),
            ("/web/", ""),
            ("/web/192.0.2.1", "up"),
            ("/web/a", "{}"),
        ] {
            assert_eq!(
                endpoint(name, value.as_bytes()).unwrap_err().entry,
                name,
                "{name} {value}"
            );
        }
    }
}
