//! The words the datapath and the daemon share: plain data with proven layout, map names, the hashes of a flow.
#![no_std]

pub mod backend;
pub mod bench;
pub mod check;
pub mod counters;
pub mod fingerprint;
pub mod flow;
pub mod flow_hash;
pub mod ids;
pub mod map_names;
pub mod pod;
pub mod sample;
pub mod seed;
pub mod service;
pub mod service_index;
pub mod settings;
pub mod shared;
pub mod slot_table;
pub mod vip_filter;
