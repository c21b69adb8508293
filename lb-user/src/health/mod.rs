//! Whether backends answer: checks, and what follows from them.

pub mod checker;
mod entry;
mod pace;
pub mod panic;
pub mod probe;
pub mod ramp;
mod schedule;
pub mod spec;
pub mod tracker;

pub use checker::{Change, Checker, Health, Key, Pace, Totals, Wanted};
pub use panic::{Counts, Mode, PanicGauge};
pub use spec::{Check, HealthSpec, Initial, OnPanic, Request, Via};
pub use tracker::Standing;
