//! Keys of the records: a byte for the kind, and big-endian numbers behind it.
//!
//! Pure.

use simplefeed_core::feed::{CommitNumber, DocumentNumber, FeedKey, FeedName, Position, Revision};
use uuid::Uuid;

pub(in crate::sled) fn commit_key(number: CommitNumber) -> Vec<u8> {
    key_of(b'c', &[&number.0.to_be_bytes()])
}

/// Returns the key of the facts of commits from `first` on.
pub(in crate::sled) fn facts_key(first: CommitNumber) -> Vec<u8> {
    key_of(b'p', &[&first.0.to_be_bytes()])
}

pub(in crate::sled) fn entry_key(feed: FeedKey, at: Position) -> Vec<u8> {
    key_of(b'e', &[feed.0.as_bytes(), &at.0.to_be_bytes()])
}

pub(in crate::sled) fn head_key(feed: FeedKey) -> Vec<u8> {
    key_of(b'h', &[feed.0.as_bytes()])
}

/// Returns the key of a feed's record, which has the feed's head and newest entries.
pub(in crate::sled) fn feed_key(feed: FeedKey) -> Vec<u8> {
    key_of(b'f', &[feed.0.as_bytes()])
}

pub(in crate::sled) fn document_key(feed: FeedKey, document: DocumentNumber) -> Vec<u8> {
    key_of(b'd', &[feed.0.as_bytes(), &document.get().to_be_bytes()])
}

pub(in crate::sled) fn settings_key(feed: FeedKey, revision: Revision) -> Vec<u8> {
    key_of(b's', &[feed.0.as_bytes(), &revision.0.to_be_bytes()])
}

pub(in crate::sled) fn defaults_key(revision: Revision) -> Vec<u8> {
    key_of(b'g', &[&revision.0.to_be_bytes()])
}

pub(in crate::sled) fn name_key(name: &FeedName) -> Vec<u8> {
    key_of(b'n', &[name.as_str().as_bytes()])
}

pub(in crate::sled) fn part_key(key: &[u8], part: u32) -> Vec<u8> {
    let mut key = key.to_vec();
    key.extend_from_slice(&part.to_be_bytes());
    key
}

fn key_of(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    // Enough for all keys but long names: the longest other key, of an entry, has 25 bytes, and 4
    // for the part.
    let mut key = Vec::with_capacity(32);
    key.push(kind);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

/// Returns the prefix of the keys of a feed's entries.
pub(in crate::sled) fn entries_prefix(feed: FeedKey) -> Vec<u8> {
    key_of(b'e', &[feed.0.as_bytes()])
}

/// Returns the prefix of the keys of a feed's documents.
pub(in crate::sled) fn documents_prefix(feed: FeedKey) -> Vec<u8> {
    key_of(b'd', &[feed.0.as_bytes()])
}

/// Returns the prefix of the keys of a feed's settings.
pub(in crate::sled) fn settings_prefix(feed: FeedKey) -> Vec<u8> {
    key_of(b's', &[feed.0.as_bytes()])
}

/// Returns the feed of a key that has a feed behind the byte of the kind.
pub(in crate::sled) fn feed_of_key(key: &[u8]) -> Option<FeedKey> {
    let feed = key.get(1..)?.first_chunk::<16>()?;
    Some(FeedKey(Uuid::from_bytes(*feed)))
}

/// Returns the revision of a key of settings, or `None` for another kind of key.
pub(in crate::sled) fn revision_of_key(key: &[u8]) -> Option<Revision> {
    let (_, rest) = key.strip_prefix(b"s")?.split_first_chunk::<16>()?;
    Some(Revision(u32::from_be_bytes(*rest.first_chunk::<4>()?)))
}

/// Returns the commit number of a key of facts, or `None` for another kind of key.
pub(in crate::sled) fn commit_of_key(key: &[u8]) -> Option<CommitNumber> {
    // The journal has one key for each commit, sled has one key for consecutive commits. Both keys
    // have the number behind the kind.
    let number = key.strip_prefix(b"c").or(key.strip_prefix(b"p"))?;
    Some(CommitNumber(u64::from_be_bytes(
        *number.first_chunk::<8>()?,
    )))
}

/// Returns feed and position of an entry record's key, or `None` for another kind of key.
pub(in crate::sled) fn entry_of_key(key: &[u8]) -> Option<(FeedKey, Position)> {
    let (feed, rest) = key.strip_prefix(b"e")?.split_first_chunk::<16>()?;
    // The part number behind the position is left out: all parts are one record.
    let at = rest.first_chunk::<8>()?;
    Some((
        FeedKey(Uuid::from_bytes(*feed)),
        Position(u64::from_be_bytes(*at)),
    ))
}

/// Returns the name of a name's key, or `None` for another kind of key.
pub(in crate::sled) fn name_of_key(key: &[u8]) -> Option<FeedName> {
    FeedName::parse(std::str::from_utf8(key.strip_prefix(b"n")?).ok()?)
}
