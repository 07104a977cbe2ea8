//! The record of a feed in sled: the head, and the tail, which has the feed's newest settled
//! entries.
//!
//! Pure. A feed that gains little in a chapter would get a record of entries from each settling,
//! and sled keeps something in memory of every record. So the entries of such a feed gather in the
//! tail. They stay there until they fill a record of their own, or until a settling adds so few
//! entries that another write of all the others would cost too much.
//!
//! ```text
//! feed's record    length of the head, head, position of the tail's first entry, tail
//! tail             0, 0, blocks
//! block            number of entries, length, packed groups of entries
//! ```
//!
//! A full tail becomes a record of entries without a change: the blocks stay compressed.

use std::ops::Range;

use bytes::Bytes;
use simplefeed_core::feed::Position;

use super::packing::{PART_BYTES_MAX, pack};
use crate::codec::{Reader, RecordWriter};

/// Bytes from which on a tail becomes a record of entries. A longer tail saves records, and costs
/// more whenever sled writes the tail's page again.
const TAIL_BYTES: usize = if cfg!(test) { 512 } else { 4 * 1024 };
/// A tail of more than so many times the bytes that the feed gained becomes a record. Without this
/// bound, each small gain would write a large tail again.
const TIMES_GAINED_MAX: usize = 4;
/// Maximum length, in bytes, of a record of entries that is made of several blocks: such a record
/// fits into one part.
const JOINED_BYTES_MAX: usize = PART_BYTES_MAX;
/// The beginning of every tail, and of no packed record: if a packed record begins with 0, a length
/// follows, which is not 0.
const MARK: &[u8] = &[0, 0];

/// Record of a feed in sled: head and tail.
#[derive(Debug, Default)]
pub(super) struct FeedRecord {
    /// Head of the feed, encoded as in the journal.
    pub(super) head: Bytes,
    pub(super) tail: Tail,
}

impl FeedRecord {
    /// Returns the record's bytes.
    pub(super) fn encode(head: &[u8], tail: &Tail) -> Vec<u8> {
        let mut out = RecordWriter(Vec::with_capacity(head.len() + tail.stored.len() + 16));
        out.length(head.len());
        out.bytes(head);
        out.number(tail.first.0);
        out.bytes(&tail.stored);
        out.0
    }

    /// Returns the record of these bytes, or `None` if the bytes are no record.
    pub(super) fn decode(body: &Bytes) -> Option<Self> {
        let mut from = Reader(body);
        let length = from.length()?;
        let head = body.slice_ref(from.bytes(length)?);
        let first = Position(from.number()?);
        let tail = match from.0 {
            // A feed whose entries are all in records of their own, or that has none.
            [] => Tail::default(),
            stored => Tail::decode_tail(first, body.slice_ref(stored))?,
        };
        Some(Self { head, tail })
    }
}

/// Consecutive entries of a feed, in blocks.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Position of the first entry.
    pub(super) first: Position,
    /// Position behind the last entry.
    pub(super) end: Position,
    /// Stored bytes of the tail; empty if the tail has no entries.
    pub(super) stored: Bytes,
}

impl Tail {
    /// Returns a tail of one block: groups with the entries from `first` to before `end`.
    pub(super) fn of(first: Position, end: Position, groups: Vec<u8>) -> Self {
        let packed = pack(groups);
        let mut out = RecordWriter(MARK.to_vec());
        out.number(end.0 - first.0);
        out.length(packed.len());
        out.bytes(&packed);
        let stored = out.0.into();
        Self { first, end, stored }
    }

    fn decode_tail(first: Position, stored: Bytes) -> Option<Self> {
        let mut end = first;
        for (count, _) in packed_blocks(&stored)? {
            // A damaged number may be of any size.
            end = Position(end.0.checked_add(count)?);
        }
        Some(Self { first, end, stored })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Returns whether the tail has entries at the given positions.
    pub(super) fn reaches_into(&self, range: &Range<Position>) -> bool {
        self.first < range.end && range.start < self.end
    }

    /// Returns whether the tail is to become a record of entries, after a gain of so many bytes.
    pub(super) fn is_full(&self, gained: usize) -> bool {
        self.stored.len() > TAIL_BYTES.min(gained * TIMES_GAINED_MAX)
    }

    /// Returns whether the entries of `next` may follow in the same record.
    pub(super) fn takes(&self, next: &Self) -> bool {
        !self.is_empty()
            && self.end == next.first
            && self.stored.len() + next.stored.len() <= JOINED_BYTES_MAX
    }

    /// Adds the entries that follow.
    pub(super) fn append(&mut self, next: &Self) {
        // One mark at the beginning is enough, and the blocks follow each other.
        let blocks = next.stored.strip_prefix(MARK).unwrap_or_default();
        self.stored = [&*self.stored, blocks].concat().into();
        self.end = next.end;
    }
}

/// Returns the packed groups of each block, with the number of their entries.
fn packed_blocks(stored: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut from = Reader(stored.strip_prefix(MARK)?);
    let mut found = vec![];
    while !from.0.is_empty() {
        let count = from.number()?;
        let length = from.length()?;
        found.push((count, from.bytes(length)?));
    }
    Some(found)
}

/// Returns the packed groups of a stored record of entries: one for each block, or the whole record
/// if the record has no blocks.
pub(super) fn packed_groups(stored: &Bytes) -> Option<Vec<Bytes>> {
    if !stored.starts_with(MARK) {
        // A record that never was a tail, such as one of a feed that gained much.
        return Some(vec![stored.clone()]);
    }
    let blocks = packed_blocks(stored)?.into_iter();
    Some(blocks.map(|(_, packed)| stored.slice_ref(packed)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simplefeed_core::{
        digest::Digest,
        entry::Entry,
        feed::{CommitNumber, DocumentName, DocumentNumber, EntryId, Epoch},
        timestamp::Timestamp,
    };

    use super::*;
    use crate::sled::record::{EntryRecord, decode_entries};

    fn group(first: u64, fragments: &[String]) -> Vec<u8> {
        let name = DocumentName {
            number: DocumentNumber::OLDEST,
            epoch: Epoch::FIRST,
        };
        let (commit, instant) = (CommitNumber(7), Timestamp::default());
        let mut group = EntryRecord::new(Position(first), name, commit, instant);
        for (index, fragment) in (0..).zip(fragments) {
            let id = EntryId::parse(&format!("urn:{}", first + index)).unwrap();
            group.push(index, &id, Digest([1; 32]), fragment.as_bytes());
        }
        group.encode()
    }

    fn fragments_of(entries: &[Entry]) -> Vec<(u64, String)> {
        let text = |entry: &Entry| String::from_utf8(entry.fragment.to_vec()).unwrap();
        entries
            .iter()
            .map(|entry| (entry.at.0, text(entry)))
            .collect()
    }

    proptest! {
        /// Goal: a tail gives back all that was put into it, also from a feed's record, and less
        /// from a record that is cut off.
        #[test]
        fn a_tail_gives_back_what_was_put_into_it(
            blocks in prop::collection::vec(prop::collection::vec("[a-z<>&]{0,90}", 1..5), 0..6),
            first in 0_u64..1_000_000,
        ) {
            let (mut tail, mut next, mut expected) = (Tail::default(), first, vec![]);
            for fragments in &blocks {
                let count = u64::try_from(fragments.len()).unwrap();
                let end = Position(next + count);
                let block = Tail::of(Position(next), end, group(next, fragments));
                prop_assert!(tail.is_empty() || tail.takes(&block));
                if tail.is_empty() { tail = block } else { tail.append(&block) }
                expected.extend((next..).zip(fragments.iter().cloned()));
                next += count;
            }
            let body = Bytes::from(FeedRecord::encode(b"head", &tail));
            let record = FeedRecord::decode(&body).unwrap();
            prop_assert_eq!(&record.head[..], b"head");
            prop_assert_eq!(record.tail.end, tail.end);
            let stored = &record.tail.stored;
            let entries = decode_entries(record.tail.first, stored).unwrap_or_default();
            prop_assert_eq!(fragments_of(&entries), expected);
            for length in 0..body.len() {
                if let Some(cut) = FeedRecord::decode(&body.slice(..length)) {
                    prop_assert!(cut.tail.end < tail.end || cut.tail.is_empty());
                }
            }
        }
    }

    /// Goal: no record covers positions for which it has no entries, and no record of several
    /// blocks needs parts.
    #[test]
    fn a_tail_takes_what_follows_and_fits() {
        let block = |first: u64, bytes: usize| {
            // Text that a compression does not make shorter.
            let text: String = (0..bytes / 64)
                .map(|n| Digest::of(&(first + u64::try_from(n).unwrap()).to_be_bytes()).to_string())
                .collect();
            Tail::of(Position(first), Position(first + 1), group(first, &[text]))
        };
        assert!(!Tail::default().takes(&block(0, 64)));
        let tail = block(5, 640);
        assert!(tail.takes(&block(6, 640)) && !tail.takes(&block(7, 640)));
        assert!(!tail.takes(&block(4, 640)) && !tail.takes(&block(6, 2 * JOINED_BYTES_MAX)));
        assert!(tail.is_full(640) && !block(5, 256).is_full(256));
        assert!(block(5, 256).is_full(64) && !block(5, 256).is_full(128));
        assert!(tail.reaches_into(&(Position(5)..Position(6))));
        assert!(!tail.reaches_into(&(Position(6)..Position(9))));
        assert!(!tail.reaches_into(&(Position(0)..Position(5))));
    }
}
