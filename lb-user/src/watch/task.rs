//! The tasks of the watch: a check each interval, known-answer tests, samples, and what it asks of the controller.

use std::{sync::Arc, time::Duration};

use aya::maps::{MapData, RingBuf};
use lb_common::sample::Sample;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
    task::block_in_place,
    time::Instant,
};

use super::{desk::Desk, monitor::Ask, report::RemedyDone};
use crate::{
    daemon::{Command, shared::Shared, view::SeedView},
    events::Kind,
    program::Probe,
    seeds,
    state::desired::Sampling,
};

/// A known-answer test comes at least this often, and after every rotation.
const KNOWN_ANSWERS: Duration = Duration::from_secs(10);
/// Services that are asked about in one.
const QUESTIONS: usize = 16;
/// Samples taken at once.
const BATCH: usize = 256;

/// What the watch runs with.
pub struct Watch {
    pub desk: Arc<Desk>,
    pub shared: Arc<Shared>,
    pub commands: mpsc::Sender<Command>,
    pub probe: Result<Probe, String>,
    pub samples: Option<RingBuf<MapData>>,
}

impl Watch {
    /// Starts the tasks; they end with the runtime.
    pub fn start(mut self) {
        if let Err(error) = &self.probe {
            self.shared.events.record(
                Kind::Degraded,
                "known-answer test",
                format!("the hash is tested by traffic only: {error}"),
            );
        }
        if let Some(samples) = self.samples.take() {
            tokio::spawn(read_samples(
                samples,
                Arc::clone(&self.desk),
                Arc::clone(&self.shared),
            ));
        }
        tokio::spawn(self.run());
    }

    async fn run(self) {
        let mut generations = Vec::new();
        let mut tested: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            let current = self.desk.seed_generations();
            if current != generations || tested.is_none_or(|then| then.elapsed() >= KNOWN_ANSWERS) {
                block_in_place(|| self.test());
                generations = current;
                tested = Some(Instant::now());
            }
            self.check();
            if let Some(sampling) = self.desk.sampling() {
                self.sample(sampling).await;
            }
            tokio::time::sleep_until(begun + self.desk.interval()).await;
        }
    }

    /// A seed that nobody renews is a failure of the clock, or of what writes seeds.
    fn look_at_ages(&self) {
        let view = self.shared.view();
        let cpus = view.seeds.iter().skip(1);
        let oldest = cpus.filter(|seed| seed.next.is_some()).map(SeedView::age).max();
        let Some(age) = oldest else { return };
        let limit = self.shared.seed_age_limit();
        if self.desk.note_seed_age(age, limit) {
            let text = format!(
                "the oldest seed of a CPU is {} s old, and should have been renewed within {} s; rotate by hand: \
                 evenkeel seeds rotate",
                age.as_secs(),
                limit.as_secs()
            );
            self.shared.events.record(Kind::Skew, "seeds", text);
        }
    }

    fn check(&self) {
        self.look_at_ages();
        let outcome = block_in_place(|| self.desk.tick(&self.shared.recorder));
        for told in outcome.told {
            self.shared.events.record(told.kind, told.object, told.text);
        }
        for ask in outcome.asks {
            tokio::spawn(heal(
                ask,
                Arc::clone(&self.desk),
                Arc::clone(&self.shared),
                self.commands.clone(),
            ));
        }
    }

    fn test(&self) {
        let Ok(random) = seeds::random() else { return };
        let questions = self.desk.questions(QUESTIONS, random);
        let answers = match &self.probe {
            Ok(probe) => probe
                .ask(self.desk.cpus(), &questions)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        self.desk
            .known_answers(&questions, answers, &self.shared.recorder);
    }

    async fn sample(&self, sampling: Sampling) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Sample(sampling, reply)).await.is_ok()
            && let Ok(Ok(())) = answer.await
        {
            self.desk.set_sampling(sampling);
        }
    }
}

/// Has the controller carry out a remedy, and tells the monitor what became of it.
async fn heal(ask: Ask, desk: Arc<Desk>, shared: Arc<Shared>, commands: mpsc::Sender<Command>) {
    let (reply, answer) = oneshot::channel();
    let sent = commands.send(Command::Heal(ask.remedy.clone(), reply)).await;
    let result = match sent {
        Ok(()) => answer
            .await
            .unwrap_or_else(|_| Err("the daemon is ending".to_owned())),
        Err(_) => Err("the daemon is ending".to_owned()),
    };
    shared
        .recorder
        .remedied(RemedyDone::name_of(&ask.remedy), result.is_ok());
    desk.carried_out(&ask, &result);
}

async fn read_samples(ring: RingBuf<MapData>, desk: Arc<Desk>, shared: Arc<Shared>) {
    // SAFETY: the ring owns its map's descriptor and does not replace or close it while it lives.
    let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
    let mut ring = match ring {
        Ok(ring) => ring,
        Err(error) => {
            let text = format!("cannot wait for sampled flows: {}", std::io::Error::from(error));
            return shared.events.record(Kind::Degraded, "samples", text);
        }
    };
    let mut batch: Vec<Sample> = Vec::with_capacity(BATCH);
    while let Ok(mut ready) = ring.readable_mut().await {
        while let Some(item) = ready.get_inner_mut().next() {
            batch.extend(sample(&item));
            if batch.len() == BATCH {
                break;
            }
        }
        if batch.len() < BATCH {
            ready.clear_ready();
        }
        if !batch.is_empty() {
            block_in_place(|| desk.take(&batch, &shared.recorder));
            batch.clear();
        }
    }
}

/// A record of the ring; `None` when it is shorter than a sample.
fn sample(bytes: &[u8]) -> Option<Sample> {
    if bytes.len() < size_of::<Sample>() {
        return None;
    }
    // SAFETY: there are as many bytes, and any of them make a plain-data value.
    Some(unsafe { bytes.as_ptr().cast::<Sample>().read_unaligned() })
}
