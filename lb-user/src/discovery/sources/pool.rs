//! What a server's objects (keys, slices) name, so that a change of one object becomes a change of endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    discovery::{Endpoint, Refused, SourceError, Update},
    state::desired::BackendState,
};

/// Objects by name, and the endpoints of each.
///
/// Several objects may name one address. A serving endpoint then counts before a draining one, and else that of the
/// object whose name comes first.
#[derive(Debug)]
pub struct Pool {
    most: usize,
    objects: BTreeMap<String, Vec<Endpoint>>,
    /// Which objects name an address.
    named: BTreeMap<IpAddr, BTreeSet<String>>,
    /// Endpoints of all objects.
    found: usize,
}

/// What counted for the addresses that changed, before they did.
#[derive(Debug, Default)]
pub struct Changes {
    before: BTreeMap<IpAddr, Option<Endpoint>>,
    pub refused: Vec<Refused>,
}

impl Pool {
    pub fn new(most: u32) -> Self {
        Self {
            most: most as usize,
            objects: BTreeMap::new(),
            named: BTreeMap::new(),
            found: 0,
        }
    }

    /// Objects, also those without endpoints.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Another object than `object` that names this address.
    pub fn other(&self, object: &str, address: IpAddr) -> Option<&str> {
        let others = self.named.get(&address)?.iter();
        others.map(String::as_str).find(|name| *name != object)
    }

    /// Sets what an object names now.
    pub fn put(
        &mut self,
        object: &str,
        endpoints: Vec<Endpoint>,
        changes: &mut Changes,
    ) -> Result<(), SourceError> {
        self.remove(object, changes);
        for endpoint in &endpoints {
            self.remember(endpoint.address, changes);
            self.named
                .entry(endpoint.address)
                .or_default()
                .insert(object.to_owned());
        }
        self.found += endpoints.len();
        self.objects.insert(object.to_owned(), endpoints);
        let found = self.found.max(self.objects.len());
        if found > self.most {
            let most = self.most as u32;
            return Err(SourceError::TooMany { found, most });
        }
        Ok(())
    }

    /// Forgets an object.
    pub fn remove(&mut self, object: &str, changes: &mut Changes) {
        for endpoint in self.objects.get(object).into_iter().flatten() {
            self.remember(endpoint.address, changes);
        }
        for endpoint in self.objects.remove(object).into_iter().flatten() {
            self.found -= 1;
            if let Some(names) = self.named.get_mut(&endpoint.address) {
                names.remove(object);
                if names.is_empty() {
                    self.named.remove(&endpoint.address);
                }
            }
        }
    }

    /// All there is.
    pub fn snapshot(&self, refused: Vec<Refused>, revision: Option<String>) -> Update {
        let addresses = self.named.keys();
        Update::Snapshot {
            endpoints: addresses
                .filter_map(|address| self.counts(*address))
                .cloned()
                .collect(),
            refused,
            revision,
        }
    }

    /// What is different, if anything is.
    pub fn delta(&self, changes: Changes, revision: Option<String>) -> Option<Update> {
        let (mut set, mut gone) = (Vec::new(), Vec::new());
        for (address, before) in changes.before {
            match (before, self.counts(address)) {
                (Some(_), None) => gone.push(address),
                (before, Some(now)) if before.as_ref() != Some(now) => set.push(now.clone()),
                _ => {}
            }
        }
        let refused = changes.refused;
        let changed = !(set.is_empty() && gone.is_empty() && refused.is_empty());
        changed.then_some(Update::Delta {
            set,
            gone,
            refused,
            revision,
        })
    }

    fn remember(&self, address: IpAddr, changes: &mut Changes) {
        let counts = || self.counts(address).cloned();
        changes.before.entry(address).or_insert_with(counts);
    }

    /// The endpoint that counts for an address.
    fn counts(&self, address: IpAddr) -> Option<&Endpoint> {
        let names = self.named.get(&address)?.iter();
        names
            .flat_map(|name| self.objects.get(name).into_iter().flatten())
            .filter(|endpoint| endpoint.address == address)
            .min_by_key(|endpoint| endpoint.state != BackendState::Serving)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(host: u8) -> Endpoint {
        Endpoint::new([192, 0, 2, host].into())
    }

    fn draining(number: u8) -> Endpoint {
        Endpoint {
            state: BackendState::Draining,
            ..host(number)
        }
    }

    fn put(pool: &mut Pool, object: &str, endpoints: Vec<Endpoint>) -> Option<Update> {
        let mut changes = Changes::default();
        pool.put(object, endpoints, &mut changes).unwrap();
        pool.delta(changes, None)
    }

    fn delta(set: Vec<Endpoint>, gone: Vec<u8>) -> Option<Update> {
        Some(Update::Delta {
            set,
            gone: gone.into_iter().map(|number| host(number).address).collect(),
            refused: Vec::new(),
            revision: None,
        })
    }

    #[test]
    fn only_what_differs_is_said() {
        let mut pool = Pool::new(9);
        assert_eq!(
            put(&mut pool, "a", vec![host(1), host(2)]),
            delta(vec![host(1), host(2)], vec![])
        );
        assert_eq!(put(&mut pool, "a", vec![host(2), host(1)]), None);
        assert_eq!(
            put(&mut pool, "a", vec![draining(2)]),
            delta(vec![draining(2)], vec![1])
        );
    }

    #[test]
    fn an_address_goes_with_the_last_object_that_names_it() {
        let mut pool = Pool::new(9);
        put(&mut pool, "a", vec![host(1)]);
        assert_eq!(put(&mut pool, "b", vec![draining(1)]), None);
        assert_eq!(pool.other("b", host(1).address), Some("a"));
        assert_eq!(put(&mut pool, "a", vec![]), delta(vec![draining(1)], vec![]));
        let mut changes = Changes::default();
        pool.remove("b", &mut changes);
        assert_eq!(pool.delta(changes, None), delta(vec![], vec![1]));
    }

    #[test]
    fn what_went_and_came_back_is_no_change() {
        let mut pool = Pool::new(9);
        put(&mut pool, "a", vec![host(1)]);
        let mut changes = Changes::default();
        pool.remove("a", &mut changes);
        pool.put("b", vec![host(1)], &mut changes).unwrap();
        assert_eq!(pool.delta(changes, None), None);
    }

    #[test]
    fn objects_and_endpoints_are_bounded() {
        let mut changes = Changes::default();
        let mut pool = Pool::new(1);
        assert!(
            pool.put("a", vec![host(1), host(2)], &mut changes).is_err(),
            "two endpoints"
        );
        let mut pool = Pool::new(1);
        pool.put("a", vec![], &mut changes).unwrap();
        assert!(pool.put("b", vec![], &mut changes).is_err(), "two objects");
    }

    proptest! {
        /// Deltas, applied one after another, always make what a snapshot says.
        #[test]
        fn deltas_add_up(steps in prop::collection::vec((0..4u8, prop::collection::vec((0..5u8, any::<bool>()), 0..4)), 0..40)) {
            let mut pool = Pool::new(99);
            let mut built: BTreeMap<IpAddr, Endpoint> = BTreeMap::new();
            for (object, members) in steps {
                let members = members.into_iter()
                    .map(|(number, serving)| if serving { host(number) } else { draining(number) })
                    .collect();
                if let Some(Update::Delta { set, gone, .. }) = put(&mut pool, &object.to_string(), members) {
                    for endpoint in set {
                        prop_assert_ne!(built.insert(endpoint.address, endpoint.clone()), Some(endpoint));
                    }
                    for address in gone {
                        prop_assert!(built.remove(&address).is_some());
                    }
                }
                let Update::Snapshot { endpoints, .. } = pool.snapshot(Vec::new(), None) else { unreachable!() };
                prop_assert_eq!(&endpoints, &built.values().cloned().collect::<Vec<_>>());
            }
        }
    }
}
