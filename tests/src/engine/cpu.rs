//! Keeps a thread on one CPU, so that per-CPU entries are the same at every run.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to the first CPU it may use, and answers which one that is.
pub fn pin_to_one() -> Result<u32> {
    let allowed = sched_getaffinity(None).context("asking for this thread's CPUs")?;
    let cpu = (0..CpuSet::MAX_CPU)
        .find(|cpu| allowed.is_set(*cpu))
        .context("this thread may use no CPU")?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).with_context(|| format!("pinning this thread to CPU {cpu}"))?;
    Ok(cpu as u32)
}
