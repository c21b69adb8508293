//! Which next hop counts for each backend, from what the resolver last said: pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use lb_common::backend::{self, Backend};

use crate::{
    net::Resolution,
    state::desired::{NextHop, address_from},
};

/// The next hops in use.
pub type NextHops = BTreeMap<IpAddr, NextHop>;

/// The next hop after an answer of the resolver. While an address is still being asked about, the one in use stays.
pub fn after(in_use: Option<NextHop>, answer: Option<&Resolution>) -> Option<NextHop> {
    match answer {
        Some(Resolution::Resolved(hop)) => Some(*hop),
        Some(Resolution::Unresolved { pending: false, .. }) => None,
        Some(Resolution::Unresolved { pending: true, .. }) | None => in_use,
    }
}

/// Next hops of all wanted addresses after answers of the resolver.
pub fn updated(
    in_use: &NextHops,
    resolutions: &BTreeMap<IpAddr, Resolution>,
    wanted: &BTreeSet<IpAddr>,
) -> NextHops {
    let next = wanted.iter().filter_map(|address| {
        let hop = after(in_use.get(address).copied(), resolutions.get(address))?;
        Some((*address, hop))
    });
    next.collect()
}

/// What adopted maps forward by, so that a restart takes no backend away before the kernel has answered.
pub fn adopted<'a>(entries: impl Iterator<Item = &'a Backend>) -> NextHops {
    let resolved = entries.filter(|entry| entry.state != backend::state::UNSET && entry.is_resolved());
    let hops = resolved.map(|entry| {
        let hop = NextHop {
            interface: entry.interface,
            mac_source: entry.mac_source,
            mac_destination: entry.mac_destination,
            source: address_from(&entry.outer_source, entry.family),
            mtu: entry.mtu,
            // The entry does not say; it was right for its mode when it was written.
            gateway: false,
        };
        (address_from(&entry.address, entry.family), hop)
    });
    hops.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(interface: u32) -> NextHop {
        NextHop {
            interface,
            mac_source: [1; 6],
            mac_destination: [2; 6],
            source: IpAddr::from([10, 0, 0, 1]),
            mtu: 1500,
            gateway: false,
        }
    }

    fn unresolved(pending: bool) -> Resolution {
        Resolution::Unresolved {
            reason: "no".into(),
            pending,
        }
    }

    #[test]
    fn a_pending_answer_leaves_the_next_hop_and_a_no_takes_it() {
        let [a, b, c, d] = [1, 2, 3, 4].map(|last| IpAddr::from([10, 0, 0, last]));
        let in_use: NextHops = [a, b, c, d].map(|address| (address, hop(1))).into();
        let answers = [
            (a, unresolved(true)),
            (b, unresolved(false)),
            (c, Resolution::Resolved(hop(2))),
        ]
        .into();
        let wanted = [a, b, c].into();
        let now = updated(&in_use, &answers, &wanted);
        assert_eq!(now, [(a, hop(1)), (c, hop(2))].into());
        assert_eq!(updated(&now, &BTreeMap::new(), &wanted), now);
    }
}
