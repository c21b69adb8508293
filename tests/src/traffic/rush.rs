//! New connections at a steady rate, each of which must be answered, and when each backend got its last one.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::client::{self, Spread};
use crate::lab::{Lab, Netns};

/// Connections under way at once, at most.
const THREADS: u32 = 8;
/// Failures that are told of; the others are counted.
const TOLD: usize = 8;

/// Opens connections until told to stop, whatever becomes of them. Stops on drop.
pub struct Rush {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    client: Netns,
    began: Instant,
    repeated: u64,
}

/// What became of the connections of a [`Rush`].
#[derive(Debug)]
pub struct Rushed {
    /// Answered, by backend.
    pub answers: Spread,
    /// From begin to end.
    pub time: Duration,
    /// The slowest answer.
    pub slowest: Duration,
    /// Broken off while their backend was taken away, see [`Rush::excuse`].
    pub broken: usize,
    /// SYNs that the client sent again, of this and of other connections meanwhile (`TCPSynRetrans`).
    pub repeated: u64,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    answers: Spread,
    /// When the last connection began that a backend answered.
    last: BTreeMap<String, Instant>,
    slowest: Duration,
    failures: Vec<Failure>,
    excused: Vec<(Instant, Instant)>,
}

struct Failure {
    begin: Instant,
    end: Instant,
    why: String,
}

impl Rush {
    /// About so many a second, as far as the machine can.
    pub fn start(lab: &Lab, to: SocketAddr, rate: u32) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let pace = Duration::from_secs(1) * THREADS / rate;
        let began = Instant::now();
        let mut rush = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            client: lab.client.clone(),
            began,
            repeated: repeated_syns(&lab.client)?,
        };
        for thread in 0..THREADS {
            let shared = Arc::clone(&shared);
            let first = began + pace * thread / THREADS;
            let thread = lab.client.spawn(move || shared.ask(to, first, pace))?;
            rush.threads.push(thread);
        }
        Ok(rush)
    }

    /// Connections answered so far.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// When the last of the connections began that this backend answered.
    pub fn last(&self, backend: &str) -> Option<Instant> {
        self.shared.seen().last.get(backend).copied()
    }

    /// How many this backend has answered.
    pub fn at(&self, backend: &str) -> u64 {
        self.shared.seen().answers.get(backend).copied().unwrap_or(0)
    }

    /// Backends were taken away at some moment since `from`. What was under way to one of them then may have been broken
    /// off: at most one connection a thread.
    pub fn excuse(&self, from: Instant) {
        self.shared.seen().excused.push((from, Instant::now()));
    }

    /// Waits for so many more answers; none of the connections before may have failed.
    pub fn go_on(&self, answers: u64) -> Result<()> {
        let wanted = self.answered() + answers;
        crate::lab::within(Duration::from_secs(20), "connections go on", || {
            let answered = self.answered();
            ensure!(answered >= wanted, "{answered} of {wanted} answers");
            Ok(())
        })?;
        self.shared.seen().whole()
    }

    /// Ends; an error when a single connection failed.
    pub fn finish(mut self) -> Result<Rushed> {
        self.end();
        let seen = std::mem::take(&mut *self.shared.seen());
        seen.whole()?;
        ensure!(!seen.answers.is_empty(), "not one connection came to its end");
        Ok(Rushed {
            answers: seen.answers,
            time: self.began.elapsed(),
            slowest: seen.slowest,
            broken: seen.failures.len(),
            repeated: repeated_syns(&self.client)? - self.repeated,
        })
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Rush {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread's share.
    fn ask(&self, to: SocketAddr, first: Instant, pace: Duration) {
        let mut due = first;
        while !self.stop.load(Ordering::Relaxed) {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let begin = Instant::now();
            // What could not be done in time is not made up for.
            due = due.max(begin - pace) + pace;
            let answer = client::ask_tcp(to);
            let took = begin.elapsed();
            let mut seen = self.seen();
            match answer {
                Ok(name) => {
                    seen.slowest = seen.slowest.max(took);
                    let last = seen.last.entry(name.clone()).or_insert(begin);
                    *last = begin.max(*last);
                    *seen.answers.entry(name).or_default() += 1;
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => seen.failures.push(Failure {
                    begin,
                    end: begin + took,
                    why: format!("after {took:?}: {error:#}"),
                }),
            }
        }
    }
}

impl Seen {
    fn whole(&self) -> Result<()> {
        let mut used = vec![0; self.excused.len()];
        let mut bad = Vec::new();
        for failure in &self.failures {
            let excuse = self
                .excused
                .iter()
                .position(|(from, until)| failure.begin <= *until && failure.end >= *from);
            match excuse {
                // A switch meets one connection of a thread.
                Some(excuse) if used[excuse] < THREADS => used[excuse] += 1,
                _ => bad.push(failure.why.as_str()),
            }
        }
        let (failed, answered): (usize, u64) = (bad.len(), self.answers.values().sum());
        bad.truncate(TOLD);
        let told = bad.join("\n");
        ensure!(
            failed == 0,
            "{failed} connections failed, {answered} did not:\n{told}"
        );
        Ok(())
    }
}

impl Rushed {
    pub fn count(&self) -> u64 {
        self.answers.values().sum()
    }

    /// One line for people.
    pub fn print(&self, what: &str) {
        let (count, time) = (self.count(), self.time.as_secs_f64());
        let rate = count as f64 / time;
        let Self {
            slowest,
            broken,
            repeated,
            ..
        } = self;
        println!(
            "{what}: {count} connections in {time:.1} s ({rate:.0} a second), none failed but {broken} whose backend was \
             taken away; slowest {slowest:?}, SYNs sent again: {repeated}"
        );
    }
}

/// SYNs sent again in a namespace since it was made.
fn repeated_syns(netns: &Netns) -> Result<u64> {
    let text = netns.run(|| fs::read_to_string("/proc/thread-self/net/netstat"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next(), lines.next());
    let pairs = names.zip(values).context("/proc/net/netstat has no TcpExt")?;
    let mut pairs = pairs.0.split(' ').zip(pairs.1.split(' '));
    let (_, count) = pairs
        .find(|(name, _)| *name == "TCPSynRetrans")
        .context("/proc/net/netstat has no TCPSynRetrans")?;
    Ok(count.parse()?)
}
