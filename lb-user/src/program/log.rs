//! Carries the datapath's rare warnings into the daemon's log.

use std::io;

use aya_log::EbpfLogger;
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
};

use super::{Datapath, LoadError};

impl Datapath {
    /// Reads the datapath's log records and passes them to the `log` crate until the task is aborted.
    /// To be called once, inside a tokio runtime.
    pub fn forward_log(&mut self) -> Result<JoinHandle<()>, LoadError> {
        let logger = EbpfLogger::init(&mut self.ebpf).map_err(|error| LoadError::Log {
            source: io::Error::other(error),
        })?;
        // SAFETY: the logger owns its ring buffer's descriptor and does not replace or close it while it lives.
        let mut logger = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }
            .map_err(|error| LoadError::Log { source: error.into() })?;
        Ok(tokio::spawn(async move {
            while let Ok(mut ready) = logger.readable_mut().await {
                ready.get_inner_mut().flush();
                ready.clear_ready();
            }
        }))
    }
}
