//! Watches an interface, checks every frame that passes and keeps what it saw.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Result, bail, ensure};

use super::{
    frame::{Seen, inspect},
    socket::RawSocket,
};
use crate::lab::{Netns, within};

const TICK: Duration = Duration::from_millis(20);
/// Frames kept in full; counts go on beyond.
const KEPT: usize = 20_000;

/// A thread that reads one interface. Only received frames count: put it on the far end of the cable to see what a
/// host emits.
pub struct Witness {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    seen: Vec<Seen>,
    /// What was wrong, with the frame in hex.
    faults: Vec<String>,
    tally: Tally,
    lost: u32,
    closed: Option<String>,
}

/// Packets and octets of frames by the innermost destination address, port and protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<(IpAddr, u16, u8), Count>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    /// Whole frames, as seen here.
    pub bytes: u64,
}

impl Tally {
    /// Everything to one VIP, port and protocol.
    pub fn of(&self, destination: IpAddr, port: u16, protocol: u8) -> Count {
        self.0
            .get(&(destination, port, protocol))
            .copied()
            .unwrap_or_default()
    }

    fn note(&mut self, seen: &Seen, length: usize) {
        let Some(packet) = seen.inner() else { return };
        let port = packet.transport.map_or(0, |transport| transport.destination);
        let count = self
            .0
            .entry((packet.destination, port, packet.protocol))
            .or_default();
        count.packets += 1;
        count.bytes += length as u64;
    }
}

impl Witness {
    /// Starts to watch the frames that `interface` receives.
    pub fn watch(netns: &Netns, interface: &str) -> Result<Self> {
        let socket = RawSocket::open(netns, interface)?;
        let shared = Arc::new(Shared::default());
        let notes = Arc::clone(&shared);
        let thread = std::thread::spawn(move || notes.read(&socket));
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The counts so far.
    pub fn tally(&self) -> Tally {
        self.shared.notes().tally.clone()
    }

    /// Frames so far for which `wanted` holds.
    pub fn frames(&self, wanted: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        self.shared
            .notes()
            .seen
            .iter()
            .filter(|seen| wanted(seen))
            .cloned()
            .collect()
    }

    /// Waits for a frame for which `wanted` holds.
    pub fn expect(&self, what: &str, wanted: impl Fn(&Seen) -> bool) -> Result<Seen> {
        within(Duration::from_secs(5), what, || {
            match self.shared.notes().seen.iter().find(|seen| wanted(seen)) {
                Some(seen) => Ok(seen.clone()),
                None => bail!("no such frame"),
            }
        })
    }

    /// Fails if any frame so far was wrong, or one may have been missed.
    pub fn verify(&self) -> Result<()> {
        let notes = self.shared.notes();
        ensure!(
            notes.faults.is_empty(),
            "the witness objects:\n{}",
            notes.faults.join("\n")
        );
        ensure!(notes.lost == 0, "the witness missed {} frames", notes.lost);
        match &notes.closed {
            Some(error) => bail!("the witness saw nothing any more: {error}"),
            None => Ok(()),
        }
    }
}

impl Shared {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn read(&self, socket: &RawSocket) {
        while !self.stop.load(Ordering::Relaxed) {
            match socket.receive(TICK) {
                Ok(Some(frame)) if frame.outgoing => {}
                Ok(Some(frame)) => self.notes().note(&frame.bytes),
                Ok(None) => {
                    self.notes().lost += socket.lost().unwrap_or(0);
                }
                Err(error) => {
                    self.notes().closed = Some(error.to_string());
                    return;
                }
            }
        }
    }
}

impl Notes {
    fn note(&mut self, frame: &[u8]) {
        match inspect(frame) {
            Ok(seen) => {
                self.tally.note(&seen, frame.len());
                if self.seen.len() < KEPT {
                    self.seen.push(seen);
                }
            }
            Err(error) if self.faults.len() < 10 => {
                let hex: String = frame.iter().take(120).map(|byte| format!("{byte:02x}")).collect();
                self.faults.push(format!("{error:#}: {hex}"));
            }
            Err(_) => {}
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
