//! What happened and when: a bounded ring of typed events, which also go to the log and move a counter.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// Events that are kept for `evenkeel events`.
pub const CAPACITY: usize = 1024;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The daemon started, became ready, or ends.
    Lifecycle,
    /// A configuration was loaded or refused.
    Config,
    /// Services or backends were changed through the API.
    Edit,
    /// Steps were written to the maps.
    Applied,
    /// Writing to the maps failed.
    ApplyFailed,
    /// The maps differed from what they should hold, and were put right, or left where `auto_heal` is off.
    Drift,
    /// A backend's way through the network changed.
    NextHop,
    /// Seeds were rotated.
    Seeds,
    /// Something works less well than it should.
    Degraded,
    /// New flows are spread otherwise than they should be, or seeds or slots are not as written.
    Skew,
    /// What was done about that, and that it is over.
    Heal,
    /// A source's backends changed, are held, or the source fails.
    Discovery,
    /// A backend passes or fails its checks, a service panics, or a VIP is announced or withdrawn.
    Health,
}

impl Kind {
    pub const ALL: [Self; 13] = [
        Self::Lifecycle,
        Self::Config,
        Self::Edit,
        Self::Applied,
        Self::ApplyFailed,
        Self::Drift,
        Self::NextHop,
        Self::Seeds,
        Self::Degraded,
        Self::Skew,
        Self::Heal,
        Self::Discovery,
        Self::Health,
    ];

    /// As in JSON and as label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Config => "config",
            Self::Edit => "edit",
            Self::Applied => "applied",
            Self::ApplyFailed => "apply-failed",
            Self::Drift => "drift",
            Self::NextHop => "next-hop",
            Self::Seeds => "seeds",
            Self::Degraded => "degraded",
            Self::Skew => "skew",
            Self::Heal => "heal",
            Self::Discovery => "discovery",
            Self::Health => "health",
        }
    }

    const fn is_trouble(self) -> bool {
        matches!(
            self,
            Self::ApplyFailed | Self::Drift | Self::Degraded | Self::Skew
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// 1.. and one more at each event of this daemon.
    pub id: u64,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub time_ms: u64,
    pub kind: Kind,
    /// The service, backend, file or interface it is about.
    pub object: String,
    pub text: String,
}

/// The ring. Shared by every part of the daemon.
#[derive(Debug, Default)]
pub struct Events {
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    last_id: u64,
    events: VecDeque<Event>,
    totals: BTreeMap<Kind, u64>,
}

impl Events {
    /// Keeps and logs an event that happened now.
    pub fn record(&self, kind: Kind, object: impl Into<String>, text: impl Into<String>) {
        let (object, text) = (object.into(), text.into());
        if kind.is_trouble() {
            tracing::warn!(kind = kind.name(), object, "{text}");
        } else {
            tracing::info!(kind = kind.name(), object, "{text}");
        }
        self.push(now_ms(), kind, object, text);
    }

    fn push(&self, time_ms: u64, kind: Kind, object: String, text: String) {
        let mut ring = self.lock();
        ring.last_id += 1;
        let id = ring.last_id;
        *ring.totals.entry(kind).or_default() += 1;
        if ring.events.len() == CAPACITY {
            ring.events.pop_front();
        }
        ring.events.push_back(Event {
            id,
            time_ms,
            kind,
            object,
            text,
        });
    }

    /// The newest `limit` events with an id above `after`, oldest first.
    pub fn after(&self, after: u64, limit: usize) -> Vec<Event> {
        let ring = self.lock();
        let skip = ring.events.len().saturating_sub(limit);
        ring.events
            .iter()
            .skip(skip)
            .filter(|event| event.id > after)
            .cloned()
            .collect()
    }

    /// Events of each kind since the daemon started.
    pub fn totals(&self) -> BTreeMap<Kind, u64> {
        self.lock().totals.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // A panic between two pushes leaves the ring whole.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_and_keeps_the_newest() {
        let events = Events::default();
        for index in 0..CAPACITY + 10 {
            events.push(0, Kind::Edit, "web".into(), index.to_string());
        }
        let kept = events.after(0, usize::MAX);
        assert_eq!(kept.len(), CAPACITY);
        assert_eq!(kept[0].id, 11);
        assert_eq!(events.after(0, 2).len(), 2);
        assert_eq!(events.after(CAPACITY as u64 + 9, 100).len(), 1);
        assert_eq!(events.totals()[&Kind::Edit], CAPACITY as u64 + 10);
    }

    #[test]
    fn kinds_have_one_name_in_json_and_metrics() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
