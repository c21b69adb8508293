//! The demo: real connections through a real balancer in network namespaces, and what happens to them.

mod faults;
mod interrupt;
mod news;
mod show;
mod stage;
mod traffic;

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use tests::traffic::{Download, Kind, LongLived, Spread};

use show::{Row, heading, progress, progress_ends, say};
use stage::Stage;

const CONNECTIONS: u64 = 6000;
const AFTER_DRAIN: u64 = 1500;
const BATCH: u64 = 300;
const DOWNLOADS: usize = 8;
const DOWNLOAD_BYTES: usize = 8 << 20;
const DOWNLOAD_TIME: Duration = Duration::from_secs(6);
const DEAD: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    interrupt::watch();
    let stay = std::env::args().any(|argument| argument == "--stay");
    match demonstrate(stay) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demonstrate(stay: bool) -> Result<()> {
    let start = Instant::now();
    heading("A balancer and three backends in network namespaces of this machine");
    say("client ── router ── balancer ── three backends; replies go straight back (dsr)");
    let mut stage = Stage::set()?;
    say(&format!(
        "evenkeel runs and is ready; the service is http://{}",
        stage.vip
    ));
    let outcome = play(&mut stage);
    if outcome.is_err() && !interrupt::came() {
        stage.explain();
    }
    // Ctrl-C reaches the daemon too, and what was going on fails.
    interrupt::check()?;
    outcome?;
    where_next(&stage, stay, start.elapsed());
    while stay && interrupt::check().is_ok() {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn play(stage: &mut Stage) -> Result<()> {
    balance(stage)?;
    faults::seed(stage)?;
    faults::slots(stage)?;
    keep_flows(stage)?;
    survive(stage)
}

/// Shares against expectation.
fn balance(stage: &Stage) -> Result<()> {
    heading(&format!("1. {CONNECTIONS} TCP connections, weights 1 : 1 : 2"));
    let spread = connect_many(stage, CONNECTIONS, "connecting")?;
    let rows = stage.rows(&spread);
    show::table(&rows);
    let (worst, chance) = show::deviation(&rows);
    say(&format!(
        "every connection was answered; the largest deviation is {worst:.1} points (chance alone: up to {chance:.1})"
    ));
    ensure!(show::is_balanced(&rows), "that is not balance");
    let counted = stage.counted_flows()?;
    say(&format!(
        "evenkeel's own counters say {counted} flows: `evenkeel backends`, `/metrics`"
    ));
    Ok(())
}

/// New seeds and a drain under running downloads.
fn keep_flows(stage: &Stage) -> Result<()> {
    heading(&format!(
        "4. New seeds and a drained backend under {DOWNLOADS} running downloads"
    ));
    let downloads: Vec<_> = (0..DOWNLOADS)
        .map(|_| Download::start(&stage.client, stage.vip, DOWNLOAD_BYTES, DOWNLOAD_TIME))
        .collect::<Result<_>>()?;
    say("$ evenkeel seeds rotate");
    stage.daemon.ok(&["seeds", "rotate"])?;
    let Some(drained) = stage
        .backends
        .iter()
        .find(|b| downloads.iter().any(|d| d.backend == b.name))
    else {
        bail!("no backend answers a download");
    };
    let there = downloads
        .iter()
        .filter(|download| download.backend == drained.name)
        .count();
    say(&format!(
        "$ evenkeel backend drain web {}      (it serves {there} of the downloads)",
        drained.address
    ));
    stage
        .daemon
        .ok(&["backend", "drain", "web", &drained.address.to_string()])?;
    let spread = connect_many(stage, AFTER_DRAIN, "connecting")?;
    let after = spread.get(&drained.name).copied().unwrap_or(0);
    ensure!(after == 0, "{after} new connections reached the drained backend");
    ensure!(
        downloads.iter().all(Download::is_running),
        "a download ended before it should"
    );
    let mut longest = Duration::ZERO;
    let waiting = Instant::now();
    for (done, download) in downloads.into_iter().enumerate() {
        while download.is_running() {
            interrupt::check()?;
            let part = waiting.elapsed().as_millis().min(DOWNLOAD_TIME.as_millis()) as u64;
            progress("downloading", part, DOWNLOAD_TIME.as_millis() as u64);
            thread::sleep(Duration::from_millis(50));
        }
        longest = longest.max(
            download
                .finish()
                .map_err(|error| error.context(format!("download {done}")))?,
        );
    }
    progress_ends();
    say(&format!(
        "{AFTER_DRAIN} new connections went to the others, none to the drained one"
    ));
    say(&format!(
        "{DOWNLOADS} downloads of {} MiB came whole, no reset; longest pause {} ms",
        DOWNLOAD_BYTES >> 20,
        longest.as_millis()
    ));
    stage
        .daemon
        .ok(&["backend", "undrain", "web", &drained.address.to_string()])?;
    Ok(())
}

/// `kill -9` while traffic goes on, and the return.
fn survive(stage: &mut Stage) -> Result<()> {
    heading("5. kill -9 of the daemon while traffic goes on");
    let kept = LongLived::open(&stage.client, stage.vip, 30)?;
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let failed = Mutex::new(Vec::new());
    let (client, vip) = (stage.client.clone(), stage.vip);
    let outcome = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match client.many(Kind::Tcp, vip, 4) {
                        Ok(_) => {
                            done.fetch_add(4, Ordering::Relaxed);
                        }
                        Err(error) => failed.lock().unwrap_or_else(PoisonError::into_inner).push(error),
                    }
                }
            });
        }
        let outcome = kill_and_return(stage, &done);
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    let (without, back) = outcome?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = failed.len();
    if let Some(first) = failed.into_iter().next() {
        return Err(first.context(format!("{count} connections failed, the first one")));
    }
    kept.check("kill -9 and the return")?;
    say(&format!(
        "{without} new connections were made while no daemon ran, none failed"
    ));
    say(&format!(
        "the next daemon adopted program, maps and flows and was ready after {} ms",
        back.as_millis()
    ));
    say("30 connections opened before are open, each at its backend");
    Ok(())
}

/// How many connections were made without a daemon, and how long the next one took.
fn kill_and_return(stage: &mut Stage, done: &AtomicU64) -> Result<(u64, Duration)> {
    let before = done.load(Ordering::Relaxed);
    say(&format!("$ kill -9 {}", stage.daemon.pid().unwrap_or(0)));
    stage.daemon.kill()?;
    let died = Instant::now();
    while died.elapsed() < DEAD {
        interrupt::check()?;
        progress(
            "no daemon",
            died.elapsed().as_millis() as u64,
            DEAD.as_millis() as u64,
        );
        thread::sleep(Duration::from_millis(50));
    }
    progress_ends();
    let without = done.load(Ordering::Relaxed) - before;
    ensure!(without > 0, "no connection was made while no daemon ran");
    say("$ evenkeel run");
    let start = Instant::now();
    stage.daemon.launch()?;
    stage.daemon.wait_ready()?;
    Ok((without, start.elapsed()))
}

fn connect_many(stage: &Stage, count: u64, what: &str) -> Result<Spread> {
    let mut total = Spread::new();
    let mut done = 0;
    while done < count {
        interrupt::check()?;
        progress(what, done, count);
        let batch = BATCH.min(count - done);
        for (name, answers) in stage.client.many(Kind::Tcp, stage.vip, batch)? {
            *total.entry(name).or_default() += answers;
        }
        done += batch;
    }
    progress_ends();
    Ok(total)
}

fn where_next(stage: &Stage, stay: bool, took: Duration) {
    heading(&format!(
        "Done in {:.0} s. Where to look next",
        took.as_secs_f64()
    ));
    if stay {
        say("Everything is still running. In another shell:");
        say(&format!("  alias ek='{}'", stage.command_line()));
        say("  ek status; ek skew; ek backends; ek flows; ek explain tcp 10.1.0.2:4711 198.18.0.1:80");
        say("Ctrl-C ends it and cleans up.");
        return;
    }
    say("cargo xtask demo --stay     leaves it running, to type `evenkeel status` and its like yourself");
    say("README.md                   sets it up on a real host in five minutes");
    say("lb-ebpf/src/datapath.rs     a packet's way through, in one page");
    say("cargo xtask test            all promises, tested; cargo xtask bench: what a packet costs");
}

/// What the table shows of a backend.
impl Stage {
    fn rows(&self, spread: &Spread) -> Vec<Row> {
        let weights: u32 = self.backends.iter().map(|backend| backend.weight).sum();
        let row = |backend: &stage::Backend| Row {
            name: backend.address.to_string(),
            weight: backend.weight,
            expected: f64::from(backend.weight) / f64::from(weights),
            connections: spread.get(&backend.name).copied().unwrap_or(0),
        };
        self.backends.iter().map(row).collect()
    }
}
