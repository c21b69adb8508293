//! Log lines on standard error; the datapath's rare warnings and libraries' records come in through `log`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The variable that sets what is logged.
const VARIABLE: &str = "EVENKEEL_LOG";
/// What is logged without it.
const DEFAULT: &str = "info";

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("EVENKEEL_LOG={0:?} is not understood; write as in info,lb_user=debug")]
    Filter(String, #[source] tracing_subscriber::filter::ParseError),
    #[error("the log is set up already")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets the log up for the whole process.
pub fn start() -> Result<(), LoggingError> {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&wanted).map_err(|error| LoggingError::Filter(wanted, error))?;
    // Under systemd the journal has its own clock and no colours.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    if journal {
        builder.without_time().try_init()
    } else {
        builder.try_init()
    }
    .map_err(LoggingError::Twice)
}
