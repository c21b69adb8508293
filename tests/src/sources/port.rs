//! Loopback ports for servers that cannot say which one the kernel gave them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};

/// A loopback address whose port nobody listened on a moment ago.
pub fn free() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("binding a loopback port")?;
    Ok(listener.local_addr()?)
}

/// Starts something on a free port; another program may take it in between, so tries some.
pub fn on_free_port<T>(mut start: impl FnMut(SocketAddr) -> Result<T>) -> Result<T> {
    const TRIES: u32 = 5;
    let mut last = start(free()?);
    for _ in 1..TRIES {
        if last.is_ok() {
            break;
        }
        last = start(free()?);
    }
    last
}
