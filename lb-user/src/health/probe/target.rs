//! Where a check goes, and the only place where its sockets are opened.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpStream, UdpSocket};

use super::Failure;

/// One backend as a check reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// What is connected to; also what `Host` says unless the check says otherwise.
    pub address: SocketAddr,
}

impl Target {
    pub const fn direct(address: SocketAddr) -> Self {
        Self { address }
    }

    /// A connection to it.
    pub(super) async fn connect(&self) -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect(self.address).await;
        stream.map_err(|error| Failure::from_io(&error))
    }

    /// A socket that sends to it and hears it, and nobody else.
    pub(super) async fn datagrams(&self) -> Result<UdpSocket, Failure> {
        let any: SocketAddr = match self.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let open = async {
            let socket = UdpSocket::bind(any).await?;
            socket.connect(self.address).await?;
            Ok(socket)
        };
        open.await.map_err(|error| Failure::from_io(&error))
    }

    /// Name of the address in `Host`: without the port that goes without saying.
    pub(super) fn host(&self, usual: u16) -> String {
        match self.address {
            SocketAddr::V4(v4) if v4.port() == usual => v4.ip().to_string(),
            SocketAddr::V6(v6) if v6.port() == usual => format!("[{}]", v6.ip()),
            // Without the scope that an IPv6 address may have.
            SocketAddr::V6(v6) => format!("[{}]:{}", v6.ip(), v6.port()),
            SocketAddr::V4(v4) => v4.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_written_as_in_urls() {
        for (address, host) in [
            ("192.0.2.1:80", "192.0.2.1"),
            ("192.0.2.1:8080", "192.0.2.1:8080"),
            ("[2001:db8::1]:80", "[2001:db8::1]"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ] {
            let target = Target::direct(address.parse().unwrap());
            assert_eq!(target.host(80), host);
        }
    }
}
