//! The contract of a log: what readers ask, what the writer does, and how either fails.
//!
//! Pure: traits, and the types that they share. [`Commits`], [`Series`], [`Ids`] and [`LogRoom`]
//! are for readers, [`Append`] is for the one writer.

use std::{
    collections::HashMap,
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    commit::{Commit, Outline},
    entry::Entry,
    feed::{
        CommitNumber, DocumentName, DocumentNumber, EntryId, Epoch, FeedKey, FeedName, Position,
        Revision,
    },
    history::ChainHash,
    plan::{FeedHead, KnownEntry, Opening},
    settings::{Defaults, Settings},
    timeline::Place,
    timestamp::Timestamp,
};

pub mod pages;

use crate::{announcements::Announcements, held::visible_path};

/// The end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// The last commit; 0 if there is none.
    pub number: CommitNumber,
    /// The instant of the last commit's last entry, or of that commit if it has no entries. The
    /// next commit is later.
    pub last: Timestamp,
    /// The chain hash after the last commit.
    pub chain: ChainHash,
    /// Current epoch; the first one unless the log was ever restored.
    pub epoch: Epoch,
    /// The number of feeds, timelines not among them.
    pub feeds: u64,
}

impl LogHead {
    /// The end of an empty log.
    pub const START: Self = Self {
        number: CommitNumber(0),
        last: Timestamp::MIN,
        chain: ChainHash::START,
        epoch: Epoch::FIRST,
        feeds: 0,
    };

    /// Asserts that a commit may follow this end.
    pub(crate) fn assert_before(&self, commit: &Commit) {
        assert!(
            commit.number == self.number.next(),
            "commits are appended in order"
        );
        assert!(
            commit.instant > self.last,
            "a commit is later than the one before it"
        );
    }
}

/// Why a log takes no entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// A commit has failed; the log takes no commits until the next opening.
    Failed,
    /// The data folder is not what the server has opened.
    Displaced,
    /// A document beside the log belongs to another log.
    Replaced,
    /// There is too little room on the disk to settle more entries and to open the log afterwards.
    Full(Space),
    /// The system lacks something, such as file handles. The log tries again.
    Lacking,
}

/// Room on the disk of a log, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that may still be written.
    pub free: u64,
    /// Bytes that must be free for the next commit, and for settling that commit.
    pub needed: u64,
    /// Whether `free` follows from the limit on the length of this process's files, and not from
    /// the disk.
    pub is_of_files: bool,
}

impl Space {
    /// Returns whether there is enough.
    pub fn is_enough(self) -> bool {
        self.free >= self.needed
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { free, needed, .. } = self;
        if self.is_of_files {
            write!(
                f,
                "files of this process may grow by {free} bytes only, and {needed} are needed: raise `ulimit -f`, or \
                 LimitFSIZE= of its unit"
            )
        } else {
            write!(
                f,
                "the disk is full: {free} bytes are free, and {needed} are needed"
            )
        }
    }
}

/// Reason why an operation of the log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk refused. After an append with this error, the log takes no more commits until the
    /// next opening.
    #[error("cannot {action} {path}")]
    Io {
        /// Attempted action, such as `sync`.
        action: &'static str,
        /// File or folder of the action.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The storage refused. After an append with this error, the log takes no more commits until
    /// the next opening.
    #[error("the storage failed")]
    Storage(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An earlier commit failed, so the state of the disk is unknown.
    #[error("the log takes no more commits since one failed; restart the server")]
    Stopped,
    /// The log is about to be closed.
    #[error("the log is being closed, since the server is stopping")]
    Closing,
    /// The system lacks something, such as file handles. Nothing was stored. The same call may
    /// succeed soon.
    #[error("cannot {action} now")]
    Lacking {
        /// Attempted action, such as `read what is settled`.
        action: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A series that is computed from the commits lags far behind them. The same read may succeed
    /// soon.
    #[error("the commits that the series follows from are still being read")]
    Behind,
    /// The data folder is not what the server has opened. The log takes no more commits until the
    /// next opening.
    #[error("the data folder is not what the server has opened: {what}")]
    Displaced {
        /// What was moved, removed or replaced.
        what: String,
    },
    /// Stored records are missing, unreadable or contradict each other.
    #[error("the log is damaged: {what}")]
    Damaged {
        /// The record and the fault.
        what: String,
    },
    /// The log is not the one that readers have seen: somebody has put another log in its place, or
    /// the last commits are lost.
    #[error("the log is not the one that was served: {what}")]
    Replaced {
        /// Difference that shows the replacement, as a clause.
        what: String,
    },
}

impl LogError {
    /// Returns the error that the document in a file belongs to another log.
    pub fn replaced_beside(file: &Path) -> Self {
        let what = format!("{} has other contents", file.display());
        Self::Replaced { what }
    }

    /// Returns the error that the system lacks something that `action`, a verb, needs.
    pub fn lacking(action: &'static str, source: io::Error) -> Self {
        Self::Lacking { action, source }
    }

    /// Returns the error that the log is damaged; `what` says where.
    pub fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    /// Returns the error of an operation on a file; `action` is a verb.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            // A path below `/proc/self/fd` tells an operator nothing.
            path: visible_path(&path),
            source,
        }
    }
}

/// Heads of some feeds, by their keys.
pub type FeedHeads = HashMap<FeedKey, FeedHead>;

/// A durable, append-only sequence of commits, for readers.
///
/// Readers never see a commit that a power cut could still take away.
pub trait Commits: Send + Sync {
    /// Returns the announcements of this log's commits.
    fn announcements(&self) -> &Announcements;

    /// Returns the end of the log, as far as readers may see.
    fn head(&self) -> LogHead;

    /// Returns at most `max` commits from number `from` on.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn commits(&self, from: CommitNumber, max: usize) -> Result<Vec<Commit>, LogError>;

    /// Returns the outlines of at most `max` commits from number `from` on: the changes of each
    /// commit, without the content of entries and settings. The list is shorter if the commits have
    /// many changes, or if a later commit is damaged. The list is empty only beyond the head.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn outlines(&self, from: CommitNumber, max: usize) -> Result<Vec<Outline>, LogError> {
        Ok(self.commits(from, max)?.iter().map(Outline::of).collect())
    }

    /// Returns outlines like [`Self::outlines`], from memory if commit `from` is recent.
    ///
    /// # Errors
    ///
    /// Returns the failure to read the log.
    fn recent_outlines(&self, from: CommitNumber, max: usize) -> Result<Vec<Outline>, LogError> {
        let recent = self.announcements().recent(from, max);
        recent.map_or_else(|| self.outlines(from, max), Ok)
    }

    /// Returns the chain hash after a commit.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn chain(&self, number: CommitNumber) -> Result<Option<ChainHash>, LogError>;

    /// Checks that the log has the last commit that readers had seen before this opening.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Replaced`] if the commit is missing, or another commit has its number:
    /// the files beside the log belong to another log.
    fn check_seen(&self) -> Result<(), LogError> {
        Ok(())
    }
}

/// The end of a log, where the one writer appends.
pub trait Append: Send + Sync {
    /// Appends commit `head + 1`, and returns once the commit would survive a power cut and is
    /// announced.
    ///
    /// # Errors
    ///
    /// After [`LogError::Lacking`], nothing is stored, and a later append may succeed. Any other
    /// error is final: the commit may or may not be found after the next opening, and every later
    /// append returns [`LogError::Stopped`].
    ///
    /// # Panics
    ///
    /// If the commit is not the next one, is not later than the last one, or contradicts the feeds
    /// that the commit changes.
    fn append(&self, commit: &Commit) -> Result<ChainHash, LogError>;

    /// [Appends](Self::append) a commit. `before` has heads of feeds as the log has them, so that
    /// the log need not read these heads. Only debug builds compare them with the log: a wrong head
    /// would make the log wrong from then on.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    ///
    /// # Panics
    ///
    /// As [`append`](Self::append).
    fn append_after(&self, commit: &Commit, _before: &FeedHeads) -> Result<ChainHash, LogError> {
        self.append(commit)
    }

    /// Notes, durably, that readers see all commits of the log.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn note_seen(&self) -> Result<(), LogError> {
        Ok(())
    }
}

/// An entry, and its place in the order of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedEntry {
    /// Place of the entry: the instant of the entry, or in a timeline the instant of the delivery.
    pub place: Place,
    /// Entry as the log stores it.
    pub entry: Entry,
}

/// Feeds with their entries, documents and settings, as commits have left them.
///
/// Every document is made from a series: that of a feed, whose entries publishers have sent, or
/// that of a timeline, which the server computes.
pub trait Series: Send + Sync {
    /// Returns the entries at the given positions, as far as they exist.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn entries(&self, feed: FeedKey, range: Range<Position>) -> Result<Vec<Entry>, LogError>;

    /// Returns the head of a feed, if there is such a feed.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn feed(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError>;

    /// Returns the head of the feed that has a name, if there is such a feed.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn named(&self, name: &FeedName) -> Result<Option<FeedHead>, LogError>;

    /// Returns a feed's settings of a revision.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn settings(&self, feed: FeedKey, revision: Revision) -> Result<Option<Settings>, LogError>;

    /// Returns the server's proposals of a revision, as timelines have them.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn defaults(&self, revision: Revision) -> Result<Option<Defaults>, LogError>;

    /// Returns how a document was opened; of a document that was opened anew, the last opening.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn opening(&self, feed: FeedKey, document: DocumentNumber)
    -> Result<Option<Opening>, LogError>;

    /// Returns at most `limit` entries of a feed that are strictly older than a place, newest
    /// first; without a place, the newest. With a negative limit, at most `-limit` entries that are
    /// strictly newer than the place: those closest to the place, newest first as well.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn page(
        &self,
        feed: FeedKey,
        anchor: Option<Place>,
        limit: i64,
    ) -> Result<Vec<PlacedEntry>, LogError> {
        pages::page_of(self, feed, anchor, limit)
    }

    /// Returns at most `max` feeds in the order of their names: those whose names come after
    /// `after`.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn feeds(
        &self,
        after: Option<&FeedName>,
        max: usize,
    ) -> Result<Vec<(FeedName, FeedHead)>, LogError>;
}

/// Entries by their ids. The entries of a commit may be missing here until the append of that
/// commit has returned, although readers see them.
pub trait Ids: Send + Sync {
    /// Returns the entries of a feed that have one of these ids, by id. Ids without an entry are
    /// left out.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn find_all(
        &self,
        feed: FeedKey,
        ids: &[&EntryId],
    ) -> Result<HashMap<EntryId, KnownEntry>, LogError>;

    /// Returns the entry that has an id, if any.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn find(&self, feed: FeedKey, id: &EntryId) -> Result<Option<KnownEntry>, LogError> {
        Ok(self.find_all(feed, &[id])?.remove(id))
    }
}

/// Whether a log takes more commits, and the room for them.
pub trait LogRoom: Send + Sync {
    /// Returns whether the log takes commits. The log takes none after a failed commit, or after it
    /// was found displaced or replaced.
    fn is_open(&self) -> bool {
        true
    }

    /// Returns whether the log takes no commits because the folder, or a file in the folder, is not
    /// the opened one.
    fn is_displaced(&self) -> bool {
        false
    }

    /// Returns whether some reads or all commits are refused because the system lacks a resource,
    /// such as file handles.
    fn is_lacking(&self) -> bool {
        false
    }

    /// Ends commits for good, because a document in the archive belongs to another log.
    fn end_as_replaced(&self, _document: &Path) {}

    /// Returns the document because of which the log takes no commits, if there is such a document.
    fn replaced_by(&self) -> Option<PathBuf> {
        None
    }

    /// Returns the room on the disk for a commit with so many bytes of entries.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn room_for(&self, _bytes: u64) -> Result<Space, LogError> {
        Ok(Space {
            free: u64::MAX,
            needed: 0,
            is_of_files: false,
        })
    }

    /// Returns whether the log takes entries now. An unknown amount of room counts as enough.
    ///
    /// # Errors
    ///
    /// See [`EndReason`].
    fn takes_entries(&self) -> Result<(), EndReason> {
        // A log that is replaced or displaced is not open either, so those reasons come first: for
        // each reason, an operator has other things to do.
        if self.replaced_by().is_some() {
            return Err(EndReason::Replaced);
        }
        if self.is_displaced() {
            return Err(EndReason::Displaced);
        }
        if !self.is_open() {
            return Err(EndReason::Failed);
        }
        // It is enough to ask for zero bytes: a log that has refused a commit still needs the room
        // of that commit.
        match self.room_for(0) {
            Ok(space) if !space.is_enough() => Err(EndReason::Full(space)),
            _ if self.is_lacking() => Err(EndReason::Lacking),
            // If the room cannot be measured, the append itself fails when there is none.
            _ => Ok(()),
        }
    }
}

/// An entry log for readers: all but [`Append`]. A function that needs one part asks only for that
/// part.
pub trait EntryLog: Commits + Series + Ids + LogRoom {}

impl<L: Commits + Series + Ids + LogRoom + ?Sized> EntryLog for L {}

/// An entry log with [`Append`], for the writer and for upkeep.
pub trait WritableLog: EntryLog + Append {}

impl<L: EntryLog + Append + ?Sized> WritableLog for L {}

impl fmt::Debug for dyn EntryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryLog").finish_non_exhaustive()
    }
}

impl fmt::Debug for dyn WritableLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritableLog").finish_non_exhaustive()
    }
}

/// Returns the document that an entry is in, by the name that the document has now.
///
/// # Errors
///
/// See [`LogError`].
pub(crate) fn document_of(
    log: &dyn EntryLog,
    feed: FeedKey,
    entry: &Entry,
) -> Result<DocumentName, LogError> {
    // No later epoch can have renamed the document, so the opening need not be read.
    if entry.document.epoch == log.head().epoch {
        return Ok(entry.document);
    }
    let opening = log.opening(feed, entry.document.number)?;
    Ok(opening.map_or(entry.document, |opening| opening.name))
}

/// Returns settings that a head or an opening refers to. They are missing only if the log is
/// damaged.
///
/// # Errors
///
/// [`LogError::Damaged`] if they are missing; else see [`LogError`].
pub fn settings_of(
    log: &dyn Series,
    feed: FeedKey,
    revision: Revision,
) -> Result<Settings, LogError> {
    let missing = || LogError::damaged(format!("feed {} has no settings {}", feed.0, revision.0));
    log.settings(feed, revision)?.ok_or_else(missing)
}

#[cfg(test)]
mod tests;
