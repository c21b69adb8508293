//! Putting a change into the wanted state, and taking it out again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use lb_common::service::ServiceKey;

use super::Ledger;
use crate::{
    daemon::{bring::Changed, next_hops},
    net::Resolution,
    state::{
        desired::{DesiredService, DesiredSettings, NextHop, desired_service},
        overlay::EffectiveService,
    },
};

/// How to take back what a change did to the wanted state.
pub(super) struct Undo {
    settings: DesiredSettings,
    effective: Vec<(String, Option<EffectiveService>)>,
    desired: Vec<(ServiceKey, Option<DesiredService>)>,
    next_hops: Vec<(IpAddr, Option<NextHop>)>,
    resolutions: Vec<(IpAddr, Option<Resolution>)>,
    pub keys: BTreeSet<ServiceKey>,
    pub names: BTreeSet<String>,
}

impl<M> Ledger<M> {
    /// Puts the changed services into the wanted state; answers how to take that back.
    pub(super) fn replace(
        &mut self,
        changed: Changed,
        answers: BTreeMap<IpAddr, Option<Resolution>>,
        settings: DesiredSettings,
    ) -> Undo {
        let mut undo = Undo {
            settings: std::mem::replace(&mut self.desired.settings, settings),
            effective: Vec::new(),
            desired: Vec::new(),
            next_hops: Vec::new(),
            resolutions: Vec::new(),
            keys: BTreeSet::new(),
            names: changed.keys().cloned().collect(),
        };
        // Keys that are given up go first: another service may take one over.
        for name in changed.keys() {
            if let Some(old) = self.effective.services.get(name) {
                let key = old.spec.key();
                undo.desired.push((key, self.desired.services.remove(&key)));
                undo.keys.insert(key);
            }
        }
        for (name, service) in changed {
            let old = match service {
                Some(service) => self.effective.services.insert(name.clone(), service),
                None => self.effective.services.remove(&name),
            };
            undo.effective.push((name, old));
        }
        self.learn(answers, &mut undo);
        for name in &undo.names {
            if let Some(service) = self.effective.services.get(name) {
                let key = service.spec.key();
                let wanted = desired_service(service, &self.next_hops, &self.fitness);
                undo.desired
                    .push((key, self.desired.services.insert(key, wanted)));
                undo.keys.insert(key);
            }
        }
        undo
    }

    /// Takes over what the resolver says of new addresses, for every service that has them.
    fn learn(&mut self, answers: BTreeMap<IpAddr, Option<Resolution>>, undo: &mut Undo) {
        if answers.is_empty() {
            return;
        }
        let new: BTreeSet<IpAddr> = answers.keys().copied().collect();
        let known: BTreeMap<IpAddr, Resolution> = answers
            .into_iter()
            .filter_map(|(address, answer)| Some((address, answer?)))
            .collect();
        for (address, hop) in next_hops::updated(&self.next_hops, &known, &new) {
            let old = self.next_hops.insert(address, hop);
            undo.next_hops.push((address, old));
        }
        for (address, answer) in known {
            let old = self.resolutions.insert(address, answer);
            undo.resolutions.push((address, old));
        }
        undo.names.extend(self.services_with(&new));
    }

    pub(super) fn restore(&mut self, undo: Undo) {
        self.desired.settings = undo.settings;
        // In reverse: a key may stand twice, and its oldest value counts.
        put_back(&mut self.desired.services, undo.desired);
        put_back(&mut self.effective.services, undo.effective);
        put_back(&mut self.next_hops, undo.next_hops);
        put_back(&mut self.resolutions, undo.resolutions);
    }
}

fn put_back<K: Ord, V>(map: &mut BTreeMap<K, V>, before: Vec<(K, Option<V>)>) {
    for (key, old) in before.into_iter().rev() {
        put(map, key, old);
    }
}

/// Sets a value, or removes it.
pub(super) fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
