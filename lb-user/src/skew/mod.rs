//! Whether traffic is spread as it should be: detect, size, explain, and what to do about it. Pure: counts and time are
//! arguments, nothing here reads a map, a socket or a clock.
//!
//! **Counts.** The datapath counts each key once in a seed's life (fresh keys), by backend and by bucket of the slot that
//! its hash names. [`intake`] turns successive readings of these counters into counts per check, or says that there are
//! none; [`fresh`] watches the filter that makes keys count once.
//!
//! **Expectation.** [`Shares`] has the share that each backend (or bucket) should get: from the slots that it owns in the
//! table as published, not from weights. [`shares::check_slots`] compares slots with weights, without traffic.
//!
//! **Detection.** A [`Stream`] watches one vector of counts: a service's backends, a CPU's histogram, the histogram of all
//! CPUs. It adds up logarithms of bets against "as expected, within a tolerance". Bets on one category ([`tilt`], up and
//! down in eight sizes, CUSUMs) find a backend or bucket that gets too much or nothing; bets on groups that the past
//! picked (Shiryaev-Roberts recursions) find many that are off a little. The bets' mean is at most 1 whatever the truth
//! inside the tolerance, so that together they are an e-detector (Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric
//! framework for sequential change detection", NEJSDS 2023): on average at least A checks pass to a false alarm, with
//! any number of flows a check and however often one looks. [`threshold::ln_arl`] shares A out over all streams of a box
//! (Dandapanthula and Ramdas, arXiv 2501.04130). [`rotation`] bets from seed to seed instead of flow to flow (Waudby-Smith
//! and Ramdas, arXiv 2010.09686): slower, and valid for packets, bytes and any keys.
//!
//! **Size.** [`effect::Effect`] measures a window of counts: coefficient of variation with its noncentral chi-square
//! interval, ratios with Clopper-Pearson intervals, the misplaced part with McDiarmid's bound; [`effect::severity`] says
//! how loud an alarm is. [`power`] says how many flows a fault takes to be seen (Lorden 1971), [`concentration`] how many
//! independent choices the flows amount to, [`classical`] has Pearson's and the G test and the Bayes factor of Lindon and
//! Malek (arXiv 2011.03567). [`numeric`] has the special functions, by formulas that do not cancel (Loader 2000).
//!
//! **Cause.** [`attribution::explain`] goes from evidence (readback, audits, streams, heavy keys, the control plane's own
//! state) to a verdict with its scope and the numbers behind it.
//!
//! **Remedy.** [`state::SkewState`] takes alarm and verdict through firing, healing and resolved, and asks for new seeds or
//! for seeds or slots to be written again, within a budget.
//!
//! A check, for each stream: [`intake::Intake::take`], then [`Stream::check`] (histograms of several table sizes:
//! [`Stream::check_mixed`]); while something is suspected also [`effect::Window::push`]. After a change of shares:
//! [`Stream::set_shares`]. With an alarm: [`effect::Effect::measure`] of the window, [`Stream::clear`], `explain`. For each
//! service: [`state::SkewState::step`]. `vectors/` holds all of it to numbers that were computed elsewhere.

pub mod attribution;
pub mod classical;
pub mod concentration;
mod dense;
pub mod effect;
pub mod fresh;
pub mod intake;
pub mod numeric;
mod outcome;
pub mod power;
pub mod rotation;
pub mod shares;
mod sparse;
mod spec;
pub mod state;
mod stream;
pub mod threshold;
pub mod tilt;

#[cfg(test)]
mod purity;
#[cfg(test)]
mod vectors;

pub use dense::DENSE_THETA;
pub use outcome::{Alarm, Category, Measure, Outcome, Reading, Skip};
pub use shares::Shares;
pub use sparse::Peak;
pub use spec::StreamSpec;
pub use stream::Stream;
