//! The kernel's packet and maps behind the datapath's two traits: with `main.rs`, all that names aya.

pub mod frame;
pub mod maps;
