//! Evenkeel's daemon and command line.

pub mod plan;
pub mod state;
