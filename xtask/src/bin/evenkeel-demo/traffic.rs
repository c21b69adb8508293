//! Connections that go on behind whatever the demo does, counted by who answered.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tests::traffic::{Spread, Ticking, pin};

use crate::{
    interrupt,
    show::{progress, progress_ends},
    stage::Stage,
};

/// Clients on each CPU.
const CLIENTS: usize = 4;
/// Without a new answer: a client ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Every connection must be answered; ends on drop.
pub struct Traffic {
    clients: Vec<Ticking>,
    answers: Arc<Mutex<Spread>>,
}

impl Traffic {
    pub fn start(stage: &Stage) -> Self {
        let answers = Arc::<Mutex<Spread>>::default();
        let client = |number: usize| {
            let (client, vip, cpu) = (stage.client.clone(), stage.vip, number / CLIENTS);
            let answers = Arc::clone(&answers);
            Ticking::start("a connection was not answered", move || {
                pin(cpu)?;
                let name = client.tcp(vip)?;
                let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                *answers.entry(name.clone()).or_default() += 1;
                Ok(name)
            })
        };
        Self {
            clients: (0..CLIENTS * stage.cpus).map(client).collect(),
            answers,
        }
    }

    /// Answers until now.
    pub fn answers(&self) -> Spread {
        self.answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits for so many answers from now on; an error if a connection was not answered.
    pub fn wait_for_more(&mut self, count: u64) -> Result<()> {
        let before = total(&self.answers());
        let (mut last, mut since) = (before, Instant::now());
        while last < before + count {
            interrupt::check()?;
            progress("connecting", last - before, count);
            thread::sleep(Duration::from_millis(20));
            let now = total(&self.answers());
            if now > last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > PATIENCE {
                // The first client that failed says why.
                self.end()?;
                bail!("no connection was answered within {} s", PATIENCE.as_secs());
            }
        }
        progress_ends();
        Ok(())
    }

    /// All of them; an error if a connection was not answered.
    pub fn finish(mut self) -> Result<Spread> {
        self.end()?;
        Ok(self.answers())
    }

    fn end(&mut self) -> Result<()> {
        for client in self.clients.drain(..) {
            client.finish()?;
        }
        Ok(())
    }
}

pub fn total(spread: &Spread) -> u64 {
    spread.values().sum()
}

/// What came between two readings.
pub fn between(before: &Spread, after: &Spread) -> Spread {
    let since = |(name, count): (&String, &u64)| {
        let old = before.get(name).copied().unwrap_or(0);
        (name.clone(), count - old)
    };
    after.iter().map(since).collect()
}
