//! What the simulator and the benchmark of the skew statistics share: chance, services as planned, and what a check costs.

pub mod chance;
pub mod cost;
pub mod service;
