//! Takes away what a killed test left behind: namespaces, pins and directories of processes that are no more.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
};

/// Where the kernel's BPF file system is.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Sweeps once in the life of this process.
pub fn once() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        for path in stale(Path::new("/run/netns")) {
            if let Some(name) = path.file_name() {
                let _ = Command::new("ip").args(["netns", "del"]).arg(name).output();
            }
        }
        for path in stale(Path::new(BPFFS))
            .into_iter()
            .chain(stale(&std::env::temp_dir()))
        {
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    });
}

fn stale(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| owner(path).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
        .collect()
}

/// The process id in `ek-<pid>-…`, or in the pin of `evenkeel decap` on an interface of such a name.
fn owner(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_prefix("evenkeel-decap-").unwrap_or(name);
    name.strip_prefix("ek-")?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_read_from_the_name() {
        assert_eq!(owner(Path::new("/run/netns/ek-123-0-client")), Some(123));
        assert_eq!(owner(Path::new("/sys/fs/bpf/evenkeel-decap-ek-123-4")), Some(123));
        assert_eq!(owner(Path::new("/run/netns/other")), None);
        assert_eq!(owner(Path::new("/tmp/ek-notes")), None);
    }
}
