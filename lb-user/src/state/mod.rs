//! What should be, what is, and how backend ids are given out.

pub mod announced;
pub mod desired;
pub mod fitness;
pub mod ids;
pub mod last_known_good;
pub mod observed;
pub mod overlay;
