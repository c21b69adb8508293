//! The `evenkeel` binary: daemon and command line in one.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(lb_user::cli::main())
}
