//! What should be, what is, and how backend ids are given out.

pub mod desired;
pub mod observed;
