//! What runs a case: the library on the host here, the loaded program in the tests of the kernel.

use lb_common::{
    counters::{EVENT_SLOTS, Event, VERDICT_SLOTS},
    flow::{FlowValue, WAYS},
    sample::Sample,
    shared::Word,
};

use super::{
    frame::{BufferFrame, HEADROOM},
    tables::MemoryTables,
    world::{INGRESS, SAMPLE_CAPACITY, World, sizes},
};
use crate::{datapath, decap, rare, verdict::Verdict};

/// What becomes of a frame, as XDP says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Pass,
    Drop,
    /// Out by the interface it came in.
    Transmit,
    /// Out by another interface.
    Redirect,
}

impl Action {
    /// What a verdict comes to for a frame that came in by [`INGRESS`].
    pub fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Pass(_) => Self::Pass,
            Verdict::Drop(_) => Self::Drop,
            Verdict::Answer(_) => Self::Transmit,
            Verdict::Forward {
                interface: INGRESS, ..
            } => Self::Transmit,
            Verdict::Forward { .. } => Self::Redirect,
        }
    }
}

/// What one run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub action: Action,
    pub bytes: Vec<u8>,
}

/// An implementation of the datapath with maps of its own.
pub trait Engine {
    /// The CPU on which frames run.
    fn cpu(&self) -> u32;
    /// Makes the maps hold this world and nothing else, counters at zero.
    fn reset(&mut self, world: &World);
    /// Writes everything of the world but flows; bitmaps and counters stay, too.
    fn configure(&mut self, world: &World);
    /// Clears the bitmaps of fresh keys, as a rotation does.
    fn clear_fresh(&mut self);
    /// Runs the balancer's program on a frame.
    fn run(&mut self, frame: &[u8]) -> Ran;
    /// Runs the program that strips outer headers.
    fn decap(&mut self, frame: &[u8]) -> Ran;
    /// Everything the program may have written.
    fn state(&self) -> State;
    /// Takes out the samples.
    fn samples(&mut self) -> Vec<Sample>;
}

/// Every word the datapath writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub cpu: usize,
    /// By CPU: verdicts, events, times of warnings, answers of this second,
    pub cpu_counters: Vec<u64>,
    /// picks, fresh picks.
    /// By CPU and backend: flows, packets, bytes, fresh flows.
    pub backend_counters: Vec<u64>,
    /// By bucket and way: fingerprint, value.
    pub flows: Vec<u64>,
    /// Likewise of packets in fragments.
    pub fragments: Vec<u64>,
    pub fresh: Vec<u64>,
}

/// Of a CPU's counters: first the histogram's place, then all.
const HISTOGRAM_AT: usize = VERDICT_SLOTS + 2 * EVENT_SLOTS;
const CPU_WORDS: usize = HISTOGRAM_AT + 512;

impl State {
    pub fn verdict(&self, verdict: Verdict) -> u64 {
        self.cpu_counters[self.cpu * CPU_WORDS + verdict.counter() as usize]
    }

    pub fn verdicts(&self) -> &[u64] {
        &self.cpu_counters[self.cpu * CPU_WORDS..][..VERDICT_SLOTS]
    }

    pub fn event(&self, event: Event) -> u64 {
        self.cpu_counters[self.cpu * CPU_WORDS + VERDICT_SLOTS + event as usize]
    }

    /// Flows, packets, bytes and fresh flows of a backend.
    pub fn backend(&self, id: u32) -> [u64; 4] {
        let at = (self.cpu * sizes(0).backends + id as usize) * 4;
        std::array::from_fn(|index| self.backend_counters[at + index])
    }

    /// Sums of the histogram: picks, fresh picks.
    pub fn picks(&self) -> [u64; 2] {
        let own = &self.cpu_counters[self.cpu * CPU_WORDS + HISTOGRAM_AT..][..512];
        [own[..256].iter().sum(), own[256..].iter().sum()]
    }

    pub fn flow(&self, fingerprint: u64) -> Option<FlowValue> {
        let mut entries = self.flows.chunks_exact(2);
        entries
            .find(|entry| entry[0] == fingerprint)
            .map(|entry| FlowValue::unpack(entry[1]))
    }

    /// Where two states differ, one line each; empty when they are equal.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let parts = [
            (
                "CPU_COUNTERS (64 verdicts, 32 events, 31 warnings, answers, 256 picks, 256 fresh a CPU)",
                &self.cpu_counters,
                &other.cpu_counters,
            ),
            (
                "BACKEND_COUNTERS (4 a backend, 256 a CPU)",
                &self.backend_counters,
                &other.backend_counters,
            ),
            ("FLOWS (8 a bucket)", &self.flows, &other.flows),
            ("FRAGMENTS (8 a bucket)", &self.fragments, &other.fragments),
            ("FRESH (64 a region)", &self.fresh, &other.fresh),
        ];
        let mut lines = Vec::new();
        for (name, ours, theirs) in parts {
            if ours.len() != theirs.len() {
                lines.push(format!("{name}: {} words and {}", ours.len(), theirs.len()));
            }
            for (index, (one, two)) in ours
                .iter()
                .zip(theirs)
                .enumerate()
                .filter(|(_, (one, two))| one != two)
            {
                lines.push(format!("{name} word {index}: {one:#x} and {two:#x}"));
            }
        }
        lines
    }
}

/// The library over tables in memory.
pub struct HostEngine {
    pub tables: MemoryTables,
    headroom: usize,
    rare: bool,
}

impl HostEngine {
    pub fn new(cpu: u32) -> Self {
        Self::with_headroom(cpu, HEADROOM)
    }

    pub fn with_headroom(cpu: u32, headroom: usize) -> Self {
        let mut tables = MemoryTables::new(sizes(cpu));
        tables.cpu = cpu;
        tables.sample_capacity = SAMPLE_CAPACITY;
        Self {
            tables,
            headroom,
            rare: true,
        }
    }

    /// Goes on without the program for rare frames.
    pub fn without_rare(mut self) -> Self {
        self.rare = false;
        self
    }

    /// The verdict itself, with the rewritten frame.
    pub fn judge(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut buffer = BufferFrame::with_headroom(frame, INGRESS, self.headroom);
        let verdict = datapath::handle(&mut buffer, &self.tables, |to, frame, tables| {
            self.rare.then(|| rare::handle(to, frame, tables))
        });
        (verdict, buffer.bytes().to_vec())
    }
}

/// Ticks that show `now` on a clock of 2^24 ticks a second, far from the next second.
pub const fn ticks(now: u32) -> u64 {
    (now as u64) << lb_common::settings::CLOCK_SHIFT | 1 << (lb_common::settings::CLOCK_SHIFT - 1)
}

impl Engine for HostEngine {
    fn cpu(&self) -> u32 {
        self.tables.cpu
    }

    fn reset(&mut self, world: &World) {
        *self = Self {
            rare: self.rare,
            ..Self::with_headroom(world.cpu, self.headroom)
        };
        self.configure(world);
        self.tables.flows = world.flows.clone();
        self.tables.fragments = world.fragments.clone();
    }

    fn configure(&mut self, world: &World) {
        let tables = &mut self.tables;
        tables.settings = world.settings;
        tables.settings.clock_base = 0;
        tables.settings.clock_multiplier = 1;
        tables.jiffies = ticks(world.now);
        tables.vip_filter = world.vip_filter.clone();
        tables.services = world.services.clone();
        tables.backends = world.backends.clone();
        tables.slots = world.slots.clone();
        tables.seeds = world.seeds.clone();
    }

    fn clear_fresh(&mut self) {
        for word in &self.tables.fresh {
            word.store(0);
        }
    }

    fn run(&mut self, frame: &[u8]) -> Ran {
        let (verdict, bytes) = self.judge(frame);
        Ran {
            action: Action::of(verdict),
            bytes,
        }
    }

    fn decap(&mut self, frame: &[u8]) -> Ran {
        let mut buffer = BufferFrame::with_headroom(frame, INGRESS, self.headroom);
        decap::strip(&mut buffer);
        Ran {
            action: Action::Pass,
            bytes: buffer.bytes().to_vec(),
        }
    }

    fn state(&self) -> State {
        let tables = &self.tables;
        let mut state = State {
            cpu: tables.cpu as usize,
            fresh: tables.fresh.iter().map(Word::load).collect(),
            ..State::default()
        };
        for cpu in &tables.cpu_counters {
            let words = cpu.verdicts.iter().chain(&cpu.events).chain(&cpu.warned);
            let words = words
                .chain([&cpu.answered])
                .chain(&cpu.histogram.picks)
                .chain(&cpu.histogram.fresh);
            state.cpu_counters.extend(words.map(Word::load));
        }
        for of in &tables.backend_counters {
            let words = [&of.flows, &of.packets, &of.bytes, &of.fresh_flows];
            state.backend_counters.extend(words.map(Word::load));
        }
        for entry in tables.flows.iter().flat_map(|bucket| &bucket.entries) {
            state.flows.extend([entry.fingerprint.load(), entry.value.load()]);
        }
        for entry in tables.fragments.iter().flat_map(|bucket| &bucket.entries) {
            let words = [entry.fingerprint.load(), entry.value.load()];
            state.fragments.extend(words);
        }
        debug_assert_eq!(state.flows.len(), tables.flows.len() * WAYS * 2);
        state
    }

    fn samples(&mut self) -> Vec<Sample> {
        self.tables.samples.take()
    }
}
