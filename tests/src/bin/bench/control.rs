//! The control plane: building slot tables, one change on its way into the kernel's maps, and a scrape of the metrics.

mod scrape;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU16,
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context, Result};
use lb_user::{
    apply::Applier,
    config::{BackendSpec, Port, ServiceSpec},
    maps::{MapReader, PinnedMaps},
    plan::{
        Scope, SlotTableCache, make_plan,
        slot_table::{Member, build, size_for},
    },
    program::{Datapath, LoadOptions, WantedCapacity, detach},
    seeds,
    state::{
        desired::{Desired, DesiredBackend, DesiredSettings, NextHop, Protocol, desired_from},
        overlay::{Effective, Overlay},
    },
};

use crate::report::Report;

const ROUNDS: usize = 15;

pub fn run(report: &mut Report) -> Result<()> {
    println!("\ncontrol plane: milliseconds, medians of {ROUNDS} rounds");
    for backends in [10u32, 1_000, 10_000] {
        slot_table(backends, report)?;
    }
    let mut wide = Maps::load("wide", 1_000, 100)?;
    report.note("first_load_1000x100", wide.apply(&Scope::All)?);
    wide.change("change_1_backend_1000x100", report)?;
    drop(wide);
    let mut deep = Maps::load("deep", 1, 1_000)?;
    deep.apply(&Scope::All)?;
    deep.change("change_1_backend_1x1000", report)?;
    drop(deep);
    scrape::run(report)
}

fn slot_table(backends: u32, report: &mut Report) -> Result<()> {
    let members: Vec<_> = (0..backends)
        .map(|number| Member {
            address: address_of(0, number),
            weight: 1 + number % 3,
        })
        .collect();
    let size = size_for(members.len(), None)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        std::hint::black_box(build(&members, size)?);
        rounds.push(milliseconds(started));
    }
    report.note(&format!("slot_table_{backends}"), median(rounds));
    Ok(())
}

/// Real maps, filled but attached to nothing.
struct Maps {
    pins: PathBuf,
    datapath: Option<Datapath>,
    maps: PinnedMaps,
    effective: Effective,
    desired: Desired,
    tables: SlotTableCache,
    applier: Applier,
}

impl Maps {
    fn load(name: &str, services: u32, backends: u32) -> Result<Self> {
        let pins = PathBuf::from(format!(
            "/sys/fs/bpf/evenkeel-bench-{}-{name}",
            std::process::id()
        ));
        let slots = services * size_for(backends as usize, None)?;
        let options = LoadOptions {
            pin_directory: pins.clone(),
            capacity: WantedCapacity {
                services: services + 1,
                backends: services * backends + 1,
                slots: slots + 4 * slots / services,
                ..WantedCapacity::default()
            },
        };
        let (datapath, maps) = Datapath::load(&options).context("cannot load the datapath")?;
        let effective = effective(services, backends);
        let seeds = seeds::rotate(&maps.seeds(), seeds::Which::All)?;
        let settings = DesiredSettings {
            table_key: seeds::fresh_table_key()?,
            ..DesiredSettings::default()
        };
        let desired = desired_from(
            &effective,
            &next_hops(services, backends),
            &Default::default(),
            settings,
            seeds,
        );
        Ok(Self {
            pins,
            datapath: Some(datapath),
            maps,
            effective,
            desired,
            tables: SlotTableCache::default(),
            applier: Applier::new(),
        })
    }

    /// Observe, plan, apply: milliseconds.
    fn apply(&mut self, scope: &Scope) -> Result<f64> {
        let started = Instant::now();
        let observed = self.maps.observe(scope)?;
        let plan = make_plan(&self.desired, &observed, scope, &mut self.tables)?;
        anyhow::ensure!(!plan.steps.is_empty(), "the change changed nothing");
        self.applier.apply(&plan, &mut self.maps)?;
        Ok(milliseconds(started))
    }

    /// Takes one backend out of one service and puts it back, in turn.
    fn change(&mut self, name: &str, report: &mut Report) -> Result<()> {
        let key = *self.desired.services.keys().next().context("no service")?;
        let scope = Scope::Services(BTreeSet::from([key]));
        let mut rounds = Vec::new();
        let mut out: Option<(IpAddr, DesiredBackend)> = None;
        for _ in 0..ROUNDS {
            // A region that was just freed rests for 20 ms; one change after another at that pace is not what is asked.
            std::thread::sleep(std::time::Duration::from_millis(30));
            let backends = &mut self
                .desired
                .services
                .get_mut(&key)
                .context("no service")?
                .backends;
            match out.take() {
                Some((address, backend)) => drop(backends.insert(address, backend)),
                None => out = backends.pop_first(),
            }
            rounds.push(self.apply(&scope)?);
        }
        report.note(name, median(rounds));
        Ok(())
    }
}

impl Drop for Maps {
    fn drop(&mut self) {
        self.datapath = None;
        if let Err(error) = detach(&self.pins) {
            eprintln!("{} is left behind: {error}", self.pins.display());
        }
    }
}

/// As the daemon has it after reading such a file.
fn effective(services: u32, backends: u32) -> Effective {
    let service = |number: u32| {
        let vip = IpAddr::V4(Ipv4Addr::from(0xc633_6400 + number));
        let backends = (0..backends).map(|member| BackendSpec::new(address_of(number, member)));
        ServiceSpec {
            backends: backends.collect(),
            ..ServiceSpec::new(
                format!("service-{number}"),
                vip,
                Port::Number(NonZeroU16::MIN),
                Protocol::Tcp,
            )
        }
    };
    let specs: Vec<ServiceSpec> = (0..services).map(service).collect();
    Overlay::default().effective(&specs)
}

fn next_hops(services: u32, backends: u32) -> BTreeMap<IpAddr, NextHop> {
    let hop = NextHop {
        interface: 1,
        mac_source: [2, 0, 0, 0, 0, 1],
        mac_destination: [2, 0, 0, 0, 0, 2],
        source: IpAddr::V4(Ipv4Addr::new(10, 255, 0, 1)),
        mtu: 1500,
        gateway: false,
    };
    let addresses =
        (0..services).flat_map(|service| (0..backends).map(move |member| address_of(service, member)));
    addresses.map(|address| (address, hop)).collect()
}

fn address_of(service: u32, member: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + service * 1_000 + member))
}

fn milliseconds(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
