//! The pin directory on bpffs: its layout, its file system, and the lock that keeps a second daemon out.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock, major, minor, statfs},
    io::Errno,
};

/// Where program, links and maps are pinned unless the configuration says otherwise.
pub const DEFAULT_PIN_DIRECTORY: &str = "/sys/fs/bpf/evenkeel";

/// `BPF_FS_MAGIC` (include/uapi/linux/magic.h).
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// Why a pin directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    #[error(
        "{} is not on a BPF file system; mount one with `mount -t bpf bpf /sys/fs/bpf`, \
         or set `pin_directory` to a place on one",
        path.display()
    )]
    NotBpf { path: PathBuf },
    #[error("cannot look at the file system of {}", path.display())]
    FileSystem { path: PathBuf, source: io::Error },
    #[error("cannot create the pin directory {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error(
        "another evenkeel{} uses {}; stop it first, or give this one a `pin_directory` of its own",
        holder.map_or_else(String::new, |pid| format!(" (process {pid})")),
        path.display()
    )]
    InUse { path: PathBuf, holder: Option<u32> },
    #[error("cannot lock {}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot move the pin {} to {}", from.display(), path.display())]
    Move {
        from: PathBuf,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot remove the pin {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
}

/// A pin directory and the names in it.
#[derive(Clone, Debug)]
pub struct Pins {
    directory: PathBuf,
}

impl Pins {
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn map(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn program(&self) -> PathBuf {
        self.directory.join("program")
    }

    /// Where a program is pinned before it takes the place of [`program`](Self::program).
    pub fn next_program(&self) -> PathBuf {
        self.directory.join("program_next")
    }

    pub fn links(&self) -> PathBuf {
        self.directory.join("links")
    }

    pub fn link(&self, interface: &str) -> PathBuf {
        self.links().join(pin_name(interface))
    }

    /// Interfaces that have a pinned link, in order.
    pub fn linked_interfaces(&self) -> Result<Vec<String>, PinError> {
        let path = self.links();
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(PinError::Read { path, source }),
        };
        let mut names = entries
            .map(|entry| Ok(interface_name(&entry?.file_name().to_string_lossy())))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| PinError::Read { path, source })?;
        names.sort();
        Ok(names)
    }

    /// Checks the file system and makes the directories.
    pub fn create(&self) -> Result<(), PinError> {
        check_bpf_file_system(&self.directory)?;
        let path = self.links();
        fs::create_dir_all(&path).map_err(|source| PinError::Create { path, source })
    }

    /// Keeps every other process out until the answer is dropped; the kernel drops it with the process.
    pub fn lock(&self) -> Result<Lock, PinError> {
        let path = &self.directory;
        let failed = |source: io::Error| PinError::Lock {
            path: path.clone(),
            source,
        };
        loop {
            let directory = File::open(path).map_err(failed)?;
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(PinError::InUse {
                        path: path.clone(),
                        holder: holder(&directory),
                    });
                }
                Err(error) => return Err(failed(error.into())),
            }
            let locked = directory.metadata().map_err(failed)?;
            // A `detach` may have removed the directory between opening and locking.
            if fs::metadata(path).is_ok_and(|now| now.ino() == locked.ino()) {
                return Ok(Lock {
                    _directory: directory,
                });
            }
            self.create()?;
        }
    }
}

/// The lock on a pin directory.
#[derive(Debug)]
pub struct Lock {
    _directory: File,
}

/// bpffs refuses dots in names; interface names have no colons (`dev_valid_name`), so one stands for a dot.
pub fn pin_name(interface: &str) -> String {
    interface.replace('.', ":")
}

fn interface_name(pin: &str) -> String {
    pin.replace(':', ".")
}

/// Whether a path, or what of it exists already, is on bpffs.
pub fn check_bpf_file_system(path: &Path) -> Result<(), PinError> {
    let existing = path
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"));
    let info = statfs(existing).map_err(|error| PinError::FileSystem {
        path: existing.to_owned(),
        source: error.into(),
    })?;
    if info.f_type as u32 == BPF_FS_MAGIC {
        Ok(())
    } else {
        Err(PinError::NotBpf {
            path: path.to_owned(),
        })
    }
}

/// The process that holds the lock, from `/proc/locks` (hidden by some sandboxes).
fn holder(directory: &File) -> Option<u32> {
    let metadata = directory.metadata().ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    holder_in(&locks, &file)
}

fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields.contains(&file) && !fields.contains(&"->"))
        .and_then(|fields| fields.get(4)?.parse().ok())
        .filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_of_vlan_interfaces_have_no_dots() {
        assert_eq!(pin_name("eth0.100"), "eth0:100");
        assert_eq!(interface_name("eth0:100"), "eth0.100");
    }

    #[test]
    fn a_path_beside_bpffs_is_refused_with_the_mount_command() {
        let error = check_bpf_file_system(Path::new("/proc/self/none")).unwrap_err();
        assert!(error.to_string().contains("mount -t bpf bpf /sys/fs/bpf"));
    }

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: FLOCK  ADVISORY  WRITE 8532 00:27:12440 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 9000 00:27:12441 0 EOF\n";
        assert_eq!(holder_in(locks, "00:27:12440"), Some(8532));
        assert_eq!(holder_in(locks, "00:27:12441"), None);
    }
}
