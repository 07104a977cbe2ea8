//! The state folder: the memory of a [`Worker`](crate::Worker).
//!
//! Shell: the disk. One process at a time uses a folder, and holds the lock.
//!
//! | file | content |
//! | --- | --- |
//! | `lock` | held while the folder is used; names the process |
//! | `bookmark` | the place, as in a [`FileBookmark`], and the attempts at later entries |
//! | `parked/` | entries set aside, one a file |
//! | `record.ndjson` | entries skipped, parked, retried, dropped; renamed at 16 MiB |
//! | `record.old.ndjson` | the record that was renamed last |
//! | `succeeded` | empty; the time of the file is about that of the last success |

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use serde::Serialize;
use simplefeed_core::{
    feed::Position,
    limits::{RECORD_BYTES_MAX, SUCCESS_SECONDS},
    replay::Bookmark,
};

use crate::{
    bookmark::{AttemptedEntry, BookmarkFacts, BookmarkStore, FileBookmark},
    delivery::Delivery,
    files,
};

pub mod parked;

use parked::{NewParkedEntry, ParkedEntries, ParkedEntry};

/// Folder within every state folder, from the first use on. This folder marks a state folder.
const MARK: &str = "parked";

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another process uses the folder.
    #[error("{} is used by another process ({holder})", folder.display())]
    Locked {
        /// Path of the state folder.
        folder: PathBuf,
        /// Text of the lock file: the other process and its id.
        holder: String,
    },
    /// The folder is no state folder and is not empty, so the path may be mistyped.
    #[error(
        "{} holds no state, but {found:?}: give a folder that is empty or does not exist yet",
        folder.display()
    )]
    Foreign {
        /// Path of the state folder.
        folder: PathBuf,
        /// Name of one file or folder in this folder.
        found: String,
    },
    /// The folder cannot be read or written.
    #[error("the state cannot be kept in {}", folder.display())]
    Io {
        /// Path of the state folder.
        folder: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
}

/// State folder of one consumer, locked. Clones share the lock and the files.
///
/// As a [`BookmarkStore`], a state folder serves a plain [`Consumer`](crate::Consumer), too.
///
/// # Examples
///
/// ```
/// use simplefeed_client::{BookmarkStore as _, StateFolder, state::StateError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("orders");
/// let mut state = StateFolder::open(&path)?;
/// assert_eq!(state.load().await?, None);
/// assert!(state.parked()?.is_empty());
///
/// let second = StateFolder::open(&path);
/// assert!(matches!(second, Err(StateError::Locked { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct StateFolder {
    folder: PathBuf,
    shared: Arc<Mutex<StateFiles>>,
}

#[derive(Debug)]
struct StateFiles {
    bookmark: FileBookmark,
    parking: ParkedEntries,
    succeeded: Option<SystemTime>,
    /// Holds the lock as long as the file is open.
    _lock: File,
}

impl StateFolder {
    /// Opens a folder, and locks the folder. A missing folder is made. A folder without state must
    /// be empty.
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, StateError> {
        let folder = folder.as_ref().to_path_buf();
        match files::foreign_in(&folder, MARK) {
            Ok(None) => {}
            Ok(Some(found)) => return Err(StateError::Foreign { folder, found }),
            Err(source) => return Err(StateError::Io { folder, source }),
        }
        match StateFiles::open_files(&folder) {
            Ok(Some(shared)) => Ok(Self {
                folder,
                shared: Arc::new(Mutex::new(shared)),
            }),
            Ok(None) => {
                // The text is only for the message, because the other process may not have written
                // the text yet.
                let holder = fs::read_to_string(folder.join("lock")).unwrap_or_default();
                let holder = holder.trim().into();
                Err(StateError::Locked { folder, holder })
            }
            Err(source) => Err(StateError::Io { folder, source }),
        }
    }

    /// Returns the entries that are set aside, oldest first.
    ///
    /// # Errors
    ///
    /// Returns why the entries cannot be read.
    pub fn parked(&self) -> io::Result<Vec<ParkedEntry>> {
        self.lock_shared().parking.list()
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    fn lock_shared(&self) -> MutexGuard<'_, StateFiles> {
        // The files are whole even if a thread panicked while it held this lock.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed(&self, source: io::Error) -> StateError {
        let folder = self.folder.clone();
        StateError::Io { folder, source }
    }

    /// Runs `work` on the files, under the lock. An error names the folder.
    fn with_files<T>(
        &self,
        work: impl FnOnce(&mut StateFiles) -> io::Result<T>,
    ) -> Result<T, StateError> {
        let done = work(&mut self.lock_shared());
        done.map_err(|source| self.failed(source))
    }

    /// Returns the attempts at the entries behind the bookmark, in the order of the feed.
    pub(crate) fn begun(&self) -> Result<Vec<AttemptedEntry>, StateError> {
        let place = self.with_files(|shared| shared.bookmark.load_place())?;
        let begun = place.map(|place| place.attempt.into_iter().chain(place.ahead));
        Ok(begun.into_iter().flatten().collect())
    }

    /// Remembers the attempts at the entries behind `bookmark`, durably; all entries up to the
    /// bookmark are done with.
    pub(crate) fn begin(
        &self,
        bookmark: Bookmark,
        begun: Vec<AttemptedEntry>,
    ) -> Result<(), StateError> {
        let mut begun = begun.into_iter();
        let place = BookmarkFacts {
            bookmark,
            attempt: begun.next(),
            ahead: begun.collect(),
        };
        self.with_files(|shared| shared.bookmark.save_place(place))
    }

    /// Marks a success, at most once in [`SUCCESS_SECONDS`].
    #[expect(
        clippy::disallowed_methods,
        reason = "the mark of a success is for monitoring, and made again"
    )]
    fn note_success(&self) -> io::Result<()> {
        let mut shared = self.lock_shared();
        let now = SystemTime::now();
        let age = shared
            .succeeded
            .and_then(|last| now.duration_since(last).ok());
        // Monitoring needs no exact time, so most entries cost no file operation here.
        if age.is_some_and(|age| age.as_secs() < SUCCESS_SECONDS) {
            return Ok(());
        }
        let path = self.folder.join("succeeded");
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.set_modified(now)?;
        shared.succeeded = Some(now);
        Ok(())
    }

    /// Notes that an entry was handled.
    pub(crate) fn handled(&self) -> Result<(), StateError> {
        self.note_success().map_err(|source| self.failed(source))
    }

    /// Returns how many entries are set aside.
    pub(crate) fn parked_count(&self) -> usize {
        self.lock_shared().parking.len()
    }

    /// Returns whether an entry with this key is parked.
    pub(crate) fn holds_key(&self, key: &str) -> bool {
        self.lock_shared().parking.holds_key(key)
    }

    /// Returns the entry that was parked last.
    pub(crate) fn last_parked(&self) -> Result<Option<ParkedEntry>, StateError> {
        self.with_files(|shared| shared.parking.last())
    }

    /// Returns whether this entry was parked last.
    pub(crate) fn was_parked_last(&self, delivery: &Delivery) -> Result<bool, StateError> {
        let last = self.last_parked()?;
        Ok(last.is_some_and(|last| last.is_of(delivery)))
    }

    /// Sets an entry aside, durably.
    pub(crate) fn park(&self, parked: &NewParkedEntry<'_>) -> Result<(), StateError> {
        let what = if parked.waits {
            EntryOutcome::Waits
        } else {
            EntryOutcome::Parked
        };
        // The record is written first: a crash may leave an entry in the record twice, but never
        // without a line there.
        self.record(what, parked.delivery, parked.attempts, parked.error)?;
        self.with_files(|shared| shared.parking.add(parked))
    }

    /// Returns the numbers of the entries set aside, in their order.
    pub(crate) fn parked_numbers(&self) -> Vec<u64> {
        self.lock_shared().parking.numbers()
    }

    /// Returns an entry set aside, if the entry is still set aside.
    pub(crate) fn read_parked(&self, number: u64) -> Result<Option<ParkedEntry>, StateError> {
        self.with_files(|shared| shared.parking.read(number))
    }

    /// Adds the outcome of an entry to the record, durably.
    pub(crate) fn record(
        &self,
        what: EntryOutcome,
        delivery: &Delivery,
        attempts: u32,
        why: Option<&str>,
    ) -> Result<(), StateError> {
        let line = OutcomeLine {
            at: files::now().to_string(),
            what,
            id: delivery.id(),
            position: delivery.position(),
            attempts,
            why,
        };
        append_line(&self.folder, &line).map_err(|source| self.failed(source))
    }

    /// Replaces the file of a parked entry.
    pub(crate) fn update(&self, parked: &ParkedEntry) -> Result<(), StateError> {
        self.with_files(|shared| shared.parking.update(parked))
    }

    /// Removes the file of a parked entry.
    pub(crate) fn unpark(&self, number: u64) -> Result<(), StateError> {
        self.with_files(|shared| shared.parking.remove(number))
    }
}

impl StateFiles {
    /// Opens the files of a folder; `None` if another process has locked the folder.
    #[expect(
        clippy::disallowed_methods,
        reason = "the lock file holds nothing that is needed"
    )]
    fn open_files(folder: &Path) -> io::Result<Option<Self>> {
        let mark = folder.join(MARK);
        files::create_folder(&mark)?;
        // A killed process may have left names without a sync: of the folder, of the mark within
        // the folder, and of parked entries. These names must be durable before the bookmark passes
        // the parked entries.
        files::sync_folder_of(folder)?;
        files::sync_folder(folder)?;
        files::sync_folder(&mark)?;
        let path = folder.join("lock");
        let mut options = OpenOptions::new();
        // The file is not truncated: until the lock is held, the text may be another process's.
        let options = options.create(true).truncate(false).write(true);
        let mut lock = files::open_regular(&path, options)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        lock.set_len(0)?;
        writeln!(lock, "process {}", std::process::id())?;
        let mut shared = Self {
            bookmark: FileBookmark::open(folder.join("bookmark"))?,
            parking: ParkedEntries::open(folder)?,
            succeeded: None,
            _lock: lock,
        };
        shared.settle_parked()?;
        Ok(Some(shared))
    }

    /// Finishes the work of a process that ended between two steps: an entry was parked, and not
    /// yet noted as done. Otherwise the entry would come again after a retry or a removal of the
    /// parked entry.
    fn settle_parked(&mut self) -> io::Result<()> {
        let (Some(mut place), Some(last)) = (self.bookmark.load_place()?, self.parking.last()?)
        else {
            return Ok(());
        };
        if place.ahead.is_empty() {
            let behind = place
                .attempt
                .and_then(|begun| last.place_if_given_up(&begun.attempt).cloned());
            return behind.map_or(Ok(()), |behind| self.bookmark.save_held(&behind));
        }
        // With more entries in hand, the bookmark may not be able to pass the given-up entry yet.
        // So this entry is noted as finished.
        let mut begun = place.attempt.iter_mut().chain(&mut place.ahead);
        let given_up = begun.find(|begun| last.place_if_given_up(&begun.attempt).is_some());
        match given_up.filter(|begun| !begun.finished) {
            Some(begun) => {
                begun.finished = true;
                self.bookmark.save_place(place)
            }
            None => Ok(()),
        }
    }
}

/// Each call waits for the disk on the thread that polls the call, as with [`FileBookmark`].
impl BookmarkStore for StateFolder {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        self.lock_shared().bookmark.load_held()
    }

    async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        self.lock_shared().bookmark.save_held(bookmark)?;
        // `note_success` takes the lock again, so no lock is held here any more.
        self.note_success()
    }

    async fn begin(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        // Nothing is handled yet, so this marks no success.
        self.lock_shared().bookmark.save_held(bookmark)
    }

    async fn caught_up(&mut self) {
        // A disk that fails is reported by the next write that matters.
        let _noted = self.note_success().is_ok();
    }
}

/// Outcome of an entry, as the record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EntryOutcome {
    Skipped,
    Parked,
    /// Set aside behind an entry with the same key.
    Waits,
    /// Parked at first, and handled by a retry.
    Retried,
    Dropped,
}

/// A line of the record.
#[derive(Serialize)]
struct OutcomeLine<'a> {
    at: String,
    what: EntryOutcome,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<Position>,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

/// Adds a line to the record, durably. A record that has grown long is renamed first. The renamed
/// record replaces the one that was renamed before.
fn append_line(folder: &Path, line: &OutcomeLine<'_>) -> io::Result<()> {
    let path = folder.join("record.ndjson");
    let length = fs::metadata(&path).map_or(0, |found| found.len());
    // The record is renamed, and not cut: at any moment the newest lines are whole under one of the
    // names.
    if length > RECORD_BYTES_MAX {
        // The rename is durable before the new file is made: a power cut that kept only the name of
        // the new file would lose the lines of the old one.
        files::rename(&path, &folder.join("record.old.ndjson"))?;
    }
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    files::append_line(&path, &text)
}
