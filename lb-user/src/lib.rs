//! Evenkeel's daemon and command line.

pub mod api;
pub mod apply;
pub mod cli;
pub mod config;
pub mod counters;
pub mod daemon;
pub mod decap;
pub mod discovery;
pub mod events;
pub mod explain;
pub mod health;
pub mod maps;
pub mod metrics;
pub mod net;
pub mod plan;
pub mod program;
pub mod seeds;
pub mod skew;
pub mod state;
pub mod watch;
