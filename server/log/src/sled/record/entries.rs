//! Values of entries: groups of one commit and one document.
//!
//! Pure.

use bytes::Bytes;
use memchr::memmem;
use simplefeed_core::{
    digest::Digest,
    entry::Entry,
    feed::{CommitNumber, DocumentName, EntryId, Position},
    timestamp::Timestamp,
};

use super::heads::{read_name, write_name};
use crate::{
    codec::{Reader, RecordWriter},
    sled::{
        packing::{PART_BYTES_MAX, unpack},
        tail,
    },
};

/// Bytes for which a group has room beside the entries: enough for a head and a checksum.
const GROUP_HEAD_BYTES: usize = 64;
/// Bytes for which an entry has room beside the fragment: enough for a head without a long id.
const ENTRY_HEAD_BYTES: usize = 64;

/// Entries of one commit in one document, being packed into a record.
#[derive(Debug)]
pub(in crate::sled) struct EntryRecord {
    pub(in crate::sled) first: Position,
    document: DocumentName,
    commit: CommitNumber,
    instant: Timestamp,
    count: u64,
    body: RecordWriter,
}

impl EntryRecord {
    pub(in crate::sled) fn new(
        first: Position,
        document: DocumentName,
        commit: CommitNumber,
        instant: Timestamp,
    ) -> Self {
        Self {
            first,
            document,
            commit,
            instant,
            count: 0,
            body: RecordWriter::default(),
        }
    }

    /// Returns whether the next entry belongs into this record.
    pub(in crate::sled) fn takes(
        &self,
        at: Position,
        document: DocumentName,
        fragment: &[u8],
    ) -> bool {
        // 256 bytes are for the header and the numbers before the fragment. A longer entry
        // continues in a second part.
        self.first.0 + self.count == at.0
            && self.document == document
            && self.body.0.len() + fragment.len() + 256 <= PART_BYTES_MAX
    }

    /// Adds an entry, the `offset`th of its commit.
    pub(in crate::sled) fn push(
        &mut self,
        offset: u64,
        id: &EntryId,
        sent: Digest,
        fragment: &[u8],
    ) {
        self.count += 1;
        self.body.0.reserve(fragment.len() + ENTRY_HEAD_BYTES);
        self.body.number(offset);
        self.body.bytes(&sent.0);
        let id = id.as_str().as_bytes();
        // Nearly always the fragment has the id, byte for byte, so the place of the id is stored,
        // counted from 1. Place 0 means that the id follows.
        let place = memmem::find(fragment, id);
        self.body.length(place.map_or(0, |place| place + 1));
        self.body.length(id.len());
        if place.is_none() {
            self.body.bytes(id);
        }
        self.body.length(fragment.len());
        self.body.bytes(fragment);
    }

    /// Returns the record's bytes, to be stored in parts.
    pub(in crate::sled) fn encode(self) -> Vec<u8> {
        let mut out = RecordWriter(Vec::with_capacity(self.body.0.len() + GROUP_HEAD_BYTES));
        out.number(self.count);
        out.number(self.commit.0);
        out.instant(self.instant);
        write_name(self.document, &mut out);
        out.bytes(&self.body.0);
        out.0
    }
}

/// Returns the number of entries in a group.
pub(in crate::sled) fn count_entries(group: &[u8]) -> Option<u64> {
    Reader(group).number()
}

/// Returns the entries of a stored record whose first entry is at `first`.
pub(in crate::sled) fn decode_entries(first: Position, stored: &Bytes) -> Option<Vec<Entry>> {
    let mut entries = vec![];
    // Positions are not stored: the entries of a record have no holes.
    let mut next = first;
    for packed in tail::packed_groups(stored)? {
        let groups = &unpack(&packed)?;
        let mut from = Reader(groups);
        while !from.0.is_empty() {
            next = decode_group(next, groups, &mut from, &mut entries)?;
        }
    }
    (!entries.is_empty()).then_some(entries)
}

/// Adds the entries of the next group, whose first one is at `first`. Returns the position behind
/// them.
fn decode_group(
    first: Position,
    record: &Bytes,
    from: &mut Reader<'_>,
    entries: &mut Vec<Entry>,
) -> Option<Position> {
    let count = from.number()?;
    let commit = CommitNumber(from.number()?);
    let instant = from.instant()?;
    let document = read_name(from)?;
    // Nothing is allocated for `count` beforehand: a damaged count could be of any size.
    for index in 0..count {
        let offset = from.number()?;
        let sent = from.digest()?;
        let place = from.length()?;
        let id_length = from.length()?;
        let explicit = if place == 0 {
            Some(from.bytes(id_length)?)
        } else {
            None
        };
        let length = from.length()?;
        let fragment = from.bytes(length)?;
        let id = match explicit {
            Some(id) => id,
            None => fragment.get(place - 1..place - 1 + id_length)?,
        };
        entries.push(Entry {
            at: Position(first.0 + index),
            id: EntryId::parse(std::str::from_utf8(id).ok()?)?,
            document,
            commit,
            instant: instant.plus_micros(offset),
            sent,
            // Shares the record's memory instead of copying the fragment.
            fragment: record.slice_ref(fragment),
        });
    }
    Some(Position(first.0.checked_add(count)?))
}

#[cfg(test)]
mod tests {
    use simplefeed_core::{
        commit::Change,
        feed::{DocumentNumber, Epoch},
    };

    use super::*;
    use crate::{
        fixtures::entry,
        sled::{packing::VALUE_BYTES_MAX, record::parts},
    };

    #[test]
    fn no_value_is_larger_than_sled_syncs() {
        for change in [entry(1, 0, 1_000_000), entry(1, 0, 7_300)] {
            let Change::Entry {
                fragment, id, sent, ..
            } = change
            else {
                panic!()
            };
            let name = DocumentName {
                number: DocumentNumber::OLDEST,
                epoch: Epoch::FIRST,
            };
            let mut record =
                EntryRecord::new(Position(0), name, CommitNumber(1), Timestamp::default());
            record.push(0, &id, sent, &fragment);
            let body = record.encode();
            for (_, part) in parts(&body) {
                assert!(part.len() <= VALUE_BYTES_MAX);
            }
        }
    }
}
