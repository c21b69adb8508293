//! The laboratory of Evenkeel's tests: namespaces with a router hop, real traffic, and a witness on the wire.
//!
//! The promises are in `tests/`, one file each. They need root; everything they make has a name that starts with
//! `ek-<pid>-` and is gone when the test ends, whether it passed or not.

pub mod capture;
pub mod engine;
pub mod gate;
pub mod health;
pub mod lab;
pub mod proof;
pub mod simulation;
pub mod sources;
pub mod statistics;
pub mod traffic;

pub use proof::{Failure, Proof};
