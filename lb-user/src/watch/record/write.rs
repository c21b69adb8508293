//! Writes a record, line by line.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use super::format::Reading;

/// A record under way. Each check is in the file when [`Writer::push`] returns, so that whatever ends the recording leaves
/// a file that can be read.
#[derive(Debug)]
pub struct Writer {
    file: BufWriter<File>,
    last: Option<u64>,
    checks: u64,
}

impl Writer {
    /// Makes the file; an existing one is an error ([`io::ErrorKind::AlreadyExists`]), not overwritten.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::new(File::create_new(path)?),
            last: None,
            checks: 0,
        })
    }

    /// Adds a check, and before the first the header. A reading that is not later than the last is left out, since
    /// records are in order of time.
    pub fn push(&mut self, reading: &Reading) -> io::Result<()> {
        if self.last.is_some_and(|last| reading.check.at_ms <= last) {
            return Ok(());
        }
        if self.last.is_none() {
            self.line(&reading.header)?;
        }
        self.line(&reading.check)?;
        self.last = Some(reading.check.at_ms);
        self.checks += 1;
        self.file.flush()
    }

    fn line(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, value)?;
        self.file.write_all(b"\n")
    }

    /// Checks written so far.
    pub fn checks(&self) -> u64 {
        self.checks
    }
}
