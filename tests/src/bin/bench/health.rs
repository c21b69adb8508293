//! Health checks of many backends: what they take of one core, and whether they keep to their schedule.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lb_user::health::{Checker, HealthSpec, Pace, Standing, Wanted};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::{net::TcpSocket, runtime, sync::mpsc};

use crate::{
    deaths,
    report::{HealthFigures, Report},
};

const BACKENDS: usize = 5_000;
const INTERVAL: Duration = Duration::from_secs(2);
/// First checks are spread over a second, and phases mix afterwards.
const WARM_UP: Duration = Duration::from_secs(4);
const STRETCH: Duration = Duration::from_secs(12);
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;

pub fn run(report: &mut Report) -> Result<()> {
    println!("\nhealth checks: {BACKENDS} backends by TCP every {INTERVAL:?} on one core, for {STRETCH:?}");
    let port = listen()?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let figures = runtime.block_on(measure(port))?;
    let line = |name: &str, value: f64, unit: &str| println!("{name:<28} {value:>9.3} {unit}");
    line("health_cpu", 100.0 * figures.cpu_share, "% of a core");
    line("health_per_check", figures.us_per_check, "us");
    line("health_latest", figures.latest_ms, "ms");
    println!("{:<28} {:>9} of {} due", "health_done", figures.done, figures.due);
    report.health = Some(figures);
    report.deaths = deaths::run()?;
    Ok(())
}

/// Accepts connections to every address of the loopback network, in a thread of its own, until the bench ends.
fn listen() -> Result<u16> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _context = runtime.enter();
        let socket = TcpSocket::new_v4()?;
        // Not reachable from outside.
        socket.bind_device(Some(b"lo")).context("binding to lo")?;
        socket.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        socket.listen(BACKLOG)?
    };
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                // What the check closed is closed here, too.
                drop(listener.accept().await);
            }
        });
    });
    Ok(port)
}

async fn measure(port: u16) -> Result<HealthFigures> {
    let (sender, mut changes) = mpsc::channel(BACKENDS);
    let checker = Checker::start(sender);
    checker.want(wanted(port)?);
    tokio::time::sleep(WARM_UP).await;
    let (before, cpu, start) = (checker.pace(), thread_cpu(), Instant::now());
    tokio::time::sleep(STRETCH).await;
    let (after, cpu, took) = (checker.pace(), thread_cpu() - cpu, start.elapsed());
    let mut told = 0;
    while changes.try_recv().is_ok() {
        told += 1;
    }
    ensure!(
        told == BACKENDS,
        "{told} changes told by {BACKENDS} backends that answer"
    );
    let up = checker
        .snapshot()
        .into_values()
        .filter(|health| health.standing == Standing::Up);
    let up = up.count();
    ensure!(
        up == BACKENDS,
        "only {up} of {BACKENDS} backends are up: {after:?}"
    );
    ensure!(after.unable == 0, "{} checks could not be made", after.unable);
    Ok(figures(before, after, cpu, took))
}

fn figures(before: Pace, after: Pace, cpu: Duration, took: Duration) -> HealthFigures {
    let done = after.ended - before.ended;
    HealthFigures {
        backends: BACKENDS,
        cpu_share: cpu.as_secs_f64() / took.as_secs_f64(),
        us_per_check: cpu.as_secs_f64() * 1e6 / done as f64,
        due: after.started + after.skipped - before.started - before.skipped,
        done,
        latest_ms: after.latest.as_secs_f64() * 1e3,
    }
}

/// Backends from 127.1.0.1 upwards.
fn wanted(port: u16) -> Result<BTreeMap<lb_user::health::Key, Wanted>> {
    let seconds = INTERVAL.as_secs();
    let spec: HealthSpec = serde_json::from_value(json!({"type": "tcp", "interval": format!("{seconds}s")}))?;
    let spec = Arc::new(spec);
    let service: Arc<str> = Arc::from("bench");
    let first = u32::from(Ipv4Addr::new(127, 1, 0, 1));
    let backends = (0..BACKENDS as u32).map(|index| {
        let address = Ipv4Addr::from(first + index).into();
        let wanted = Wanted {
            spec: Arc::clone(&spec),
            target: SocketAddr::new(address, port),
            through: None,
            starts_up: false,
        };
        ((Arc::clone(&service), address), wanted)
    });
    Ok(backends.collect())
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
