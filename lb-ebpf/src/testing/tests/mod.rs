//! The library against the table of cases, random frames, and the README's table of verdicts.

mod case_table;
mod properties;
mod readme;
