//! Servers that do to each connection or datagram what a test says.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;

const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

/// A TCP server; each connection has a thread of its own. Stopped on drop.
pub struct Scripted {
    pub address: SocketAddr,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
    stopping: AtomicBool,
}

impl Scripted {
    /// `serve` gets each connection and its number, from 0; the connection is closed when it returns.
    pub fn start(serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind(LOOPBACK)?;
        let address = listener.local_addr()?;
        let counts = Arc::<Counts>::default();
        let serve = Arc::new(serve);
        let shared = Arc::clone(&counts);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
                let open = shared.open.fetch_add(1, Ordering::SeqCst) + 1;
                shared.most_open.fetch_max(open, Ordering::SeqCst);
                let (serve, counts) = (Arc::clone(&serve), Arc::clone(&shared));
                thread::spawn(move || {
                    serve(stream, number);
                    counts.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Self {
            address,
            counts,
            thread: Some(thread),
        })
    }

    /// Accepts and never answers, until the other side closes.
    pub fn silent() -> Result<Self> {
        Self::start(|mut stream, _| {
            // A silent peer must not outlive its test for ever.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        })
    }

    /// Answers every request with these octets, and closes.
    pub fn saying(answer: impl Into<Vec<u8>>) -> Result<Self> {
        let answer = answer.into();
        Self::start(move |mut stream, _| {
            read_head(&mut stream);
            let _ = stream.write_all(&answer);
        })
    }

    /// Answers with this head, and then with as much of a body as is taken.
    pub fn endless(head: &'static str, body: &'static [u8]) -> Result<Self> {
        Self::start(move |mut stream, _| {
            read_head(&mut stream);
            let _ = stream.set_write_timeout(Some(Duration::from_secs(60)));
            let mut sent = stream.write_all(head.as_bytes());
            while sent.is_ok() {
                sent = stream.write_all(body);
            }
        })
    }

    /// A web server with status 200 where `well` says so of the number of the connection, and 503 where not.
    pub fn web(well: impl Fn(usize) -> bool + Send + Sync + 'static) -> Result<Self> {
        Self::start(move |mut stream, number| {
            read_head(&mut stream);
            let status = if well(number) {
                "200 OK"
            } else {
                "503 Service Unavailable"
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
        })
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Most connections at one time.
    pub fn most_open(&self) -> usize {
        self.counts.most_open.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.counts.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads up to the empty line after the headers, or the end, or for a while.
pub fn read_head(stream: &mut TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut chunk) {
            Ok(read) if read > 0 => head.extend_from_slice(&chunk[..read]),
            _ => return,
        }
    }
}

/// A UDP server. Stopped on drop.
pub struct ScriptedUdp {
    pub address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedUdp {
    /// `answer` says what is sent for a datagram.
    pub fn start(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Result<Self> {
        let socket = UdpSocket::bind(LOOPBACK)?;
        let address = socket.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = thread::spawn(move || {
            let mut datagram = [0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                for answer in answer(&datagram[..length]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Self {
            address,
            stopping,
            thread: Some(thread),
        })
    }
}

impl Drop for ScriptedUdp {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread.
        let woken = UdpSocket::bind(LOOPBACK).and_then(|socket| socket.send_to(b"", self.address));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
