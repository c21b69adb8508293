//! Pure planning: from what should be and what is to ordered steps.
pub mod step;
