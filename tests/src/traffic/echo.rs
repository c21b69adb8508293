//! Connections that stay open and must go on whatever happens to the balancer.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::client::{self, Client};

/// Open connections with the backend that each one belongs to.
pub struct LongLived(Vec<(TcpStream, String)>);

impl LongLived {
    pub fn open(client: &Client, to: SocketAddr, count: usize) -> Result<Self> {
        (0..count)
            .map(|_| {
                let stream = client.connect(to)?;
                let name = client::line(&stream, "open")?;
                Ok((stream, name))
            })
            .collect::<Result<_>>()
            .map(Self)
    }

    /// How many belong to a backend.
    pub fn at(&self, name: &str) -> usize {
        self.0.iter().filter(|(_, owner)| owner == name).count()
    }

    /// Every connection still answers, from the same backend.
    pub fn check(&self, after: &str) -> Result<()> {
        for (stream, owner) in &self.0 {
            let from = stream.local_addr()?;
            let name = client::line(stream, after)
                .with_context(|| format!("{from}, connected to {owner}, after {after}"))?;
            ensure!(name == *owner, "{from}: {owner} became {name} after {after}");
        }
        Ok(())
    }

    pub fn close(&mut self, name: &str) {
        self.0.retain(|(_, owner)| owner != name);
    }
}

/// A download in the background.
pub struct Download {
    thread: JoinHandle<Result<(usize, Duration)>>,
    bytes: usize,
    pub backend: String,
}

impl Download {
    /// Asks for `bytes` spread over `duration`.
    pub fn start(client: &Client, to: SocketAddr, bytes: usize, duration: Duration) -> Result<Self> {
        let mut stream = client.connect(to)?;
        let backend = client::line(&stream, "before")?;
        stream.write_all(format!("download {bytes} {}\n", duration.as_millis()).as_bytes())?;
        let thread = thread::spawn(move || {
            let start = Instant::now();
            let mut buffer = vec![0; 64 * 1024];
            let mut got = 0;
            let mut longest = Duration::ZERO;
            let mut last = start;
            while got < bytes {
                let length = stream.read(&mut buffer).context("the download broke")?;
                ensure!(length > 0, "the download ended after {got} of {bytes} octets");
                got += length;
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            Ok((got, longest))
        });
        Ok(Self {
            thread,
            bytes,
            backend,
        })
    }

    /// Waits for the end; gives back the longest pause between two reads.
    pub fn finish(self) -> Result<Duration> {
        let (got, longest) = self.thread.join().expect("a download thread")?;
        ensure!(got == self.bytes, "{got} of {} octets", self.bytes);
        Ok(longest)
    }

    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}
