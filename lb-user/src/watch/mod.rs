//! Watches the spread of new flows: counts, self-checks, alarms, causes and remedies.
//!
//! Each interval the watch looks at seeds and slots ([`readback`]), reads the counters ([`source`]) and takes a check of
//! every stream ([`monitor`]); each seed that ends is bet on too (`epochs`). Samples of new flows and known-answer tests
//! are computed again as they come ([`samples`]). Filters of fresh keys and weights are warned of (`warnings`).
//! What it wants done goes to the controller, the one writer of the maps; what it knows is shown by [`report`].

pub mod desk;
mod epochs;
mod evidence;
mod filters;
pub mod gauges;
mod heavy;
mod histograms;
mod incident;
pub mod monitor;
mod packets;
pub mod published;
pub mod readback;
pub mod record;
pub mod report;
pub mod samples;
mod service;
mod show;
pub mod source;
mod task;
mod trail;
mod warnings;

pub use desk::Desk;
pub use task::Watch;
