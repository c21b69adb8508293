//! What attribution concludes, with the numbers that led to it.

use std::collections::BTreeSet;

use super::{heterogeneity::Heterogeneity, readback::SeedFinding};

/// Why traffic is as it is, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub cause: Cause,
    pub scope: Scope,
}

/// Where a cause is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Global,
    /// On these CPUs. None: on some, not told apart yet.
    Cpus(BTreeSet<u32>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// R1: entropy failure: seeds in the datapath are not as they should be.
    Seed { findings: Vec<SeedFinding> },
    /// R3, or an audit: entropy failure: the hash does not spread.
    Hash(HashProof),
    /// R2, R4: the datapath's table, or the weights it was built from, are not as intended.
    Table(TableProof),
    /// R2, R4: some CPUs use another table than the others.
    StaleTable(TableProof),
    /// R5: few keys have most of the flows. No fault of the balancer.
    KeyConcentration(Concentration),
    /// R6: backends drain or were removed: unevenness against the configured weights is intended.
    Drained { backends: Vec<usize> },
    /// R7: no conclusion can be drawn yet.
    TooLittleData(Shortage),
    /// R8: few flows have most of the packets. Information, no fault.
    ElephantFlows(Elephants),
    /// R9.
    Healthy,
}

/// How it is known that the hash does not spread.
#[derive(Clone, Debug, PartialEq)]
pub enum HashProof {
    /// Choices computed again gave other slots.
    Audit { wrong: u64, checked: u64 },
    /// Histograms of fresh keys are uneven: a part `share` of the flows is in `buckets` buckets that should get `expected`.
    Histogram {
        buckets: usize,
        share: f64,
        expected: f64,
    },
}

/// How it is known that a table is wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum TableProof {
    /// Checksums differ: so many of so many that were read.
    Checksum { wrong: usize, read: usize },
    /// Choices computed again gave the right slot and another backend.
    Audit { wrong: u64, checked: u64 },
    /// Fresh flows are uneven though the hash spreads.
    Spread(Spread),
}

/// The worst backend, and whether its share differs between CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Index of the backend.
    pub backend: usize,
    pub share: f64,
    pub expected: f64,
    pub across_cpus: Heterogeneity,
    /// ln p of as many pairs of its flows on one CPU.
    pub ln_p_of_pairs: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concentration {
    /// Part of the new flows that is misplaced, all keys counted, less what chance gives; and the same as seen.
    pub net_tv: f64,
    pub tv: f64,
    /// As seen, without the ten heaviest keys.
    pub tv_without_top: f64,
    /// Independent choices that so many flows amount to.
    pub effective_flows: f64,
    pub flows: u64,
    /// Part misplaced that so few choices give by chance.
    pub expected_tv: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shortage {
    pub flows: u64,
    /// Fresh flows needed to see the median backend's share doubled.
    pub needed: f64,
    /// The factor on the median backend's share that so many flows would show; `None`: not even all of them.
    pub detectable_ratio: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Elephants {
    /// Part of the packets that is misplaced, and the same without the ten heaviest flows.
    pub tv: f64,
    pub tv_without_top: f64,
}

impl Cause {
    /// Name in events and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Seed { .. } => "entropy_seed",
            Self::Hash(_) => "entropy_hash",
            Self::Table(_) => "table_mismatch",
            Self::StaleTable(_) => "stale_table",
            Self::KeyConcentration(_) => "key_concentration",
            Self::Drained { .. } => "drained",
            Self::TooLittleData(_) => "too_little_data",
            Self::ElephantFlows(_) => "elephant_flows",
            Self::Healthy => "healthy",
        }
    }

    /// Whether the balancer itself is at fault.
    pub fn is_fault(&self) -> bool {
        match self {
            Self::Seed { .. } | Self::Hash(_) | Self::Table(_) | Self::StaleTable(_) => true,
            Self::KeyConcentration(_)
            | Self::Drained { .. }
            | Self::TooLittleData(_)
            | Self::ElephantFlows(_)
            | Self::Healthy => false,
        }
    }
}

impl Scope {
    /// `all` if it holds, else `cpus`.
    pub(super) fn of(all: bool, cpus: BTreeSet<u32>) -> Self {
        if all { Self::Global } else { Self::Cpus(cpus) }
    }
}
