//! Changes that fail at every step and daemons that are killed at every word: what packets, the disk and the next daemon find.

mod killed;
mod left;
mod refused;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use lb_common::{
    backend::{Backend, state},
    fingerprint::FingerprintKey,
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::Settings,
};
use tempfile::TempDir;

use super::*;
use crate::{
    config::{BackendSpec, parse_services},
    maps::InMemoryMaps,
    plan::soundness::unsound,
    state::{
        desired::{BackendState, Mode, NextHop, address_from},
        observed::{Capacity, Observed},
    },
};

const FILE: &str = r#"
[[service]]
name = "web"
vip = "192.0.2.10"
port = 80
protocol = "tcp"
backend = [{ address = "10.0.0.11" }, { address = "10.0.0.12", weight = 2 }, { address = "10.0.0.13" }]

[[service]]
name = "dns"
vip = "2001:db8::53"
port = "all"
protocol = "udp"
mode = "ipip"
backend = [{ address = "10.0.0.11" }, { address = "2001:db8::12" }]
"#;

const APPLIED: &str = r#"
[[service]]
name = "web"
vip = "192.0.2.10"
port = 80
protocol = "tcp"
backend = [
    { address = "10.0.0.11", state = "draining" },
    { address = "10.0.0.12", weight = 5 },
    { address = "10.0.0.31" },
    { address = "10.0.0.32" },
]

[[service]]
name = "dns"
vip = "2001:db8::53"
port = "all"
protocol = "udp"
mode = "ipip"
udp_idle = "300s"
backend = [{ address = "10.0.0.33" }]

[[service]]
name = "mail"
vip = "192.0.2.11"
port = 25
protocol = "tcp"
backend = [{ address = "10.0.0.34" }, { address = "10.0.0.35" }]
"#;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hop(address: IpAddr) -> NextHop {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    NextHop {
        interface: 2,
        mac_source: [2; 6],
        mac_destination: [2, 0, 0, 0, 0, last],
        source: ip(if address.is_ipv4() {
            "10.0.0.1"
        } else {
            "2001:db8::1"
        }),
        mtu: 1500,
        gateway: false,
    }
}

fn answers(addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Resolution> {
    let answer = |address: &IpAddr| (*address, Resolution::Resolved(hop(*address)));
    addresses.iter().map(answer).collect()
}

/// The same, as all of them are new.
fn news(addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Option<Resolution>> {
    let answers = answers(addresses).into_iter();
    answers.map(|(address, answer)| (address, Some(answer))).collect()
}

fn settings() -> DesiredSettings {
    DesiredSettings {
        table_key: FingerprintKey::from_words([3; _]),
        ..DesiredSettings::default()
    }
}

fn maps(backends: u32) -> InMemoryMaps {
    InMemoryMaps::new(Capacity {
        services: 8,
        backends: backends + 1,
        slots: 16_384,
        possible_cpus: 2,
        flow_buckets: 16,
        fresh_words: 4,
        hz: 250,
    })
}

/// What is to be in force: the file, what the command line changed, and settings.
#[derive(Clone)]
struct Wanted {
    file: Vec<ServiceSpec>,
    overlay: Overlay,
    settings: DesiredSettings,
}

/// A change, in words and as it is made.
struct Change {
    name: &'static str,
    make: fn(&mut Wanted),
}

const CHANGES: [Change; 10] = [
    Change {
        name: "a backend more",
        make: |wanted| {
            let spec = BackendSpec::new(ip("10.0.0.30"));
            wanted.overlay.add_backend(&wanted.file, "web", spec).unwrap();
        },
    },
    Change {
        name: "a backend fewer",
        make: |wanted| {
            let address = ip("10.0.0.14");
            wanted
                .overlay
                .remove_backend(&wanted.file, "web", address)
                .unwrap();
        },
    },
    Change {
        name: "a backend drained",
        make: |wanted| {
            wanted
                .overlay
                .drain(&wanted.file, "web", ip("10.0.0.11"))
                .unwrap()
        },
    },
    Change {
        name: "no backend left for new flows",
        make: |wanted| {
            for address in ["10.0.0.11", "2001:db8::12"] {
                wanted.overlay.drain(&wanted.file, "dns", ip(address)).unwrap();
            }
        },
    },
    Change {
        name: "a service more",
        make: |wanted| {
            let mail = parse_services(APPLIED, "test").unwrap().pop().unwrap();
            wanted.overlay.add_service(&wanted.file, mail).unwrap();
        },
    },
    Change {
        name: "a service fewer",
        make: |wanted| wanted.overlay.remove_service(&wanted.file, "own").unwrap(),
    },
    Change {
        name: "a file applied",
        make: |wanted| {
            let specs = parse_services(APPLIED, "test").unwrap();
            wanted.overlay.apply_file(&wanted.file, specs).unwrap();
        },
    },
    Change {
        name: "a VIP and a mode moved in the file",
        make: |wanted| {
            wanted.file[0].vip = ip("192.0.2.99");
            wanted.file[1].mode = Mode::Dsr;
            wanted.file[1].backends.remove(0);
        },
    },
    Change {
        name: "a service takes over what another one was",
        make: |wanted| {
            wanted.file[1].vip = ip("192.0.2.10");
            wanted.file[1].protocol = wanted.file[0].protocol;
            let [web, dns] = &mut wanted.file[..] else {
                panic!()
            };
            std::mem::swap(&mut web.port, &mut dns.port);
        },
    },
    Change {
        name: "other timeouts in the file",
        make: |wanted| wanted.settings.closing_timeout = 77,
    },
];

/// A daemon without a kernel.
struct Scene {
    directory: TempDir,
    wanted: Wanted,
    ledger: Ledger<InMemoryMaps>,
    recorder: Recorder,
}

impl Scene {
    /// Two services of the file and one of the command line, which added a backend too.
    fn set() -> Self {
        Self::on(maps(40))
    }

    fn on(maps: InMemoryMaps) -> Self {
        let file = parse_services(FILE, "test").unwrap();
        let mut overlay = Overlay::default();
        let own = "[[service]]\nname = \"own\"\nvip = \"192.0.2.20\"\nport = 7\nprotocol = \"tcp\"\n\
                   backend = [{ address = \"10.0.0.11\" }, { address = \"10.0.0.14\" }]\n";
        let own = parse_services(own, "test").unwrap().remove(0);
        overlay.add_service(&file, own).unwrap();
        let spec = BackendSpec::new(ip("10.0.0.14"));
        overlay.add_backend(&file, "web", spec).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let store = Store::<Overlay>::new(directory.path());
        store.save(&overlay, 1, Durable::Now).unwrap();
        let wanted = Wanted {
            file,
            overlay,
            settings: settings(),
        };
        let mut scene = Self {
            ledger: Ledger::new(&wanted.file, wanted.overlay.clone(), wanted.settings, maps, store),
            directory,
            wanted,
            recorder: Recorder::default(),
        };
        scene.begin(true);
        scene
    }

    /// As a daemon begins; `resolved`: the resolver has answered.
    fn begin(&mut self, resolved: bool) {
        // No packet is on its way here, so no region need rest.
        self.ledger.applier = Applier::new();
        let answers = answers(&self.ledger.addresses());
        self.ledger
            .adopt(if resolved { answers } else { BTreeMap::new() })
            .unwrap();
        self.ledger.desired.seeds = (0..)
            .zip(&self.ledger.maps.seeds)
            .map(|(index, seed)| match seed.generation {
                0 => (index, fresh_seed(index)),
                _ => (index, *seed),
            })
            .collect();
        self.ledger
            .bring_about(&Scope::All, Trigger::Start, &self.recorder)
            .unwrap();
    }

    /// A new daemon with what the old one left in maps and on disk.
    fn begin_anew(&mut self, file: &[ServiceSpec], settings: DesiredSettings) {
        let mut maps = self.ledger.maps.clone();
        maps.heal();
        let store = Store::<Overlay>::new(self.directory.path());
        let loaded = store.load().unwrap();
        assert_eq!(loaded.notes, Vec::<String>::new());
        let mut overlay = loaded.state.unwrap();
        overlay.settle(file);
        self.ledger = Ledger::new(file, overlay, settings, maps, store);
        self.begin(false);
    }

    /// The resolver answers.
    fn resolve(&mut self) {
        let news = news(&self.ledger.addresses());
        let changed = self.ledger.take_news(news).changed;
        let names = self.ledger.services_with(&changed);
        self.ledger.refresh_desired(&names);
        self.reconcile();
    }

    fn reconcile(&mut self) -> usize {
        self.ledger
            .bring_about(&Scope::All, Trigger::Reconcile, &self.recorder)
            .unwrap()
    }

    fn draft(&self, wanted: &Wanted) -> Draft {
        let after = wanted.overlay.effective(&wanted.file).services;
        let before = &self.ledger.effective.services;
        let mut services: Changed = before.keys().map(|name| (name.clone(), None)).collect();
        services.extend(after.into_iter().map(|(name, service)| (name, Some(service))));
        services.retain(|name, service| before.get(name) != service.as_ref());
        let backends = services
            .values()
            .flatten()
            .flat_map(|service| service.sources.keys());
        let new = backends.filter(|address| !self.ledger.resolutions.contains_key(address));
        Draft {
            overlay: wanted.overlay.clone(),
            answers: new
                .map(|address| (*address, Some(Resolution::Resolved(hop(*address)))))
                .collect(),
            services,
            settings: wanted.settings,
            trigger: Trigger::Edit,
        }
    }

    /// The plan that entering a change would carry out.
    fn plan_of(&mut self, wanted: &Wanted) -> Plan {
        let Draft {
            services,
            answers,
            settings,
            ..
        } = self.draft(wanted);
        let undo = self.ledger.replace(services, answers, settings);
        let plan = self.ledger.dry_run(&Scope::Services(undo.keys.clone())).unwrap();
        self.ledger.restore(undo);
        plan
    }

    fn enter(&mut self, wanted: &Wanted) -> Result<Entered, NotEntered> {
        let draft = self.draft(wanted);
        self.ledger.enter(draft, &self.recorder)
    }

    fn on_disk(&self) -> Overlay {
        let store = Store::<Overlay>::new(self.directory.path());
        store.load().unwrap().state.unwrap()
    }

    fn observed(&self) -> Observed {
        self.ledger.maps.observe(&Scope::All).unwrap()
    }

    /// First slot and number of slots.
    fn table_of_web(&self) -> (u32, u32) {
        let key = self.ledger.effective.services["web"].spec.key();
        let service = self.observed().services[&key];
        (service.slots_offset, service.slots_count)
    }

    fn shape(&self) -> Shape {
        Shape::of(&self.observed())
    }

    /// A flow at each backend of a service.
    fn flows(&self) -> Vec<Flow> {
        let observed = self.observed();
        let keys: BTreeMap<u32, ServiceKey> = observed
            .services
            .iter()
            .map(|(key, service)| (service.id, *key))
            .collect();
        let in_use = observed.backends.iter().filter(|(_, entry)| entry.keeps_flows());
        let flow = |(id, entry): (&u32, &Backend)| {
            Some(Flow {
                reference: BackendRef::new(*id, entry.generation),
                service: *keys.get(&entry.service)?,
                address: address_from(&entry.address, entry.family),
            })
        };
        in_use.filter_map(flow).collect()
    }

    /// Looks at every state that packets may meet from now on; these flows must go on.
    fn watch(&mut self, kept: Vec<Flow>) {
        let others = self.flows();
        self.ledger.maps.watch(move |maps| {
            let observed = maps.observe(&Scope::All).unwrap();
            assert_eq!(unsound(&observed), Vec::<String>::new());
            kept.iter()
                .for_each(|flow| assert!(flow.goes_on(&observed), "{flow:?} is lost"));
            others.iter().for_each(|flow| flow.assert_not_misled(&observed));
        });
    }
}

fn fresh_seed(index: u32) -> Seed {
    Seed {
        k0: u64::from(index) + 1,
        k1: 7,
        generation: 1,
        reserved: 0,
    }
}

/// What the flow table holds of a flow, and what it must mean for as long as it means anything.
#[derive(Clone, Debug)]
struct Flow {
    reference: BackendRef,
    service: ServiceKey,
    address: IpAddr,
}

impl Flow {
    fn entry(&self, observed: &Observed) -> Option<Backend> {
        let entry = observed.backends.get(&self.reference.id())?;
        entry.is_named_by(self.reference).then_some(*entry)
    }

    fn goes_on(&self, observed: &Observed) -> bool {
        self.entry(observed)
            .is_some_and(|entry| entry.keeps_flows() && entry.is_resolved() && self.is_at(&entry))
    }

    fn is_at(&self, entry: &Backend) -> bool {
        address_from(&entry.address, entry.family) == self.address
    }

    fn assert_not_misled(&self, observed: &Observed) {
        if let Some(entry) = self.entry(observed) {
            assert!(self.is_at(&entry), "{self:?} is led to {entry:?}");
        }
    }

    /// Whether its backend is still wanted where it is.
    fn is_wanted(&self, desired: &Desired) -> bool {
        let service = desired.services.get(&self.service);
        let backend = service.and_then(|service| service.backends.get(&self.address));
        backend.is_some_and(|backend| backend.state != BackendState::Down)
    }
}

/// The maps as packets see them: without ids, generations and offsets, which differ with the way there. Of the bitmaps
/// of fresh keys nothing: they are statistics.
#[derive(Debug, PartialEq)]
struct Shape {
    settings: Settings,
    seeds: Vec<Seed>,
    filter: Vec<u64>,
    marks: BTreeSet<ServiceKey>,
    services: BTreeMap<ServiceKey, ServiceShape>,
    entries_in_use: usize,
}

#[derive(Debug, PartialEq)]
struct ServiceShape {
    entry: Service,
    slots: Vec<IpAddr>,
    backends: BTreeMap<IpAddr, Backend>,
}

impl Shape {
    fn of(observed: &Observed) -> Self {
        let in_use = observed
            .backends
            .values()
            .filter(|entry| entry.state != state::UNSET);
        Self {
            settings: observed.settings,
            seeds: observed.seeds.clone(),
            filter: observed.vip_filter.to_vec(),
            marks: observed.vip_marks.clone(),
            services: observed
                .services
                .iter()
                .map(|(key, service)| (*key, ServiceShape::of(service, observed)))
                .collect(),
            entries_in_use: in_use.count(),
        }
    }
}

impl ServiceShape {
    fn of(service: &Service, observed: &Observed) -> Self {
        let own = observed
            .backends
            .values()
            .filter(|entry| entry.state != state::UNSET && entry.service == service.id);
        let address = |entry: &Backend| address_from(&entry.address, entry.family);
        let slots = observed.slots[&service.id].iter();
        Self {
            entry: Service {
                id: 0,
                slots_offset: 0,
                table_generation: 0,
                ..*service
            },
            slots: slots
                .map(|slot| address(&observed.backends[&slot.id()]))
                .collect(),
            backends: own
                .map(|entry| {
                    let shown = Backend {
                        service: 0,
                        generation: 0,
                        ..*entry
                    };
                    (address(entry), shown)
                })
                .collect(),
        }
    }
}

/// What an undisturbed change makes of the maps.
fn undisturbed(change: &Change) -> (Wanted, Plan, Shape) {
    let mut scene = Scene::set();
    let mut wanted = scene.wanted.clone();
    (change.make)(&mut wanted);
    let plan = scene.plan_of(&wanted);
    let before = scene.ledger.maps.writes;
    let entered = scene.enter(&wanted).unwrap();
    assert_eq!(entered.steps, plan.steps.len(), "{}", change.name);
    assert_eq!(scene.ledger.maps.writes, before + plan.steps.len());
    assert_eq!(scene.on_disk(), wanted.overlay);
    assert_eq!(scene.reconcile(), 0, "{}", change.name);
    (wanted, plan, scene.shape())
}
