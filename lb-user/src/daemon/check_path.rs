//! Where checks through the VIP leave this host and come back, and what is said when they cannot.

use std::{collections::BTreeSet, net::IpAddr};

use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};

use super::{controller::Controller, edits::with_sources};
use crate::{api::types::Problem, config::ServiceSpec, events::Kind, health::Via, program::CheckPathError};

/// Its key among the troubles.
const TROUBLE: &str = "checks";

/// Whether its checks are to go through the VIP.
pub(super) fn wants_vip(service: &ServiceSpec) -> bool {
    service
        .health
        .as_ref()
        .is_some_and(|health| health.via == Via::Vip)
}

impl Controller {
    /// Attaches the programs of checks through the VIP where these leave and come back: to the datapath's interfaces, and
    /// to those by which the backends are reached. Whether there is news for `evenkeel status`.
    pub(super) fn follow_check_path(&mut self) -> bool {
        let interfaces = self.interfaces_of_checks();
        match self.checks.path.follow(&interfaces) {
            Ok(()) => self.troubles.remove(TROUBLE).is_some(),
            // It was told.
            Err(CheckPathError::Waiting) => false,
            Err(error) => self.tell_check_path(&error),
        }
    }

    fn tell_check_path(&mut self, error: &CheckPathError) -> bool {
        let problem = Problem {
            object: "health checks".to_owned(),
            problem: format!(
                "checks with via = \"vip\" cannot be made, or not by every interface: {}",
                with_sources(error)
            ),
            next_step: "it is tried again; until that works take via out, and checks go to backends directly"
                .to_owned(),
        };
        if self.troubles.insert(TROUBLE, problem.clone()).as_ref() == Some(&problem) {
            return false;
        }
        let events = &self.shared.events;
        events.record(Kind::Degraded, problem.object, problem.problem);
        true
    }

    /// By index; none when no service asks for it.
    fn interfaces_of_checks(&self) -> BTreeSet<u32> {
        let services = self.ledger.effective.services.values();
        let checked = services
            .map(|service| &service.spec)
            .filter(|spec| wants_vip(spec));
        let mut any = false;
        let backends: BTreeSet<IpAddr> = checked
            .inspect(|_| any = true)
            .flat_map(|spec| &spec.backends)
            .map(|backend| backend.address.to_canonical())
            .collect();
        if !any {
            return BTreeSet::new();
        }
        let hops = backends
            .iter()
            .filter_map(|backend| self.ledger.resolutions.get(backend)?.next_hop());
        let mut interfaces: BTreeSet<u32> = hops.map(|hop| hop.interface).collect();
        // One that is not there is told of by those who need it.
        if let Ok(any) = socket(AddressFamily::INET, SocketType::DGRAM, None) {
            let own = &self.config.datapath.interfaces;
            interfaces.extend(own.iter().filter_map(|name| name_to_index(&any, name).ok()));
        }
        interfaces
    }
}
