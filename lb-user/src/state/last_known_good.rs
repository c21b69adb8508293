//! What must survive a restart, kept on disk: never half written, never believed when damaged.

use std::{
    fs::{self, File},
    io::{self, Write},
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::overlay::Overlay;
use crate::discovery::registry::SavedSources;

/// First word of the file's first line.
const MAGIC: &str = "evenkeel-state";
/// Moves when older versions could not understand the file.
const VERSION: u32 = 1;

/// One state in a directory; its file is named like what it holds.
#[derive(Debug)]
pub struct Store<T> {
    directory: PathBuf,
    holds: PhantomData<fn(T) -> T>,
}

/// Something that is kept.
pub trait Kept: Serialize + DeserializeOwned {
    /// Name of its file.
    const NAME: &str;
}

/// What the command line changed.
impl Kept for Overlay {
    const NAME: &str = "overlay";
}

/// What is believed of a service's sources.
impl Kept for SavedSources {
    const NAME: &str = "sources";
}

/// Whether a state is on the medium when the call returns. A killed daemon loses nothing either way, a host that loses
/// power may lose what was to come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    Now,
    /// With the next sync of the file system.
    Later,
}

/// What was found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<T> {
    /// `None` if there is nothing that can be trusted.
    pub state: Option<T>,
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
struct Body<T> {
    saved_at: u64,
    #[serde(alias = "overlay")]
    state: T,
}

impl<T: Kept> Store<T> {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            holds: PhantomData,
        }
    }

    fn current(&self) -> PathBuf {
        self.directory.join(T::NAME)
    }

    fn with(&self, ending: &str) -> PathBuf {
        self.directory.join(format!("{}.{ending}", T::NAME))
    }

    /// Replaces the state; what was there becomes the previous one. After a crash at any point one of them is whole.
    pub fn save(&self, state: &T, saved_at: u64, durable: Durable) -> Result<(), StoreError> {
        self.replace(state, saved_at, durable)
            .map_err(|source| StoreError::Write {
                path: self.current(),
                source,
            })
    }

    /// Puts on the medium what [`Durable::Later`] left to the file system.
    pub fn flush(&self) -> Result<(), StoreError> {
        let path = self.current();
        File::open(&path)
            .and_then(|file| file.sync_all())
            .and_then(|()| sync(&self.directory))
            .map_err(|source| StoreError::Write { path, source })
    }

    /// Undoes the last [`save`](Self::save) when what it was about could not be done: the previous state is the state
    /// again. Needs no room on the disk.
    pub fn take_back(&self) -> Result<(), StoreError> {
        fs::rename(self.with(PREVIOUS), self.current())
            .and_then(|()| sync(&self.directory))
            .map_err(|source| StoreError::Write {
                path: self.current(),
                source,
            })
    }

    /// The newest state that is whole. Damaged files, and those of another version, are renamed, with a note.
    pub fn load(&self) -> Result<Loaded<T>, StoreError> {
        let mut notes = Vec::new();
        for path in [self.current(), self.with(PREVIOUS)] {
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(StoreError::Read { path, source }),
            };
            match decode::<T>(&bytes) {
                Ok(body) => {
                    if path != self.current() {
                        notes.push(format!(
                            "the state before the last change is used: {}",
                            path.display()
                        ));
                    }
                    return Ok(Loaded {
                        state: Some(body.state),
                        saved_at: Some(body.saved_at),
                        notes,
                    });
                }
                Err(reason) => notes.push(self.set_aside(&path, &reason)?),
            }
        }
        Ok(Loaded {
            state: None,
            saved_at: None,
            notes,
        })
    }

    fn replace(&self, state: &T, saved_at: u64, durable: Durable) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let (current, new, previous) = (self.current(), self.with("new"), self.with(PREVIOUS));
        let mut file = File::create(&new)?;
        file.write_all(&encode(&Body { saved_at, state })?)?;
        if durable == Durable::Now {
            file.sync_all()?;
        }
        if current.exists() {
            // A second link, so that there is a current state at every moment.
            let link = self.with("link");
            match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::hard_link(&current, &link)?,
            }
            fs::rename(&link, &previous)?;
        }
        fs::rename(&new, &current)?;
        if durable == Durable::Later {
            return Ok(());
        }
        sync(&self.directory).inspect_err(|_| {
            // A save that failed must not turn out to have worked at the next start.
            let _ = fs::rename(&previous, &current);
        })
    }

    fn set_aside(&self, path: &Path, reason: &str) -> Result<String, StoreError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let target = (1..u32::MAX)
            .map(|number| self.directory.join(format!("{name}.corrupt-{number}")))
            .find(|target| !target.exists())
            .unwrap_or_else(|| self.with("corrupt"));
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

/// Ending of the state before.
const PREVIOUS: &str = "previous";

/// Names are as safe as contents.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn encode<T: Serialize>(body: &Body<T>) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec_pretty(body)?;
    let mut bytes = format!("{MAGIC} {VERSION} {}\n", digest(&json)).into_bytes();
    bytes.extend(json);
    Ok(bytes)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Body<T>, String> {
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

    fn store() -> (tempfile::TempDir, Store<Overlay>) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("deep/state"));
        (directory, store)
    }

    fn damage(store: &Store<Overlay>, how: impl FnOnce(&mut Vec<u8>)) {
        let path = store.current();
        let mut bytes = fs::read(&path).unwrap();
        how(&mut bytes);
        fs::write(path, bytes).unwrap();
    }

    /// After damage to the newest state the previous one is used, and the damaged one is kept under another name.
    fn previous_is_used_after(how: impl FnOnce(&mut Vec<u8>), reason: &str) {
        let (_guard, store) = store();
        store.save(&overlay(1), 100, Durable::Now).unwrap();
        store.save(&overlay(2), 200, Durable::Now).unwrap();
        damage(&store, how);
        let loaded = store.load().unwrap();
        assert_eq!(loaded.state, Some(overlay(1)));
        assert_eq!(loaded.saved_at, Some(100));
        assert!(loaded.notes[0].contains(reason), "{:?}", loaded.notes);
        assert!(store.directory.join("overlay.corrupt-1").exists());
        assert!(!store.current().exists());
    }

    #[test]
    fn nothing_saved_is_nothing_loaded() {
        let (_guard, store) = store();
        assert_eq!(
            store.load().unwrap(),
            Loaded {
                state: None,
                saved_at: None,
                notes: vec![]
            }
        );
    }

    #[test]
    fn the_last_save_is_loaded() {
        let (_guard, store) = store();
        for changes in 1..4 {
            store.save(&overlay(changes), 10 * changes, Durable::Now).unwrap();
            let expected = Loaded {
                state: Some(overlay(changes)),
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
        assert_eq!(names, ["overlay", "overlay.previous"]);
    }

    #[test]
    fn a_save_that_is_taken_back_never_was() {
        let (_guard, store) = store();
        store.save(&overlay(1), 100, Durable::Now).unwrap();
        store.save(&overlay(2), 200, Durable::Now).unwrap();
        store.take_back().unwrap();
        let loaded = store.load().unwrap();
        assert_eq!((loaded.state, loaded.saved_at), (Some(overlay(1)), Some(100)));
        assert_eq!(loaded.notes, Vec::<String>::new());
        let error = store.take_back().unwrap_err();
        assert!(error.to_string().contains("state.directory"), "{error}");
        store.save(&overlay(3), 300, Durable::Now).unwrap();
        assert_eq!(store.load().unwrap().state, Some(overlay(3)));
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
            state: overlay(1),
        })
        .unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode::<Overlay>(&bytes).is_err(), "bit {bit}");
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
        store.save(&overlay(1), 100, Durable::Now).unwrap();
        store.save(&overlay(2), 200, Durable::Now).unwrap();
        damage(&store, |bytes| bytes.truncate(99));
        fs::write(store.with(PREVIOUS), "garbage\n").unwrap();
        let loaded = store.load().unwrap();
        assert_eq!((loaded.state, loaded.notes.len()), (None, 2));
        store.save(&overlay(3), 300, Durable::Now).unwrap();
        assert_eq!(store.load().unwrap().state, Some(overlay(3)));
    }

    #[test]
    fn a_missing_newest_state_falls_back_to_the_previous() {
        let (_guard, store) = store();
        store.save(&overlay(1), 100, Durable::Now).unwrap();
        store.save(&overlay(2), 200, Durable::Now).unwrap();
        fs::remove_file(store.current()).unwrap();
        let loaded = store.load().unwrap();
        assert_eq!((loaded.state, loaded.notes.len()), (Some(overlay(1)), 1));
    }

    #[test]
    fn an_impossible_directory_is_an_error_that_names_it() {
        let (guard, _) = store();
        let blocked = guard.path().join("file");
        fs::write(&blocked, "").unwrap();
        let store = Store::<Overlay>::new(blocked.join("state"));
        let error = store.save(&overlay(1), 1, Durable::Now).unwrap_err();
        assert!(error.to_string().contains("file/state"), "{error}");
        assert!(matches!(store.load(), Err(StoreError::Read { .. })));
    }
}
