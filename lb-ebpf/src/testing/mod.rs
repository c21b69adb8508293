//! What tests and `explain` need to run the datapath on the host: a frame in a buffer, tables in memory, and a table
//! of cases that the loaded program must pass as well.

pub mod case;
pub mod cases;
pub mod engine;
pub mod expect;
pub mod frame;
pub mod packet;
pub mod random;
pub mod tables;
#[cfg(test)]
mod tests;
pub mod world;
