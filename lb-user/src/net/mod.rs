//! How frames reach backends, asked of the kernel over rtnetlink and followed as it changes.

use std::{future::Future, io};

mod announce;
mod interfaces;
mod neighbours;
mod resolution;
mod resolver;
mod routes;

pub use announce::announce;
pub use interfaces::{AttachedXdp, HostFacts, Interface, clear_xdp, interfaces};
pub use resolution::Resolution;
pub use resolver::{Resolutions, Resolver, ResolverHandle, settle};

/// Why the kernel's network state could not be read or followed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot open a netlink socket")]
    Socket { source: io::Error },
    #[error("cannot {what}")]
    Request { what: String, source: rtnetlink::Error },
    #[error("cannot run the netlink query")]
    Runtime { source: io::Error },
}

/// Runs a query to its end on a thread of its own, so that it may be called inside and outside of tokio.
/// The thread starts in the caller's network namespace.
fn blocking<T: Send>(query: impl Future<Output = Result<T, NetError>> + Send) -> Result<T, NetError> {
    let run = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| NetError::Runtime { source })?
            .block_on(query)
    };
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A connection for requests, polled by the current runtime until its handle is dropped.
fn connect() -> Result<rtnetlink::Handle, NetError> {
    let (connection, handle, _) =
        rtnetlink::new_connection().map_err(|source| NetError::Socket { source })?;
    tokio::spawn(connection);
    Ok(handle)
}
