//! Reasons why a walk cannot go on.
//!
//! Pure.

use url::Url;

use crate::{feed::Position, reader::BrokenLink};

/// Reason why a walk cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// The entry to go on from is in no document of the feed, or entries of a plain feed may have
    /// come and gone unseen. Handing over newer entries could skip others silently, so the caller
    /// decides whether to go on.
    #[error("gap: entry {entry} is not in the feed")]
    Gap {
        /// The `atom:id` of the missing entry.
        entry: String,
    },
    /// Entries that a plain feed showed at a look were deleted before they were handed over.
    #[error(
        "gap: {entries} {} deleted from the feed before the consumer received {}",
        if *entries == 1 { "entry was" } else { "entries were" },
        if *entries == 1 { "it" } else { "them" }
    )]
    Deleted {
        /// Number of entries deleted before the consumer received them.
        entries: usize,
    },
    /// A document belongs to another feed than the bookmark or the first document of the walk.
    #[error("another feed: {url} has the feed id {found}, and the bookmark has {expected}")]
    AnotherFeed {
        /// URL that the document was retrieved from.
        url: Url,
        /// The feed's id in the bookmark; without a bookmark, in the first document of the walk.
        expected: String,
        /// The `atom:id` in the retrieved document.
        found: String,
    },
    /// The same position has another history: the server was rolled back or rebuilt, or a document
    /// was changed.
    #[error(
        "history changed: {url} does not continue what was read before, at position {position}"
    )]
    HistoryChanged {
        /// URL that the document was retrieved from.
        url: Url,
        /// The position at which the walk noticed the change.
        position: Position,
    },
    /// A copy is older than the documents read earlier, even after a request past all caches.
    #[error("stale copy: {url} ends before what was read earlier")]
    Stale {
        /// URL that the copy was retrieved from.
        url: Url,
    },
    /// A document that the walk needs does not exist (any more).
    #[error("gap: there is no document at {url} any more")]
    Missing {
        /// URL of the missing document.
        url: Url,
    },
    /// A link that the walk needs leads nowhere, so the entries behind that link are unknown.
    #[error("{url} cannot be read on from: {link}")]
    BrokenLink {
        /// URL that the document was retrieved from.
        url: Url,
        /// Relation and target of the broken link.
        link: BrokenLink,
    },
    /// A paged feed may have entries on other pages that were not handed over, and walks do not
    /// read those pages.
    #[error("gap: {url} shows one page of its feed, and entries of other pages were not received")]
    Paged {
        /// URL of the page.
        url: Url,
    },
    /// The links lead back to a document that the walk has read already.
    #[error("loop: the archive links lead to {url} twice")]
    Loop {
        /// URL of the document met twice.
        url: Url,
    },
    /// The document given is not the recent one, and no link leads from there to the recent
    /// document: the document's archive links lead to newer documents only.
    #[error(
        "the document given links to newer ones only, such as {url}: begin with the recent document"
    )]
    Backwards {
        /// URL of the newer document.
        url: Url,
    },
    /// A plain feed's recent document has more entries than a bookmark may remember.
    #[error("{url} has more than {max} entries without positions, too many to remember")]
    TooManyEntries {
        /// URL that the document was retrieved from.
        url: Url,
        /// The bound, [`KNOWN_WINDOW_MAX`](crate::limits::KNOWN_WINDOW_MAX).
        max: usize,
    },
    /// There are more documents than the walk may read, or their URLs together are longer than
    /// [`WALK_URL_BYTES_MAX`](crate::limits::WALK_URL_BYTES_MAX).
    #[error("the feed has more than {max} documents, the most that a walk may read")]
    TooMany {
        /// The bound on documents in one round, in either direction.
        max: usize,
    },
}

impl WalkError {
    /// Returns whether entries may be lost: before they were handed over, they left the feed, or
    /// moved to pages that walks do not read. A consumer can go on after such a gap with
    /// [`Replay::pass_gap`](super::Replay::pass_gap).
    pub fn is_gap(&self) -> bool {
        matches!(
            self,
            Self::Gap { .. } | Self::Deleted { .. } | Self::Missing { .. } | Self::Paged { .. }
        )
    }
}
