//! Echo requests, made by hand and sent over a raw socket (raw(7)).

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{capture::frame::sum, lab::Netns};

const PATIENCE: Duration = Duration::from_secs(3);

/// Sends one echo request with so many octets of data; an error if nothing answers it, or not with the same.
pub fn ping(netns: &Netns, to: IpAddr, sequence: u16, octets: usize) -> Result<()> {
    netns.run(|| {
        let socket = open(to.is_ipv6()).context("opening a raw socket")?;
        let request = request(to.is_ipv6(), sequence, octets);
        socket.send_to(&request, SocketAddr::new(to, 0))?;
        let reply = reply_from(&socket, to, sequence)?;
        ensure!(reply[4..] == request[4..], "{to} answers with something else");
        Ok(())
    })
}

/// Sends one echo request and waits for nothing.
pub fn ping_only(netns: &Netns, to: IpAddr) -> Result<()> {
    netns.run(|| {
        let socket = open(to.is_ipv6()).context("opening a raw socket")?;
        socket.send_to(&request(to.is_ipv6(), 1, 8), SocketAddr::new(to, 0))?;
        Ok(())
    })
}

/// A raw socket with the interface of a UDP one: what is sent to an address, and where from something came.
fn open(v6: bool) -> io::Result<UdpSocket> {
    let (family, protocol) = if v6 {
        (libc::AF_INET6, libc::IPPROTO_ICMPV6)
    } else {
        (libc::AF_INET, libc::IPPROTO_ICMP)
    };
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made the descriptor for us.
    let socket = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

fn identifier() -> [u8; 2] {
    (std::process::id() as u16).to_be_bytes()
}

fn request(v6: bool, sequence: u16, octets: usize) -> Vec<u8> {
    let mut message = vec![if v6 { 128 } else { 8 }, 0, 0, 0];
    message.extend(identifier());
    message.extend(sequence.to_be_bytes());
    message.extend((0..octets).map(|index| index as u8));
    // The kernel fills in ICMPv6's checksum itself (RFC 3542, section 3.1).
    if !v6 {
        let sum = !sum(&[&message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}

/// The ICMP message that answers, its checksum checked (ICMPv6's by the kernel).
fn reply_from(socket: &UdpSocket, from: IpAddr, sequence: u16) -> Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = vec![0; 1 << 16];
    while Instant::now() < deadline {
        let Ok((length, source)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        // An IPv4 socket hands over the IP header, too.
        let start = if from.is_ipv4() {
            usize::from(buffer[0] & 15) * 4
        } else {
            0
        };
        let message = &buffer[start..length];
        let kind = if from.is_ipv6() { 129 } else { 0 };
        let ours = [identifier(), sequence.to_be_bytes()].concat();
        if source.ip() == from && message.len() >= 8 && message[0] == kind && message[4..8] == ours {
            ensure!(
                from.is_ipv6() || sum(&[message]) == 0xffff,
                "the reply's checksum is wrong"
            );
            return Ok(message.to_vec());
        }
    }
    anyhow::bail!("{from} does not answer")
}
