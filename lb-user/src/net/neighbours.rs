//! The neighbour table, and how to make the kernel ask for a neighbour.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use futures_util::TryStreamExt;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::Handle;

/// A neighbour on one interface.
pub type NeighbourKey = (u32, IpAddr);

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// It has this MAC address; `sure` while the kernel need not ask again.
    At { mac: [u8; 6], sure: bool },
    /// The kernel is asking for the first time.
    Asked,
    /// It did not answer.
    Failed,
}

/// The table as far as it was seen.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(BTreeMap<NeighbourKey, Neighbour>);

impl Neighbours {
    /// Reads the kernel's table whole.
    pub async fn list(handle: &Handle) -> Result<Self, rtnetlink::Error> {
        let messages: Vec<NeighbourMessage> = handle.neighbours().get().execute().try_collect().await?;
        let mut table = Self::default();
        for message in &messages {
            table.update(message);
        }
        Ok(table)
    }

    pub fn get(&self, key: &NeighbourKey) -> Option<Neighbour> {
        self.0.get(key).copied()
    }

    /// Takes in a new state; answers the neighbour when it is another one than before.
    pub fn update(&mut self, message: &NeighbourMessage) -> Option<NeighbourKey> {
        let key = key(message)?;
        let before = self.get(&key);
        let now = after(before, read(message)?);
        self.0.insert(key, now);
        (before != Some(now)).then_some(key)
    }

    /// Takes in that the kernel dropped an entry; answers the neighbour, which must be asked for again. Its last
    /// address stands until it fails to answer: the kernel drops entries only to save memory.
    pub fn forget(&mut self, message: &NeighbourMessage) -> Option<NeighbourKey> {
        let key = key(message)?;
        let before = self.get(&key)?;
        self.0.insert(key, after(Some(before), Neighbour::Asked));
        Some(key)
    }

    /// Takes a newer reading of the table; of what is no longer in it, only neighbours in `needed` are kept.
    pub fn replace(&mut self, mut newer: Self, needed: &BTreeSet<NeighbourKey>) {
        for (key, neighbour) in &mut newer.0 {
            *neighbour = after(self.get(key), *neighbour);
        }
        for key in needed {
            if let (None, Some(before)) = (newer.get(key), self.get(key)) {
                newer.0.insert(*key, after(Some(before), Neighbour::Asked));
            }
        }
        *self = newer;
    }

    #[cfg(test)]
    pub fn with(mut self, key: NeighbourKey, neighbour: Neighbour) -> Self {
        self.0.insert(key, neighbour);
        self
    }
}

/// Makes the kernel resolve or confirm a neighbour, as `ip neigh … use` does: no packet of ours is needed.
pub async fn ask(handle: &Handle, (interface, address): NeighbourKey) {
    let asked = handle
        .neighbours()
        .add(interface, address)
        .replace()
        .state(NeighbourState::None)
        .flags(NeighbourFlags::Use)
        .execute()
        .await;
    if let Err(error) = asked {
        tracing::debug!(%address, interface, %error, "the kernel does not ask for this neighbour");
    }
}

/// Asking again undoes neither a failure nor an address; only an answer, or its absence, does.
fn after(before: Option<Neighbour>, now: Neighbour) -> Neighbour {
    match (before, now) {
        (Some(Neighbour::Failed), Neighbour::Asked) => Neighbour::Failed,
        (Some(Neighbour::At { mac, .. }), Neighbour::Asked) => Neighbour::At { mac, sure: false },
        _ => now,
    }
}

fn key(message: &NeighbourMessage) -> Option<NeighbourKey> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some((*v4).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some((*v6).into()),
        _ => None,
    })?;
    Some((message.header.ifindex, address))
}

fn read(message: &NeighbourMessage) -> Option<Neighbour> {
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
        _ => None,
    });
    let at = |sure| mac.map(|mac| Neighbour::At { mac, sure });
    match message.header.state {
        NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp => at(true),
        NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe => at(false),
        NeighbourState::Failed => Some(Neighbour::Failed),
        NeighbourState::Incomplete | NeighbourState::None => Some(Neighbour::Asked),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(state: NeighbourState, mac: Option<[u8; 6]>) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 2;
        message.header.state = state;
        message.attributes = vec![NeighbourAttribute::Destination(NeighbourAddress::Inet(
            [10, 0, 0, 2].into(),
        ))];
        message
            .attributes
            .extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.to_vec())));
        message
    }

    #[test]
    fn a_failure_lasts_until_the_neighbour_answers() {
        const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
        let key = (2, IpAddr::from([10, 0, 0, 2]));
        let mut table = Neighbours::default();
        let steps = [
            (NeighbourState::Incomplete, None, Neighbour::Asked, true),
            (NeighbourState::Failed, None, Neighbour::Failed, true),
            (NeighbourState::Incomplete, None, Neighbour::Failed, false),
            (
                NeighbourState::Reachable,
                Some(MAC),
                Neighbour::At { mac: MAC, sure: true },
                true,
            ),
            (
                NeighbourState::Probe,
                Some(MAC),
                Neighbour::At {
                    mac: MAC,
                    sure: false,
                },
                true,
            ),
            (NeighbourState::Failed, Some(MAC), Neighbour::Failed, true),
        ];
        for (state, mac, expected, changed) in steps {
            let update = table.update(&message(state, mac));
            assert_eq!(update.is_some(), changed, "{state}");
            assert_eq!(table.get(&key), Some(expected), "{state}");
        }
        assert_eq!(table.forget(&message(NeighbourState::Failed, None)), Some(key));
        assert_eq!(table.get(&key), Some(Neighbour::Failed));
    }

    #[test]
    fn an_address_lasts_until_the_neighbour_fails_to_answer() {
        const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
        let key = (2, IpAddr::from([10, 0, 0, 2]));
        let mut table = Neighbours::default().with(key, Neighbour::At { mac: MAC, sure: true });
        let unsure = Some(Neighbour::At {
            mac: MAC,
            sure: false,
        });
        table.forget(&message(NeighbourState::Stale, Some(MAC)));
        assert_eq!(table.get(&key), unsure);
        table.update(&message(NeighbourState::Incomplete, None));
        assert_eq!(table.get(&key), unsure);
        table.replace(Neighbours::default(), &[key].into());
        assert_eq!(table.get(&key), unsure);
        table.update(&message(NeighbourState::Failed, None));
        assert_eq!(table.get(&key), Some(Neighbour::Failed));
        table.replace(Neighbours::default(), &BTreeSet::new());
        assert_eq!(table.get(&key), None);
    }
}
