//! Places of a document's entries: positions, hashes and times.
//!
//! Pure.

use url::Url;

use super::{Bookmark, RunEntry, WalkError};
use crate::{feed::Position, history::HistoryHash, reader::Document, timestamp::Timestamp};

/// Returns the bookmark after one of a document's entries.
pub(super) fn bookmark(document: &Document, url: &Url, entry: &RunEntry) -> Option<Bookmark> {
    let id = document.entry(entry.index)?.id;
    Some(Bookmark {
        feed: document.feed.clone(),
        entry: Some(id.into()),
        position: entry.place.map(|(position, _)| position),
        history: entry.place.and_then(|(_, history)| history),
        epoch: document.epoch,
        oldest_first: document.is_turned(),
        document: Some(url.clone()),
        // The place in a feed with positions is found by position; only plain feeds compare archive
        // links.
        archive: document
            .link("prev-archive")
            .filter(|_| document.history.is_none())
            .cloned(),
        ..Bookmark::default()
    })
}

/// Returns the target of a link that a walk needs; `None` if the document, retrieved from `url`,
/// has no such link.
///
/// # Errors
///
/// [`WalkError::BrokenLink`] if the document has only broken links with this relation.
pub(super) fn lead(document: &Document, rel: &str, url: &Url) -> Result<Option<Url>, WalkError> {
    match document.lead(rel) {
        Ok(found) => Ok(found.cloned()),
        Err(link) => Err(WalkError::BrokenLink {
            url: url.clone(),
            link: link.clone(),
        }),
    }
}

pub(super) fn count(entries: usize) -> u64 {
    u64::try_from(entries).expect("a document has fewer than 2^64 entries")
}

/// Returns whether all entries of a document are before an instant: by their own dates, or, in a
/// timeline or an empty document, by the document's date.
pub(super) fn is_before(document: &Document, instant: Timestamp) -> bool {
    let before = |updated: Option<Timestamp>| updated.is_some_and(|updated| updated < instant);
    let is_timeline = document.history.is_some_and(|(_, before)| before.is_none());
    // The document's own date is the instant of a commit, and entries may be dated later, so the
    // entries' dates count. The document's date counts in two cases: where there is no entry, and
    // in a timeline. There a follow brings old entries to new places, so the entries' dates do not
    // rise with the places.
    if document.is_empty() || is_timeline {
        return before(document.updated);
    }
    (0..document.len()).all(|index| before(document.updated_of(index)))
}

/// Returns the position after the document's newest entry; `None` for a document without positions.
pub(super) fn end_of(document: &Document) -> Option<Position> {
    document
        .history
        .map(|(first, _)| Position(first.0 + count(document.len())))
}

/// Returns the position of a document's newest entry and, except in timelines, the history hash
/// after that entry; `None` for a document without positions or entries.
pub(super) fn newest_place(document: &Document) -> Option<(Position, Option<HistoryHash>)> {
    let (first, before) = document.history?;
    // An empty document has no newest entry.
    let newest = count(document.len()).checked_sub(1)?;
    let history = before.map(|before| hash_entries(document, before, document.len()));
    Some((Position(first.0 + newest), history))
}

/// Returns whether the last of a document's `oldest` oldest entries, counted from the oldest, has
/// the id of a place. Returns true for 0: the place is before the document, and no entry there
/// contradicts the place.
pub(super) fn is_at(document: &Document, place: &Bookmark, oldest: usize) -> bool {
    let Some(index) = document.len().checked_sub(oldest) else {
        return false;
    };
    oldest == 0
        || document
            .entry(index)
            .is_some_and(|entry| place.entry.as_deref() == Some(entry.id))
}

/// Returns the history hash after the `oldest` oldest entries of a document.
pub(super) fn hash_entries(document: &Document, before: HistoryHash, oldest: usize) -> HistoryHash {
    // Documents list the newest entry first, and the hash extends oldest first.
    let indices = (document.len().saturating_sub(oldest)..document.len()).rev();
    let entries = indices.filter_map(|index| document.entry(index));
    entries.fold(before, |hash, entry| hash.extend(entry.fragment))
}
