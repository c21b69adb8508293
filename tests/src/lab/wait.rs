//! Polling with a deadline; nothing in the tests sleeps to prove something.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

const PAUSE: Duration = Duration::from_millis(10);

/// Asks until the answer is `Ok` or the deadline has passed; then fails with the last error.
pub fn within<T>(deadline: Duration, what: &str, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() >= end => {
                return Err(error.context(format!("{what}: not within {deadline:?}")));
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Asks until the answer is yes, for at most ten seconds.
pub fn eventually(what: &str, mut ask: impl FnMut() -> bool) -> Result<()> {
    within(Duration::from_secs(10), what, || {
        if ask() { Ok(()) } else { bail!("still not so") }
    })
}
