//! Whether backends answer: checks, and what follows from them.

pub mod spec;

pub use spec::{Check, HealthSpec, Initial, OnPanic, Via};
