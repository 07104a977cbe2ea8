//! Why a walk cannot go on.
//!
//! Pure.

use url::Url;

use crate::feed::Position;

/// Why a walk cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// The bookmarked entry is in no document of the feed. Delivering anything now would skip
    /// entries silently; only a person can decide to start over.
    #[error("gap: entry {entry} is not in the feed")]
    Gap {
        /// The entry that is gone.
        entry: String,
    },
    /// Entries of a plain feed were seen at a look, and were deleted before they were handed over.
    #[error(
        "gap: {entries} {} deleted from the feed before the consumer received {}",
        if *entries == 1 { "entry was" } else { "entries were" },
        if *entries == 1 { "it" } else { "them" }
    )]
    Deleted {
        /// Their number.
        entries: usize,
    },
    /// The feed at this URL is not the one the bookmark belongs to.
    #[error("another feed: {url} is {found}, and was {expected} before")]
    AnotherFeed {
        /// Where the document came from.
        url: Url,
        /// The feed's id in the bookmark, or in the documents before.
        expected: String,
        /// The id found.
        found: String,
    },
    /// The same position has another history: the server was rolled back or rebuilt, or a document
    /// was changed.
    #[error(
        "history changed: {url} does not continue what was read before, at position {position}"
    )]
    HistoryChanged {
        /// Where the document came from.
        url: Url,
        /// The position at which the histories part.
        position: Position,
    },
    /// A copy is older than what was read before, even when asked for past all caches.
    #[error("stale copy: {url} ends before what was read earlier")]
    Stale {
        /// Where the copy came from.
        url: Url,
    },
    /// A document that the archive links lead to does not exist (any more).
    #[error("gap: there is no document at {url} any more")]
    Missing {
        /// Where it should be.
        url: Url,
    },
    /// The links lead back to a document that was read already.
    #[error("loop: the archive links lead to {url} twice")]
    Loop {
        /// The document met twice.
        url: Url,
    },
    /// The document given is not the recent one, and nothing leads there: its archive links lead to what
    /// is newer.
    #[error("the archive links lead from the document given to newer ones: {url}")]
    Backwards {
        /// Where they lead.
        url: Url,
    },
    /// A plain feed's recent document has more entries than its bookmark may remember.
    #[error("{url} has more than {max} entries, and tells no positions")]
    TooManyEntries {
        /// Where the document came from.
        url: Url,
        /// The bound.
        max: usize,
    },
    /// There are more documents than the walk may read.
    #[error("more than {max} documents")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

impl WalkError {
    /// Returns whether entries have left the feed before they were handed over. A consumer can go on behind such
    /// a gap with [`Replay::pass_gap`](super::Replay::pass_gap).
    pub fn is_gap(&self) -> bool {
        matches!(
            self,
            Self::Gap { .. } | Self::Deleted { .. } | Self::Missing { .. }
        )
    }
}
