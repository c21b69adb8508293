//! A file of JSON or TOML, followed by inotify (inotify(7)).
//!
//! Watched are the directories of the file and of what its links lead to, not the file itself: a rename over it and a
//! changed link (Kubernetes mounts ConfigMaps behind a `..data` link that it swaps) are events of directories. What a
//! rename puts in place is whole and counts at once; a text that was written in place counts [`CLOSED`] after its writer
//! closed it, or when nothing was written for [`OPEN`]. The file is also read every [`RECHECK`], for file systems whose
//! changes come from elsewhere.

mod watcher;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    ffi::OsString,
    fs,
    io::{self, Read},
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, timeout, timeout_at};

use self::watcher::{Change, Watch};
use super::listing::Listing;
use crate::discovery::{Sink, Source, SourceError, Update};

/// A shell that writes a file by several commands opens it again soon after it closed it.
const CLOSED: Duration = Duration::from_millis(10);
/// After a removal, or a link that was made.
const SETTLE: Duration = Duration::from_millis(50);
const OPEN: Duration = Duration::from_secs(2);
/// However often it changes, so long lies between two readings.
const PAUSE: Duration = Duration::from_millis(20);
/// However busy its writers are, the file is read after so long.
const LATEST: Duration = Duration::from_secs(5);
const RECHECK: Duration = Duration::from_secs(10);
/// Links that are followed, as many as the kernel does (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Follows one file.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    told: Told,
}

/// What was said last, not to say it twice.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Text(Vec<u8>),
    Failure(SourceError),
}

impl FileSource {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            told: Told::Nothing,
        }
    }

    fn fails(&self, what: &str, error: &io::Error) -> SourceError {
        SourceError::Unreachable(format!("{}: {what}: {error}", self.path.display()))
    }

    /// Reads the file and says what is new about it.
    async fn look(&mut self, sink: &mut Sink) -> Result<(), SourceError> {
        let path = self.path.clone();
        let most = sink.most();
        let read = tokio::task::spawn_blocking(move || read(&path, Listing::octets(most)))
            .await
            .map_err(|error| SourceError::Unreadable(format!("reading the file ended early: {error}")))?;
        let (text, revision) = match read {
            Ok(read) => read,
            Err(error) => return self.fail(error, sink).await,
        };
        if self.told == Told::Text(digest(&text)) {
            return sink.send(Update::Confirmed).await;
        }
        let parsed = parse(&self.path, &text, most).and_then(|listing| listing.snapshot(Some(revision)));
        match parsed {
            Ok(update) => {
                sink.send(update).await?;
                self.told = Told::Text(digest(&text));
                Ok(())
            }
            Err(error) => self.fail(error, sink).await,
        }
    }

    /// Goes on watching: the next event may well be the repair.
    async fn fail(&mut self, error: SourceError, sink: &mut Sink) -> Result<(), SourceError> {
        let failure = Told::Failure(error.clone());
        if self.told != failure {
            self.told = failure;
            sink.failed(error).await?;
        }
        Ok(())
    }

    /// Watches all directories in which a change can change the file.
    fn watch(&self, watch: &mut Watch) -> Result<(), SourceError> {
        let Way { directories, names } = way(&self.path);
        watch.want(directories, names).map_err(|(directory, error)| {
            self.fails(
                &format!("the directory {} cannot be watched", directory.display()),
                &error,
            )
        })
    }

    fn change(&self, change: Option<Change>) -> Result<Change, SourceError> {
        change.ok_or_else(|| SourceError::Unreachable(format!("{}: inotify has failed", self.path.display())))
    }

    /// Waits until nobody writes any more, and at least until `earliest`.
    async fn settle(&self, first: Change, earliest: Instant, watch: &mut Watch) -> Result<(), SourceError> {
        let latest = Instant::now() + LATEST;
        let mut change = first;
        loop {
            let due = (Instant::now() + quiet(change)).max(earliest).min(latest);
            match timeout_at(due, watch.next()).await {
                Err(_) => return Ok(()),
                Ok(next) => change = change.then(self.change(next)?),
            }
        }
    }
}

/// How long nothing may happen after a change before the file is read.
const fn quiet(change: Change) -> Duration {
    match change {
        Change::Placed => Duration::ZERO,
        Change::Closed => CLOSED,
        Change::Touched => SETTLE,
        Change::Writing => OPEN,
    }
}

impl Source for FileSource {
    fn describe(&self) -> String {
        format!("file {}", self.path.display())
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let mut watch = Watch::new().map_err(|error| self.fails("inotify is not available", &error))?;
        // After a failure everything is said again.
        self.told = Told::Nothing;
        loop {
            // Watched first, so that no change falls between looking and watching.
            self.watch(&mut watch)?;
            self.look(sink).await?;
            let looked = Instant::now();
            let change = match timeout(RECHECK, watch.next()).await {
                Err(_) => continue,
                Ok(change) => self.change(change)?,
            };
            self.settle(change, looked + PAUSE, &mut watch).await?;
        }
    }
}

/// What a change of which can change what a path leads to.
struct Way {
    directories: Vec<PathBuf>,
    /// Of the file and of all links on the way to it.
    names: BTreeSet<OsString>,
}

/// The directory of a file and those of all links on the way to it, with the names in them that count.
fn way(path: &Path) -> Way {
    let mut directories = Vec::new();
    let mut names: BTreeSet<OsString> = path.file_name().map(OsString::from).into_iter().collect();
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&at) else { break };
        names.extend(target.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            _ => None,
        }));
        at = parent(&at).join(target);
        directories.push(parent(&at));
    }
    // Links among the directories themselves.
    if let Ok(real) = path.canonicalize() {
        directories.push(parent(&real));
        names.extend(real.file_name().map(OsString::from));
    }
    // A link to nowhere is mended by an event of the directory it is in.
    directories.retain(|directory| directory.is_dir());
    directories.push(parent(path));
    Way { directories, names }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The text and, for people, when it was written.
fn read(path: &Path, most: usize) -> Result<(Vec<u8>, String), SourceError> {
    let fails = |error: io::Error| SourceError::Unreachable(format!("{}: {error}", path.display()));
    let metadata = fs::metadata(path).map_err(fails)?;
    if !metadata.is_file() {
        return Err(SourceError::Unreadable(format!(
            "{} is no regular file",
            path.display()
        )));
    }
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(fails)?;
    file.take(most as u64 + 1).read_to_end(&mut text).map_err(fails)?;
    if text.len() > most {
        return Err(SourceError::Unreadable(format!(
            "{} has more than the {most} octets that max_endpoints allows for",
            path.display()
        )));
    }
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Ok((
        text,
        format!("written {}", humantime::format_rfc3339_millis(modified)),
    ))
}

/// Reads the text of a file as its name's ending says.
pub fn parse(path: &Path, text: &[u8], most: u32) -> Result<Listing, SourceError> {
    let unreadable =
        |why: &dyn std::fmt::Display| SourceError::Unreadable(format!("{}: {why}", path.display()));
    let text = str::from_utf8(text).map_err(|error| unreadable(&error))?;
    // An empty file is TOML without endpoints by the letter, but far more likely one that is being written.
    if text.trim().is_empty() {
        return Err(unreadable(&"the file is empty"));
    }
    let mut listing = Listing::new(most);
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("json") => {
            let mut json = serde_json::Deserializer::from_str(text);
            listing
                .read(&mut json)
                .and_then(|()| json.end())
                .map_err(|error| unreadable(&error))?;
        }
        Some("toml") => toml::Deserializer::parse(text)
            .and_then(|toml| listing.read(toml))
            .map_err(|error| unreadable(&error.to_string().trim_end()))?,
        _ => return Err(unreadable(&"the name ends neither in .json nor in .toml")),
    }
    Ok(listing)
}

fn digest(text: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    sha2::Sha256::digest(text).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str, text: &str) -> Result<usize, SourceError> {
        match parse(Path::new(path), text.as_bytes(), 9)?.snapshot(None)? {
            Update::Snapshot { endpoints, .. } => Ok(endpoints.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_ending_says_how_to_read() {
        let json = r#"{"endpoints": [{"address": "192.0.2.1"}]}"#;
        let toml = "[[endpoints]]\naddress = \"192.0.2.1\"\n";
        assert_eq!(names("a.json", json), Ok(1));
        assert_eq!(names("a.toml", toml), Ok(1));
        assert_eq!(names("a.toml", "endpoints = []"), Ok(0));
        for (path, text) in [("a.json", toml), ("a.toml", json), ("a", json), ("a.yaml", json)] {
            let error = names(path, text).unwrap_err();
            assert!(
                matches!(&error, SourceError::Unreadable(said) if said.starts_with(path)),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_without_text_is_no_state() {
        for path in ["a.json", "a.toml"] {
            for text in ["", "\n", "# nothing yet"] {
                assert!(names(path, text).is_err(), "{path} {text:?}");
            }
        }
    }

    #[test]
    fn all_directories_on_the_way_are_watched() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for directory in ["mount", "mount/..one", "elsewhere"] {
            fs::create_dir(at(directory)).unwrap();
        }
        fs::write(at("mount/..one/a.json"), "[]").unwrap();
        std::os::unix::fs::symlink("..one", at("mount/..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.json", at("mount/a.json")).unwrap();
        std::os::unix::fs::symlink("../mount/a.json", at("elsewhere/a.json")).unwrap();
        let Way { directories, names } = way(&at("elsewhere/a.json"));
        let real: Vec<_> = directories
            .iter()
            .map(|directory| directory.canonicalize().unwrap())
            .collect();
        for directory in ["elsewhere", "mount", "mount/..one"] {
            assert!(
                real.contains(&at(directory).canonicalize().unwrap()),
                "{directory}: {real:?}"
            );
        }
        for name in ["a.json", "..data"] {
            assert!(names.contains(std::ffi::OsStr::new(name)), "{name}: {names:?}");
        }
    }
}
