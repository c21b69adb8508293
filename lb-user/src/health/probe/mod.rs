//! One check of one backend.

mod failure;
mod grpc;
mod http;
mod target;
mod tcp;
mod through;
mod tls;
mod udp;
mod waiting;

use std::time::Duration;

pub use failure::Failure;
pub use target::Target;
pub use through::Through;

use super::Check;
use crate::config::Millis;
use waiting::{Stage, Waiting};

/// Most of an HTTP body that is read, in octets.
pub const BODY_LIMIT: usize = 64 * 1024;

/// A check made ready for any number of backends: what they share is prepared once.
pub struct Prober(Kind);

enum Kind {
    Tcp,
    Http(http::Asking),
    Https(http::Asking, Box<tls::Tls>),
    Grpc(grpc::Asking),
    Udp(udp::Asking),
}

impl Prober {
    /// Touches neither network nor files: these are read when a check first needs them.
    pub fn new(check: &Check) -> Self {
        Self(match check {
            Check::Tcp => Kind::Tcp,
            Check::Http { request } => Kind::Http(http::Asking::new(request, 80)),
            Check::Https {
                request,
                server_name,
                verify,
                ca_file,
            } => {
                let name = server_name.as_deref().or(request.host.as_deref());
                let tls = tls::Tls::new(name, *verify, ca_file.as_deref());
                Kind::Https(http::Asking::new(request, 443), Box::new(tls))
            }
            Check::Grpc { service } => Kind::Grpc(grpc::Asking::new(service)),
            Check::Udp { payload, expect } => Kind::Udp(udp::Asking::new(payload, expect.as_deref())),
        })
    }

    /// Checks the backend once; after `timeout` it has failed. Dropping the future ends all that the check began.
    pub async fn probe(&self, target: &Target, timeout: Millis) -> Result<(), Failure> {
        let waiting = Waiting::default();
        let limit: Duration = timeout.duration();
        match tokio::time::timeout(limit, self.run(target, &waiting)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Backend(self.late(waiting.stage(), timeout))),
        }
    }

    async fn run(&self, target: &Target, waiting: &Waiting) -> Result<(), Failure> {
        match &self.0 {
            Kind::Tcp => tcp::probe(target).await,
            // Boxed, so that the many tasks with plain TCP checks stay small.
            Kind::Http(asking) => Box::pin(http::probe(asking, target, waiting)).await,
            Kind::Https(asking, tls) => Box::pin(http::probe_tls(asking, tls, target, waiting)).await,
            Kind::Grpc(asking) => Box::pin(grpc::probe(asking, target, waiting)).await,
            Kind::Udp(asking) => Box::pin(udp::probe(asking, target, waiting)).await,
        }
    }

    fn late(&self, stage: Stage, timeout: Millis) -> String {
        match stage {
            Stage::Connection => format!("no connection within {timeout}"),
            Stage::Tls => format!("no end of the TLS handshake within {timeout}"),
            Stage::Answer => format!("no answer within {timeout}"),
            Stage::Rest => format!("no end of the answer within {timeout}"),
            Stage::RightAnswer => match &self.0 {
                Kind::Udp(asking) => format!("{} within {timeout}", asking.wrong()),
                _ => format!("no answer within {timeout}"),
            },
        }
    }
}

/// Whether `needle` is somewhere in `hay`.
fn contains(hay: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || hay.windows(needle.len()).any(|window| window == needle)
}
