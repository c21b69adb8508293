//! The interface's end of the controller: reads come from the view, changes go through one queue.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{flow_reads, reads, shared::Shared, source_reads};
use crate::{
    api::{
        server::{Backend, Refusal, RefusalKind},
        types::{
            self, ApplyFile, Change, Done, Event, EventsQuery, ExplainQuery, Explanation, Filter, Flows,
            PlanText, Rotate, Seed, SourceRequest, Status,
        },
    },
    skew::state::Remedy,
    state::desired::Sampling,
    watch::{record::Reading, report::SkewReport},
};

/// Changes that may wait for the controller.
pub const QUEUE: usize = 64;
/// Events answered without a limit of the client's.
const MOST_EVENTS: usize = 1024;

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// What only the controller can do.
#[derive(Debug)]
pub enum Command {
    Change(Change, Reply<Done>),
    Apply(ApplyFile, Reply<Done>),
    Reload(Reply<Done>),
    Rotate(Rotate, Reply<Done>),
    Plan(Reply<PlanText>),
    Explain(ExplainQuery, Reply<Explanation>),
    Sources(SourceRequest, Reply<Done>),
    /// A remedy of the watch; answers how many steps it took.
    Heal(Remedy, oneshot::Sender<Result<usize, String>>),
    /// Show the watch another part of the traffic.
    Sample(Sampling, oneshot::Sender<Result<(), String>>),
}

/// Cheap to clone; the controller ends without regard to handles.
#[derive(Clone)]
pub struct Handle {
    pub shared: Arc<Shared>,
    pub commands: mpsc::Sender<Command>,
}

impl Handle {
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }
}

fn ending() -> Refusal {
    let next_step = "wait for the next daemon, then look with `evenkeel status` what was done";
    Refusal::new(RefusalKind::Unavailable, "the daemon is ending", next_step)
}

impl Backend for Handle {
    fn status(&self) -> Status {
        reads::status(&self.shared)
    }

    fn services(&self) -> Vec<types::Service> {
        reads::services(&self.shared)
    }

    fn backends(&self, filter: &Filter) -> Result<Vec<types::Backend>, Refusal> {
        reads::backends(&self.shared, filter)
    }

    fn seeds(&self) -> Vec<Seed> {
        reads::seeds(&self.shared)
    }

    fn flows(&self, filter: &Filter) -> Result<Flows, Refusal> {
        flow_reads::flows(&self.shared, filter)
    }

    fn skew(&self, filter: &Filter) -> Result<SkewReport, Refusal> {
        reads::skew(&self.shared, filter)
    }

    fn skew_counters(&self) -> Result<Reading, Refusal> {
        reads::skew_counters(&self.shared)
    }

    fn events(&self, query: EventsQuery) -> Vec<Event> {
        self.shared
            .events
            .after(query.after, query.limit.unwrap_or(MOST_EVENTS))
    }

    async fn plan(&self) -> Result<PlanText, Refusal> {
        self.ask(Command::Plan).await
    }

    async fn explain(&self, query: ExplainQuery) -> Result<Explanation, Refusal> {
        self.ask(|reply| Command::Explain(query, reply)).await
    }

    async fn change(&self, change: Change) -> Result<Done, Refusal> {
        self.ask(|reply| Command::Change(change, reply)).await
    }

    async fn apply(&self, file: ApplyFile) -> Result<Done, Refusal> {
        self.ask(|reply| Command::Apply(file, reply)).await
    }

    async fn reload(&self) -> Result<Done, Refusal> {
        self.ask(Command::Reload).await
    }

    fn discovery(&self, filter: &Filter) -> Result<Vec<types::Source>, Refusal> {
        source_reads::discovery(&self.shared, filter)
    }

    async fn order_sources(&self, request: SourceRequest) -> Result<Done, Refusal> {
        self.ask(|reply| Command::Sources(request, reply)).await
    }

    async fn rotate(&self, rotate: Rotate) -> Result<Done, Refusal> {
        self.ask(|reply| Command::Rotate(rotate, reply)).await
    }
}
