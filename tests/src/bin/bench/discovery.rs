//! A hundred thousand endpoints from sources: first load, memory, churn, and how long a word takes to reach the datapath.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lb_common::backend::state;
use lb_user::{
    maps::PinnedMaps,
    state::desired::{address_bytes, address_from},
};
use tests::lab::{Config, Daemon, Lab, Service};

use crate::{
    removals,
    report::{DiscoveryFigures, Report, percentile},
};

const SERVICES: u32 = 1_000;
const EACH: u32 = 100;
/// Endpoints replaced in a second: one in a hundred.
const CHURN: u32 = SERVICES * EACH / 100;
/// Services that change together; so many times a second as make the churn.
const TOGETHER: u32 = 100;
const STRETCH: Duration = Duration::from_secs(15);
/// Between two looks at the map.
const LOOK: Duration = Duration::from_millis(5);
/// Longest that anything is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn run(report: &mut Report) -> Result<()> {
    println!(
        "\ndiscovery: {} endpoints of {SERVICES} services in files",
        SERVICES * EACH
    );
    let directory = tempfile::tempdir()?;
    let files = Files {
        directory: directory.path().to_owned(),
    };
    for service in 0..SERVICES {
        files.write(service, 0)?;
    }
    // Every backend is behind the router, so one neighbour is all of them's next hop.
    let lab = Lab::new(&[])?;
    let services = (0..SERVICES).map(|service| files.service(service));
    let mut config = Config::new(services);
    config.datapath = [
        "max_flows = 65536",
        "max_services = 2048",
        "max_backends = 200000",
        "max_slots = 30000000",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut daemon = Daemon::prepare(&lab.balancer, config)?;
    let start = Instant::now();
    daemon.launch()?;
    wait("all endpoints serve", || {
        ensure!(daemon.is_running(), "it ended: {}", daemon.log());
        let metrics = daemon.metrics()?;
        let serving = metrics.sum("evenkeel_service_backends", &[("state", "serving")])?;
        ensure!(serving as u32 == SERVICES * EACH, "{serving} serve");
        Ok(())
    })?;
    let first_load = start.elapsed();
    let pid = daemon.pid().context("a process")?;
    let loaded_mb = rss_mb(pid)?;
    let (latencies, cpu) = churn(&files, &daemon, pid)?;
    let figures = DiscoveryFigures {
        endpoints: SERVICES * EACH,
        first_load_ms: first_load.as_secs_f64() * 1e3,
        rss_loaded_mb: loaded_mb,
        rss_churned_mb: rss_mb(pid)?,
        rss_peak_mb: peak_mb(pid)?,
        churn_per_second: CHURN,
        cpu_share: cpu,
        propagation_p50_ms: percentile(&latencies, 0.50),
        propagation_p99_ms: percentile(&latencies, 0.99),
        samples: latencies.len(),
    };
    figures.print();
    report.discovery = Some(figures);
    daemon.stop()?;
    report.removals = removals::run()?;
    Ok(())
}

/// Replaces endpoints at the rate of the churn, and follows single ones of them into the map.
fn churn(files: &Files, daemon: &Daemon, pid: u32) -> Result<(Vec<f64>, f64)> {
    let counters = PinnedMaps::open_read_only(daemon.pins())?.counters();
    let entries = counters.capacity().backends;
    let (wanted, family) = address_bytes(address(SERVICES - 1, 0));
    let first = (1..entries).filter_map(|id| counters.backend_entry(id));
    let service = first
        .filter(|entry| (entry.address, entry.family) == (wanted, family))
        .map(|entry| entry.service)
        .next()
        .context("the last service has no backend in the map")?;
    let is_there = |address: IpAddr| {
        (1..entries).any(|id| {
            counters.backend_entry(id).is_some_and(|entry| {
                entry.service == service
                    && entry.state == state::SERVING
                    && address_from(&entry.address, entry.family) == address
            })
        })
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (files_of_thread, stopped) = (files.clone(), Arc::clone(&stop));
    // The last service is left to the samples.
    let background = thread::spawn(move || -> Result<()> {
        let pause = Duration::from_secs(1) * TOGETHER / CHURN;
        let mut due = Instant::now();
        let mut next = 0;
        for generation in 1.. {
            for _ in 0..(SERVICES - 1) / TOGETHER {
                for _ in 0..TOGETHER {
                    files_of_thread.write(next, generation)?;
                    next = (next + 1) % (SERVICES - 1);
                }
                due += pause;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
        Ok(())
    });
    let (start, cpu_before) = (Instant::now(), cpu_seconds(pid)?);
    let mut latencies = Vec::new();
    for generation in 1.. {
        if start.elapsed() > STRETCH {
            break;
        }
        files.write(SERVICES - 1, generation)?;
        let written = Instant::now();
        while !is_there(address(SERVICES - 1, EACH - 1 + generation)) {
            ensure!(
                written.elapsed() < PATIENCE,
                "a change never reached the datapath: {}",
                daemon.log()
            );
            // The processor belongs to the daemon.
            thread::sleep(LOOK);
        }
        latencies.push(written.elapsed().as_secs_f64() * 1e3);
        thread::sleep(Duration::from_millis(50));
    }
    let cpu = (cpu_seconds(pid)? - cpu_before) / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    match background.join() {
        Ok(result) => result?,
        Err(_) => bail!("the churn panicked"),
    }
    latencies.sort_by(f64::total_cmp);
    Ok((latencies, cpu))
}

/// One file a service.
#[derive(Clone)]
struct Files {
    directory: PathBuf,
}

impl Files {
    fn path(&self, service: u32) -> PathBuf {
        self.directory.join(format!("{service}.json"))
    }

    /// The service's endpoints after so many of them were replaced.
    fn write(&self, service: u32, replaced: u32) -> Result<()> {
        let endpoints: Vec<String> = (replaced..replaced + EACH)
            .map(|member| format!("{{\"address\":\"{}\"}}", address(service, member)))
            .collect();
        let new = self.directory.join(format!("{service}.new"));
        fs::write(&new, format!("{{\"endpoints\":[{}]}}", endpoints.join(",")))?;
        Ok(fs::rename(new, self.path(service))?)
    }

    fn service(&self, service: u32) -> Service {
        let vip = Ipv4Addr::from(0xc612_0000 + service);
        let source = format!(
            "[[service.source]]\ntype = \"file\"\npath = {:?}",
            self.path(service)
        );
        Service::new(&format!("s{service}"), "tcp", vip.into(), 80)
            .line("mode = \"ipip\"")
            .line(&source)
    }
}

/// Of 10.64.0.0/10, and all different for long enough.
fn address(service: u32, member: u32) -> IpAddr {
    Ipv4Addr::from(0x0a40_0000 + service * 4096 + member % 4096).into()
}

fn wait(what: &str, mut is: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    loop {
        match is() {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > PATIENCE => return Err(error.context(what.to_owned())),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn rss_mb(pid: u32) -> Result<f64> {
    status_mb(pid, "VmRSS")
}

/// The most it ever was.
fn peak_mb(pid: u32) -> Result<f64> {
    status_mb(pid, "VmHWM")
}

fn status_mb(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = value
        .and_then(|value| value.split_whitespace().next())
        .with_context(|| name.to_owned())?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// User and system time of a process.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))?;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .context("a time")?
            .parse::<f64>()
            .context("a number")
    };
    Ok((ticks(11)? + ticks(12)?) / rustix::param::clock_ticks_per_second() as f64)
}
