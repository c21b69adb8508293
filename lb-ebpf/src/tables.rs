//! The maps as the stages see them.

use lb_common::{
    backend::Backend,
    counters::{BackendCounters, CpuCounters, Event, Histogram},
    flow::FlowBucket,
    ids::BackendRef,
    sample::Sample,
    seed::Seed,
    service::{Service, ServiceKey},
    settings::{LAYOUT_VERSION, Settings},
    shared::Word,
};

use crate::verdict::Verdict;

/// What the datapath looks up and counts. Every index may be out of range: the answer is then `None`.
pub trait Tables {
    /// The CPU this packet is handled on.
    fn cpu(&self) -> u32;
    /// The kernel's `jiffies` counter.
    fn jiffies(&self) -> u64;
    fn settings(&self) -> Option<&Settings>;
    /// Whether the bit of the VIP filter is set.
    fn vip_bit(&self, bit: u32) -> bool;
    /// The service with exactly this key; the settings say how large the index is.
    fn service(&self, key: &ServiceKey, settings: &Settings) -> Option<&Service>;
    fn backend(&self, id: u32) -> Option<&Backend>;
    fn slot(&self, index: u32) -> Option<BackendRef>;
    fn seed(&self, index: u32) -> Option<&Seed>;
    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket>;
    /// A bucket of the table of fragments.
    fn fragment_bucket(&self, index: u32) -> Option<&FlowBucket>;
    /// A word of the fresh-key bitmaps.
    fn fresh_word(&self, index: u32) -> Option<&Word>;
    fn backend_counters(&self, index: u32) -> Option<&BackendCounters>;
    fn cpu_counters(&self) -> Option<&CpuCounters>;
    /// Hands a sample to the daemon; false when the ring buffer is full.
    fn sample(&self, sample: &Sample) -> bool;
    /// Logs something rare; `about` is the service it happened to, 0 for none.
    fn warn(&self, event: Warning, about: u32);
}

/// The settings, once the daemon has written them.
#[inline(always)]
pub fn configured(tables: &impl Tables) -> Option<&Settings> {
    tables
        .settings()
        .filter(|settings| settings.layout_version == LAYOUT_VERSION)
}

/// What the datapath warns of, at most once in [`WARN_INTERVAL`] seconds on each CPU.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    NoBackend = 0,
    NoSeed = 1,
    SeedMissing = 2,
    SlotNotServing = 3,
    Inconsistent = 4,
}

/// Seconds between two warnings of the same kind on one CPU.
pub const WARN_INTERVAL: u64 = 10;

/// The counters of this packet's CPU, looked up once a packet.
#[derive(Clone, Copy)]
pub struct Tally<'a>(&'a CpuCounters);

impl<'a> Tally<'a> {
    /// `None` on a CPU that the maps were not made for.
    #[inline(always)]
    pub fn of(tables: &'a impl Tables) -> Option<Self> {
        tables.cpu_counters().map(Self)
    }

    /// Counts an event of this packet.
    #[inline(always)]
    pub fn event(self, event: Event) {
        self.events(event, 1);
    }

    #[inline(always)]
    pub fn events(self, event: Event, times: u64) {
        self.0.events[event as usize].add(times);
    }

    /// Where this CPU counts its picks.
    #[inline(always)]
    pub fn histogram(self) -> &'a Histogram {
        &self.0.histogram
    }

    /// Counts the packet's verdict.
    #[inline(always)]
    pub fn verdict(self, verdict: Verdict) {
        if let Some(counter) = self.0.verdicts.get(verdict.counter() as usize) {
            counter.add(1);
        }
    }

    /// Whether this CPU may make one more ICMP message in this second; if so, it is counted as made.
    #[inline(always)]
    pub fn may_answer(self, rate: u32, now: u32) -> bool {
        let answered = self.0.answered.load();
        let made = if (answered >> 32) as u32 == now {
            answered as u32
        } else {
            0
        };
        let may = made < rate;
        if may {
            self.0.answered.store((now as u64) << 32 | (made as u64 + 1));
        }
        may
    }

    /// Warns unless this CPU did so for the same reason a moment ago.
    #[inline(always)]
    pub fn warn(self, tables: &impl Tables, warning: Warning, about: u32, now: u32) {
        // 0 means "never"; one second is added so that a warning at second 0 is remembered too.
        let last = &self.0.warned[warning as usize];
        let now = now as u64 + 1;
        if last.load() == 0 || now.wrapping_sub(last.load()) >= WARN_INTERVAL {
            last.store(now);
            tables.warn(warning, about);
        }
    }
}
