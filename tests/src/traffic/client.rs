//! Short exchanges with a service, and counts of who answered.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::lab::{Lab, Netns};

const FIRST_PORT: u64 = 2000;
const PATIENCE: Duration = Duration::from_secs(3);

/// Answers by backend name.
pub type Spread = BTreeMap<String, u64>;

/// Speaks from the client's namespace.
#[derive(Clone)]
pub struct Client {
    netns: Netns,
    /// UDP source ports given out so far.
    next_port: Arc<AtomicU64>,
}

impl Client {
    pub fn new(lab: &Lab) -> Self {
        Self {
            netns: lab.client.clone(),
            next_port: Arc::new(AtomicU64::new(FIRST_PORT)),
        }
    }

    /// Opens a TCP connection.
    pub fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        self.netns.run(|| connect(to))
    }

    /// The name of the backend that answers one TCP connection.
    pub fn tcp(&self, to: SocketAddr) -> Result<String> {
        self.netns.run(|| ask_tcp(to))
    }

    /// The name of the backend that answers one datagram from a fresh port.
    pub fn udp(&self, to: SocketAddr) -> Result<String> {
        self.netns.run(|| ask_udp(&udp_socket(to, None, 0)?, to))
    }

    /// Like [`udp`](Self::udp), from a given port, on a CPU that the port decides.
    pub fn udp_from(&self, port: u16, to: SocketAddr) -> Result<String> {
        let cpus = std::thread::available_parallelism()?.get();
        self.netns.run(|| {
            pin(usize::from(port) % cpus)?;
            ask_udp(&udp_socket(to, None, port)?, to)
        })
    }

    /// `count` exchanges, each a new flow, spread over all CPUs by pinned threads. No UDP source port is used twice by this client, so
    /// that every flow is an independent pick.
    pub fn many(&self, protocol: Kind, to: SocketAddr, count: u64) -> Result<Spread> {
        let cpus = std::thread::available_parallelism()?.get() as u64;
        let mut total = Spread::new();
        let first = self.next_port.fetch_add(count, Ordering::Relaxed);
        let shares = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..cpus)
                .map(|cpu| {
                    let share = count / cpus + u64::from(cpu < count % cpus);
                    scope.spawn(move || {
                        self.netns.run(|| {
                            pin(cpu as usize)?;
                            repeat(protocol, to, share, first + cpu, cpus)
                        })
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a client thread"))
                .collect::<Vec<_>>()
        });
        for share in shares {
            for (name, answers) in share? {
                *total.entry(name).or_default() += answers;
            }
        }
        Ok(total)
    }

    /// Datagrams from one source address, each from a port that no other had.
    pub fn from(&self, source: IpAddr, to: SocketAddr, count: u64) -> Result<Spread> {
        let first = self.next_port.fetch_add(count, Ordering::Relaxed);
        self.netns.run(|| {
            let mut spread = Spread::new();
            for port in first..first + count {
                let port = u16::try_from(port).context("out of source ports")?;
                *spread
                    .entry(ask_udp(&udp_socket(to, Some(source), port)?, to)?)
                    .or_default() += 1;
            }
            Ok(spread)
        })
    }
}

/// Which exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Udp,
}

fn repeat(kind: Kind, to: SocketAddr, count: u64, first: u64, step: u64) -> Result<Spread> {
    let mut spread = Spread::new();
    for index in 0..count {
        let name = match kind {
            Kind::Tcp => ask_tcp(to)?,
            Kind::Udp => {
                let port = u16::try_from(first + index * step).context("out of source ports")?;
                ask_udp(&udp_socket(to, None, port)?, to)?
            }
        };
        *spread.entry(name).or_default() += 1;
    }
    Ok(spread)
}

/// Keeps the calling thread on one CPU; what it sends over veth is then handled there.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pinning to CPU {cpu}"))
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("connecting to {to}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The name of the backend that answers a connection from the calling thread's namespace.
pub fn ask_tcp(to: SocketAddr) -> Result<String> {
    line(&connect(to)?, "who")
}

/// Sends a line and gives back the name before the echo.
pub fn line(mut stream: &TcpStream, text: &str) -> Result<String> {
    stream.write_all(format!("{text}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .context("waiting for an answer")?;
    name_before(answer.trim_end(), text)
}

fn udp_socket(to: SocketAddr, source: Option<IpAddr>, port: u16) -> Result<UdpSocket> {
    let any = if to.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    let socket = UdpSocket::bind((source.unwrap_or(any), port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    Ok(socket)
}

fn ask_udp(socket: &UdpSocket, to: SocketAddr) -> Result<String> {
    socket.send(b"who")?;
    let mut buffer = [0; 64];
    let length = socket
        .recv(&mut buffer)
        .with_context(|| format!("no answer from {to}"))?;
    name_before(&String::from_utf8_lossy(&buffer[..length]), "who")
}

fn name_before(answer: &str, text: &str) -> Result<String> {
    let name = answer.strip_suffix(text).and_then(|name| name.strip_suffix(' '));
    ensure!(name.is_some(), "{answer:?} is no answer to {text:?}");
    Ok(name.unwrap_or_default().to_owned())
}
