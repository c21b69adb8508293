//! Runs what hyper starts for an HTTP/2 connection inside the check that made it.
//!
//! Started as tasks of their own they would outlive a check that took too long, or whose backend is gone.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
};

use hyper::rt::Executor;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks that were started and not yet polled.
#[derive(Default)]
pub struct Nursery(Arc<Mutex<Vec<Task>>>);

/// Starts tasks in a nursery, as long as that is there: tasks hold an executor, which must not hold the tasks.
#[derive(Clone)]
pub struct Starter(Weak<Mutex<Vec<Task>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Starter {
    fn execute(&self, task: F) {
        if let Some(started) = self.0.upgrade() {
            let mut started = started.lock().unwrap_or_else(PoisonError::into_inner);
            started.push(Box::pin(task));
        }
    }
}

impl Nursery {
    pub fn executor(&self) -> Starter {
        Starter(Arc::downgrade(&self.0))
    }

    /// Runs `exchange` to its end, and `connection` and all tasks beside it until then.
    pub async fn run<T>(
        &self,
        mut exchange: Pin<&mut impl Future<Output = T>>,
        mut connection: Pin<&mut impl Future>,
    ) -> T {
        let mut open = true;
        let mut tasks = Vec::new();
        poll_fn(move |context| {
            // What a task does for the exchange wakes this future again.
            if let Poll::Ready(result) = exchange.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            open = open && connection.as_mut().poll(context).is_pending();
            self.poll_tasks(&mut tasks, context);
            Poll::Pending
        })
        .await
    }

    fn poll_tasks(&self, tasks: &mut Vec<Task>, context: &mut Context<'_>) {
        tasks.append(&mut self.started());
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        // Those that were started by these tasks.
        loop {
            let mut started = self.started();
            if started.is_empty() {
                return;
            }
            started.retain_mut(|task| task.as_mut().poll(context).is_pending());
            tasks.append(&mut started);
        }
    }

    fn started(&self) -> Vec<Task> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
