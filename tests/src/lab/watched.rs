//! What a daemon says about the spread of new flows, and what it has told.

use std::{collections::BTreeSet, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use lb_common::seed::{Seed, of_cpu};
use lb_user::maps::{MapWriter, PinnedMaps};
use serde_json::Value;

use super::{Daemon, wait::within};

/// The exit code of `evenkeel skew` when nothing is wrong, and while an alarm stands.
pub const EVEN: i32 = 0;
pub const UNEVEN: i32 = 9;

/// Between questions: each is a process.
const PAUSE: Duration = Duration::from_millis(150);

/// Reads a daemon's mind through its command line, and its seeds through the maps.
#[derive(Clone, Copy)]
pub struct Watched<'a>(pub &'a Daemon);

/// A moment in a daemon's list of events.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    id: u64,
    /// By the daemon's clock, in milliseconds since 1970.
    pub time_ms: u64,
}

/// An event of the watch.
#[derive(Clone, Debug)]
pub struct Told {
    /// By the daemon's clock, in milliseconds since 1970.
    pub time_ms: u64,
    pub object: String,
    pub text: String,
}

impl Watched<'_> {
    /// Like [`within`], asking less often.
    pub fn wait<T>(&self, deadline: Duration, what: &str, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        within(deadline, what, || {
            ask().inspect_err(|_| thread::sleep(PAUSE)).with_context(|| {
                let told = self.all().map(|told| told.into_iter().map(|told| told.text));
                format!("told so far: {:#?}", told.map(Iterator::collect::<Vec<_>>))
            })
        })
    }

    /// `evenkeel skew`, of one service or of all, and its exit code.
    pub fn report(&self, service: Option<&str>) -> Result<(Value, i32)> {
        let arguments: Vec<&str> = ["skew"].into_iter().chain(service).chain(["--json"]).collect();
        let output = self.0.cli(&arguments)?;
        let report = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok((report, output.status.code().context("no exit code")?))
    }

    /// The part of the report that is about one service.
    pub fn service(&self, name: &str) -> Result<Value> {
        let (report, _) = self.report(Some(name))?;
        Ok(report["services"][0].clone())
    }

    /// From now on.
    pub fn mark(&self) -> Result<Mark> {
        let events = self.0.json(&["events"])?;
        let last = events.as_array().and_then(|all| all.last()).context("an event")?;
        Ok(Mark {
            id: last["id"].as_u64().context("an id")?,
            time_ms: last["time_ms"].as_u64().context("a time")?,
        })
    }

    /// What the watch has told since.
    pub fn told(&self, since: Mark) -> Result<Vec<Told>> {
        let events = self.0.json(&["events"])?;
        let all = events.as_array().context("a list of events")?.iter();
        all.filter(|event| event["id"].as_u64() > Some(since.id))
            .filter(|event| matches!(event["kind"].as_str(), Some("skew" | "heal")))
            .map(|event| {
                let text = |key: &str| event[key].as_str().map(str::to_owned).context("a text");
                Ok(Told {
                    time_ms: event["time_ms"].as_u64().context("a time")?,
                    object: text("object")?,
                    text: text("text")?,
                })
            })
            .collect()
    }

    /// What the watch has told since the daemon's start.
    pub fn all(&self) -> Result<Vec<Told>> {
        self.told(Mark { id: 0, time_ms: 0 })
    }

    /// The first event since that says so, of any object.
    pub fn says(&self, since: Mark, text: &str) -> Result<Told> {
        let told = self.told(since)?;
        let found = told.iter().find(|told| told.text.contains(text)).cloned();
        found.with_context(|| format!("nothing says {text:?}"))
    }

    /// Whatever cause was named since, it is this one.
    pub fn blames_only(&self, since: Mark, cause: &str) -> Result<()> {
        let told = self.told(since)?;
        let cause = format!("cause {cause}");
        let mut causes = told.iter().filter(|told| told.text.contains("cause "));
        let other = causes.find(|told| !told.text.contains(&cause));
        ensure!(other.is_none(), "other causes than the {cause}: {told:#?}");
        Ok(())
    }

    /// Since the daemon's start there was no alarm and no remedy, and nothing is wrong now.
    pub fn nothing_happened(&self) -> Result<()> {
        let told = self.all()?;
        let alarm = told.iter().find(|told| told.text.contains("firing"));
        ensure!(alarm.is_none(), "an alarm: {told:#?}");
        let (report, code) = self.report(None)?;
        ensure!(code == EVEN, "`evenkeel skew` ends with {code}: {report:#}");
        ensure!(
            report["remedies"]["last"] == Value::Array(Vec::new()),
            "{report:#}"
        );
        for service in report["services"].as_array().context("services")? {
            ensure!(
                service["state"] == "quiet" || service["state"] == "suspected",
                "{service:#}"
            );
        }
        Ok(())
    }

    /// Comparisons of seeds with what was written so far, one a check, and how many of them found a difference.
    pub fn looks(&self) -> Result<(u64, u64)> {
        let labels = [("check", "seeds")];
        let looks = self
            .0
            .metrics()?
            .by_label("evenkeel_skew_self_checks_total", "result", &labels);
        let of = |result: &str| looks.get(result).map_or(0, |count| *count as u64);
        Ok((of("ok") + of("failed"), of("failed")))
    }

    /// The seeds of the CPUs.
    pub fn seeds(&self) -> Result<Vec<Seed>> {
        let maps = PinnedMaps::open_read_only(self.0.pins())?;
        Ok(maps.seeds().split_off(of_cpu(0) as usize))
    }

    /// Writes a CPU's seed behind the daemon's back.
    pub fn falsify(&self, cpu: u32, seed: Seed) -> Result<()> {
        Ok(PinnedMaps::open(self.0.pins())?.write_seed(of_cpu(cpu), seed)?)
    }

    /// Picks so far by CPU.
    pub fn picks(&self) -> Result<Vec<u64>> {
        let maps = PinnedMaps::open_read_only(self.0.pins())?;
        let counters = maps.counters();
        Ok((0..counters.cpus())
            .map(|cpu| counters.histogram(cpu).picks.iter().sum())
            .collect())
    }
}

/// Every seed is set, and no two are alike.
pub fn fit(seeds: &[Seed]) -> Result<()> {
    let keys: BTreeSet<(u64, u64)> = seeds.iter().map(|seed| (seed.k0, seed.k1)).collect();
    ensure!(keys.len() == seeds.len(), "equal keys");
    ensure!(
        seeds
            .iter()
            .all(|seed| seed.generation > 0 && (seed.k0, seed.k1) != (0, 0)),
        "a seed is unset"
    );
    Ok(())
}

/// A self-check of a report.
pub fn self_check<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    let checks = report["self_checks"].as_array().context("self-checks")?;
    let found = checks.iter().find(|check| check["name"] == name);
    found.with_context(|| format!("no self-check {name}: {report}"))
}
