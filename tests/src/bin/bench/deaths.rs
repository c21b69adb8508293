//! How soon a backend that dies is out of the slots, beside the intervals of its checks.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;
use tests::lab::{Backend, Config, Daemon, Lab, Place, Service, Slots, VIP4};

use crate::report::{DeathFigures, percentile};

const BACKENDS: usize = 5;
const ROUNDS: usize = 20;
const INTERVAL: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_millis(100);
const FALL: u32 = 3;
/// Where checks are answered.
const PORT: u16 = 9000;
const PATIENCE: Duration = Duration::from_secs(20);

/// Of servers that end, whose host then refuses, and of hosts that fall silent.
pub fn run() -> Result<Vec<DeathFigures>> {
    println!(
        "deaths: {ROUNDS} of each kind, checked every {INTERVAL:?} with a timeout of {TIMEOUT:?} and fall = {FALL}"
    );
    let lab = Lab::new(&[Place::Front; BACKENDS])?;
    let mut answering = lab
        .backends
        .iter()
        .map(Answering::start)
        .collect::<Result<Vec<_>>>()?;
    let health = format!(
        "[service.health]\ntype = \"tcp\"\nport = {PORT}\nfall = {FALL}\n\
         interval = \"{INTERVAL:?}\"\ntimeout = \"{TIMEOUT:?}\""
    );
    let service = Service::new("web", "tcp", VIP4, 80)
        .backends(&lab.backends)
        .line(&health);
    let mut daemon = Daemon::start(&lab.balancer, Config::new([service]))?;
    let slots = Slots::open(&daemon)?;
    for backend in &lab.backends {
        slots.wait(backend.address(false), true, PATIENCE)?;
    }
    let (mut refusing, mut silent) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let index = round % BACKENDS;
        let backend = &lab.backends[index];
        let address = backend.address(false);
        // At every phase of the interval.
        thread::sleep(INTERVAL * round as u32 / ROUNDS as u32);
        let died = Instant::now();
        answering[index].end();
        refusing.push(slots.wait(address, false, PATIENCE)? - died);
        answering[index] = Answering::start(backend)?;
        slots.wait(address, true, PATIENCE)?;

        thread::sleep(INTERVAL * round as u32 / ROUNDS as u32);
        let died = Instant::now();
        backend.netns.ip("route add blackhole 10.2.0.10/32")?;
        silent.push(slots.wait(address, false, PATIENCE)? - died);
        backend.netns.ip("route delete blackhole 10.2.0.10/32")?;
        slots.wait(address, true, PATIENCE)?;
    }
    daemon.stop()?;
    let figures = vec![figures("refusing", &refusing), figures("silent", &silent)];
    figures.iter().for_each(DeathFigures::print);
    Ok(figures)
}

fn figures(kind: &'static str, times: &[Duration]) -> DeathFigures {
    let promised = (INTERVAL * FALL).as_secs_f64() * 1e3;
    let mut beyond: Vec<f64> = times
        .iter()
        .map(|time| time.as_secs_f64() * 1e3 - promised)
        .collect();
    beyond.sort_by(f64::total_cmp);
    DeathFigures {
        kind,
        deaths: beyond.len(),
        beyond_p50_ms: percentile(&beyond, 0.50),
        beyond_worst_ms: percentile(&beyond, 1.0),
    }
}

/// Accepts connections at a backend's own address, until it ends.
struct Answering {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answering {
    fn start(backend: &Backend) -> Result<Self> {
        let at = SocketAddr::new(backend.address(false), PORT);
        let listener = backend.netns.run(|| TcpListener::bind(at))?;
        listener.set_nonblocking(true)?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if listener.accept().is_err() {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// From now on connections are refused.
    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.end();
    }
}
