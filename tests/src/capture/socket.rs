//! An AF_PACKET socket on one interface (packet(7)).

use std::{
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::lab::Netns;

const RECEIVE_BUFFER: libc::c_int = 64 << 20;

/// Sees every frame that an interface receives or sends, and sends frames as they are given.
pub struct RawSocket {
    fd: OwnedFd,
}

/// A frame as it was on the wire.
pub struct Captured {
    pub bytes: Vec<u8>,
    /// Sent by the interface, not received.
    pub outgoing: bool,
}

impl RawSocket {
    /// Opens the interface; frames that arrive from now on are kept for [`receive`](Self::receive).
    pub fn open(netns: &Netns, interface: &str) -> Result<Self> {
        let index = netns.interface(interface)?;
        netns
            .run(|| open(index))
            .with_context(|| format!("opening {interface} in {} for raw frames", netns.name()))
    }

    /// Sends one frame. The error is the kernel's: a frame shorter than an Ethernet header or longer than the
    /// interface's MTU is refused.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the pointer and length are those of `frame`, which outlives the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// The next frame, or `None` when none came within the timeout.
    pub fn receive(&self, timeout: Duration) -> io::Result<Option<Captured>> {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as libc::c_int) };
        match ready {
            0 => Ok(None),
            n if n < 0 => Err(io::Error::last_os_error()),
            _ => receive(self.fd.as_raw_fd()).map(Some),
        }
    }

    /// Frames lost since the last call because the reader was too slow.
    pub fn lost(&self) -> io::Result<u32> {
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut statistics: libc::tpacket_stats = unsafe { zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the buffer is as long as `length` says.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(statistics.tp_drops)
        }
    }
}

fn open(index: u32) -> io::Result<RawSocket> {
    // SAFETY: plain system call; the descriptor is owned right below.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made and nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
    option(&fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: the address is as long as the length says.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(RawSocket { fd })
    }
}

fn option(fd: &OwnedFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value is an int and the length says so.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn receive(fd: i32) -> io::Result<Captured> {
    let mut bytes = vec![0u8; 65_536];
    let mut control = [0u64; 16];
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut from: libc::sockaddr_ll = unsafe { zeroed() };
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: every pointer of the message leads to a buffer of the length beside it.
    let length = unsafe { libc::recvmsg(fd, &raw mut message, 0) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(length as usize);
    if let Some(tag) = stripped_tag(&message) {
        bytes.splice(12..12, tag);
    }
    Ok(Captured {
        bytes,
        outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
    })
}

/// The kernel takes the outer VLAN tag out of a received frame and reports it beside.
fn stripped_tag(message: &libc::msghdr) -> Option<[u8; 4]> {
    const TAG_IS_VALID: u32 = 1 << 4;
    const TPID_IS_VALID: u32 = 1 << 6;
    // SAFETY: the kernel has filled the control buffer of this message.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if header.cmsg_level != libc::SOL_PACKET || header.cmsg_type != libc::PACKET_AUXDATA {
        return None;
    }
    // SAFETY: a control message of this type holds a `tpacket_auxdata`.
    let data = unsafe {
        libc::CMSG_DATA(header)
            .cast::<libc::tpacket_auxdata>()
            .read_unaligned()
    };
    if data.tp_status & TAG_IS_VALID == 0 {
        return None;
    }
    let kind = if data.tp_status & TPID_IS_VALID == 0 {
        0x8100
    } else {
        data.tp_vlan_tpid
    };
    let ([a, b], [c, d]) = (kind.to_be_bytes(), data.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}
