//! How the process ends: documented exit codes, and an error as its chain of causes and its next step.

use std::io;

use serde_json::json;

use crate::{
    api::{
        client::ClientError,
        server::Refusal,
        types::{Failure, RefusalKind},
    },
    daemon::BringError,
};

/// Done.
pub const OK: u8 = 0;
/// Refused or failed; the message says why.
pub const FAILED: u8 = 1;
/// The command line is wrong (clap's own code).
pub const USAGE: u8 = 2;
/// No daemon answers on the socket.
pub const UNREACHABLE: u8 = 3;
/// It conflicts with what is there: another revision than --if-revision, or the file has it.
pub const CONFLICT: u8 = 4;
/// The deadline passed before the work was done.
pub const DEADLINE: u8 = 5;
/// Not permitted: neither root nor a member of the daemon's group.
pub const FORBIDDEN: u8 = 6;
/// There is no such service, backend or CPU.
pub const NOT_FOUND: u8 = 7;
/// What was to be added is there already.
pub const EXISTS: u8 = 8;

/// Traffic is not spread as it should be, or a self-check failed. An answer, not an error.
pub const UNEVEN: u8 = 9;

/// The end of `evenkeel --help`.
pub const HELP: &str = "\
Exit codes, and `reason` in the errors that --json prints:
  0              done
  1  failed      refused or failed; the message says why and what to do
     invalid     the request contradicts itself or what is there
     unavailable the daemon is starting or ending
     unsupported the daemon does not know the request
  2              wrong command line
  3  unreachable no daemon answers on the socket
  4  conflict    it conflicts with what is there: the revision is not --if-revision, the file has it
  5  deadline    the deadline passed before the work was done (drain --wait, bench)
  6  forbidden   not permitted to use the daemon
  7  not_found   there is no such service, backend or CPU
  8  exists      what was to be added is there already
  9              uneven: an alarm stands or a self-check failed (skew, explain-skew, bench distribution)";

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

/// An error as it is shown.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    error: String,
    reason: &'static str,
    next_step: Option<String>,
    code: u8,
}

/// Prints an error to standard error and answers the exit code.
pub fn print_failure(error: &anyhow::Error, as_json: bool) -> u8 {
    if is_broken_pipe(error) {
        return OK;
    }
    let shown = Shown::of(error);
    if as_json {
        let text = json!({
            "error": shown.error,
            "reason": shown.reason,
            "next_step": shown.next_step,
            "exit_code": shown.code,
        });
        eprintln!("{text}");
    } else {
        eprintln!("evenkeel: {}", shown.error);
        if let Some(step) = shown.next_step {
            eprintln!("  next: {step}");
        }
    }
    shown.code
}

impl Shown {
    fn of(error: &anyhow::Error) -> Self {
        let told = error
            .chain()
            .find_map(|cause| of_client(cause).or_else(|| of_daemon(cause)));
        let (code, reason, next_step) = told.unwrap_or((FAILED, "failed", None));
        Self {
            error: format!("{error:#}"),
            reason,
            next_step,
            code,
        }
    }
}

type Told = (u8, &'static str, Option<String>);

/// What asking a daemon came to.
fn of_client(cause: &(dyn std::error::Error + 'static)) -> Option<Told> {
    if let Some(advice) = cause.downcast_ref::<Advice>() {
        let reason = if advice.code == DEADLINE {
            "deadline"
        } else {
            "failed"
        };
        return Some((advice.code, reason, Some(advice.next_step.clone())));
    }
    let error = cause.downcast_ref::<ClientError>()?;
    let (code, reason) = match error {
        ClientError::Unreachable(..) | ClientError::Broken(..) => (UNREACHABLE, "unreachable"),
        ClientError::Forbidden(..) => (FORBIDDEN, "forbidden"),
        ClientError::Refused { failure, .. } => of_refusal(failure),
        ClientError::Answer(..) | ClientError::Request(..) => (FAILED, "failed"),
    };
    Some((code, reason, error.next_step()))
}

/// What a daemon says that could not start.
fn of_daemon(cause: &(dyn std::error::Error + 'static)) -> Option<Told> {
    if let Some(BringError::Plan(error)) = cause.downcast_ref::<BringError>() {
        return Some((FAILED, "invalid", Some(error.next_step())));
    }
    let Refusal(failure) = cause.downcast_ref::<Refusal>()?;
    Some((FAILED, of_refusal(failure).1, failure.next_step.clone()))
}

fn of_refusal(failure: &Failure) -> (u8, &'static str) {
    match failure.reason {
        RefusalKind::Invalid => (FAILED, "invalid"),
        RefusalKind::Failed => (FAILED, "failed"),
        RefusalKind::Unavailable => (FAILED, "unavailable"),
        RefusalKind::Unsupported => (FAILED, "unsupported"),
        RefusalKind::NotFound => (NOT_FOUND, "not_found"),
        RefusalKind::Exists => (EXISTS, "exists"),
        RefusalKind::Conflict => (CONFLICT, "conflict"),
        RefusalKind::Forbidden => (FORBIDDEN, "forbidden"),
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
    use hyper::StatusCode;

    use super::*;

    fn refused(reason: RefusalKind) -> anyhow::Error {
        let failure = Failure {
            error: "no".into(),
            reason,
            next_step: Some("yes".into()),
        };
        let status = StatusCode::IM_A_TEAPOT;
        anyhow::Error::new(ClientError::Refused { status, failure }).context("backend add")
    }

    #[test]
    fn every_documented_code_is_reached_with_its_reason() {
        let gone = ClientError::Unreachable("/run/x".into(), io::ErrorKind::NotFound.into());
        let late = Advice {
            error: "late".into(),
            next_step: "wait".into(),
            code: DEADLINE,
        };
        let cases = [
            (anyhow::Error::new(gone), UNREACHABLE),
            (anyhow::Error::new(late), DEADLINE),
            (refused(RefusalKind::Conflict), CONFLICT),
            (refused(RefusalKind::Exists), EXISTS),
            (refused(RefusalKind::NotFound), NOT_FOUND),
            (refused(RefusalKind::Forbidden), FORBIDDEN),
            (refused(RefusalKind::Invalid), FAILED),
            (refused(RefusalKind::Unavailable), FAILED),
            (refused(RefusalKind::Unsupported), FAILED),
            (anyhow::anyhow!("x"), FAILED),
        ];
        for (error, code) in cases {
            let shown = Shown::of(&error);
            assert_eq!(shown.code, code, "{shown:?}");
            let mut lines = HELP
                .lines()
                .skip_while(|line| !line.starts_with(&format!("  {code} ")));
            let documented =
                lines.any(|line| line.get(5..).is_some_and(|line| line.starts_with(shown.reason)));
            assert!(documented, "{shown:?}");
        }
        for code in [OK, USAGE, UNEVEN] {
            assert!(HELP.contains(&format!("\n  {code}  ")), "{code}");
        }
    }

    #[test]
    fn the_next_step_survives_context() {
        let shown = Shown::of(&refused(RefusalKind::NotFound));
        assert_eq!(shown.next_step.as_deref(), Some("yes"));
        assert_eq!(shown.error, "backend add: no");
        let refusal = Refusal::new(RefusalKind::Invalid, "no secret", "write one");
        let shown = Shown::of(&anyhow::Error::new(refusal));
        assert_eq!(
            (shown.code, shown.next_step.as_deref()),
            (FAILED, Some("write one"))
        );
    }
}
