//! Bookmarks, and the file that keeps one.
//!
//! Shell: the bookmark file. A bookmark is replaced as a whole: a temporary file is written, synced
//! and renamed over the old file, and the folder is synced. So after any crash there is the old
//! bookmark or the new one.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use simplefeed_core::{feed::Position, replay::Bookmark};

use crate::{delivery::Delivery, files};

/// The version of the file's form.
const VERSION: u32 = 1;

/// Keeps one bookmark. Implementations may keep bookmarks elsewhere, in a database for instance.
///
/// A consumer calls one method at a time and waits for the end of the call. If the consumer's own
/// future is dropped, the future of the call is dropped, too. The store must then have the old
/// bookmark or the new one.
///
/// # Examples
///
/// ```
/// use std::io;
/// use simplefeed_client::{Bookmark, BookmarkStore, Consumer};
///
/// /// A bookmark that lives as long as the program.
/// #[derive(Default)]
/// struct InMemory(Option<Bookmark>);
///
/// impl BookmarkStore for InMemory {
///     async fn load(&mut self) -> io::Result<Option<Bookmark>> {
///         Ok(self.0.clone())
///     }
///
///     async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
///         self.0 = Some(bookmark.clone());
///         Ok(())
///     }
/// }
///
/// let orders = Consumer::builder("https://example.org/feeds/orders");
/// let orders = orders.bookmark(InMemory::default());
/// ```
pub trait BookmarkStore: Send {
    /// Returns the bookmark, or `None` if there is none yet. The consumer loads once, before the
    /// first request.
    ///
    /// # Errors
    ///
    /// Returns why the bookmark cannot be read. A bookmark that cannot be read must not count as no
    /// bookmark.
    fn load(&mut self) -> impl Future<Output = io::Result<Option<Bookmark>>> + Send;

    /// Keeps a bookmark. The bookmark is durable when this returns.
    ///
    /// # Errors
    ///
    /// Returns why the bookmark cannot be written.
    fn save(&mut self, bookmark: &Bookmark) -> impl Future<Output = io::Result<()>> + Send;

    /// Keeps the place before the first entry, which is about to be delivered. The place is durable
    /// when this returns.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    fn begin(&mut self, bookmark: &Bookmark) -> impl Future<Output = io::Result<()>> + Send {
        self.save(bookmark)
    }

    /// Tells the store that the last look found nothing newer. The store need not keep this fact.
    fn caught_up(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A [`BookmarkStore`] of any type, for the consumer's own use: `async` methods cannot be called
/// through `dyn`.
pub(crate) trait AnyStore: Send {
    fn load(&mut self) -> Storing<'_, io::Result<Option<Bookmark>>>;
    fn save<'a>(&'a mut self, bookmark: &'a Bookmark) -> Storing<'a, io::Result<()>>;
    fn begin<'a>(&'a mut self, bookmark: &'a Bookmark) -> Storing<'a, io::Result<()>>;
    fn caught_up(&mut self) -> Storing<'_, ()>;
}

/// Future of a call of a store.
pub(crate) type Storing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<S: BookmarkStore> AnyStore for S {
    fn load(&mut self) -> Storing<'_, io::Result<Option<Bookmark>>> {
        Box::pin(BookmarkStore::load(self))
    }

    fn save<'a>(&'a mut self, bookmark: &'a Bookmark) -> Storing<'a, io::Result<()>> {
        Box::pin(BookmarkStore::save(self, bookmark))
    }

    fn begin<'a>(&'a mut self, bookmark: &'a Bookmark) -> Storing<'a, io::Result<()>> {
        Box::pin(BookmarkStore::begin(self, bookmark))
    }

    fn caught_up(&mut self) -> Storing<'_, ()> {
        Box::pin(BookmarkStore::caught_up(self))
    }
}

/// A bookmark in a file, as JSON.
///
/// Each call waits for the disk on the thread that polls the call; a save takes as long as two
/// `fsync`. So a dropped future never leaves a write under way.
///
/// One process at a time goes on from a bookmark: [`load`](BookmarkStore::load),
/// [`save`](BookmarkStore::save) and [`clear`](Self::clear) lock a file in the same folder for the
/// lifetime of the value. The name of this file is `.NAME.lock` if that of the bookmark is `NAME`.
/// Clones share the lock.
///
/// # Examples
///
/// ```
/// use simplefeed_client::{Bookmark, BookmarkStore, FileBookmark};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("orders.bookmark");
/// let mut file = FileBookmark::open(&path)?;
/// assert_eq!(file.load().await?, None);
/// let bookmark = Bookmark { feed: "urn:f".into(), ..Bookmark::default() };
/// file.save(&bookmark).await?;
/// assert_eq!(FileBookmark::open(&path)?.peek()?, Some(bookmark));
/// assert_eq!(file.attempt()?, None);
/// assert!(file.clear()?);
/// assert_eq!(file.load().await?, None);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FileBookmark {
    path: PathBuf,
    lock: Arc<Mutex<Option<File>>>,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct BookmarkFile {
    version: u32,
    #[serde(flatten)]
    place: BookmarkFacts,
}

/// A bookmark, and the attempts at the entries behind the bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BookmarkFacts {
    #[serde(flatten)]
    pub(crate) bookmark: Bookmark,
    /// The attempt at the first entry behind the bookmark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<AttemptedEntry>,
    /// Attempts at the entries behind the first one, in the order of the entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ahead: Vec<AttemptedEntry>,
}

/// An entry that a worker has in hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttemptedEntry {
    #[serde(flatten)]
    pub(crate) attempt: Attempt,
    /// Whether the entry is done with, while an earlier entry is not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) finished: bool,
    /// Whether the entry was running beside others when a process ended, so that the next attempt
    /// must run alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) alone: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl AttemptedEntry {
    /// Returns whether the process ended during the last attempt.
    pub(crate) fn is_cut_short(&self) -> bool {
        !self.finished && self.attempt.count > 0 && self.attempt.error.is_none()
    }

    /// Returns whether the entry may be at fault for the end of a process.
    pub(crate) fn is_suspect(&self) -> bool {
        self.alone || self.is_cut_short()
    }

    pub(crate) fn is_of(&self, delivery: &Delivery) -> bool {
        self.attempt.entry == delivery.id() && self.attempt.position == delivery.position()
    }
}

/// Attempts at an entry: their number and the last error. An attempt is counted on the disk before
/// the handler runs, so that an attempt that ends the whole process counts, too.
///
/// # Examples
///
/// ```
/// use simplefeed_client::worker::Attempt;
///
/// let attempt = Attempt { entry: "urn:order:7".into(), position: None, count: 2, error: None };
/// assert!(attempt.error.is_none(), "the process ended during it");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Id of the entry, or the stand-in for a missing id.
    pub entry: String,
    /// Position of the entry, if the feed has positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Number of attempts begun, over all processes.
    pub count: u32,
    /// Error of the last attempt; `None` if the attempt did not come to an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Attempt {
    /// Returns an attempt record of an entry that was never tried.
    pub(crate) fn first(delivery: &Delivery) -> Self {
        Self {
            entry: delivery.id().into(),
            position: delivery.position(),
            count: 0,
            error: None,
        }
    }
}

impl FileBookmark {
    /// Uses the file at `path`, which need not exist yet; the folder of the file must exist. A
    /// symbolic link stays: the file behind the link is used, and locked.
    ///
    /// # Errors
    ///
    /// Returns why the folder cannot be used.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = files::behind_links(path.as_ref())?;
        let lock = Arc::default();
        let bookmark = Self { path, lock };
        let folder = fs::metadata(files::folder_of(&bookmark.path))?;
        if !folder.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                "its folder is not a folder",
            ));
        }
        Ok(bookmark)
    }

    /// Returns the attempt of a [`Worker`](crate::Worker) at the first entry behind the bookmark,
    /// if the worker began an attempt.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read.
    pub fn attempt(&self) -> io::Result<Option<Attempt>> {
        let begun = self.load_place()?.and_then(|place| place.attempt);
        // A count of 0 is that of an entry in hand that still waits for a handler.
        Ok(begun
            .map(|begun| begun.attempt)
            .filter(|attempt| attempt.count > 0))
    }

    /// Removes the file, durably. Returns whether there was a file.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be removed. A file that is no bookmark is left as it is.
    pub fn clear(&mut self) -> io::Result<bool> {
        // The lock comes first, because another process may be using the bookmark.
        self.hold_lock()?;
        // Read only as a check: a file that is no bookmark must not be removed.
        self.peek()?;
        files::remove(&self.path).map_err(|error| files::about(&self.path, &error))
    }

    /// Holds the lock from here on.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ResourceBusy`] if another process holds the lock.
    #[expect(clippy::disallowed_methods, reason = "the lock file holds nothing")]
    fn hold_lock(&self) -> io::Result<()> {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Our own lock would refuse a second handle of the lock file, so clones share one handle.
        if held.is_some() {
            return Ok(());
        }
        // This check comes before the first entry, and not at the first save: no file can take the
        // place of a mount.
        files::check_replaceable(&self.path)?;
        // The lock is on a file of its own: each save replaces the bookmark, and would leave the
        // lock on the old file.
        let mut name = OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(".lock");
        let path = files::folder_of(&self.path).join(name);
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true);
        let file = files::open_regular(&path, options);
        let file = file.map_err(|error| files::about(&path, &error))?;
        match file.try_lock() {
            Ok(()) => {
                *held = Some(file);
                Ok(())
            }
            Err(TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} is used by another process", self.path.display()),
            )),
            Err(TryLockError::Error(error)) => Err(files::about(&path, &error)),
        }
    }

    /// Returns the bookmark without the lock, so another process may go on from this bookmark.
    ///
    /// # Errors
    ///
    /// As [`load`](BookmarkStore::load).
    pub fn peek(&self) -> io::Result<Option<Bookmark>> {
        Ok(self.load_place()?.map(|place| place.bookmark))
    }

    /// Returns the bookmark, and holds the lock from here on.
    pub(crate) fn load_held(&self) -> io::Result<Option<Bookmark>> {
        self.hold_lock()?;
        self.peek()
    }

    /// Keeps a bookmark without attempts at later entries, and holds the lock from here on.
    pub(crate) fn save_held(&self, bookmark: &Bookmark) -> io::Result<()> {
        self.hold_lock()?;
        self.save_place(BookmarkFacts {
            bookmark: bookmark.clone(),
            attempt: None,
            ahead: vec![],
        })
    }

    fn read_place(&self) -> io::Result<Option<BookmarkFacts>> {
        let text = match files::read_regular(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let not_ours = |error: serde_json::Error| {
            let detail = format!("this is not a bookmark ({error})");
            io::Error::new(io::ErrorKind::InvalidData, detail)
        };
        // The version is read first and alone, because a newer form need not parse as this one.
        let Version { version } = serde_json::from_slice(&text).map_err(not_ours)?;
        if version != VERSION {
            let detail = format!("bookmark version {version} is not known");
            return Err(io::Error::new(io::ErrorKind::InvalidData, detail));
        }
        let read: BookmarkFile = serde_json::from_slice(&text).map_err(not_ours)?;
        Ok(Some(read.place))
    }

    fn replace_place(&self, place: BookmarkFacts) -> io::Result<()> {
        let version = VERSION;
        let mut text = serde_json::to_vec(&BookmarkFile { version, place })?;
        text.push(b'\n');
        files::replace(&self.path, &text)
    }

    /// Returns the bookmark, and the attempts at the entries behind the bookmark.
    pub(crate) fn load_place(&self) -> io::Result<Option<BookmarkFacts>> {
        self.read_place()
            .map_err(|error| files::about(&self.path, &error))
    }

    /// Keeps a bookmark, and the attempts at the entries behind the bookmark.
    pub(crate) fn save_place(&self, place: BookmarkFacts) -> io::Result<()> {
        let kept = self.replace_place(place);
        kept.map_err(|error| files::about(&self.path, &error))
    }
}

impl BookmarkStore for FileBookmark {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        self.load_held()
    }

    async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        self.save_held(bookmark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../fixtures/bookmark.json");

    /// Goal: a path and a symbolic link to that path are one bookmark, also before there is a file.
    #[tokio::test]
    async fn a_link_leads_to_the_bookmark() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("bookmark"), folder.path().join("link"));
        std::os::unix::fs::symlink("bookmark", &link).unwrap();
        let bookmark = Bookmark {
            feed: "urn:f".into(),
            ..Bookmark::default()
        };
        let mut first = FileBookmark::open(&link).unwrap();
        BookmarkStore::save(&mut first, &bookmark).await.unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(
            FileBookmark::open(&path).unwrap().peek().unwrap(),
            Some(bookmark)
        );
        let mut second = FileBookmark::open(&path).unwrap();
        assert!(
            BookmarkStore::load(&mut second).await.is_err(),
            "it is in use"
        );
    }

    /// Bookmarks outlive programs: a file of version 1 is read and written the same, for ever.
    #[test]
    fn the_form_of_the_file_never_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bookmark");
        fs::write(&path, GOLDEN).unwrap();
        let bookmark = FileBookmark::open(&path)
            .unwrap()
            .load_held()
            .unwrap()
            .unwrap();
        assert_eq!(bookmark.entry.as_deref(), Some("urn:example:7"));
        assert_eq!(bookmark.etag.as_deref(), Some("W/\"abc\""));
        fs::remove_file(&path).unwrap();
        let file = FileBookmark::open(&path).unwrap();
        file.save_held(&bookmark).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), GOLDEN);
    }

    /// A bookmark is replaced as a whole: a half-written file that a crash left beside the bookmark
    /// does not matter, and if the folder cannot be written, the old bookmark stays.
    #[test]
    fn a_bookmark_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bookmark");
        let file = FileBookmark::open(&path).unwrap();
        let bookmark = |entry: &str| Bookmark {
            feed: "urn:f".into(),
            entry: Some(entry.into()),
            ..Bookmark::default()
        };
        file.save_held(&bookmark("urn:1")).unwrap();
        fs::write(folder.path().join("bookmark.new"), "{\"vers").unwrap();
        assert_eq!(file.load_held().unwrap(), Some(bookmark("urn:1")));
        file.save_held(&bookmark("urn:2")).unwrap();
        assert_eq!(file.load_held().unwrap(), Some(bookmark("urn:2")));
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "nothing is left over but the lock"
        );
        // If the temporary file cannot be made, the bookmark stays as it is.
        fs::create_dir(folder.path().join("bookmark.new")).unwrap();
        let error = file.save_held(&bookmark("urn:3")).unwrap_err();
        assert!(error.to_string().contains("bookmark: "), "{error}");
        assert_eq!(file.load_held().unwrap(), Some(bookmark("urn:2")));
    }

    /// A file that is no bookmark is not removed, because something else needs that file.
    #[test]
    fn another_file_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.ndjson");
        fs::write(&path, "precious").unwrap();
        let error = FileBookmark::open(&path).unwrap().clear().unwrap_err();
        assert!(error.to_string().contains("not a bookmark"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    /// Two consumers on one bookmark would each hand over every entry.
    #[test]
    fn a_bookmark_has_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bookmark");
        let first = FileBookmark::open(&path).unwrap();
        assert_eq!(first.load_held().unwrap(), None);
        let mut second = FileBookmark::open(&path).unwrap();
        let busy = second.load_held().unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy, "{busy}");
        assert!(second.save_held(&Bookmark::default()).is_err() && second.clear().is_err());
        assert_eq!(second.peek().unwrap(), None);
        drop(first);
        assert_eq!(second.load_held().unwrap(), None);
    }
}
