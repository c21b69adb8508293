//! The next step when the kernel refuses maps or program: a newer kernel, more memory, or a report.

use std::{error::Error, io};

use aya::EbpfError;
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
    system::uname,
};

/// The oldest Linux that the datapath is tested on, as major and minor version.
const OLDEST: (u32, u32) = (5, 10);
/// The first Linux that accounts maps to the memory cgroup instead of RLIMIT_MEMLOCK.
const ACCOUNTS_TO_CGROUP: (u32, u32) = (5, 11);
const SMALLER: &str = "make `datapath.max_flows`, `max_slots` or `max_backends` smaller";

/// What to do about an error of loading, on this kernel and with the limits of this process.
pub(crate) fn next_step(error: &(dyn Error + 'static)) -> String {
    let release = uname().release().to_string_lossy().into_owned();
    let memory_lock = getrlimit(Resource::Memlock).current;
    advice(&release, memory_lock, errno_of(error), error.is::<EbpfError>())
}

/// `memory_lock` is in octets, `None` without limit; `is_about_maps` tells the object's maps from its program.
fn advice(release: &str, memory_lock: Option<u64>, errno: Option<Errno>, is_about_maps: bool) -> String {
    let version = version_of(release);
    if version.is_some_and(|version| version < OLDEST) {
        let (major, minor) = OLDEST;
        return format!("Linux {major}.{minor} or later is needed, and this is {release}");
    }
    let counts_locked = version.is_some_and(|version| version < ACCOUNTS_TO_CGROUP);
    match (errno, memory_lock) {
        (Some(Errno::PERM), Some(octets)) if counts_locked => format!(
            "Linux {release} counts maps against RLIMIT_MEMLOCK, which is {} KiB here: set \
             `LimitMEMLOCK=infinity` in the unit, or `ulimit -l unlimited` in the shell",
            octets >> 10
        ),
        (Some(Errno::NOMEM), _) if is_about_maps => {
            format!("there is too little memory for maps of this size: {SMALLER}")
        }
        (Some(Errno::TOOBIG), _) if is_about_maps && counts_locked => {
            format!("a map has room for less than 4 GiB on Linux {release}: {SMALLER}")
        }
        _ if is_about_maps => format!("`dmesg` may say more; this is Linux {release}"),
        _ => format!("the verifier's reason follows and belongs into a bug report; this is Linux {release}"),
    }
}

/// Major and minor version of a release like `5.10.0-46-cloud-amd64`.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn errno_of(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.find_map(|cause| {
        let code = cause.downcast_ref::<io::Error>()?.raw_os_error()?;
        Some(Errno::from_raw_os_error(code))
    })
}

#[cfg(test)]
mod tests {
    use aya::maps::MapError;

    use super::*;

    #[test]
    fn an_old_kernel_is_named_whatever_the_error() {
        for (release, old) in [
            ("4.19.0-27-amd64", true),
            ("5.9.16", true),
            ("5.10.0-46-cloud-amd64", false),
            ("6.1.0-57-cloud-amd64", false),
            ("10.0-rc1", false),
        ] {
            for errno in [None, Some(Errno::INVAL), Some(Errno::PERM), Some(Errno::NOMEM)] {
                let text = advice(release, Some(65_536), errno, true);
                assert_eq!(
                    text == format!("Linux 5.10 or later is needed, and this is {release}"),
                    old,
                    "{release} {errno:?}: {text}"
                );
            }
        }
    }

    #[test]
    fn a_limit_is_blamed_only_where_it_counts() {
        let lock = |release, lock, errno| {
            advice(release, lock, Some(errno), true).contains("MEMLOCK, which is 64 KiB")
        };
        assert!(lock("5.10.0-46", Some(65_536), Errno::PERM));
        assert!(!lock("5.10.0-46", None, Errno::PERM));
        assert!(!lock("5.10.0-46", Some(65_536), Errno::INVAL));
        assert!(!lock("5.11.0", Some(65_536), Errno::PERM));

        let size = |release, errno, maps| advice(release, None, Some(errno), maps).contains("max_flows");
        assert!(size("5.10.0-46", Errno::TOOBIG, true));
        assert!(!size("5.10.0-46", Errno::TOOBIG, false), "the verifier's limit");
        assert!(!size("5.11.0", Errno::TOOBIG, true));
        assert!(size("6.12.0", Errno::NOMEM, true));
        assert!(!size("6.12.0", Errno::NOMEM, false));
    }

    #[test]
    fn the_system_call_is_found_behind_what_aya_says() {
        let error = EbpfError::MapError(MapError::CreateError {
            name: "FLOWS".to_owned(),
            io_error: Errno::NOMEM.into(),
        });
        assert_eq!(errno_of(&error), Some(Errno::NOMEM));
        assert!(next_step(&error).contains("max_flows"), "{}", next_step(&error));
    }
}
