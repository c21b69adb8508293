//! Ctrl-C as a question one can ask, so that every guard is dropped on the way out.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

static CAME: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    CAME.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP are only noted.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler is a function of the right type that only stores to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

pub fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}

/// An error once a signal has come.
pub fn check() -> Result<()> {
    if came() {
        bail!("interrupted; everything is cleaned up");
    }
    Ok(())
}
