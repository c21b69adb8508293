//! Checks through the VIP: sockets whose packets are handed over to it on their way (`crate::program::CheckPath`).

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket},
    sync::Arc,
};

use lb_common::{
    backend::Backend,
    check::{CheckEntry, CheckKey, address_words},
};
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::Failure;
use crate::{
    program::{CheckPath, Entered},
    state::desired::{Mode, address_bytes},
};

/// IP protocol numbers (IANA).
const TCP: u8 = 6;
const UDP: u8 = 17;
/// A port may still have the entry of the check before, for as long as that takes to remove.
const PORTS_TRIED: usize = 5;

/// The VIP that a backend's checks are addressed to, and how they get to the backend nevertheless.
#[derive(Clone, Debug)]
pub struct Through {
    pub vip: IpAddr,
    /// The backend's.
    pub mode: Mode,
    pub path: Arc<CheckPath>,
}

/// There is one path in a daemon.
impl PartialEq for Through {
    fn eq(&self, other: &Self) -> bool {
        (self.vip, self.mode) == (other.vip, other.mode)
    }
}

impl Eq for Through {}

/// The kernel's way to the backend.
struct Way {
    source: IpAddr,
    mtu: u16,
}

impl Through {
    /// A connection, which ends by a reset: its end stays on no port of this host, where there are few for checks.
    pub(super) async fn connect(&self, backend: SocketAddr) -> Result<(TcpStream, Entered), Failure> {
        let (socket, entered) = self.entered(TCP, backend.ip(), bound_stream)?;
        match socket.connect(backend).await {
            Ok(stream) => {
                Self::was_handed(&entered)?;
                Ok((stream, entered))
            }
            Err(error) => {
                // Of the backend, while that a host is not to be reached is what this one finds out.
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    Self::was_handed(&entered)?;
                }
                Err(Failure::from_io(&error))
            }
        }
    }

    /// A socket for datagrams.
    pub(super) fn datagrams(&self, backend: SocketAddr) -> Result<(UdpSocket, Entered), Failure> {
        let (socket, entered) = self.entered(UDP, backend.ip(), bound_datagrams)?;
        rustix::net::connect(&socket, &backend).map_err(|error| Failure::from_io(&error.into()))?;
        Ok((socket, entered))
    }

    /// Fails unless packets of the check went to the VIP: an answer to others says nothing about it.
    pub(super) fn was_handed(entered: &Entered) -> Result<(), Failure> {
        if entered.was_handed() {
            return Ok(());
        }
        Err(Failure::Ours(
            "the check went out without being handed over to the VIP: by an interface that is not attached to yet, or \
             past a TC program of something else that keeps its packets"
                .to_owned(),
        ))
    }

    /// A socket on a port of its own, and its entry. It is not connected yet: no packet may leave before the entry is there.
    fn entered<S>(
        &self,
        protocol: u8,
        backend: IpAddr,
        bound: fn(IpAddr) -> io::Result<(S, SocketAddr)>,
    ) -> Result<(S, Entered), Failure> {
        let way = self.way(backend)?;
        for _ in 0..PORTS_TRIED {
            let (socket, local) = bound(way.source).map_err(|error| unable(&error))?;
            if let Some(entered) = self.enter(protocol, local, backend, &way)? {
                return Ok((socket, entered));
            }
        }
        Err(Failure::Ours(format!(
            "the check could not be made: {PORTS_TRIED} ports in a row were still those of other checks"
        )))
    }

    /// What the kernel's route says, by a socket that sends nothing.
    fn way(&self, backend: IpAddr) -> Result<Way, Failure> {
        if backend.is_ipv4() != self.vip.is_ipv4() {
            return Err(Failure::Ours(format!(
                "a check of {backend} cannot be addressed to {}, which is of the other family: use via = \"direct\"",
                self.vip
            )));
        }
        let any: IpAddr = match backend {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = StdUdpSocket::bind((any, 0)).map_err(|error| unable(&error))?;
        // Any port will do: nothing is sent.
        socket
            .connect((backend, 9))
            .map_err(|error| Failure::from_io(&error))?;
        let local = socket.local_addr().map_err(|error| unable(&error))?;
        let mtu = match backend {
            IpAddr::V4(_) => ip_mtu(&socket),
            IpAddr::V6(_) => ipv6_mtu(&socket),
        };
        let mtu = mtu.map_err(|error| unable(&error.into()))?;
        Ok(Way {
            source: local.ip(),
            mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        })
    }

    fn enter(
        &self,
        protocol: u8,
        local: SocketAddr,
        backend: IpAddr,
        way: &Way,
    ) -> Result<Option<Entered>, Failure> {
        let (source, family) = address_bytes(way.source);
        let (vip, _) = address_bytes(self.vip);
        let (address, _) = address_bytes(backend);
        let key = CheckKey {
            address: address_words(&source),
            port: local.port().to_be(),
            protocol,
            family,
            reserved: 0,
        };
        let entry = CheckEntry {
            backend: Backend {
                address,
                outer_source: source,
                mode: self.mode.in_map(),
                family,
                mtu: way.mtu,
                ..Backend::default()
            },
            vip: address_words(&vip),
            ..CheckEntry::default()
        };
        self.path.enter(key, entry).map_err(Failure::Ours)
    }
}

/// On a port of its own: the kernel chooses it now, and no option lets it be shared.
fn bound_stream(source: IpAddr) -> io::Result<(TcpSocket, SocketAddr)> {
    let socket = match source {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.bind((source, 0).into())?;
    socket.set_zero_linger()?;
    let local = socket.local_addr()?;
    Ok((socket, local))
}

fn bound_datagrams(source: IpAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let socket = StdUdpSocket::bind((source, 0))?;
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    Ok((UdpSocket::from_std(socket)?, local))
}

fn unable(error: &io::Error) -> Failure {
    Failure::Ours(format!("the check could not be made: {error}"))
}
