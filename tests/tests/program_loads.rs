//! Promise: the program passes the kernel's verifier, attaches natively, and its maps are as wanted.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::{Context, Result};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    flow::FlowValue,
    map_names::{self, Rare},
    settings::{LAYOUT_VERSION, Settings},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4},
    traffic::{Client, Servers},
};

#[test]
fn it_loads_attaches_natively_and_pins_every_map() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let service = Service::new("web", "tcp", VIP4, 80).backends(&lab.backends);
    let mut daemon = Daemon::start(
        &lab.balancer,
        Config::new([service]).interfaces(&["eth0", "eth1"]),
    )?;
    for interface in ["eth0", "eth1"] {
        assert_eq!(xdp_mode(&lab, interface)?, "native", "{interface}");
    }
    let pinned: Vec<String> = names(daemon.pins())?;
    for map in map_names::ALL {
        assert!(
            pinned.iter().any(|name| name == map.name),
            "{} is not pinned: {pinned:?}",
            map.name
        );
    }
    assert!(capacity(&daemon, "SERVICES")? >= 64);
    assert!(capacity(&daemon, "BACKENDS")? > 256, "id 0 is unused");
    assert_eq!(capacity(&daemon, "SLOTS")?, 262_144);
    // Twice the flows promised, in buckets of four.
    assert_eq!(capacity(&daemon, "FLOWS")?, 65_536 * 2 / 4);

    // The verifier gives up at a million, and other kernels count otherwise.
    let program = aya::programs::ProgramInfo::from_pin(daemon.pins().join("program"))?;
    // Before Linux 5.16 a kernel does not say.
    if let Some(verified) = program.verified_instruction_count() {
        assert!(verified < 500_000, "the verifier walked {verified} instructions");
    }

    for rare in Rare::ALL {
        let name = rare.program();
        let mut found = 0;
        // Some are of daemons of other tests, and may go meanwhile.
        for program in aya::programs::loaded_programs().flatten() {
            if program.name_as_str() == Some(name) {
                found += 1;
                let verified = program.verified_instruction_count().unwrap_or(0);
                assert!(
                    verified < 500_000,
                    "the verifier walked {verified} instructions of {name}"
                );
            }
        }
        assert!(found > 0, "program {name} is not loaded");
    }

    let status = daemon.json(&["status"])?;
    assert_eq!(status["interfaces"][0]["mode"], "native", "{status}");
    daemon.stop()?;
    assert_eq!(
        xdp_mode(&lab, "eth0")?,
        "native",
        "the end of the daemon leaves the datapath alone"
    );
    let pins = daemon.pins().to_str().context("a path of letters")?.to_owned();
    daemon.ok(&["detach", "--pin-directory", &pins])?;
    assert_eq!(xdp_mode(&lab, "eth0")?, "none");
    assert!(
        !daemon.pins().exists() || names(daemon.pins())?.is_empty(),
        "{:?}",
        names(daemon.pins())
    );
    Ok(())
}

#[test]
fn its_clock_is_the_monotonic_clock_in_seconds() -> Proof {
    let lab = Lab::new(&[Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let service = Service::new("web", "udp", VIP4, 80).backends(&lab.backends);
    let daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
    let settings: Array<_, Settings> = map(&daemon, "SETTINGS")?.try_into()?;
    assert_eq!(settings.get(&0, 0)?.layout_version, LAYOUT_VERSION);

    Client::new(&lab).udp(SocketAddr::new(VIP4, 80))?;
    let now = clock_gettime(ClockId::Monotonic).tv_sec;
    let flows: Array<_, [u64; 8]> = map(&daemon, "FLOWS")?.try_into()?;
    let mut stamps = Vec::new();
    for bucket in 0..flows.len() {
        let entries = flows.get(&bucket, 0)?;
        let values = entries
            .chunks(2)
            .filter(|entry| entry[0] != 0)
            .map(|entry| FlowValue::unpack(entry[1]));
        stamps.extend(values.map(|value| i64::from(value.last_seen)));
    }
    assert_eq!(stamps.len(), 1, "one flow was seen");
    assert!((stamps[0] - now).abs() <= 2, "{} against {now}", stamps[0]);
    Ok(())
}

fn map(daemon: &Daemon, name: &str) -> Result<Map> {
    let path = daemon.pins().join(name);
    let data = MapData::from_pin(&path).with_context(|| format!("opening {}", path.display()))?;
    Ok(Map::from_map_data(data)?)
}

fn capacity(daemon: &Daemon, name: &str) -> Result<u32> {
    let path = daemon.pins().join(name);
    Ok(aya::maps::MapInfo::from_pin(&path)
        .with_context(|| format!("{}", path.display()))?
        .max_entries())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// `native`, `generic` or `none`, as the kernel says.
fn xdp_mode(lab: &Lab, interface: &str) -> Result<&'static str> {
    let output = lab
        .balancer
        .command("ip")?
        .args(["-json", "link", "show", "dev", interface])
        .output()?;
    let links: Value = serde_json::from_slice(&output.stdout)?;
    // IFLA_XDP_ATTACHED of linux/if_link.h: 1 driver, 2 generic.
    Ok(match links[0]["xdp"]["mode"].as_u64() {
        Some(1) => "native",
        Some(2) => "generic",
        Some(_) => "other",
        None => "none",
    })
}
