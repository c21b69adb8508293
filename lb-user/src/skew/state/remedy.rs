//! What may be done about a cause, and what its success or failure tells.

use std::{collections::BTreeSet, time::Duration};

use super::ServiceName;
use crate::skew::attribution::{Cause, Scope, SeedFault, Verdict};

/// Something to be done to the datapath, through the same plan and apply as every change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// New seeds for these CPUs; `None` for all, and for the shared seed.
    RotateSeeds { cpus: Option<BTreeSet<u32>> },
    /// The seeds that should be there, once more.
    RewriteSeeds,
    /// The slots that should be there, once more.
    RewriteSlots { service: ServiceName },
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Withheld {
    /// No verdict yet.
    NoVerdict,
    /// The cause is none of the balancer's, by its name.
    NoFault {
        cause: &'static str,
    },
    /// What there is has been tried.
    Exhausted {
        cause: &'static str,
    },
    AutoHealOff,
    Cooldown {
        until: Duration,
    },
    Budget {
        until: Duration,
    },
}

/// What the outcome of a remedy tells about the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    None,
    /// New seeds made the histogram even: the seed was bad, or clients had aimed at it.
    BadSeedOrAimedKeys,
    /// New seeds left the histogram uneven: the hash is broken. Replace the program.
    BrokenHash,
    /// Writing what should be there made traffic even: something else had written to the maps, or a write was lost.
    ForeignWrite,
    /// Writing what should be there changed nothing: the table is as intended and traffic is not, so that the program
    /// or the expectation is wrong.
    NotTheTable,
    /// Seeds that are written do not stay.
    SeedsDoNotStay,
}

impl Conclusion {
    pub(super) fn of_cure(remedy: Option<&Remedy>, verdict: Option<&Verdict>) -> Self {
        match (remedy, verdict.map(|verdict| &verdict.cause)) {
            (Some(Remedy::RotateSeeds { .. }), Some(Cause::Hash(_))) => Self::BadSeedOrAimedKeys,
            (Some(Remedy::RewriteSeeds | Remedy::RewriteSlots { .. }), _) => Self::ForeignWrite,
            _ => Self::None,
        }
    }

    pub(super) fn of_useless(remedy: &Remedy, verdict: Option<&Verdict>) -> Self {
        match (remedy, verdict.map(|verdict| &verdict.cause)) {
            (Remedy::RotateSeeds { .. }, Some(Cause::Hash(_))) => Self::BrokenHash,
            (Remedy::RotateSeeds { .. } | Remedy::RewriteSeeds, _) => Self::SeedsDoNotStay,
            (Remedy::RewriteSlots { .. }, _) => Self::NotTheTable,
        }
    }
}

/// What did not help since the alarm was raised.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    rotate: bool,
    rewrite_seeds: bool,
    rewrite_slots: bool,
}

impl Attempts {
    /// What was written again has been right for a while.
    pub(super) fn forget_rewrites(&mut self) {
        (self.rewrite_seeds, self.rewrite_slots) = (false, false);
    }

    pub(super) fn note(&mut self, remedy: &Remedy) {
        match remedy {
            Remedy::RotateSeeds { .. } => self.rotate = true,
            Remedy::RewriteSeeds => self.rewrite_seeds = true,
            Remedy::RewriteSlots { .. } => self.rewrite_slots = true,
        }
    }
}

/// The remedy for a verdict, of those that have not failed to help.
pub(super) fn choose(
    verdict: Option<&Verdict>,
    service: &ServiceName,
    attempts: &Attempts,
) -> Result<Remedy, Withheld> {
    let Verdict { cause, scope } = verdict.ok_or(Withheld::NoVerdict)?;
    let exhausted = Withheld::Exhausted { cause: cause.name() };
    let rotate = || match attempts.rotate {
        true => Err(exhausted.clone()),
        false => Ok(Remedy::RotateSeeds { cpus: cpus(scope) }),
    };
    match cause {
        Cause::Seed { findings } => {
            // Keys that are equal in the maps may be equal in what should be there.
            let equal = findings
                .iter()
                .any(|finding| matches!(finding.fault, SeedFault::Equal { .. }));
            if equal || attempts.rewrite_seeds {
                rotate()
            } else {
                Ok(Remedy::RewriteSeeds)
            }
        }
        Cause::Hash(_) => rotate(),
        Cause::Table(_) | Cause::StaleTable(_) if attempts.rewrite_slots => Err(exhausted),
        Cause::Table(_) | Cause::StaleTable(_) => Ok(Remedy::RewriteSlots {
            service: service.clone(),
        }),
        Cause::KeyConcentration(_)
        | Cause::Drained { .. }
        | Cause::TooLittleData(_)
        | Cause::ElephantFlows(_)
        | Cause::Healthy => Err(Withheld::NoFault { cause: cause.name() }),
    }
}

/// CPUs of a scope; all where it is global or not told apart.
fn cpus(scope: &Scope) -> Option<BTreeSet<u32>> {
    match scope {
        Scope::Global => None,
        Scope::Cpus(cpus) if cpus.is_empty() => None,
        Scope::Cpus(cpus) => Some(cpus.clone()),
    }
}
