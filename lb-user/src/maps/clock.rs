//! Facts of the running kernel that the maps depend on: its clock, its tick rate, its CPUs.

use rustix::time::{ClockId, clock_getres, clock_gettime};

/// The datapath's clock: whole seconds since boot, suspended time left out.
pub fn datapath_seconds() -> u32 {
    clock_gettime(ClockId::Monotonic).tv_sec as u32
}

/// The kernel's `CONFIG_HZ`: the coarse clock ticks once a jiffy.
pub fn kernel_hz() -> u32 {
    let tick = clock_getres(ClockId::MonotonicCoarse).tv_nsec;
    if tick <= 0 {
        return 250;
    }
    ((1_000_000_000 + tick / 2) / tick) as u32
}

/// CPUs the kernel may ever bring up; per-CPU indices stay below this.
pub fn possible_cpus() -> u32 {
    aya::util::nr_cpus().map_or_else(|_| fallback_cpus(), |count| count as u32)
}

fn fallback_cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_has_a_usual_tick_rate_and_cpus() {
        assert!([100, 250, 300, 1000].contains(&super::kernel_hz()));
        assert!(super::possible_cpus() >= 1);
    }
}
