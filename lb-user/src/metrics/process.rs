//! The daemon's own memory, CPU time and file descriptors, from /proc/self.

use std::fs;

use super::families::Scrape;

/// What could be read; a missing file leaves its metric out.
pub(super) fn collect(scrape: &mut Scrape) {
    if let Ok(text) = fs::read_to_string("/proc/self/stat")
        && let Some(stat) = parse_stat(&text)
    {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        scrape.add("process_cpu_seconds_total", &[], stat.cpu_ticks as f64 / ticks);
        let pages = stat.resident_pages as f64;
        scrape.add(
            "process_resident_memory_bytes",
            &[],
            pages * rustix::param::page_size() as f64,
        );
        if let Some(boot) = boot_time() {
            scrape.add(
                "process_start_time_seconds",
                &[],
                boot + stat.start_ticks as f64 / ticks,
            );
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        scrape.add("process_open_fds", &[], open.count() as f64);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    resident_pages: u64,
}

/// proc_pid_stat(5); the name in parentheses may hold anything.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The first field after the name is number 3 of the manual page.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: field(14)? + field(15)?,
        start_ticks: field(22)?,
        resident_pages: field(24)?,
    })
}

fn boot_time() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_no_trap() {
        let text = "42 (even) keel) S 1 42 42 0 -1 4194560 1 0 0 0 7 5 0 0 20 0 9 0 1234 99 321 18446744073709551615 1";
        assert_eq!(
            parse_stat(text),
            Some(Stat {
                cpu_ticks: 12,
                start_ticks: 1234,
                resident_pages: 321
            })
        );
        assert_eq!(parse_stat("42 (x"), None);
    }
}
