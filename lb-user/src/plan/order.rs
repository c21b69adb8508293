//! The order of steps: between any two of them the datapath sees a state that is right for every packet.
//!
//! 1. **Seeds**, each followed by clearing its fresh-key bitmap. A bitmap cleared before the switch would count keys
//!    of the old seed as first sights under the new one; one that is not cleared because the daemon died in between hides
//!    some new keys until the next rotation. The first seeds must be there before the first service.
//! 2. **Entries that may take flows** (serving, next hop known). An entry without slots takes no flow, so it can be
//!    written at any time; it must be there before a slot names it.
//! 3. **Slots**, whole tables into regions that no service points at.
//! 4. **Removed services** and the marks of their VIPs, before new ones: the map may be full.
//! 5. **Services**: one update switches a service from its old region to the new one. The marks of new VIPs come
//!    after: until then what has no port passes to the kernel.
//! 6. **Entries that may take no flows any more** (draining, down, unresolved, removed). Now no slot names them. The
//!    other way round new flows would meet slots of a backend that refuses them and would be put on its neighbour's
//!    slots: correct, but uneven, and counted as a fault. Existing flows keep a draining backend either way.
//! 7. **Settings**, before the filter: on fresh maps they are what makes the datapath look at packets at all, and by
//!    now everything that it looks at is there.
//! 8. **The VIP filter**: a bit is set after its service is there, and cleared after its service is gone; before,
//!    packets of a living service would pass to the kernel.
//!
//! A plan that fails half way leaves a state between two steps; the next plan starts from it. What `soundness.rs` says
//! holds in each of them.

use lb_common::{
    backend::Backend,
    ids::BackendRef,
    service::{Service, ServiceKey},
    settings::Settings,
    vip_filter,
};

use super::step::{Plan, Step};

/// Steps by phase, collected in any order.
#[derive(Default)]
pub(super) struct Phases {
    /// Pairs of a write and a clear.
    pub seeds: Vec<Step>,
    pub entries_in: Vec<(u32, Backend)>,
    pub tables: Vec<(u32, Vec<BackendRef>)>,
    pub services_out: Vec<ServiceKey>,
    pub marks_out: Vec<ServiceKey>,
    pub services_in: Vec<(ServiceKey, Service)>,
    pub marks_in: Vec<ServiceKey>,
    pub entries_out: Vec<(u32, Backend)>,
    pub settings: Option<Settings>,
    pub filter: Option<Box<[u64; vip_filter::WORDS]>>,
}

impl Phases {
    pub fn into_plan(self) -> Plan {
        let write_backend = |(id, backend)| Step::WriteBackend { id, backend };
        let mut steps = self.seeds;
        steps.extend(self.entries_in.into_iter().map(write_backend));
        steps.extend(
            self.tables
                .into_iter()
                .map(|(offset, slots)| Step::WriteSlots { offset, slots }),
        );
        steps.extend(
            self.services_out
                .into_iter()
                .chain(self.marks_out)
                .map(|key| Step::RemoveService { key }),
        );
        steps.extend(
            self.services_in
                .into_iter()
                .map(|(key, service)| Step::WriteService { key, service }),
        );
        steps.extend(self.marks_in.into_iter().map(|key| Step::WriteService {
            key,
            service: Service::MARK,
        }));
        steps.extend(self.entries_out.into_iter().map(write_backend));
        steps.extend(
            self.settings
                .map(|settings| Step::WriteSettings(Box::new(settings))),
        );
        steps.extend(self.filter.map(Step::WriteFilter));
        Plan { steps }
    }
}
