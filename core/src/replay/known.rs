//! Entries of a plain feed that were handed over, and entries still to be handed over.
//!
//! Pure. A plain feed has no positions: an entry may be edited, move up, or be put in below newer
//! ones. So a consumer remembers entries instead of a place: all entries of the recent document,
//! and a bounded number of others, to recognise repeats. A consumer that stops within a document
//! also remembers the entries seen and not handed over: the deletion of such an entry is a gap.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize, de::Error as _};

use crate::{
    limits::{KNOWN_BESIDES_MAX, KNOWN_WINDOW_MAX, SEEN_ENTRIES_MAX},
    reader::Document,
    replay::{
        Start,
        seen::{EntryStamp, key},
    },
    timestamp::Timestamp,
};

/// Length of one entry in a bookmark, in bytes: 8 of the id's digest and 8 of `updated`.
const RECORD: usize = 16;

/// Stands for the date of an entry that has none.
const NO_DATE: i64 = i64::MIN;

/// Novelty of an entry to a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryNovelty {
    /// The entry was not handed over, as far as the memory shows.
    New,
    /// The entry was handed over with an earlier `updated`.
    Revised,
    /// The entry was handed over, and was not revised since.
    Again,
}

/// The entries that a bookmark remembers, in the order in which they were met.
///
/// The JSON form is text in Base64: for each entry 8 bytes of the id's SHA-256, and 8 bytes of
/// `updated` in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownEntries(Arc<Vec<(u64, i64)>>);

impl KnownEntries {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no entry is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns these entries and those of a document from the bottom up to the one at `index`.
    pub(super) fn and(&self, records: &Records, index: usize) -> Self {
        let passed = records.0.get(index..).unwrap_or_default().iter().rev();
        let mut entries = Vec::with_capacity(self.0.len() + passed.len());
        // `passed` runs oldest first, like the entries of a bookmark.
        entries.extend_from_slice(&self.0);
        entries.extend(passed.flatten());
        Self(Arc::new(entries))
    }
}

impl Serialize for KnownEntries {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(RECORD * self.0.len());
        for (id, updated) in self.0.iter() {
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&updated.to_be_bytes());
        }
        serializer.serialize_str(&BASE64URL_NOPAD.encode(&bytes))
    }
}

impl<'de> Deserialize<'de> for KnownEntries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = read_hashes(deserializer)?;
        let (records, rest) = bytes.as_chunks::<RECORD>();
        if !rest.is_empty() {
            return Err(D::Error::custom("known entries are no whole records"));
        }
        let read = |record: &[u8; RECORD]| {
            let (id, updated) = record.split_at(RECORD / 2);
            let id = u64::from_be_bytes(id.try_into().ok()?);
            Some((id, i64::from_be_bytes(updated.try_into().ok()?)))
        };
        Ok(Self(Arc::new(records.iter().filter_map(read).collect())))
    }
}

/// The entries of a document in the form of bookmarks, so that each id is hashed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Records(Vec<Option<(u64, i64)>>);

impl Records {
    /// Returns the records of a document's entries.
    pub(super) fn of(document: &Document) -> Self {
        let records = (0..document.len()).map(|index| key(document, index).map(record_of));
        Self(records.collect())
    }
}

/// The entries that a bookmark owes: a document showed them, and they were not handed over.
///
/// The JSON form is text in Base64: for each entry 8 bytes of the id's SHA-256.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingEntries(Arc<Vec<u64>>);

impl PendingEntries {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no entry is owed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns these entries and the entries at `indices` of a document.
    pub(super) fn and(&self, records: &Records, indices: impl Iterator<Item = usize>) -> Self {
        let record = |index: usize| records.0.get(index).copied().flatten();
        let ids = indices.filter_map(record).map(|(id, _)| id);
        Self(Arc::new(self.0.iter().copied().chain(ids).collect()))
    }
}

impl Serialize for PendingEntries {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|id| id.to_be_bytes()).collect();
        serializer.serialize_str(&BASE64URL_NOPAD.encode(&bytes))
    }
}

impl<'de> Deserialize<'de> for PendingEntries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = read_hashes(deserializer)?;
        let (ids, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(D::Error::custom("pending entries are no whole records"));
        }
        let ids = ids.iter().map(|id| u64::from_be_bytes(*id)).collect();
        Ok(Self(Arc::new(ids)))
    }
}

fn read_hashes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    BASE64URL_NOPAD
        .decode(text.as_bytes())
        .map_err(D::Error::custom)
}

#[derive(Clone, Copy, Debug)]
struct RememberedEntry {
    updated: Option<Timestamp>,
    /// Value of the memory's `clock` when the entry was met last.
    met: u64,
}

/// Bounds on remembered entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Maximum number of entries in a bookmark, besides those of the recent document.
    pub(super) kept: usize,
    /// Maximum number of entries in the memory of a running consumer, besides those of the recent
    /// document; between clean-ups, the memory holds up to twice as many.
    pub(super) running: usize,
    /// Maximum number of entries of a way back that are compared with those of the way forward.
    pub(super) compared: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            kept: KNOWN_BESIDES_MAX,
            running: SEEN_ENTRIES_MAX,
            compared: SEEN_ENTRIES_MAX,
        }
    }
}

/// The entries that a running consumer remembers.
#[derive(Debug, Default)]
pub(super) struct RememberedEntries {
    bounds: Bounds,
    entries: HashMap<u64, RememberedEntry>,
    /// Entries in the order in which they were met, the first one in front, each with the `clock`
    /// of the meeting. An entry that was met again stands here twice until a clean-up.
    order: VecDeque<(u64, u64)>,
    /// The entries of the recent document, which are never forgotten.
    window: HashSet<u64>,
    /// The entries that the recent document had at the look before. The memory keeps these entries
    /// until the archives that they may have moved to are read.
    window_before: HashSet<u64>,
    clock: u64,
    /// Whether the memory may have forgotten an entry that was handed over.
    is_partial: bool,
    /// Entries that earlier rounds showed and did not hand over.
    owed: BTreeSet<u64>,
    /// Entries that this round showed and did not hand over yet.
    shown: BTreeSet<u64>,
    /// Entries that a copy of the recent document showed after the look of this round, and that the
    /// next round owes.
    for_next_round: BTreeSet<u64>,
}

impl RememberedEntries {
    /// Returns a consumer's memory at the start.
    pub(super) fn at(start: &Start, bounds: Bounds) -> Self {
        let mut known = Self {
            bounds,
            ..Self::default()
        };
        let Start::Bookmark(bookmark) = start else {
            return known;
        };
        known.owed = bookmark.pending.0.iter().copied().collect();
        let entries = bookmark.known.clone().unwrap_or_default();
        // The bookmark does not record whether entries were left out; a full bookmark may lack
        // some.
        known.is_partial = entries.len() >= bounds.kept;
        for (id, updated) in entries.0.iter() {
            let updated = (*updated != NO_DATE).then(|| Timestamp::from_micros(*updated));
            // A bookmark lists the entries of a document beside those known before, so an id can
            // stand twice: the later date counts.
            known.remember_id(*id, updated);
        }
        // The factor is two, because a bookmark holds the entries of two windows: of the last look,
        // and of the look before.
        if known.entries.len() <= 2 * KNOWN_WINDOW_MAX {
            // The bookmark does not record which entries were in the recent document, so all count
            // as such.
            known.window_before = known.entries.keys().copied().collect();
        }
        known
    }

    /// Returns the maximum number of entries of a way back that are compared with those of the way
    /// forward.
    pub(super) fn compared_max(&self) -> usize {
        self.bounds.compared
    }

    /// Returns whether the consumer may have received an entry that is not known.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns whether any of a document's entries is known.
    pub(super) fn has_any_of(&self, document: &Document) -> bool {
        (0..document.len()).any(|index| self.has(document, index))
    }

    /// Returns whether any of a document's entries is owed: shown by earlier rounds and not handed
    /// over.
    pub(super) fn owes_any_of(&self, document: &Document) -> bool {
        let mut keys = (0..document.len()).filter_map(|index| key(document, index));
        !self.owed.is_empty() && keys.any(|(id, _)| self.owed.contains(&id))
    }

    /// Returns whether a document's entry is known.
    pub(super) fn has(&self, document: &Document, index: usize) -> bool {
        key(document, index).is_some_and(|(id, _)| self.entries.contains_key(&id))
    }

    /// Returns whether a document's entry is known with the same date.
    pub(super) fn has_unchanged(&self, document: &Document, index: usize) -> bool {
        let entry = |(id, updated)| Some(self.entries.get(&id)?.updated == updated);
        key(document, index).and_then(entry).unwrap_or(false)
    }

    /// Notes which entries the recent document has. The memory does not forget these entries once
    /// they were met.
    pub(super) fn look_at(&mut self, recent: &Document) {
        // A second look in one round keeps the older window, because the archives are not read yet.
        if self.window_before.is_empty() {
            self.window_before = std::mem::take(&mut self.window);
        }
        self.window = id_hashes(recent);
    }

    /// Makes the entries left to the next round owed, and the entries of the older window
    /// forgettable.
    pub(super) fn end_round(&mut self) {
        self.window_before.clear();
        self.owed.append(&mut self.for_next_round);
    }

    /// Leaves to the next round all entries that this round showed and did not hand over. Entries
    /// that only earlier rounds showed stay due in this round.
    pub(super) fn defer_shown(&mut self) {
        let shown = std::mem::take(&mut self.shown);
        self.defer_ids(shown);
    }

    /// Leaves to the next round the entries in `lost` that were neither handed over nor shown as
    /// entries to hand over in this round. Returns the entries left.
    pub(super) fn defer(&mut self, lost: Vec<EntryStamp>) -> Vec<EntryStamp> {
        let mut lost = self.not_handed_over(lost);
        lost.retain(|(id, _)| !self.shown.contains(id));
        self.defer_ids(lost.iter().map(|(id, _)| *id));
        lost
    }

    fn defer_ids(&mut self, ids: impl IntoIterator<Item = u64>) {
        self.for_next_round.extend(ids);
        let deferred = &self.for_next_round;
        self.owed.retain(|id| !deferred.contains(id));
    }

    /// Notes an entry that the walk is to hand over in this round.
    pub(super) fn show(&mut self, document: &Document, index: usize) {
        self.shown.extend(key(document, index).map(|(id, _)| id));
    }

    /// Makes due in this round the entries in `lost` that were not handed over. Returns these
    /// entries.
    pub(super) fn owe(&mut self, lost: Vec<EntryStamp>) -> Vec<EntryStamp> {
        let lost = self.not_handed_over(lost);
        self.shown.extend(lost.iter().map(|(id, _)| *id));
        lost
    }

    fn not_handed_over(&self, mut seen: Vec<EntryStamp>) -> Vec<EntryStamp> {
        seen.retain(|(id, updated)| {
            let entry = self.entries.get(id);
            entry.is_none_or(|entry| entry.updated < *updated)
        });
        seen
    }

    /// Returns the entries that this round showed, or that are among `lost`, if they were not
    /// handed over and the document lacks them.
    pub(super) fn missing(&self, lost: &[EntryStamp], document: &Document) -> HashSet<u64> {
        let lost = self.not_handed_over(lost.to_vec());
        let ids = id_hashes(document);
        let shown = self.shown.iter().copied();
        let all = shown.chain(lost.into_iter().map(|(id, _)| id));
        all.filter(|id| !ids.contains(id)).collect()
    }

    /// Returns whether a document lacks an entry that earlier rounds showed and did not hand over.
    pub(super) fn lacks_owed(&self, document: &Document) -> bool {
        lacks_entry(&self.owed, document)
    }

    /// Returns whether this round showed an entry that is not handed over.
    pub(super) fn has_shown(&self) -> bool {
        !self.shown.is_empty()
    }

    /// Returns whether a document lacks an entry that this round showed and did not hand over.
    pub(super) fn lacks_shown(&self, document: &Document) -> bool {
        lacks_entry(&self.shown, document)
    }

    /// Returns whether a round showed a document's entry without handing over that entry.
    pub(super) fn is_pending(&self, document: &Document, index: usize) -> bool {
        // Both sets are empty in most rounds, and hashing each id would be wasted.
        if self.owed.is_empty() && self.shown.is_empty() {
            return false;
        }
        let id = key(document, index).map(|(id, _)| id);
        id.is_some_and(|id| self.owed.contains(&id) || self.shown.contains(&id))
    }

    /// Returns the entries shown and not handed over, at most [`KNOWN_WINDOW_MAX`].
    pub(super) fn pending(&self) -> PendingEntries {
        let is_due = |id: &&u64| self.owed.contains(id) || self.shown.contains(id);
        let deferred = self.for_next_round.iter().filter(|id| !is_due(id));
        let all = self.owed.union(&self.shown).chain(deferred);
        PendingEntries(Arc::new(all.take(KNOWN_WINDOW_MAX).copied().collect()))
    }

    /// Returns the number of entries that were due in this round and not handed over.
    pub(super) fn overdue(&self) -> usize {
        self.owed.union(&self.shown).count()
    }

    /// Clears the entries due in this round, after a gap that the consumer accepted. The gap does
    /// not cover the entries left to the next round.
    pub(super) fn forgive(&mut self) {
        self.owed.clear();
        self.shown.clear();
    }

    /// Returns whether a document's entry is new, revised or known.
    pub(super) fn coming(&self, document: &Document, index: usize) -> EntryNovelty {
        let Some((id, updated)) = key(document, index) else {
            return EntryNovelty::Again;
        };
        match self.entries.get(&id) {
            None => EntryNovelty::New,
            // `None` is before every date, so an entry that gains a date counts as revised.
            Some(before) if before.updated < updated => EntryNovelty::Revised,
            Some(_) => EntryNovelty::Again,
        }
    }

    /// Remembers a document's entry.
    pub(super) fn meet(&mut self, document: &Document, index: usize) {
        let Some((id, updated)) = key(document, index) else {
            return;
        };
        self.owed.remove(&id);
        self.shown.remove(&id);
        self.for_next_round.remove(&id);
        self.remember_id(id, updated);
        self.forget_oldest();
    }

    /// Returns the entries for a bookmark: those of the recent document that were met, and the
    /// latest others.
    pub(super) fn kept(&self) -> KnownEntries {
        let live = |item: &&(u64, u64)| self.is_live(item);
        let mut besides = 0;
        let mut kept: Vec<(u64, i64)> = vec![];
        // Newest meetings first, so that the bound drops the entries that were met first.
        for (id, _) in self.order.iter().rev().filter(live) {
            if !self.window.contains(id) && !self.window_before.contains(id) {
                besides += 1;
                if besides > self.bounds.kept {
                    continue;
                }
            }
            let updated = self.entries.get(id).and_then(|entry| entry.updated);
            kept.push(record_of((*id, updated)));
        }
        kept.reverse();
        KnownEntries(Arc::new(kept))
    }

    fn remember_id(&mut self, id: u64, updated: Option<Timestamp>) {
        let before = self.entries.get(&id).and_then(|entry| entry.updated);
        // An older copy of a document must not turn the date back.
        let updated = before.max(updated);
        self.clock += 1;
        let met = self.clock;
        self.entries.insert(id, RememberedEntry { updated, met });
        // The older pair stays in the queue until `forget_oldest`. Until then, `is_live` shows
        // which pairs count.
        self.order.push_back((id, met));
    }

    fn is_live(&self, (id, met): &(u64, u64)) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.met == *met)
    }

    /// Keeps the memory within the bound: forgets the entries that were met first.
    fn forget_oldest(&mut self) {
        let window = self.window.len() + self.window_before.len();
        // Cleaning at twice the bound makes the cost of a sweep constant per entry met.
        if self.order.len() > 2 * (self.bounds.running + window) {
            let entries = &self.entries;
            let in_window = |id: &u64| self.window.contains(id) || self.window_before.contains(id);
            let mut spare = entries.len().saturating_sub(self.bounds.running);
            // The list avoids changing `entries` while `retain` borrows them.
            let mut gone = vec![];
            self.order.retain(|(id, met)| {
                let live = entries.get(id).is_some_and(|entry| entry.met == *met);
                let goes = live && spare > 0 && !in_window(id);
                if goes {
                    spare -= 1;
                    gone.push(*id);
                }
                live && !goes
            });
            // From now on an unknown entry may be an old one.
            self.is_partial |= !gone.is_empty();
            for id in gone {
                self.entries.remove(&id);
            }
        }
    }
}

fn lacks_entry(entries: &BTreeSet<u64>, document: &Document) -> bool {
    if entries.is_empty() {
        return false;
    }
    let ids = id_hashes(document);
    entries.iter().any(|id| !ids.contains(id))
}

/// Returns the hashes of the ids of a document's entries.
fn id_hashes(document: &Document) -> HashSet<u64> {
    let keys = (0..document.len()).filter_map(|index| key(document, index));
    keys.map(|(id, _)| id).collect()
}

fn record_of((id, updated): (u64, Option<Timestamp>)) -> (u64, i64) {
    (id, updated.map_or(NO_DATE, Timestamp::micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Bookmark;

    fn document(ids: std::ops::Range<usize>) -> Document {
        let entries = ids.fold(String::new(), |entries, id| {
            entries
                + &format!(
                    "<entry><id>urn:{id}</id><updated>2026-01-01T00:00:00Z</updated></entry>"
                )
        });
        let text = format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>f</id>{entries}</feed>");
        let url = "http://h/".parse().unwrap();
        Document::read(text.into_bytes().into(), &url).unwrap()
    }

    /// A bookmark remembers no less than the whole recent document, or some entries there would be
    /// handed over again. The bookmark remembers not much more, or bookmarks would grow with the
    /// feed.
    #[test]
    fn a_bookmark_remembers_the_recent_document_and_a_thousand_others() {
        let mut known = RememberedEntries::default();
        let (recent, old) = (document(0..3_000), document(10_000..15_000));
        known.look_at(&recent);
        for (document, entries) in [(&recent, 3_000), (&old, 5_000)] {
            for index in (0..entries).rev() {
                assert_eq!(known.coming(document, index), EntryNovelty::New);
                known.meet(document, index);
                assert_eq!(known.coming(document, index), EntryNovelty::Again);
            }
        }
        let kept = known.kept();
        assert_eq!(kept.len(), 3_000 + KNOWN_BESIDES_MAX);
        let text = serde_json::to_string(&kept).unwrap();
        let again: KnownEntries = serde_json::from_str(&text).unwrap();
        assert_eq!(again, kept);
        let bookmark = Bookmark {
            known: Some(again),
            ..Bookmark::default()
        };
        let known = RememberedEntries::at(&Start::Bookmark(bookmark), Bounds::default());
        assert!((0..3_000).all(|index| known.has(&recent, index)));
        assert!(known.has(&old, 0) && !known.has(&old, 4_999) && known.is_partial());
        assert!(serde_json::from_str::<KnownEntries>("\"AAAA\"").is_err());
    }

    #[test]
    fn memory_is_bounded() {
        let mut known = RememberedEntries::default();
        for begin in 0..7 {
            let many = document(begin * 50_000..(begin + 1) * 50_000);
            for index in 0..50_000 {
                known.meet(&many, index);
            }
        }
        assert!(known.entries.len() <= 2 * SEEN_ENTRIES_MAX + 2);
        assert!(known.order.len() <= 2 * SEEN_ENTRIES_MAX + 2);
    }
}
