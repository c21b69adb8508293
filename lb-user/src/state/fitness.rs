//! What checks found of backends, as far as it decides about flows.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::desired::BackendState;

/// Of all services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    services: BTreeMap<String, ServiceFitness>,
}

/// Of one service's backends; a backend that is not named counts as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFitness {
    /// Take no flows. Empty in a panic that serves.
    pub down: BTreeSet<IpAddr>,
    /// Lighter than they should be, for a while.
    pub rising: BTreeMap<IpAddr, u32>,
    /// Failed their checks, whether that counts or not.
    pub dead: BTreeSet<IpAddr>,
}

impl Fitness {
    pub fn of(&self, service: &str) -> &ServiceFitness {
        static WELL: ServiceFitness = ServiceFitness {
            down: BTreeSet::new(),
            rising: BTreeMap::new(),
            dead: BTreeSet::new(),
        };
        self.services.get(service).unwrap_or(&WELL)
    }

    /// Whether anything differs.
    pub fn set(&mut self, service: &str, fitness: ServiceFitness) -> bool {
        let changed = *self.of(service) != fitness;
        if fitness == ServiceFitness::default() {
            self.services.remove(service);
        } else if changed {
            self.services.insert(service.to_owned(), fitness);
        }
        changed
    }

    /// Whether checks found a backend dead.
    pub fn is_dead(&self, service: &str, address: IpAddr) -> bool {
        self.of(service).dead.contains(&address)
    }
}

impl ServiceFitness {
    /// State and weight of a backend, given those that were asked for.
    pub fn applied(&self, address: IpAddr, state: BackendState, weight: u32) -> (BackendState, u32) {
        if self.down.contains(&address) {
            return (BackendState::Down, weight);
        }
        let weight = self
            .rising
            .get(&address)
            .map_or(weight, |rising| (*rising).min(weight));
        (state, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_is_as_it_was_asked_for() {
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut fitness = Fitness::default();
        let found = ServiceFitness {
            down: [a].into(),
            rising: [(b, 3)].into(),
            dead: [a].into(),
        };
        assert!(fitness.set("web", found.clone()));
        assert!(!fitness.set("web", found));
        let web = fitness.of("web");
        assert_eq!(
            web.applied(a, BackendState::Serving, 10),
            (BackendState::Down, 10)
        );
        assert_eq!(
            web.applied(b, BackendState::Draining, 10),
            (BackendState::Draining, 3)
        );
        assert_eq!(
            web.applied(b, BackendState::Serving, 2),
            (BackendState::Serving, 2)
        );
        assert_eq!(
            web.applied(c, BackendState::Serving, 10),
            (BackendState::Serving, 10)
        );
        assert!(fitness.is_dead("web", a) && !fitness.is_dead("other", a));
        assert!(fitness.set("web", ServiceFitness::default()));
        assert_eq!(fitness, Fitness::default());
    }
}
