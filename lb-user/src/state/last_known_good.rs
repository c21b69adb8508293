//! What the command line changed, kept on disk: never half written, never believed when damaged.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::overlay::Overlay;

/// First word of the file's first line.
const MAGIC: &str = "evenkeel-state";
/// Moves when older versions could not understand the file.
const VERSION: u32 = 1;
const NAME: &str = "overlay";
const PREVIOUS: &str = "overlay.previous";

/// The state directory.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

/// What was found on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// `None` if there is nothing that can be trusted.
    pub overlay: Option<Overlay>,
    /// When it was written, Unix seconds.
    pub saved_at: Option<u64>,
    /// What was set aside, and why.
    pub notes: Vec<String>,
}

/// Why the state could not be kept or looked for.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot write the state to {}; make the directory writable or set state.directory", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the state from {}; check state.directory and its permissions", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot set the damaged state {} aside; move it away by hand", path.display())]
    SetAside {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The file's second line and the rest: JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    saved_at: u64,
    overlay: Overlay,
}

impl Store {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Replaces the state; what was there becomes the previous one. After a crash at any point one of them is whole.
    pub fn save(&self, overlay: &Overlay, saved_at: u64) -> Result<(), StoreError> {
        let current = self.directory.join(NAME);
        self.replace(&current, overlay, saved_at)
            .map_err(|source| StoreError::Write {
                path: current,
                source,
            })
    }

    /// Undoes the last [`save`](Self::save) when what it was about could not be done: the previous state is the state
    /// again. Needs no room on the disk.
    pub fn take_back(&self) -> Result<(), StoreError> {
        let current = self.directory.join(NAME);
        fs::rename(self.directory.join(PREVIOUS), &current)
            .and_then(|()| sync(&self.directory))
            .map_err(|source| StoreError::Write {
                path: current,
                source,
            })
    }

    /// The newest state that is whole. Damaged files, and those of another version, are renamed, with a note.
    pub fn load(&self) -> Result<Loaded, StoreError> {
        let mut notes = Vec::new();
        for name in [NAME, PREVIOUS] {
            let path = self.directory.join(name);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(StoreError::Read { path, source }),
            };
            match decode(&bytes) {
                Ok(body) => {
                    if name == PREVIOUS {
                        notes.push(format!(
                            "the state before the last change is used: {}",
                            path.display()
                        ));
                    }
                    return Ok(Loaded {
                        overlay: Some(body.overlay),
                        saved_at: Some(body.saved_at),
                        notes,
                    });
                }
                Err(reason) => notes.push(self.set_aside(&path, &reason)?),
            }
        }
        Ok(Loaded {
            notes,
            ..Loaded::default()
        })
    }

    fn replace(&self, current: &Path, overlay: &Overlay, saved_at: u64) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let new = self.directory.join("overlay.new");
        let mut file = File::create(&new)?;
        file.write_all(&encode(&Body {
            saved_at,
            overlay: overlay.clone(),
        })?)?;
        file.sync_all()?;
        if current.exists() {
            // A second link, so that there is a current state at every moment.
            let link = self.directory.join("overlay.link");
            match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::hard_link(current, &link)?,
            }
            fs::rename(&link, self.directory.join(PREVIOUS))?;
        }
        fs::rename(&new, current)?;
        sync(&self.directory).inspect_err(|_| {
            // A save that failed must not turn out to have worked at the next start.
            let _ = fs::rename(self.directory.join(PREVIOUS), current);
        })
    }

    fn set_aside(&self, path: &Path, reason: &str) -> Result<String, StoreError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let target = (1..u32::MAX)
            .map(|number| self.directory.join(format!("{name}.corrupt-{number}")))
            .find(|target| !target.exists())
            .unwrap_or_else(|| self.directory.join("overlay.corrupt"));
        fs::rename(path, &target).map_err(|source| StoreError::SetAside {
            path: path.to_owned(),
            source,
        })?;
        Ok(format!(
            "the state {} is not used: {reason}; it was renamed to {}",
            path.display(),
            target.display()
        ))
    }
}

/// Names are as safe as contents.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn encode(body: &Body) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec_pretty(body)?;
    let mut bytes = format!("{MAGIC} {VERSION} {}\n", digest(&json)).into_bytes();
    bytes.extend(json);
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<Body, String> {
    let (header, json) = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .map(|end| (&bytes[..end], &bytes[end + 1..]))
        .ok_or("it has no header")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    let [magic, version, sum] = header.split(' ').collect::<Vec<_>>()[..] else {
        return Err("its header has not three words".to_owned());
    };
    if magic != MAGIC {
        return Err(format!("it does not start with {MAGIC}"));
    }
    if version != VERSION.to_string() {
        return Err(format!(
            "it has format {version}, this version of Evenkeel reads format {VERSION}"
        ));
    }
    if digest(json) != sum {
        return Err("its checksum is wrong".to_owned());
    }
    serde_json::from_slice(json).map_err(|error| format!("it cannot be understood ({error})"))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ServiceSpec, parse_services};

    fn services() -> Vec<ServiceSpec> {
        let text = "[[service]]\nname = \"web\"\nvip = \"192.0.2.10\"\nport = 443\nprotocol = \"tcp\"\n";
        parse_services(text, "test").unwrap()
    }

    fn overlay(changes: u64) -> Overlay {
        let mut overlay = Overlay::default();
        (0..changes).for_each(|_| overlay.apply_file(&[], services()).unwrap());
        overlay
    }

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("deep/state"));
        (directory, store)
    }

    fn damage(store: &Store, how: impl FnOnce(&mut Vec<u8>)) {
        let path = store.directory.join(NAME);
        let mut bytes = fs::read(&path).unwrap();
        how(&mut bytes);
        fs::write(path, bytes).unwrap();
    }

    /// After damage to the newest state the previous one is used, and the damaged one is kept under another name.
    fn previous_is_used_after(how: impl FnOnce(&mut Vec<u8>), reason: &str) {
        let (_guard, store) = store();
        store.save(&overlay(1), 100).unwrap();
        store.save(&overlay(2), 200).unwrap();
        damage(&store, how);
        let loaded = store.load().unwrap();
        assert_eq!(loaded.overlay, Some(overlay(1)));
        assert_eq!(loaded.saved_at, Some(100));
        assert!(loaded.notes[0].contains(reason), "{:?}", loaded.notes);
        assert!(store.directory.join("overlay.corrupt-1").exists());
        assert!(!store.directory.join(NAME).exists());
    }

    #[test]
    fn nothing_saved_is_nothing_loaded() {
        let (_guard, store) = store();
        assert_eq!(store.load().unwrap(), Loaded::default());
    }

    #[test]
    fn the_last_save_is_loaded() {
        let (_guard, store) = store();
        for changes in 1..4 {
            store.save(&overlay(changes), 10 * changes).unwrap();
            let expected = Loaded {
                overlay: Some(overlay(changes)),
                saved_at: Some(10 * changes),
                notes: vec![],
            };
            assert_eq!(store.load().unwrap(), expected);
        }
        let mut names: Vec<_> = fs::read_dir(&store.directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, [NAME, PREVIOUS]);
    }

    #[test]
    fn a_save_that_is_taken_back_never_was() {
        let (_guard, store) = store();
        store.save(&overlay(1), 100).unwrap();
        store.save(&overlay(2), 200).unwrap();
        store.take_back().unwrap();
        let loaded = store.load().unwrap();
        assert_eq!((loaded.overlay, loaded.saved_at), (Some(overlay(1)), Some(100)));
        assert_eq!(loaded.notes, Vec::<String>::new());
        let error = store.take_back().unwrap_err();
        assert!(error.to_string().contains("state.directory"), "{error}");
        store.save(&overlay(3), 300).unwrap();
        assert_eq!(store.load().unwrap().overlay, Some(overlay(3)));
    }

    #[test]
    fn a_truncated_state_is_set_aside() {
        previous_is_used_after(|bytes| bytes.truncate(bytes.len() - 7), "checksum");
        previous_is_used_after(|bytes| bytes.truncate(20), "no header");
        previous_is_used_after(Vec::clear, "no header");
    }

    #[test]
    fn a_flipped_bit_is_noticed_wherever_it_is() {
        let whole = encode(&Body {
            saved_at: 1,
            overlay: overlay(1),
        })
        .unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
        }
        previous_is_used_after(|bytes| *bytes.last_mut().unwrap() ^= 1, "checksum");
    }

    #[test]
    fn a_newer_format_is_set_aside() {
        let newer = |bytes: &mut Vec<u8>| bytes[MAGIC.len() + 1] = b'2';
        previous_is_used_after(newer, "format 2");
    }

    #[test]
    fn two_damaged_states_leave_nothing_and_say_so() {
        let (_guard, store) = store();
        store.save(&overlay(1), 100).unwrap();
        store.save(&overlay(2), 200).unwrap();
        damage(&store, |bytes| bytes.truncate(99));
        fs::write(store.directory.join(PREVIOUS), "garbage\n").unwrap();
        let loaded = store.load().unwrap();
        assert_eq!((loaded.overlay, loaded.notes.len()), (None, 2));
        store.save(&overlay(3), 300).unwrap();
        assert_eq!(store.load().unwrap().overlay, Some(overlay(3)));
    }

    #[test]
    fn a_missing_newest_state_falls_back_to_the_previous() {
        let (_guard, store) = store();
        store.save(&overlay(1), 100).unwrap();
        store.save(&overlay(2), 200).unwrap();
        fs::remove_file(store.directory.join(NAME)).unwrap();
        let loaded = store.load().unwrap();
        assert_eq!((loaded.overlay, loaded.notes.len()), (Some(overlay(1)), 1));
    }

    #[test]
    fn an_impossible_directory_is_an_error_that_names_it() {
        let (guard, _) = store();
        let blocked = guard.path().join("file");
        fs::write(&blocked, "").unwrap();
        let store = Store::new(blocked.join("state"));
        let error = store.save(&overlay(1), 1).unwrap_err();
        assert!(error.to_string().contains("file/state"), "{error}");
        assert!(matches!(store.load(), Err(StoreError::Read { .. })));
    }
}
