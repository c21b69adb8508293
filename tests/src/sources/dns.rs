//! A DNS server that answers nothing but errors, for what a real one does only when it is broken.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;

/// How it answers.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// With this response code (RFC 1035, section 4.1.1).
    Code(u8),
    /// With octets that are no message.
    Garbage,
    /// Not at all.
    Silence,
}

/// Over UDP only.
pub struct BrokenDns {
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BrokenDns {
    pub fn start(fault: Fault) -> Result<Self> {
        Self::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), fault)
    }

    /// In the place of a server that was there.
    pub fn at(address: SocketAddr, fault: Fault) -> Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let address = socket.local_addr()?;
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                answer(&socket, fault);
            }
        });
        Ok(Self {
            address,
            over,
            thread: Some(thread),
        })
    }
}

fn answer(socket: &UdpSocket, fault: Fault) {
    let mut message = [0; 4096];
    let Ok((length, from)) = socket.recv_from(&mut message) else {
        return;
    };
    let message = &mut message[..length];
    let reply = match fault {
        Fault::Code(code) if length >= 12 => {
            // QR, and the code; the question and the EDNS record stay.
            message[2] |= 0x80;
            message[3] = (message[3] & 0xf0) | code;
            &*message
        }
        Fault::Garbage if length >= 12 => {
            // The right id, so that it is taken for the answer, and counts that are a lie.
            message[2] |= 0x80;
            message[6..12].fill(0xff);
            &message[..13]
        }
        _ => return,
    };
    // Nobody may be there any more.
    let _ = socket.send_to(reply, from);
}

impl Drop for BrokenDns {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
