//! Special functions that stay exact where counts are large and probabilities small.

pub mod beta;
pub mod gamma;
pub mod noncentral;
pub mod root;
pub mod stable;
