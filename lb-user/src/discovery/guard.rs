//! What of a source's word is believed: pure. Additions and changes are, at once; what would take backends away is
//! weighed first.
//!
//! | the source | what happens |
//! |---|---|
//! | fails, times out, cannot be read | what is believed stays |
//! | names nothing | all stays, for `hold_empty` |
//! | takes more than `max_removal` away within `window`, and at least two | they stay, for `hold` |
//! | takes away what health checks found dead | goes through |
//! | has never said anything, and now names nothing | not loaded, unless `allow_empty` |
//!
//! An endpoint that a source turns from serving to draining takes new flows away just like one that it drops, and is
//! weighed with them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    endpoint::{Endpoint, Update},
    spec::{GuardSpec, Hold},
};
use crate::state::desired::BackendState;

/// Fewer than this are never held, whatever share they are.
const FEW: usize = 2;

/// One source's endpoints: what it says, and what is believed of it.
#[derive(Clone, Debug)]
pub struct Guard {
    spec: GuardSpec,
    believed: BTreeMap<IpAddr, Endpoint>,
    /// `None` until the source has said all there is.
    said: Option<BTreeMap<IpAddr, Endpoint>>,
    /// There was a state, from the source or from disk.
    loaded: bool,
    held: Option<Held>,
    /// Somebody asked for it to hold whatever goes.
    by_hand: bool,
    /// When endpoints went through the guard, and how many.
    gone: VecDeque<(Instant, usize)>,
}

/// Endpoints that should go and stay for the time being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub endpoints: BTreeSet<IpAddr>,
    pub why: Why,
    /// Since when exactly these are held.
    pub since: Instant,
    /// When they go through; `None`: when somebody accepts it.
    pub until: Option<Instant>,
}

/// Why endpoints are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The source names none at all.
    Empty,
    /// Too many of those there were.
    TooMany { gone: usize, of: usize },
    /// Somebody asked for it.
    ByHand,
}

/// A delta came without the state that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a change came before any state")]
pub struct OutOfOrder;

impl Guard {
    /// Nothing is known yet.
    pub fn new(spec: GuardSpec) -> Self {
        Self {
            spec,
            believed: BTreeMap::new(),
            said: None,
            loaded: false,
            held: None,
            by_hand: false,
            gone: VecDeque::new(),
        }
    }

    /// From the last known good state.
    pub fn from_disk(spec: GuardSpec, endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            believed: by_address(endpoints),
            loaded: true,
            ..Self::new(spec)
        }
    }

    /// Another configuration of the same source.
    pub fn set_spec(&mut self, spec: GuardSpec) {
        self.spec = spec;
    }

    /// Takes note of what the source says. [`decide`](Self::decide) tells what follows.
    pub fn hear(&mut self, update: Update) -> Result<(), OutOfOrder> {
        match update {
            Update::Snapshot { endpoints, .. } => self.said = Some(by_address(endpoints)),
            Update::Delta { set, gone, .. } => {
                let said = self.said.as_mut().ok_or(OutOfOrder)?;
                for address in gone {
                    said.remove(&address.to_canonical());
                }
                said.extend(by_address(set));
            }
            Update::Confirmed => {}
        }
        Ok(())
    }

    /// The source has to say all there is before a change counts again.
    pub fn forget_said(&mut self) {
        self.said = None;
    }

    /// Brings what is believed up to what was said, as far as it may be; whether anything changed.
    pub fn decide(&mut self, now: Instant, is_dead: impl Fn(IpAddr) -> bool) -> bool {
        let Some(said) = &self.said else {
            return false;
        };
        if said.is_empty() && !self.loaded && !self.spec.allow_empty {
            return false;
        }
        let first = !std::mem::replace(&mut self.loaded, true);
        let mut changed = first;
        let mut leaving = BTreeSet::new();
        for (address, endpoint) in said {
            match self.believed.get_mut(address) {
                Some(known) if known == endpoint => {}
                Some(known)
                    if known.state == BackendState::Serving && endpoint.state != BackendState::Serving =>
                {
                    leaving.insert(*address);
                    let weighed = Endpoint {
                        state: known.state,
                        ..endpoint.clone()
                    };
                    changed |= *known != weighed;
                    *known = weighed;
                }
                Some(known) => {
                    known.clone_from(endpoint);
                    changed = true;
                }
                None => {
                    self.believed.insert(*address, endpoint.clone());
                    changed = true;
                }
            }
        }
        leaving.extend(self.believed.keys().filter(|address| !said.contains_key(address)));
        let (through, staying): (BTreeSet<IpAddr>, _) = leaving
            .into_iter()
            .partition(|address| !self.by_hand && is_dead(*address));
        changed |= self.let_go(&through);
        changed | self.weigh(staying, now)
    }

    /// Lets everything go that is held.
    pub fn accept(&mut self) -> usize {
        self.by_hand = false;
        let Some(held) = self.held.take() else {
            return 0;
        };
        self.let_go(&held.endpoints);
        // What somebody looked at does not count against what comes next.
        self.gone.clear();
        held.endpoints.len()
    }

    /// From now on nothing goes until somebody accepts it.
    pub fn hold(&mut self) {
        self.by_hand = true;
    }

    /// Living endpoints that should go: now, when held long enough, or later.
    fn weigh(&mut self, leaving: BTreeSet<IpAddr>, now: Instant) -> bool {
        if leaving.is_empty() {
            self.held = None;
            return false;
        }
        self.forget_old(now);
        let Some((why, hold)) = self.reason(&leaving) else {
            self.held = None;
            self.gone.push_back((now, leaving.len()));
            return self.let_go(&leaving);
        };
        let since = match &self.held {
            Some(held) if held.endpoints == leaving => held.since,
            _ => now,
        };
        let until = match hold {
            Hold::UntilAccepted => None,
            Hold::For(time) => Some(since + time.duration()),
        };
        if until.is_some_and(|until| until <= now) {
            self.held = None;
            self.gone.push_back((now, leaving.len()));
            return self.let_go(&leaving);
        }
        self.held = Some(Held {
            endpoints: leaving,
            why,
            since,
            until,
        });
        false
    }

    /// Why these should not go at once, and for how long.
    fn reason(&self, leaving: &BTreeSet<IpAddr>) -> Option<(Why, Hold)> {
        if self.by_hand {
            return Some((Why::ByHand, Hold::UntilAccepted));
        }
        if self.said.as_ref().is_some_and(BTreeMap::is_empty) {
            return Some((Why::Empty, self.spec.hold_empty));
        }
        let before: usize = self.gone.iter().map(|(_, count)| count).sum();
        let gone = before + leaving.len();
        let of = before + self.serving();
        (gone >= FEW && gone as f64 > self.spec.max_removal * of as f64)
            .then_some((Why::TooMany { gone, of }, self.spec.hold))
    }

    /// Takes away, or turns to draining, what the source says; whether anything changed.
    fn let_go(&mut self, endpoints: &BTreeSet<IpAddr>) -> bool {
        for address in endpoints {
            match self.said.as_ref().and_then(|said| said.get(address)) {
                Some(endpoint) => self.believed.insert(*address, endpoint.clone()),
                None => self.believed.remove(address),
            };
        }
        !endpoints.is_empty()
    }

    fn forget_old(&mut self, now: Instant) {
        let window = self.spec.window.duration();
        while self
            .gone
            .front()
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= window)
        {
            self.gone.pop_front();
        }
    }

    fn serving(&self) -> usize {
        let serving = |endpoint: &&Endpoint| endpoint.state == BackendState::Serving;
        self.believed.values().filter(serving).count()
    }

    /// When [`decide`](Self::decide) may come to something else without a new word of the source.
    pub fn due(&self) -> Option<Instant> {
        let held = self.held.as_ref()?;
        let window: Duration = self.spec.window.duration();
        let room = match held.why {
            Why::TooMany { .. } => self.gone.front().map(|(at, _)| *at + window),
            Why::Empty | Why::ByHand => None,
        };
        [held.until, room].into_iter().flatten().min()
    }

    pub fn believed(&self) -> &BTreeMap<IpAddr, Endpoint> {
        &self.believed
    }

    /// Endpoints that the source names, once it has.
    pub fn said(&self) -> Option<usize> {
        self.said.as_ref().map(BTreeMap::len)
    }

    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    pub fn is_held_by_hand(&self) -> bool {
        self.by_hand
    }

    /// Whether there is a state to serve by.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }
}

fn by_address(endpoints: impl IntoIterator<Item = Endpoint>) -> BTreeMap<IpAddr, Endpoint> {
    endpoints
        .into_iter()
        .map(|endpoint| (endpoint.address.to_canonical(), endpoint))
        .collect()
}

#[cfg(test)]
mod tests;
