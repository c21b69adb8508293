//! `evenkeel skew --record FILE`: saves what the daemon reads at each check.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    api::client::{Client, ClientError},
    cli::{
        Context, duration,
        exit::{Advice, FAILED, Outcome},
        table,
    },
    watch::record::{Reading, Writer},
};

/// What a recording came to.
#[derive(Debug, Serialize)]
struct Recorded {
    file: String,
    checks: u64,
    /// Checks at which the daemon did not answer.
    missed: u64,
    seconds: u64,
}

pub(super) async fn run(file: &Path, length: Duration, context: &Context) -> Outcome {
    let client = context.client();
    // Ask before the file is made: without a daemon there shall be no file.
    let first: Reading = client.get("/v1/skew/counters").await?;
    let mut writer = create(file)?;
    let started = Instant::now();
    writer.push(&first).with_context(|| write_failed(file))?;
    let missed = follow(&client, &first, length, &mut writer)
        .await
        .with_context(|| write_failed(file))?;
    let recorded = Recorded {
        file: file.display().to_string(),
        checks: writer.checks(),
        missed,
        seconds: started.elapsed().as_secs(),
    };
    context.print(&recorded, |_| render(&recorded))
}

fn create(file: &Path) -> anyhow::Result<Writer> {
    Writer::create(file).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow::Error::new(Advice {
            error: format!("{} is there already, and is not overwritten", file.display()),
            next_step: "name another file, or remove it".to_owned(),
            code: FAILED,
        }),
        _ => anyhow::Error::new(error).context(format!("cannot make {}", file.display())),
    })
}

fn write_failed(file: &Path) -> String {
    format!(
        "cannot write {}; what was written before can be read",
        file.display()
    )
}

/// Until the time is over or somebody interrupts; the number of checks that the daemon did not answer.
async fn follow(client: &Client, first: &Reading, length: Duration, writer: &mut Writer) -> io::Result<u64> {
    let end = tokio::time::Instant::now() + length;
    let mut ticks = tokio::time::interval(Duration::from_millis(first.header.interval_ms.max(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut missed = 0;
    loop {
        tokio::select! {
            at = ticks.tick() => if at > end { return Ok(missed) },
            () = tokio::time::sleep_until(end) => return Ok(missed),
            _ = tokio::signal::ctrl_c() => return Ok(missed),
        }
        let answer: Result<Reading, ClientError> = client.get("/v1/skew/counters").await;
        match answer {
            Ok(reading) => writer.push(&reading)?,
            // A daemon that restarts is back soon; the gap shows in the times.
            Err(_) => missed += 1,
        }
    }
}

fn render(recorded: &Recorded) -> String {
    let mut text = format!(
        "Recorded {} checks in {} to {}.\n",
        table::count(recorded.checks),
        duration::show(recorded.seconds),
        recorded.file
    );
    if recorded.missed > 0 {
        text.push_str(&format!("The daemon did not answer {} times.\n", recorded.missed));
    }
    text.push_str(&format!("  next: evenkeel explain-skew {}\n", recorded.file));
    text
}
