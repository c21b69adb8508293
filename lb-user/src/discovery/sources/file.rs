//! A file of JSON or TOML, followed by inotify (inotify(7)).
//!
//! Watched are the directories of the file and of what its links lead to, not the file itself: a rename over it and a
//! changed link (Kubernetes mounts ConfigMaps behind a `..data` link that it swaps) are events of directories. A text
//! counts when nothing has been written for [`SETTLE`]; while a writer that has begun has not closed the file, when
//! nothing has for [`OPEN`]. The file is also read every [`RECHECK`], for file systems whose changes come from elsewhere.

use std::{
    convert::Infallible,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use tokio::time::{Instant, timeout, timeout_at};

use super::listing::Listing;
use crate::discovery::{Sink, Source, SourceError, Update};

const SETTLE: Duration = Duration::from_millis(50);
const OPEN: Duration = Duration::from_secs(2);
/// However busy the directory is, the file is read after so long.
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

type Events = EventStream<[u8; 4096]>;

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
    fn watch(&self, events: &Events) -> Result<(), SourceError> {
        let mask = WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        for directory in directories(&self.path) {
            // Adding a directory again only sets its mask again.
            events.watches().add(&directory, mask).map_err(|error| {
                self.fails(
                    &format!("the directory {} cannot be watched", directory.display()),
                    &error,
                )
            })?;
        }
        Ok(())
    }
}

impl Source for FileSource {
    fn describe(&self) -> String {
        format!("file {}", self.path.display())
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let inotify = Inotify::init().map_err(|error| self.fails("inotify is not available", &error))?;
        let mut events = inotify
            .into_event_stream([0; 4096])
            .map_err(|error| self.fails("inotify is not available", &error))?;
        // After a failure everything is said again.
        self.told = Told::Nothing;
        loop {
            // Watched first, so that no change falls between looking and watching.
            self.watch(&events)?;
            self.look(sink).await?;
            let event = match timeout(RECHECK, events.next()).await {
                Err(_) => continue,
                Ok(event) => event,
            };
            let first = self.event(event)?;
            self.settle(first, &mut events).await?;
        }
    }
}

impl FileSource {
    /// Waits until nobody writes any more.
    async fn settle(&self, first: EventOwned, events: &mut Events) -> Result<(), SourceError> {
        let latest = Instant::now() + LATEST;
        let mut quiet = self.quiet(&first, SETTLE);
        loop {
            match timeout_at(latest.min(Instant::now() + quiet), events.next()).await {
                Err(_) => return Ok(()),
                Ok(event) => quiet = self.quiet(&self.event(event)?, quiet),
            }
        }
    }

    /// How long nothing may happen after this event before the file is read; `before` is what applied before it.
    fn quiet(&self, event: &EventOwned, before: Duration) -> Duration {
        let target = self.path.canonicalize().ok();
        let names = [Some(self.path.as_path()), target.as_deref()];
        let ours = names
            .iter()
            .flatten()
            .any(|path| path.file_name() == event.name.as_deref());
        match ours {
            true if event.mask.contains(EventMask::MODIFY) => OPEN,
            true => SETTLE,
            false => before,
        }
    }

    fn event(&self, event: Option<io::Result<EventOwned>>) -> Result<EventOwned, SourceError> {
        match event {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.fails("inotify fails", &error)),
            None => Err(SourceError::Unreachable(format!(
                "{}: inotify has ended",
                self.path.display()
            ))),
        }
    }
}

/// The directory of a file and those of all links on the way to it.
fn directories(path: &Path) -> Vec<PathBuf> {
    let mut links = Vec::new();
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&at) else { break };
        at = parent(&at).join(target);
        links.push(parent(&at));
    }
    // Links among the directories themselves.
    if let Ok(real) = path.canonicalize() {
        links.push(parent(&real));
    }
    // A link to nowhere is mended by an event of the directory it is in.
    links.retain(|directory| directory.is_dir());
    links.push(parent(path));
    links
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
        let real: Vec<_> = directories(&at("elsewhere/a.json"))
            .iter()
            .map(|directory| directory.canonicalize().unwrap())
            .collect();
        for directory in ["elsewhere", "mount", "mount/..one"] {
            assert!(
                real.contains(&at(directory).canonicalize().unwrap()),
                "{directory}: {real:?}"
            );
        }
    }
}
