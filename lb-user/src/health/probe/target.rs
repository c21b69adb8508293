//! Where a check goes, and the only place where its sockets are opened.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UdpSocket},
};

use super::{Failure, through::Through};
use crate::program::Entered;

/// One backend as a check reaches it.
#[derive(Clone, Debug)]
pub struct Target {
    /// What is connected to; also what `Host` says unless the check says otherwise.
    pub address: SocketAddr,
    through: Option<Through>,
}

/// A connection of a check.
pub struct Connection {
    stream: TcpStream,
    /// Dropped after the stream, so that its last packet takes the same way.
    _entered: Option<Entered>,
}

/// Datagrams of a check.
pub struct Datagrams {
    /// There until it is dropped.
    socket: Option<UdpSocket>,
    entered: Option<Entered>,
    /// No answer can come late any more.
    answered: bool,
}

impl Target {
    pub const fn direct(address: SocketAddr) -> Self {
        Self::new(address, None)
    }

    /// `through`: to the VIP, handed over to this backend.
    pub const fn new(address: SocketAddr, through: Option<Through>) -> Self {
        Self { address, through }
    }

    /// A connection to it.
    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        let (stream, entered) = match &self.through {
            Some(through) => {
                let (stream, entered) = through.connect(self.address).await?;
                (stream, Some(entered))
            }
            None => {
                let stream = TcpStream::connect(self.address).await;
                (stream.map_err(|error| Failure::from_io(&error))?, None)
            }
        };
        Ok(Connection {
            stream,
            _entered: entered,
        })
    }

    /// A socket that sends to it and hears it, and nobody else.
    pub(super) async fn datagrams(&self) -> Result<Datagrams, Failure> {
        let (socket, entered) = match &self.through {
            Some(through) => {
                let (socket, entered) = through.datagrams(self.address)?;
                (socket, Some(entered))
            }
            None => (self.direct_datagrams().await?, None),
        };
        Ok(Datagrams {
            socket: Some(socket),
            entered,
            answered: false,
        })
    }

    async fn direct_datagrams(&self) -> Result<UdpSocket, Failure> {
        let any: SocketAddr = match self.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let open = async {
            let socket = UdpSocket::bind(any).await?;
            socket.connect(self.address).await?;
            Ok(socket)
        };
        open.await.map_err(|error: io::Error| Failure::from_io(&error))
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

impl Datagrams {
    pub async fn send(&self, payload: &[u8]) -> io::Result<()> {
        self.socket()?.send(payload).await.map(drop)
    }

    /// Appends one datagram to `answer`.
    pub async fn receive(&self, answer: &mut Vec<u8>) -> io::Result<()> {
        self.socket()?.recv_buf(answer).await.map(drop)
    }

    /// The answer has come; fails when it says nothing about the way that was to be checked.
    pub fn settle(&mut self) -> Result<(), Failure> {
        self.answered = true;
        self.entered.as_ref().map_or(Ok(()), Through::was_handed)
    }

    fn socket(&self) -> io::Result<&UdpSocket> {
        self.socket.as_ref().ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        let (Some(socket), Some(entered)) = (self.socket.take(), self.entered.take()) else {
            return;
        };
        if self.answered {
            // In this order, so that nobody else has the port while the entry stands.
            drop(entered);
            drop(socket);
        } else if let Ok(socket) = socket.into_std() {
            entered.keep_port(socket.into());
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
