//! VIPs on an interface of this host, exactly while their services can serve.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use tokio::task::block_in_place;

use super::{bring::unix_now, controller::Controller, edits::with_sources, view::View};
use crate::{
    api::types::Problem,
    events::Kind,
    health::OnPanic,
    net,
    state::{
        announced::Announced,
        last_known_good::{Durable, Store},
    },
};

/// VIPs that this daemon, or one before it, put on the interface.
pub(super) struct Announcer {
    store: Store<Announced>,
    /// Ours, whether they should still be there or not.
    ours: BTreeSet<IpAddr>,
}

impl Announcer {
    /// Goes on where the daemon before ended.
    pub fn new(store: Store<Announced>) -> Self {
        let known = store
            .load()
            .ok()
            .and_then(|loaded| loaded.state)
            .unwrap_or_default();
        Self {
            store,
            ours: known.addresses,
        }
    }
}

/// VIPs that should be announced, and those that should not be though their services ask for it, with reasons.
///
/// A VIP of several services is announced while one of them can serve.
pub(super) fn wanted(view: &View, live: bool) -> BTreeMap<IpAddr, Result<(), String>> {
    let mut wanted: BTreeMap<IpAddr, Result<(), String>> = BTreeMap::new();
    for (name, service) in &view.services {
        if service.spec.announce.is_none() {
            continue;
        }
        let slots = service.entry.map_or(0, |entry| entry.slots_count);
        let says = match () {
            () if !live => Err("the daemon is not ready".to_owned()),
            () if view.panics.get(name) == Some(&OnPanic::Withdraw) => {
                Err(format!("too few backends of service {name} pass their checks"))
            }
            () if slots == 0 => Err(format!("no backend of service {name} may take flows")),
            () => Ok(()),
        };
        wanted
            .entry(service.spec.vip.to_canonical())
            .and_modify(|known| {
                if says.is_ok() {
                    *known = Ok(());
                }
            })
            .or_insert(says);
    }
    wanted
}

impl Controller {
    /// Puts VIPs on the interface, and takes them off, as the view says.
    pub(super) fn follow_announcements(&mut self) {
        let view = self.shared.view();
        let wanted = wanted(&view, self.live);
        if wanted != view.vips {
            self.shared.publish(View {
                vips: wanted.clone(),
                ..View::clone(&view)
            });
        }
        let present: BTreeSet<IpAddr> = wanted
            .iter()
            .filter_map(|(vip, says)| says.is_ok().then_some(*vip))
            .collect();
        if present.is_empty() && self.announcer.ours.is_empty() {
            return;
        }
        self.announce(&present, |vip| match wanted.get(vip) {
            Some(Err(reason)) => reason.clone(),
            _ => "no service asks for it".to_owned(),
        });
    }

    /// Takes every VIP off, so that nothing new comes here by way of them; whether there was any.
    pub(super) fn withdraw_all(&mut self) -> bool {
        let any = !self.announcer.ours.is_empty();
        if any {
            self.announce(&BTreeSet::new(), |_| "the daemon is ending".to_owned());
        }
        any
    }

    fn announce(&mut self, present: &BTreeSet<IpAddr>, why_not: impl Fn(&IpAddr) -> String) {
        // Written first: an address that nobody remembers would stay for ever.
        let remembered: BTreeSet<IpAddr> = self.announcer.ours.union(present).copied().collect();
        if remembered != self.announcer.ours {
            self.remember(&remembered);
        }
        let absent: BTreeSet<IpAddr> = remembered.difference(present).copied().collect();
        let interface = &self.config.datapath.announce_interface;
        let events = &self.shared.events;
        match block_in_place(|| net::announce(interface, present, &absent)) {
            Ok(changed) => {
                for vip in changed {
                    let text = match present.contains(&vip) {
                        true => format!("announced: it is an address of {interface}"),
                        false => format!("withdrawn from {interface}: {}", why_not(&vip)),
                    };
                    events.record(Kind::Health, format!("VIP {vip}"), text);
                }
                if !absent.is_empty() {
                    self.remember(present);
                }
                self.troubles.remove("announce");
            }
            Err(error) => {
                let problem = Problem {
                    object: format!("interface {interface}"),
                    problem: format!(
                        "VIPs are not announced as they should be: {}",
                        with_sources(&error)
                    ),
                    next_step: "it is tried again every 10 s; look at `ip address` and at announce_interface"
                        .to_owned(),
                };
                if self.troubles.insert("announce", problem.clone()).as_ref() != Some(&problem) {
                    events.record(Kind::Degraded, problem.object, problem.problem);
                }
            }
        }
    }

    fn remember(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.announcer.ours.clone_from(addresses);
        let announced = Announced {
            addresses: addresses.clone(),
        };
        if let Err(error) = self.announcer.store.save(&announced, unix_now(), Durable::Now) {
            tracing::warn!("announced VIPs are not kept: {}", with_sources(&error));
        }
    }
}
