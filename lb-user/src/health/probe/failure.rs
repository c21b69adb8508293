//! Why a check did not pass, in an operator's words.

use std::{error::Error, fmt, io};

/// Characters of a server's text that are quoted.
const QUOTED: usize = 120;

const CLOSED: &str = "the connection was closed before the end of an answer";

/// Why a check did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The backend did not answer as it should.
    Backend(String),
    /// The check could not be made, for a reason on this host; it says nothing about the backend.
    Ours(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backend(reason) | Self::Ours(reason) => f.write_str(reason),
        }
    }
}

impl Failure {
    pub fn backend(reason: impl Into<String>) -> Self {
        Self::Backend(reason.into())
    }

    /// From what a socket said.
    pub fn from_io(error: &io::Error) -> Self {
        if ours(error) {
            return Self::Ours(format!("the check could not be made: {error}"));
        }
        Self::Backend(match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => CLOSED.to_owned(),
            io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
            io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
            io::ErrorKind::TimedOut => "connection timed out".to_owned(),
            _ => error.to_string(),
        })
    }

    /// From what hyper said of an answer in `protocol`.
    pub fn from_hyper(error: &hyper::Error, protocol: &str) -> Self {
        let causes = || std::iter::successors(error.source(), |&cause| cause.source());
        if let Some(io) = causes().find_map(<dyn Error>::downcast_ref::<io::Error>) {
            return Self::from_io(io);
        }
        if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            return Self::backend(CLOSED);
        }
        let last = causes()
            .last()
            .map_or_else(|| error.to_string(), ToString::to_string);
        Self::Backend(format!(
            "the answer is not {protocol}: {}",
            quoted(last.as_bytes())
        ))
    }
}

/// Whether this host lacks what a check takes: descriptors, memory, ports, permission, or the address family.
fn ours(error: &io::Error) -> bool {
    const LACKS: [i32; 8] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EADDRNOTAVAIL,
        libc::EPERM,
        libc::EACCES,
        libc::EAFNOSUPPORT,
    ];
    error.raw_os_error().is_some_and(|code| LACKS.contains(&code))
}

/// A server's text, shortened and without control characters.
pub fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut characters = text.chars();
    let head = characters.by_ref().take(QUOTED);
    let mut shown: String = head
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_host_lacks_is_no_fault_of_the_backend() {
        for (code, reason) in [
            (libc::ECONNREFUSED, Some("connection refused")),
            (libc::ECONNRESET, Some("connection reset")),
            (libc::EHOSTUNREACH, Some("host unreachable")),
            (libc::ENETUNREACH, Some("network unreachable")),
            (libc::ETIMEDOUT, Some("connection timed out")),
            (libc::EMFILE, None),
            (libc::EADDRNOTAVAIL, None),
            (libc::EPERM, None),
        ] {
            let failure = Failure::from_io(&io::Error::from_raw_os_error(code));
            match reason {
                Some(reason) => assert_eq!(failure, Failure::backend(reason)),
                None => assert!(matches!(failure, Failure::Ours(_)), "{failure}"),
            }
        }
    }

    #[test]
    fn text_of_servers_is_shortened_and_made_harmless() {
        assert_eq!(quoted(b"a\x1b[2Jb\n\xff"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
        let long = quoted(&[b'x'; 1000]);
        assert_eq!(long.chars().count(), QUOTED + 1);
        assert!(long.ends_with("x…"));
    }
}
