//! Who is at the other end of the Unix socket, and whether they may ask.

use std::{fs, io, os::fd::AsRawFd};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use tokio::net::{UnixListener, UnixStream};

/// The process that connected, as the kernel vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub pid: Option<i32>,
    /// Primary group first.
    pub groups: Vec<u32>,
    /// Why the kernel did not answer, when it did not: such a peer is nobody.
    pub unknown: Option<String>,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Members may read and write, as root may.
    pub group: Option<u32>,
}

/// A group's name that means nothing here.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    #[error("cannot read /etc/group")]
    Read(#[source] io::Error),
    #[error("there is no group {0:?}; create it with `groupadd {0}` or name another one")]
    Unknown(String),
}

impl Allowed {
    /// Whether `peer` may use the interface.
    pub fn admits(&self, peer: &Peer) -> bool {
        peer.unknown.is_none()
            && (peer.uid == 0 || self.group.is_some_and(|group| peer.groups.contains(&group)))
    }
}

impl Peer {
    /// Asks the kernel about the peer of a connected socket.
    pub fn of(stream: &UnixStream) -> Self {
        Self::ask(stream).unwrap_or_else(|error| Self {
            uid: u32::MAX,
            pid: None,
            groups: Vec::new(),
            unknown: Some(error.to_string()),
        })
    }

    fn ask(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let mut groups = vec![credentials.gid()];
        groups.extend(supplementary_groups(stream)?);
        Ok(Self {
            uid: credentials.uid(),
            pid: credentials.pid(),
            groups,
            unknown: None,
        })
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self::of(stream.io())
    }
}

/// `SO_PEERGROUPS` (Linux 4.13).
fn supplementary_groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    // The most groups a process may have: NGROUPS_MAX.
    let mut groups = vec![0u32; 65_536];
    let mut length = (groups.len() * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: the pointer and the length describe the vector's own memory, and the descriptor is open
    // for as long as the stream is borrowed.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(length as usize / size_of::<u32>());
    Ok(groups)
}

/// The id of a group given by name or by number.
pub fn group_id(name: &str) -> Result<u32, GroupError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let table = fs::read_to_string("/etc/group").map_err(GroupError::Read)?;
    group_in(&table, name).ok_or_else(|| GroupError::Unknown(name.to_owned()))
}

/// group(5): `name:password:id:members`.
fn group_in(table: &str, name: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name))
            .then(|| fields.nth(1)?.parse().ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_group_are_admitted() {
        let peer = |uid, groups: &[u32]| Peer {
            uid,
            pid: None,
            groups: groups.to_vec(),
            unknown: None,
        };
        let allowed = Allowed { group: Some(40) };
        assert!(allowed.admits(&peer(0, &[0])));
        assert!(allowed.admits(&peer(1000, &[1000, 40])));
        assert!(!allowed.admits(&peer(1000, &[1000])));
        assert!(!Allowed::default().admits(&peer(1000, &[1000, 40])));
        let unknown = Peer {
            unknown: Some("no answer".into()),
            ..peer(0, &[0])
        };
        assert!(!allowed.admits(&unknown));
    }

    #[test]
    fn groups_are_found_by_name() {
        let table = "root:x:0:\nevenkeel-ops:x:991:alice\nevenkeel:x:990:alice,bob\n";
        assert_eq!(group_in(table, "evenkeel"), Some(990));
        assert_eq!(group_in(table, "even"), None);
    }

    #[tokio::test]
    async fn the_kernel_tells_who_we_are() {
        let (left, _right) = UnixStream::pair().unwrap();
        let peer = Peer::of(&left);
        assert_eq!(peer.unknown, None);
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        assert!(peer.groups.contains(&rustix::process::getgid().as_raw()));
    }
}
