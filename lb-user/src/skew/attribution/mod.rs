//! From evidence to a cause: rules R0 to R9, of which the first that matches decides.
//!
//! | rule | if | cause |
//! |---|---|---|
//! | R1 | a seed in the datapath is zero, of another generation, another one, or another CPU's | seed |
//! | R0 | choices computed again gave another slot | hash |
//! | R2 | a table's checksum is not the intended one, or choices gave another backend: on all CPUs, on some | table; stale table |
//! | R3 | a histogram of fresh keys has an alarm | hash |
//! | R4 | backends have an alarm: no CPU differs from the others; some do | table; stale table |
//! | R5 | all flows are uneven, fresh ones are not, and few keys explain it | key concentration |
//! | R6 | a backend drains or was removed | drained |
//! | R7 | fewer fresh flows than a doubled share takes to be seen | too little data |
//! | R8 | packets are uneven, and few flows explain it | elephant flows |
//! | R9 | none of these | healthy |
//!
//! R0, R1 and R2 are lookups, which need no statistics and never err; the others need traffic. Ask when an alarm is
//! raised, and go on asking for [`SETTLE_CHECKS`] checks, since the scope becomes clearer; without an alarm ask every
//! [`QUIET_CHECKS`], so that who looks is told of now.

pub mod audit;
mod crowd;
mod evidence;
pub mod heterogeneity;
mod readback;
mod rules;
mod verdict;

#[cfg(test)]
mod tests;

pub use evidence::{Audit, CpuBackends, CpuHash, Evidence, HashEvidence, Heavy, ServiceEvidence, TableRead};
pub use readback::{Place, SeedFault, SeedFinding, seed_findings};
pub use verdict::{Cause, Concentration, Elephants, HashProof, Scope, Shortage, Spread, TableProof, Verdict};

/// Checks after an alarm in which the verdict is still brought up to date.
pub const SETTLE_CHECKS: u32 = 30;
/// Checks without an alarm after which a verdict is due.
pub const QUIET_CHECKS: u32 = 10;

/// The cause that `evidence` speaks for.
pub fn explain(evidence: &Evidence<'_>) -> Verdict {
    let rules = [
        rules::seeds,
        rules::audited_slots,
        rules::tables,
        rules::audited_backends,
        rules::histograms,
        rules::backends,
        rules::concentration,
        rules::leaving,
        rules::shortage,
        rules::elephants,
    ];
    let healthy = || Verdict {
        cause: Cause::Healthy,
        scope: Scope::Global,
    };
    rules
        .iter()
        .find_map(|rule| rule(evidence))
        .unwrap_or_else(healthy)
}
