//! An HTTP server of the tests' own on loopback.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use axum::Router;
use tokio::{net::TcpListener, runtime::Runtime};

/// Ends with its connections when dropped.
pub struct Wire {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Wire {
    pub fn serve(router: Router) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            address,
            runtime: Some(runtime),
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
