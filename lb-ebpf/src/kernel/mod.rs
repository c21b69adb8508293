//! The kernel's packet and maps behind the datapath's two traits: with `main.rs`, all that names aya.

pub mod frame;
pub mod maps;
#[allow(
    dead_code,
    reason = "the object of the benchmark has no program for rare frames"
)]
pub mod rare;
