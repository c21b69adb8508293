//! What a test returns: `?` panics where it stands, so that guards know the test failed and tell what they saw.

use std::fmt::Display;

/// The return type of a promise.
pub type Proof = Result<(), Failure>;

/// Never made: converting an error into it panics.
///
/// A test that returns an error unwinds nothing, and a guard that is dropped then cannot tell failure from success.
#[derive(Debug)]
pub enum Failure {}

impl<E: Display> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        panic!("{error:#}")
    }
}
