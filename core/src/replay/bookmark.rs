//! A consumer's memory, and where a replay begins.
//!
//! Pure. The form of a bookmark is for ever: bookmarks are kept in files and databases.

use serde::{Deserialize, Serialize};
use url::Url;

use super::{KnownEntries, PendingEntries};
use crate::{
    feed::{Epoch, Position},
    history::HistoryHash,
    timestamp::Timestamp,
};

/// A consumer's memory: the entry accepted last, and all facts that are needed to go on from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bookmark {
    /// The `atom:id` of the feed.
    pub feed: String,
    /// The `atom:id` of the entry; `None` if the feed was empty, or if the place is before the
    /// first entry.
    pub entry: Option<String>,
    /// The entry's position; `None` in a plain feed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// The history hash after the entry; `None` in a plain feed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryHash>,
    /// The epoch of the document the entry was read in.
    #[serde(default, skip_serializing_if = "Epoch::is_first")]
    pub epoch: Epoch,
    /// Plain feeds only: the target of `prev-archive` in the document where the consumer stood.
    /// Neither the target nor an older document holds a new entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<Url>,
    /// Plain feeds only: where the consumer stood; `None` if the bookmark does not record the
    /// stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand: Option<Stand>,
    /// Plain feeds only: those entries handed over that the bookmark remembers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<KnownEntries>,
    /// Plain feeds only: the entries that documents showed and that were not handed over yet.
    #[serde(default, skip_serializing_if = "PendingEntries::is_empty")]
    pub pending: PendingEntries,
    /// Whether the feed lists the oldest entry first, as far as documents show.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oldest_first: bool,
    /// The URL of the document the entry was read in: the permanent URL, or in a plain feed the URL
    /// that the document was retrieved from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Url>,
    /// The entity tag of the recent document, as long as the entry is the newest one there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The `Last-Modified` of the recent document, as long as the entry is the newest one there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

/// Where a consumer of a plain feed stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stand {
    /// At an entry of the recent document.
    Recent,
    /// After all entries, while the recent document was empty.
    Empty,
    /// At an entry of an older document: newer documents were still to be read.
    Archive,
}

/// Where a replay begins.
#[expect(clippy::large_enum_variant, reason = "one of it lives per walk")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest entry of the feed.
    Oldest,
    /// After the entry that is newest at the first look.
    Newest,
    /// With the first entry dated at or after an instant.
    Time(Timestamp),
    /// After the entry with this id.
    Entry(String),
    /// After a bookmarked entry.
    Bookmark(Bookmark),
}

/// Validators of a response, for a later conditional request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// The entity tag, exactly as sent by the server.
    pub etag: Option<String>,
    /// The `Last-Modified`, exactly as sent by the server.
    pub last_modified: Option<String>,
}
