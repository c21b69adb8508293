//! A TCP and UDP server that answers with its backend's name.
//!
//! TCP speaks lines: `download BYTES MILLISECONDS` streams that many octets evenly over that time; any other line comes
//! back with the server's name before it. UDP answers every datagram with the name and the datagram.

use std::{
    io::{BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::lab::{Backend, Lab, VIP4, VIP6};

const TICK: Duration = Duration::from_millis(50);
const CHUNK: usize = 16 * 1024;

/// What a server has seen.
#[derive(Debug, Default)]
pub struct Stats {
    pub connections: AtomicU64,
    pub datagrams: AtomicU64,
}

/// The server of one backend; stops on drop. Connections that are open go on until their client ends them.
pub struct Server {
    pub name: String,
    pub stats: Arc<Stats>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// One server a backend.
pub struct Servers(pub Vec<Server>);

impl Server {
    /// Serves TCP and UDP at `port` of both VIPs.
    pub fn start(backend: &Backend, port: u16) -> Result<Self> {
        let mut server = Self {
            name: backend.name.clone(),
            stats: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for vip in [VIP4, VIP6] {
            let (tcp, udp) = backend
                .netns
                .run(|| bind(vip, port))
                .with_context(|| format!("serving {vip} port {port} at {}", backend.name))?;
            let (name, stats, stop) = server.shared();
            server
                .threads
                .push(thread::spawn(move || accept(&tcp, &name, &stats, &stop)));
            let (name, stats, stop) = server.shared();
            server
                .threads
                .push(thread::spawn(move || answer(&udp, &name, &stats, &stop)));
        }
        Ok(server)
    }

    pub fn connections(&self) -> u64 {
        self.stats.connections.load(Ordering::Relaxed)
    }

    pub fn datagrams(&self) -> u64 {
        self.stats.datagrams.load(Ordering::Relaxed)
    }

    fn shared(&self) -> (String, Arc<Stats>, Arc<AtomicBool>) {
        (self.name.clone(), Arc::clone(&self.stats), Arc::clone(&self.stop))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Servers {
    /// Serves at every backend of the lab.
    pub fn start(lab: &Lab, port: u16) -> Result<Self> {
        let servers: Result<_> = lab.backends.iter().map(|b| Server::start(b, port)).collect();
        Ok(Self(servers?))
    }

    pub fn connections(&self) -> Vec<u64> {
        self.0.iter().map(Server::connections).collect()
    }

    pub fn datagrams(&self) -> Vec<u64> {
        self.0.iter().map(Server::datagrams).collect()
    }
}

fn bind(vip: IpAddr, port: u16) -> Result<(TcpListener, UdpSocket)> {
    let tcp = TcpListener::bind((vip, port))?;
    tcp.set_nonblocking(true)?;
    let udp = UdpSocket::bind((vip, port))?;
    udp.set_read_timeout(Some(TICK))?;
    Ok((tcp, udp))
}

fn accept(listener: &TcpListener, name: &str, stats: &Stats, stop: &AtomicBool) {
    let mut idle = Duration::from_micros(200);
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                idle = Duration::from_micros(200);
                stats.connections.fetch_add(1, Ordering::Relaxed);
                let name = name.to_owned();
                thread::spawn(move || converse(&stream, &name));
            }
            Err(_) => {
                thread::sleep(idle);
                idle = (idle * 2).min(Duration::from_millis(4));
            }
        }
    }
}

/// Ends quietly when the client is gone: the client's side is where a broken connection is noticed.
fn converse(stream: &TcpStream, name: &str) -> Option<()> {
    stream.set_nonblocking(false).ok()?;
    stream.set_nodelay(true).ok()?;
    let mut lines = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(' ') {
            Some(("download", rest)) => {
                let (bytes, milliseconds) = rest.split_once(' ')?;
                download(writer, bytes.parse().ok()?, milliseconds.parse().ok()?)?;
            }
            _ => writer.write_all(format!("{name} {line}").as_bytes()).ok()?,
        }
    }
}

fn download(mut stream: &TcpStream, bytes: usize, milliseconds: u64) -> Option<()> {
    let start = Instant::now();
    let chunk = [b'x'; CHUNK];
    let mut sent = 0;
    while sent < bytes {
        let due = Duration::from_millis(milliseconds).mul_f64(sent as f64 / bytes as f64);
        thread::sleep(due.saturating_sub(start.elapsed()));
        let length = CHUNK.min(bytes - sent);
        stream.write_all(&chunk[..length]).ok()?;
        sent += length;
    }
    Some(())
}

fn answer(socket: &UdpSocket, name: &str, stats: &Stats, stop: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        stats.datagrams.fetch_add(1, Ordering::Relaxed);
        reply(socket, name, &buffer[..length], from);
    }
}

fn reply(socket: &UdpSocket, name: &str, datagram: &[u8], to: SocketAddr) {
    let mut bytes = format!("{name} ").into_bytes();
    bytes.extend(datagram);
    let _ = socket.send_to(&bytes, to);
}
