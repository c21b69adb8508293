//! What the kernel allows this process to hold.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets the daemon open as many files as it may at most: each check that is under way takes one, and the limit that
/// a process begins with is 1,024 for the sake of programs that use select(2).
pub(super) fn raise_open_files() {
    if let Err((limit, error)) = raise(Resource::Nofile) {
        let now = limit
            .current
            .map_or_else(|| "none".to_owned(), |now| now.to_string());
        tracing::warn!(
            limit = %now,
            "the limit of open files stays as it is, and many checks at once may fail for it: {error}"
        );
    }
}

/// Sets the limit in force to the highest allowed.
fn raise(resource: Resource) -> Result<(), (Rlimit, io::Error)> {
    let limit = getrlimit(resource);
    if limit.current == limit.maximum {
        return Ok(());
    }
    let highest = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(resource, highest).map_err(|error| (limit, error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_becomes_the_highest_allowed() {
        // Nobody else in the tests asks how large a core dump may be.
        let before = getrlimit(Resource::Core);
        let lowered = Rlimit {
            current: Some(0),
            ..before
        };
        setrlimit(Resource::Core, lowered).unwrap();
        raise(Resource::Core).unwrap();
        let after = getrlimit(Resource::Core);
        assert_eq!(after.current, before.maximum);
        assert_eq!(after.maximum, before.maximum);
        setrlimit(Resource::Core, before).unwrap();
    }
}
