//! What attribution looks at: plain numbers, gathered by whoever asks.

use super::readback::SeedFinding;
use crate::skew::Reading;

/// Everything known about one service and the box that it runs on. What is not known is left empty: rules that need it
/// do not apply.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// ln A of the streams, for what can be detected at all.
    pub ln_arl: f64,
    /// What is wrong with the seeds that the datapath holds. Empty: nothing, or not read.
    pub seeds: &'a [SeedFinding],
    pub tables: &'a [TableRead],
    pub audits: &'a [Audit],
    pub hash: HashEvidence<'a>,
    pub service: ServiceEvidence<'a>,
}

/// A table's checksum as read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRead {
    /// The CPU that uses this table; `None` if all use it.
    pub cpu: Option<u32>,
    pub wanted: u64,
    pub found: u64,
}

/// Choices of one CPU that were computed again: samples of new flows, and known-answer tests. Each with the seed and the
/// table that the choice was made with, so that a rotation or a new table in between is no mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub cpu: u32,
    pub checked: u64,
    /// Another slot than hash and seed give.
    pub wrong_slot: u64,
    /// The right slot, another backend than owns it.
    pub wrong_backend: u64,
}

/// Hash histograms of fresh keys.
#[derive(Clone, Copy, Debug)]
pub struct HashEvidence<'a> {
    /// Expected share of each bucket.
    pub shares: &'a [f64],
    pub cpus: &'a [CpuHash<'a>],
    /// Of the sum over CPUs.
    pub sum: Option<Reading>,
}

/// One CPU's histogram.
#[derive(Clone, Copy, Debug)]
pub struct CpuHash<'a> {
    pub cpu: u32,
    pub reading: Reading,
    /// Fresh flows by bucket, in the window.
    pub fresh: &'a [u64],
}

/// One service's backends. All slices of counts are by backend, in the order of `shares`.
#[derive(Clone, Copy, Debug)]
pub struct ServiceEvidence<'a> {
    /// Expected share by owned slots.
    pub shares: &'a [f64],
    /// Fresh flows in the window.
    pub fresh: &'a [u64],
    /// Index of the worst backend, if the service's stream has an alarm.
    pub alarm: Option<usize>,
    pub cpus: &'a [CpuBackends<'a>],
    /// New flows in the window, keys seen before included.
    pub all: &'a [u64],
    pub packets: &'a [u64],
    /// Keys with the most new flows, most first.
    pub top_keys: &'a [Heavy],
    /// Flows with the most packets, most first.
    pub top_flows: &'a [Heavy],
    /// Indices of backends that drain or were removed a short while ago.
    pub leaving: &'a [usize],
}

/// One service's backends on one CPU.
#[derive(Clone, Copy, Debug)]
pub struct CpuBackends<'a> {
    pub cpu: u32,
    /// Index of the worst backend, if this CPU's stream has an alarm.
    pub alarm: Option<usize>,
    /// Fresh flows in the window.
    pub fresh: &'a [u64],
}

/// An entry of a heavy-hitter sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heavy {
    /// New flows of a key, or packets of a flow.
    pub count: u64,
    /// Index of its backend.
    pub backend: usize,
}

impl HashEvidence<'_> {
    pub(super) fn alarmed(&self) -> bool {
        self.sum.is_some_and(|sum| sum.alarmed) || self.cpus.iter().any(|cpu| cpu.reading.alarmed)
    }
}

impl ServiceEvidence<'_> {
    /// The worst backend of the service's alarm, else of a CPU's.
    pub(super) fn worst(&self) -> Option<usize> {
        self.alarm.or_else(|| self.cpus.iter().find_map(|cpu| cpu.alarm))
    }

    /// By CPU: fresh flows to a backend, and all fresh flows.
    pub(super) fn pairs(&self, backend: usize) -> Vec<(u64, u64)> {
        let all = |fresh: &[u64]| fresh.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        let pair = |cpu: &CpuBackends<'_>| (cpu.fresh.get(backend).copied().unwrap_or(0), all(cpu.fresh));
        self.cpus.iter().map(pair).collect()
    }
}
