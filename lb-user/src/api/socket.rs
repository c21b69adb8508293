//! Binding the Unix socket: directories made, a dead daemon's socket replaced, a living one's respected.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

/// Why the socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("cannot create the directory {0}")]
    Directory(PathBuf, #[source] io::Error),
    #[error("{0} is in use by another daemon; stop that one, or give this one its own `socket`")]
    InUse(PathBuf),
    #[error("{0} exists and is not a socket; remove it, or give another path as `socket`")]
    NotASocket(PathBuf),
    #[error("cannot replace the stale socket {0}")]
    Replace(PathBuf, #[source] io::Error),
    #[error("cannot listen on {0}")]
    Bind(PathBuf, #[source] io::Error),
    #[error("cannot set mode and group of {0}")]
    Permissions(PathBuf, #[source] io::Error),
}

/// A listening socket whose file goes when the value does.
#[derive(Debug)]
pub struct Bound {
    pub listener: UnixListener,
    pub file: SocketFile,
}

/// Removes the socket's file on drop.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The next daemon replaces a stale file anyway.
        let _ = fs::remove_file(&self.0);
    }
}

/// Listens on `path`, mode 0660, owned by `group` when there is one.
pub fn bind(path: &Path, group: Option<u32>) -> Result<Bound, SocketError> {
    let named = || path.to_path_buf();
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .map_err(|error| SocketError::Directory(directory.to_path_buf(), error))?;
    }
    remove_stale(path)?;
    // Connecting needs write permission: nobody gets in between bind and chmod.
    let old_mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(old_mask);
    let listener = listener.map_err(|error| SocketError::Bind(named(), error))?;
    let file = SocketFile(named());
    std::os::unix::fs::chown(path, None, group)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o660)))
        .map_err(|error| SocketError::Permissions(named(), error))?;
    Ok(Bound { listener, file })
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_path_buf()));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| SocketError::Replace(path.to_path_buf(), error))
        }
        _ => Err(SocketError::InUse(path.to_path_buf())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/evenkeel/api.sock");
        let first = bind(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(bind(&path, None), Err(SocketError::InUse(_))));
        let Bound { listener, file } = first;
        drop(listener);
        std::mem::forget(file);
        assert!(path.exists());
        drop(bind(&path, None).unwrap());
        assert!(!path.exists());
        fs::write(&path, "").unwrap();
        assert!(matches!(bind(&path, None), Err(SocketError::NotASocket(_))));
    }
}
