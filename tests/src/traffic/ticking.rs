//! Exchanges one after the other in the background, each of which must be answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result};

const PAUSE: Duration = Duration::from_millis(5);

/// Asks until told to stop, or until the first question without an answer. Stops on drop.
pub struct Ticking {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Ticking {
    /// `what` names the exchange in the error.
    pub fn start(what: &'static str, ask: impl Fn() -> Result<String> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicU64::new(0));
        let (halt, counter) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = thread::spawn(move || {
            while !halt.load(Ordering::Relaxed) {
                let number = counter.load(Ordering::Relaxed);
                ask().with_context(|| format!("{what}, after {number} that were answered"))?;
                counter.fetch_add(1, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
            Ok(())
        });
        Self {
            stop,
            count,
            thread: Some(thread),
        }
    }

    /// How many were answered: all of them.
    pub fn finish(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the ticking thread")?;
        }
        Ok(self.count.load(Ordering::Relaxed))
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
