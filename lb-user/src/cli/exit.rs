//! How the process ends: documented exit codes, and an error as its chain of causes and its next step.

use std::io;

use crate::api::{client::ClientError, types::Failure};
use hyper::StatusCode;
use serde_json::json;

/// Done.
pub const OK: u8 = 0;
/// Refused or failed; the message says why.
pub const FAILED: u8 = 1;
/// The command line is wrong (clap's own code).
pub const USAGE: u8 = 2;
/// No daemon answers on the socket.
pub const UNREACHABLE: u8 = 3;
/// It conflicts with what is there: another revision than --if-revision, or something of that name.
pub const CONFLICT: u8 = 4;
/// The deadline passed before the work was done.
pub const DEADLINE: u8 = 5;
/// Not permitted: neither root nor a member of the daemon's group.
pub const FORBIDDEN: u8 = 6;

/// The end of `evenkeel --help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  refused or failed; the message says why and what to do
  2  wrong command line
  3  no daemon answers on the socket
  4  it conflicts with what is there: the revision is not --if-revision, the name is taken, the file has it
  5  the deadline passed before the work was done (drain --wait)
  6  not permitted to use the daemon";

/// An exit code, or an error to be printed.
pub type Outcome = anyhow::Result<u8>;

/// An error with a next step that is not the daemon's.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Advice {
    pub error: String,
    pub next_step: String,
    pub code: u8,
}

/// Prints an error to standard error and answers the exit code.
pub fn print_failure(error: &anyhow::Error, as_json: bool) -> u8 {
    if is_broken_pipe(error) {
        return OK;
    }
    let code = code_of(error);
    let failure = describe(error);
    if as_json {
        let text = json!({ "error": failure.error, "next_step": failure.next_step, "exit_code": code });
        eprintln!("{text}");
    } else {
        eprintln!("evenkeel: {}", failure.error);
        if let Some(step) = failure.next_step {
            eprintln!("  next: {step}");
        }
    }
    code
}

fn describe(error: &anyhow::Error) -> Failure {
    let next_step = error.chain().find_map(|cause| {
        let from_client = cause
            .downcast_ref::<ClientError>()
            .and_then(ClientError::next_step);
        from_client.or_else(|| {
            cause
                .downcast_ref::<Advice>()
                .map(|advice| advice.next_step.clone())
        })
    });
    Failure {
        error: format!("{error:#}"),
        next_step,
    }
}

/// The exit code of an error.
pub fn code_of(error: &anyhow::Error) -> u8 {
    error
        .chain()
        .find_map(|cause| {
            let of_client = cause.downcast_ref::<ClientError>().map(code_of_client);
            of_client.or_else(|| cause.downcast_ref::<Advice>().map(|advice| advice.code))
        })
        .unwrap_or(FAILED)
}

fn code_of_client(error: &ClientError) -> u8 {
    match error {
        ClientError::Unreachable(..) | ClientError::Broken(..) => UNREACHABLE,
        ClientError::Forbidden(..) => FORBIDDEN,
        ClientError::Refused { status, .. } => match *status {
            StatusCode::CONFLICT => CONFLICT,
            StatusCode::FORBIDDEN => FORBIDDEN,
            _ => FAILED,
        },
        ClientError::Answer(..) | ClientError::Request(..) => FAILED,
    }
}

/// `evenkeel backends | head` is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
        && error
            .chain()
            .all(|cause| cause.downcast_ref::<ClientError>().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: StatusCode) -> anyhow::Error {
        let failure = Failure {
            error: "no".into(),
            next_step: Some("yes".into()),
        };
        anyhow::Error::new(ClientError::Refused { status, failure }).context("backend add")
    }

    #[test]
    fn every_documented_code_is_reached() {
        let gone = ClientError::Unreachable("/run/x".into(), io::ErrorKind::NotFound.into());
        assert_eq!(code_of(&anyhow::Error::new(gone)), UNREACHABLE);
        assert_eq!(code_of(&refused(StatusCode::CONFLICT)), CONFLICT);
        assert_eq!(code_of(&refused(StatusCode::FORBIDDEN)), FORBIDDEN);
        assert_eq!(code_of(&refused(StatusCode::UNPROCESSABLE_ENTITY)), FAILED);
        assert_eq!(code_of(&anyhow::anyhow!("x")), FAILED);
        for code in [OK, FAILED, USAGE, UNREACHABLE, CONFLICT, DEADLINE, FORBIDDEN] {
            assert!(HELP.contains(&format!("\n  {code}  ")), "{code}");
        }
    }

    #[test]
    fn the_next_step_survives_context() {
        let failure = describe(&refused(StatusCode::NOT_FOUND));
        assert_eq!(failure.next_step.as_deref(), Some("yes"));
        assert_eq!(failure.error, "backend add: no");
    }
}
