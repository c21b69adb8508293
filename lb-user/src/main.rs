//! The `evenkeel` binary: daemon and command line in one.

use std::process::ExitCode;

/// The daemon takes and frees much memory on several threads when many backends change: with glibc's allocator it kept
/// up with half as many changes and took twice the memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(lb_user::cli::main())
}
