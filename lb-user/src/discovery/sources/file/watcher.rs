//! One inotify instance for all files that are followed: the kernel allows a user 128 of them unless told otherwise.
//!
//! Files of one directory share its watch, and each hears of its own names only, so that a thousand files of a directory
//! do not wake one another.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::{OsStr, OsString},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::watch;

/// Octets of events that are read at once.
const BUFFER: usize = 64 << 10;

/// What happened to a file, as far as an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something about it or its directory.
    Touched,
    /// Somebody writes to it, and will close it.
    Writing,
    /// Somebody who wrote to it closed it.
    Closed,
    /// It, or a link on the way to it, was put in its place by a rename.
    Placed,
}

impl Change {
    fn of(mask: EventMask) -> Self {
        if mask.contains(EventMask::MOVED_TO) {
            Self::Placed
        } else if mask.contains(EventMask::CLOSE_WRITE) {
            Self::Closed
        } else if mask.contains(EventMask::MODIFY) {
            Self::Writing
        } else {
            Self::Touched
        }
    }

    /// What is so after another one: who writes goes on writing until the end of that is told.
    pub fn then(self, next: Self) -> Self {
        match (self, next) {
            (Self::Writing, Self::Touched) => Self::Writing,
            (_, next) => next,
        }
    }
}

/// What one file hears of. Events that come faster than they are taken become one.
pub struct Watch {
    shared: Arc<Shared>,
    number: u64,
    changes: watch::Receiver<Change>,
    /// Watch descriptors of its directories.
    directories: Vec<i32>,
    names: BTreeSet<OsString>,
}

impl Watch {
    /// Hears of nothing yet.
    pub fn new() -> io::Result<Self> {
        let shared = Shared::get()?;
        let (sender, changes) = watch::channel(Change::Touched);
        let number = shared.table().listen(sender);
        Ok(Self {
            shared,
            number,
            changes,
            directories: Vec::new(),
            names: BTreeSet::new(),
        })
    }

    /// From now on hears of these names in these directories, of the directories themselves, and of nothing else.
    ///
    /// # Errors
    /// A directory that cannot be watched, and why.
    pub fn want(
        &mut self,
        directories: Vec<PathBuf>,
        names: BTreeSet<OsString>,
    ) -> Result<(), (PathBuf, io::Error)> {
        let mut table = self.shared.table();
        let before = std::mem::take(&mut self.directories);
        table.forget(self.number, &before, &self.names);
        self.names = names;
        let mut result = Ok(());
        for directory in directories {
            // Adding a directory again only sets its mask again.
            match self.shared.watches.clone().add(&directory, mask()) {
                Ok(watched) => self
                    .directories
                    .push(table.add(watched, self.number, &self.names)),
                Err(error) => {
                    result = Err((directory, error));
                    break;
                }
            }
        }
        self.shared.release(&mut table, &before);
        result
    }

    /// The next change; `None` when inotify has failed. A call that is given up loses nothing.
    pub async fn next(&mut self) -> Option<Change> {
        self.changes.changed().await.ok()?;
        Some(*self.changes.borrow_and_update())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        table.listeners.remove(&self.number);
        table.forget(self.number, &self.directories, &self.names);
        self.shared.release(&mut table, &self.directories);
    }
}

fn mask() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::MODIFY
        | WatchMask::CLOSE_WRITE
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR
}

/// What all watches share.
struct Shared {
    watches: Watches,
    table: Mutex<Table>,
}

/// The instance in use, until it fails.
static INSTANCE: Mutex<Option<Arc<Shared>>> = Mutex::new(None);

impl Shared {
    fn get() -> io::Result<Arc<Self>> {
        let mut instance = INSTANCE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = &*instance {
            return Ok(Arc::clone(shared));
        }
        let inotify = Inotify::init()?;
        let shared = Arc::new(Self {
            watches: inotify.watches(),
            table: Mutex::default(),
        });
        let reader = Arc::clone(&shared);
        thread::Builder::new()
            .name("inotify".to_owned())
            .spawn(move || reader.read(inotify))?;
        Ok(Arc::clone(instance.insert(shared)))
    }

    /// Tells listeners of what happens, for as long as inotify works.
    fn read(&self, mut inotify: Inotify) {
        let mut buffer = vec![0; BUFFER];
        loop {
            match inotify.read_events_blocking(&mut buffer) {
                Ok(events) => {
                    let mut table = self.table();
                    events.for_each(|event| table.tell(&event));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!("inotify fails, files are watched anew: {error}");
                    break;
                }
            }
        }
        // The next one who asks gets another instance; those who listen to this one hear that it has ended.
        INSTANCE.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.table().listeners.clear();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up the watches of those of these directories that nobody wants any more.
    fn release(&self, table: &mut Table, directories: &[i32]) {
        for number in directories {
            let unused = |directory: &Directory| directory.listeners.is_empty();
            if table.directories.get(number).is_some_and(unused)
                && let Some(directory) = table.directories.remove(number)
            {
                // Fails when the directory is gone, and its watch with it.
                let _ = self.watches.clone().remove(directory.watched);
            }
        }
    }
}

#[derive(Default)]
struct Table {
    newest: u64,
    listeners: HashMap<u64, watch::Sender<Change>>,
    /// By watch descriptor.
    directories: HashMap<i32, Directory>,
}

/// A directory that is watched, and for whom.
struct Directory {
    watched: WatchDescriptor,
    listeners: HashSet<u64>,
    names: HashMap<OsString, HashSet<u64>>,
}

impl Table {
    fn listen(&mut self, sender: watch::Sender<Change>) -> u64 {
        self.newest += 1;
        self.listeners.insert(self.newest, sender);
        self.newest
    }

    fn add(&mut self, watched: WatchDescriptor, listener: u64, names: &BTreeSet<OsString>) -> i32 {
        let number = watched.get_watch_descriptor_id();
        let directory = self.directories.entry(number).or_insert_with(|| Directory {
            watched,
            listeners: HashSet::new(),
            names: HashMap::new(),
        });
        directory.listeners.insert(listener);
        for name in names {
            directory.names.entry(name.clone()).or_default().insert(listener);
        }
        number
    }

    fn forget(&mut self, listener: u64, directories: &[i32], names: &BTreeSet<OsString>) {
        for number in directories {
            let Some(directory) = self.directories.get_mut(number) else {
                continue;
            };
            directory.listeners.remove(&listener);
            for name in names {
                if let Some(listeners) = directory.names.get_mut(name) {
                    listeners.remove(&listener);
                    if listeners.is_empty() {
                        directory.names.remove(name);
                    }
                }
            }
        }
    }

    /// Tells those whom an event concerns.
    fn tell(&mut self, event: &Event<&OsStr>) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // Whatever was lost, all look again.
            for listener in self.listeners.values() {
                listener.send_replace(Change::Touched);
            }
            return;
        }
        let number = event.wd.get_watch_descriptor_id();
        let Some(directory) = self.directories.get(&number) else {
            return;
        };
        let concerned = match event.name {
            Some(name) => directory.names.get(name),
            None => Some(&directory.listeners),
        };
        let change = Change::of(event.mask);
        for listener in concerned.into_iter().flatten() {
            if let Some(listener) = self.listeners.get(listener) {
                listener.send_modify(|before| *before = before.then(change));
            }
        }
        if event.mask.contains(EventMask::IGNORED) {
            // The kernel has given the watch up together with its directory.
            self.directories.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn who_writes_goes_on_until_the_end_is_told() {
        use Change::{Closed, Placed, Touched, Writing};
        for (before, next, after) in [
            (Writing, Touched, Writing),
            (Writing, Closed, Closed),
            (Writing, Placed, Placed),
            (Closed, Writing, Writing),
            (Placed, Touched, Touched),
        ] {
            assert_eq!(before.then(next), after, "{before:?} {next:?}");
        }
    }

    /// More than the kernel's usual limit of 128 instances.
    #[tokio::test]
    async fn many_files_of_a_directory_are_watched_and_each_hears_of_itself() {
        const MANY: usize = 300;
        let directory = tempfile::tempdir().unwrap();
        let name = |index: usize| format!("{index}.json");
        let mut watches: Vec<Watch> = (0..MANY)
            .map(|index| {
                let mut watch = Watch::new().unwrap();
                let names = [name(index).into()].into();
                watch.want(vec![directory.path().to_owned()], names).unwrap();
                watch
            })
            .collect();
        let limit = Duration::from_secs(20);
        for index in [0, MANY - 1] {
            let new = directory.path().join("new");
            fs::write(&new, "[]").unwrap();
            fs::rename(&new, directory.path().join(name(index))).unwrap();
            let change = timeout(limit, watches[index].next()).await;
            assert_eq!(change, Ok(Some(Change::Placed)), "{index}");
        }
        let others = watches[1..MANY - 1].iter_mut();
        let woken = others.filter(|watch| watch.changes.has_changed().unwrap());
        assert_eq!(woken.count(), 0);
        // The last one takes the watch along.
        let shared = Arc::clone(&watches[0].shared);
        let number = watches[0].directories[0];
        watches.truncate(1);
        assert!(shared.table().directories.contains_key(&number));
        watches.clear();
        assert!(!shared.table().directories.contains_key(&number));
    }

    #[tokio::test]
    async fn the_end_of_a_directory_is_told() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let mut watch = Watch::new().unwrap();
        watch.want(vec![inner.clone()], BTreeSet::new()).unwrap();
        fs::remove_dir(&inner).unwrap();
        let change = timeout(Duration::from_secs(20), watch.next()).await;
        assert_eq!(change, Ok(Some(Change::Touched)));
        let (directory, error) = watch.want(vec![inner.clone()], BTreeSet::new()).unwrap_err();
        assert_eq!((directory, error.kind()), (inner, io::ErrorKind::NotFound));
    }
}
