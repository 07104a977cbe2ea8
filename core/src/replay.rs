//! The walk back to the last accepted entry, and forward from there.
//!
//! Pure: state machines that ask for documents by URL and take the documents. They know no HTTP and
//! no clock, so that tests can try every change that a feed makes during a walk, without a socket.
//!
//! ```text
//!             recent ──prev-archive──► 3.atom ──prev-archive──► 2.atom   (found: turn round)
//! deliver ◄── 4.atom ◄──next-archive── 3.atom ◄──next-archive── 2.atom
//! ```
//!
//! A plain feed has documents without positions, so no entry marks a place there. `plain.rs` walks
//! such feeds.
//!
//! [`Replay`] goes in rounds. In a feed with positions, each round is a [`Walk`] from the place
//! where the last round ended to the entry that is newest when the round begins. If the recent
//! document holds that place, the walk hands over entries from this look at once. Otherwise the
//! look only shows how far back the walk must go. All entries then come from the way forward,
//! because the feed may grow and be cut meanwhile. The document that was open at the look comes
//! last: the walk requests this document again, at the permanent URL.

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
    /// Whether the request must bypass caches, because a cached copy is or may be too old.
    pub again: bool,
    /// Whether the walk has another way if this resource is missing.
    pub optional: bool,
    /// Validators of the known copy; empty if the walk cannot use a 304 response.
    pub known: Validators,
}

/// Kind of resource that a walk requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskKind {
    /// The recent document, at the URL with which a round begins.
    Recent,
    /// A document at the end of a link: archived, or open at the permanent URL. Walks of plain
    /// feeds also request the recent document again as this kind.
    Document,
    /// A block of the archive index.
    Index,
}

/// The entries to hand over from one document.
#[derive(Clone, Debug)]
pub struct EntryRun {
    /// The document that holds the entries.
    pub document: Document,
    /// The document's URL: the permanent URL, or in a plain feed the URL that the document was
    /// retrieved from.
    pub url: Url,
    /// Number of the document's oldest entries that lie before the place where the walk goes on; in
    /// a plain feed, number of entries of the document that are not in `entries`.
    pub older: usize,
    /// The entries, oldest first.
    pub entries: Vec<RunEntry>,
    /// The consumer's memory of a plain feed; `None` where the document has positions.
    memory: Option<PlainMemory>,
}

/// The part of a bookmark that a plain feed has instead of a position.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainMemory {
    /// The entries handed over before the run.
    known: KnownEntries,
    /// The entries that the feed showed and that are still to be handed over after the run.
    pending: PendingEntries,
    /// The entries of the run's document.
    records: Records,
    /// The stand that bookmarks of the run's entries record.
    stand: Stand,
    /// The place that bookmarks of the run's entries record, if that place is outside the run's
    /// document.
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
        // Entries with smaller indices are newer: the consumer has not received them yet.
        let left = indices.filter(|index| *index < entry.index);
        let place = memory.place.clone().unwrap_or(Bookmark {
            stand: Some(memory.stand),
            ..bookmark
        });
        Some(Bookmark {
            // Older entries of the document are handed over before this entry, so they are known,
            // too.
            known: Some(memory.known.and(&memory.records, entry.index)),
            pending: memory.pending.and(&memory.records, left),
            ..place
        })
    }
}

#[cfg(test)]
mod tests;
