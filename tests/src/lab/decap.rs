//! `evenkeel decap` on backends, taken off again on drop.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Backend, Lab, Netns, binary};

/// Strips tunnel headers at one backend.
pub struct Decap {
    netns: Netns,
    interface: String,
}

impl Decap {
    pub fn attach(backend: &Backend) -> Result<Self> {
        let decap = Self {
            netns: backend.netns.clone(),
            interface: backend.interface.clone(),
        };
        let output = decap.command()?.output().context("starting evenkeel decap")?;
        ensure!(
            output.status.success(),
            "evenkeel decap at {}: {}",
            backend.name,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(decap)
    }

    /// At every backend of the lab.
    pub fn everywhere(lab: &Lab) -> Result<Vec<Self>> {
        lab.backends.iter().map(Self::attach).collect()
    }

    fn command(&self) -> Result<Command> {
        let mut command = self.netns.command(binary::evenkeel()?)?;
        command.arg("decap").arg(&self.interface);
        Ok(command)
    }
}

impl Drop for Decap {
    fn drop(&mut self) {
        if let Ok(mut command) = self.command() {
            let _ = command.arg("--remove").output();
        }
    }
}
