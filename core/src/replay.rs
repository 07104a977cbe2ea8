//! The walk back to the last entry seen, and forward from there.
//!
//! Pure: state machines that ask for documents by URL and take the documents. They know no HTTP and
//! no clock, so that tests try every change of a feed under a consumer without a socket.
//!
//! ```text
//!             recent ──prev-archive──► 3.atom ──prev-archive──► 2.atom   (found: turn round)
//! deliver ◄── 4.atom ◄──next-archive── 3.atom ◄──next-archive── 2.atom
//! ```
//!
//! A plain feed has documents without positions, so an entry marks no place. `plain.rs` walks such
//! feeds.
//!
//! [`Replay`] goes in rounds. Each round is a [`Walk`] from the place where the last one ended to
//! the entry that is newest when the round begins. The first look at the recent document only shows
//! how far behind the consumer is. Entries come from the way forward, because the feed may grow and
//! be cut meanwhile. The document that was open at the first look comes last: the walk requests
//! this document again, at the permanent URL.

use url::Url;

use self::known::Records;
use crate::{feed::Position, history::HistoryHash, reader::Document};

mod bookmark;
mod error;
mod known;
mod places;
mod plain;
mod rounds;
mod seen;
mod walk;

pub use bookmark::{Bookmark, Stand, Start, Validators};
pub use error::WalkError;
pub use known::{KnownEntries, PendingEntries};
pub use rounds::Replay;
pub use walk::{Walk, is_same_feed};

/// Request of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// URL of the document or index block.
    pub url: Url,
    /// Kind of resource expected at the URL.
    pub kind: AskKind,
    /// Whether an earlier copy was too old, so that the request must bypass caches.
    pub again: bool,
    /// Whether the walk has another way if this resource is missing.
    pub optional: bool,
    /// Validators of the known copy; empty unless the response may be that nothing changed.
    pub known: Validators,
}

/// Kind of resource that a walk requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskKind {
    /// The recent document, at the feed's entry point.
    Recent,
    /// Any other document of the feed: archived, or open at the permanent URL.
    Document,
    /// A block of the archive index.
    Index,
}

/// The entries to hand over from one document.
#[derive(Clone, Debug)]
pub struct EntryRun {
    /// The document that holds the entries.
    pub document: Document,
    /// The document's permanent URL.
    pub url: Url,
    /// Number of the document's oldest entries that lie before these.
    pub older: usize,
    /// The entries, oldest first.
    pub entries: Vec<RunEntry>,
    /// The consumer's memory of a plain feed; `None` where the document has positions.
    memory: Option<PlainMemory>,
}

/// The part of a bookmark that a plain feed has instead of a position.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainMemory {
    /// The entries handed over before a run.
    known: KnownEntries,
    /// The entries that the feed showed and that are not handed over after the run.
    pending: PendingEntries,
    /// The entries of the run's document.
    records: Records,
    /// Where the consumer stands at the run's entries.
    stand: Stand,
    /// Place of the bookmarks of the run's entries, if the place is outside the run's document.
    place: Option<Bookmark>,
}

/// One entry to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEntry {
    /// Index of the entry in the document, from the top.
    pub index: usize,
    /// The entry's position and the history hash after it; `None` in a plain feed.
    pub place: Option<(Position, Option<HistoryHash>)>,
}

impl EntryRun {
    /// Returns the bookmark after one of the run's entries.
    pub fn bookmark(&self, entry: &RunEntry) -> Option<Bookmark> {
        let bookmark = places::bookmark(&self.document, &self.url, entry)?;
        let Some(memory) = &self.memory else {
            return Some(bookmark);
        };
        let indices = self.entries.iter().map(|entry| entry.index);
        // Smaller indices are newer: the consumer has not received those entries yet.
        let left = indices.filter(|index| *index < entry.index);
        let place = memory.place.clone().unwrap_or(Bookmark {
            stand: Some(memory.stand),
            ..bookmark
        });
        Some(Bookmark {
            // Older entries of the document are handed over before this one.
            known: Some(memory.known.and(&memory.records, entry.index)),
            pending: memory.pending.and(&memory.records, left),
            ..place
        })
    }
}

#[cfg(test)]
mod tests;
