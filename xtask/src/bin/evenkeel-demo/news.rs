//! The daemon's own events as they come, with the time since a fault.

use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    interrupt,
    show::{self, progress, progress_ends},
    stage::Stage,
};

/// Between two readings of the events.
const LISTEN: Duration = Duration::from_millis(200);
/// Between two looks at the maps.
const LOOK: Duration = Duration::from_millis(10);
/// Until a fault must be named and healed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is said from a fault on.
pub struct News {
    /// The number of the last event that is known.
    last: u64,
    /// When the fault was made, in milliseconds since 1970.
    fault: u64,
    told: Vec<Told>,
}

struct Told {
    /// Since the fault, by the daemon's record.
    seconds: f64,
    kind: String,
    text: String,
}

impl News {
    /// What was said before is none.
    pub fn from_now_on(stage: &Stage) -> Result<Self> {
        let last = stage.events()?.last().and_then(|event| event["id"].as_u64());
        Ok(Self {
            last: last.unwrap_or(0),
            fault: now()?,
            told: Vec::new(),
        })
    }

    /// Prints events until the daemon has named `cause` and says that it did something about it; calls `look` often
    /// meanwhile. Answers after how many seconds it raised the alarm.
    pub fn follow(
        &mut self,
        stage: &Stage,
        cause: &str,
        mut look: impl FnMut() -> Result<()>,
    ) -> Result<f64> {
        self.fault = now()?;
        let start = Instant::now();
        let mut listened = start;
        while !self.is_healed() {
            interrupt::check()?;
            ensure!(
                start.elapsed() < PATIENCE,
                "the daemon did not heal the fault within {} s; it said: {}",
                PATIENCE.as_secs(),
                self.all()
            );
            look()?;
            if listened.elapsed() >= LISTEN {
                self.listen(stage)?;
                listened = Instant::now();
            }
            let part = start.elapsed().as_millis().min(PATIENCE.as_millis());
            progress("waiting", part as u64, PATIENCE.as_millis() as u64);
            thread::sleep(LOOK);
        }
        progress_ends();
        let named = format!("cause {cause}:");
        ensure!(
            self.told.iter().any(|told| told.text.starts_with(&named)),
            "the daemon named another cause than {cause}: {}",
            self.all()
        );
        let first = self.told.iter().find(|told| told.kind == "skew");
        let first = first.context("the daemon healed what it had not noticed")?;
        Ok(first.seconds)
    }

    /// Something was done, after an alarm.
    fn is_healed(&self) -> bool {
        let mut kinds = self.told.iter().map(|told| told.kind.as_str());
        kinds.any(|kind| kind == "skew") && kinds.any(|kind| kind == "heal")
    }

    fn listen(&mut self, stage: &Stage) -> Result<()> {
        for event in stage.events()? {
            let at = event["time_ms"].as_u64();
            let (id, at) = event["id"]
                .as_u64()
                .zip(at)
                .with_context(|| format!("`evenkeel events --json` printed {event}"))?;
            if id > self.last {
                self.last = id;
                self.tell(&event, at.saturating_sub(self.fault) as f64 / 1e3);
            }
        }
        Ok(())
    }

    fn tell(&mut self, event: &Value, seconds: f64) {
        let word = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let (kind, text) = (word("kind"), word("text"));
        progress_ends();
        let head = format!("{seconds:>6.1} s  {kind:<6} {:<9} ", word("object"));
        show::hanging(&head, &text);
        self.told.push(Told { seconds, kind, text });
    }

    fn all(&self) -> String {
        match self.told.is_empty() {
            true => "nothing".to_owned(),
            false => {
                let texts: Vec<_> = self.told.iter().map(|told| told.text.as_str()).collect();
                texts.join("; ")
            }
        }
    }
}

fn now() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(since.as_millis())?)
}
