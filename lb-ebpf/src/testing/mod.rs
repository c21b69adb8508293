//! What tests and `explain` need to run the datapath on the host: a frame in a buffer and tables in memory.

pub mod frame;
pub mod tables;
