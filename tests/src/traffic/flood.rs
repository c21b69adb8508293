//! New flows at a steady rate on a CPU of choice: frames put on the last wire before the balancer.
//!
//! What a thread sends over veth is handled on the thread's CPU, unless the receiving queue is already being emptied by
//! another one. So each CPU sends to the queue of its own number, past the queueing discipline, which would choose another.

use std::{
    io,
    mem::{size_of, zeroed},
    net::SocketAddrV4,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use etherparse::PacketBuilder;

use super::client::pin;
use crate::lab::{Lab, Netns, topology::BALANCER_PORT};

const TICK: Duration = Duration::from_millis(5);
/// Frames sent at once after a pause: fewer than a veth queue holds.
const BURST: u64 = 100;

/// The wire into the balancer.
#[derive(Clone)]
pub struct Wire {
    netns: Netns,
    port: u32,
    balancer: [u8; 6],
}

/// The two ends of a UDP flow.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub source: SocketAddrV4,
    pub to: SocketAddrV4,
}

/// A sender; stops on drop.
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Wire {
    /// Answers to sources in 10.9.0.0/16, which nobody has, end at the router from now on.
    pub fn of(lab: &Lab) -> Result<Self> {
        lab.router.ip("route replace blackhole 10.9.0.0/16")?;
        Ok(Self {
            netns: lab.fabric.clone(),
            port: lab.fabric.interface(BALANCER_PORT)?,
            balancer: hardware_address(&lab.balancer, "eth0")?,
        })
    }

    /// Sends a datagram of each flow that `next` names, so many a second, from one CPU.
    pub fn send(
        &self,
        cpu: usize,
        rate: f64,
        mut next: impl FnMut() -> Result<Ends> + Send + 'static,
    ) -> Result<Flood> {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (halt, counter) = (Arc::clone(&stop), Arc::clone(&sent));
        let (port, balancer) = (self.port, self.balancer);
        let thread = self.netns.spawn(move || -> Result<()> {
            pin(cpu)?;
            let socket = open(port).context("opening the wire before the balancer")?;
            let mut frame = Vec::new();
            let mut last = Instant::now();
            let mut due = 0.0;
            while !halt.load(Ordering::Relaxed) {
                let now = Instant::now();
                due = (due + now.duration_since(last).as_secs_f64() * rate).min(BURST as f64);
                last = now;
                while due >= 1.0 {
                    write(&mut frame, balancer, next()?)?;
                    send(&socket, &frame).context("sending a flow")?;
                    counter.fetch_add(1, Ordering::Relaxed);
                    due -= 1.0;
                }
                thread::sleep(TICK);
            }
            Ok(())
        })?;
        Ok(Flood {
            stop,
            sent,
            thread: Some(thread),
        })
    }
}

impl Flood {
    /// Frames sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends it; how many were sent, or why that ended before.
    pub fn stop(mut self) -> Result<u64> {
        self.end()?;
        Ok(self.sent())
    }

    fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take() {
            Some(thread) => thread.join().expect("a flood's thread"),
            None => Ok(()),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        if let Err(error) = self.end()
            && thread::panicking()
        {
            eprintln!("a flood ended early: {error:#}");
        }
    }
}

fn write(frame: &mut Vec<u8>, balancer: [u8; 6], Ends { source, to }: Ends) -> Result<()> {
    frame.clear();
    Ok(PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], balancer)
        .ipv4(source.ip().octets(), to.ip().octets(), 64)
        .udp(source.port(), to.port())
        .write(frame, b"flood")?)
}

fn hardware_address(netns: &Netns, interface: &str) -> Result<[u8; 6]> {
    let output = netns
        .command("ip")?
        .args(["-json", "link", "show", "dev", interface])
        .output()?;
    let links: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let text = links[0]["address"].as_str().unwrap_or_default();
    let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16));
    let octets: Vec<u8> = octets.collect::<Result<_, _>>()?;
    let address = octets.try_into().ok();
    address.with_context(|| format!("{interface} has no hardware address: {links}"))
}

/// A packet socket that receives nothing (packet(7)).
fn open(port: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the descriptor is owned right below.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made and nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let bypass: libc::c_int = 1;
    // SAFETY: the value is an int and the length says so.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const bypass).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = port as i32;
    // SAFETY: the address is as long as the length says.
    let bound = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if set < 0 || bound < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

fn send(socket: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and length are those of `frame`, which outlives the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
