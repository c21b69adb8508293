//! How soon a backend is out of the slots that a source no longer names.

use std::{
    fs,
    net::IpAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Result;
use tests::{
    lab::{Config, Daemon, Lab, Place, Service, Slots, VIP4},
    sources::etcd::Etcd,
};

use crate::report::{RemovalFigures, percentile};

const BACKENDS: usize = 4;
const ROUNDS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(20);

/// By a file and, where there is one, by an etcd.
pub fn run() -> Result<Vec<RemovalFigures>> {
    println!("removals: {ROUNDS} from a service of {BACKENDS}, each until it is out of the slots");
    let mut figures = vec![file()?];
    if Command::new("etcd").arg("--version").output().is_ok() {
        figures.push(etcd()?);
    } else {
        println!("etcd is not installed (package etcd-server): its removals are not measured");
    }
    figures.iter().for_each(RemovalFigures::print);
    Ok(figures)
}

fn file() -> Result<RemovalFigures> {
    let lab = Lab::new(&[Place::Front; BACKENDS])?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("backends.json");
    let all: Vec<IpAddr> = lab
        .backends
        .iter()
        .map(|backend| backend.address(false))
        .collect();
    write(&path, &all)?;
    let lines = format!("type = \"file\"\npath = {path:?}");
    let mut lags = Vec::new();
    rounds(&lab, &lines, |slots, turn| {
        let mut rest = all.clone();
        let removed = rest.remove(turn);
        let said = write(&path, &rest)?;
        lags.push(slots.wait(removed, false, PATIENCE)? - said);
        write(&path, &all)?;
        slots.wait(removed, true, PATIENCE).map(drop)
    })?;
    Ok(figures("file", &lags))
}

/// When the file that says so was in its place.
fn write(path: &Path, addresses: &[IpAddr]) -> Result<Instant> {
    let new = path.with_extension("new");
    fs::write(&new, tests::sources::scene::list(addresses.iter().copied()))?;
    let said = Instant::now();
    fs::rename(&new, path)?;
    Ok(said)
}

fn etcd() -> Result<RemovalFigures> {
    let lab = Lab::new(&[Place::Front; BACKENDS])?;
    let key = |address: IpAddr| format!("/web/{address}");
    let all: Vec<IpAddr> = lab
        .backends
        .iter()
        .map(|backend| backend.address(false))
        .collect();
    let etcd = lab.balancer.run(|| {
        let etcd = Etcd::start()?;
        for address in &all {
            etcd.put(&key(*address), "")?;
        }
        anyhow::Ok(etcd)
    })?;
    let lines = format!("type = \"etcd\"\nurls = [{:?}]\nprefix = \"/web/\"", etcd.url());
    let mut lags = Vec::new();
    rounds(&lab, &lines, |slots, turn| {
        let removed = all[turn];
        // What etcd itself takes for the commit is counted, too.
        let (asked, _) = lab.balancer.run(|| etcd.delete_timed(&key(removed)))?;
        lags.push(slots.wait(removed, false, PATIENCE)? - asked);
        lab.balancer.run(|| etcd.put(&key(removed), ""))?;
        slots.wait(removed, true, PATIENCE).map(drop)
    })?;
    Ok(figures("etcd", &lags))
}

/// Removes and puts back with a daemon whose service has such a source.
fn rounds(lab: &Lab, source: &str, mut round: impl FnMut(&Slots, usize) -> Result<()>) -> Result<()> {
    let service = Service::new("web", "tcp", VIP4, 80)
        .line(&format!("[[service.source]]\n{source}\nmax_removal = 1.0"));
    let mut daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
    let slots = Slots::open(&daemon)?;
    for backend in &lab.backends {
        slots.wait(backend.address(false), true, PATIENCE)?;
    }
    for turn in 0..ROUNDS {
        round(&slots, turn % BACKENDS)?;
    }
    daemon.stop()
}

fn figures(source: &'static str, lags: &[Duration]) -> RemovalFigures {
    let mut lags: Vec<f64> = lags.iter().map(|lag| lag.as_secs_f64() * 1e3).collect();
    lags.sort_by(f64::total_cmp);
    RemovalFigures {
        source,
        p50_ms: percentile(&lags, 0.50),
        p99_ms: percentile(&lags, 0.99),
        worst_ms: percentile(&lags, 1.0),
        removals: lags.len(),
    }
}
