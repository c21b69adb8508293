//! A web server that never comes to an end, for what a real one does only when it is broken or evil.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;

/// How it goes on after the head of its answer.
#[derive(Clone, Copy, Debug)]
pub enum Endless {
    /// Not at all.
    Silence,
    /// With white space, as fast as it is taken.
    Flood,
}

pub struct BrokenSite {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const TICK: Duration = Duration::from_millis(50);

impl BrokenSite {
    pub fn start(endless: Endless) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => serve(stream, endless, &ends),
                    Err(_) => thread::sleep(TICK),
                }
            }
        });
        Ok(Self {
            address,
            over,
            thread: Some(thread),
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

/// Until the client has gone; how that shows is of no interest.
fn serve(mut stream: TcpStream, endless: Endless, over: &AtomicBool) {
    let told = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(TICK)))
        .and_then(|()| stream.set_write_timeout(Some(TICK)))
        .and_then(|()| {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
        });
    let mut gone = told.is_err();
    while !gone && !over.load(Ordering::Relaxed) {
        let moved = match endless {
            Endless::Silence => stream.read(&mut [0; 4096]),
            Endless::Flood => stream.write(&[b' '; 1 << 16]),
        };
        gone = match moved {
            Ok(octets) => octets == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        };
    }
}

impl Drop for BrokenSite {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
