//! One file a kind of source.

use std::convert::Infallible;

use super::{SourceError, SourceKind, driver::Sink, driver::Source};

mod address;
mod consul;
mod dns;
mod entry;
mod etcd;
mod file;
mod http;
mod http_client;
mod kubernetes;
mod listing;
mod pool;

/// A source of any kind.
pub enum AnySource {
    File(file::FileSource),
    Dns(dns::DnsSource),
    Http(http::HttpSource),
    Etcd(etcd::EtcdSource),
    Consul(consul::ConsulSource),
    Kubernetes(kubernetes::KubernetesSource),
}

impl AnySource {
    /// Connects to nothing before it is followed.
    pub fn new(kind: &SourceKind) -> Self {
        match kind.clone() {
            SourceKind::File { path } => Self::File(file::FileSource::new(path)),
            SourceKind::Dns {
                host,
                record,
                server,
                min_interval,
                max_interval,
            } => Self::Dns(dns::DnsSource {
                host,
                record,
                server,
                between: (min_interval, max_interval),
            }),
            SourceKind::Http {
                url,
                interval,
                token_file,
                ca_file,
            } => Self::Http(http::HttpSource::new(url, interval, token_file, ca_file)),
            SourceKind::Etcd {
                urls,
                prefix,
                user,
                password_file,
                ca_file,
            } => Self::Etcd(etcd::EtcdSource::new(
                urls,
                prefix,
                user.map(|name| (name, password_file)),
                ca_file,
            )),
            SourceKind::Consul {
                url,
                service,
                datacenter,
                tag,
                token_file,
                ca_file,
            } => Self::Consul(consul::ConsulSource::new(consul::Asked {
                url,
                service,
                datacenter,
                tag,
                token_file,
                ca_file,
            })),
            SourceKind::Kubernetes {
                url,
                namespace,
                service,
                port,
                token_file,
                ca_file,
            } => Self::Kubernetes(kubernetes::KubernetesSource::new(kubernetes::Asked {
                url,
                namespace,
                service,
                port,
                token_file,
                ca_file,
            })),
        }
    }
}

impl Source for AnySource {
    fn describe(&self) -> String {
        match self {
            Self::File(source) => source.describe(),
            Self::Dns(source) => source.describe(),
            Self::Http(source) => source.describe(),
            Self::Etcd(source) => source.describe(),
            Self::Consul(source) => source.describe(),
            Self::Kubernetes(source) => source.describe(),
        }
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        match self {
            Self::File(source) => source.follow(sink).await,
            Self::Dns(source) => source.follow(sink).await,
            Self::Http(source) => source.follow(sink).await,
            Self::Etcd(source) => source.follow(sink).await,
            Self::Consul(source) => source.follow(sink).await,
            Self::Kubernetes(source) => source.follow(sink).await,
        }
    }
}
