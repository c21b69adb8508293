//! What the datapath counted, read in place.

mod read;

pub use read::{BackendTotals, Counters, FlowTableUse, HistogramTotals};
