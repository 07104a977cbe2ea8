//! The remains of a damaged log: every record whose checksum is right; all others are passed over.
//!
//! Pure, but for reads of the journal and of a copy of sled.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::{Range, RangeInclusive},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use simplefeed_core::{
    entry::Entry,
    feed::{CommitNumber, DocumentNumber, FeedKey, FeedName, Position, Revision},
    history::ChainHash,
    plan::{FeedHead, Opening},
    settings::{Defaults, Settings},
};

use super::{
    journal::{self, JournalFile, JournalPlace},
    record::{self, CommitFacts, SETTLED_KEY},
    settled::{SettledPart, quietly},
    tail::{FeedRecord, Tail},
};
use crate::codec;
use crate::{LogError, LogHead};

/// Remains of a log, in sled and in the journal.
#[derive(Debug)]
pub struct Remains {
    settled: Option<SettledPart>,
    /// Values of the journal, by their keys; of a key that occurs twice, the later value.
    journal: BTreeMap<Vec<u8>, (Arc<JournalFile>, JournalPlace)>,
    /// Files of the journal.
    files: Vec<Arc<JournalFile>>,
    /// Commits of the journal.
    commits: BTreeSet<CommitNumber>,
    /// Chain hashes of these commits, as far as they can be read.
    chains: BTreeMap<CommitNumber, ChainHash>,
    /// The last commit in sled.
    settled_end: CommitNumber,
    head: LogHead,
}

impl Remains {
    /// Reads every record of a journal whose checksum is right.
    ///
    /// # Errors
    ///
    /// Returns the error if the process lacks a resource, such as file handles.
    pub(super) fn of_journal(folder: &Path) -> io::Result<Self> {
        let mut remains = Self {
            settled: None,
            journal: BTreeMap::new(),
            files: vec![],
            commits: BTreeSet::new(),
            chains: BTreeMap::new(),
            settled_end: CommitNumber(0),
            head: LogHead::START,
        };
        for file in journal::open_remains(folder)? {
            let file = Arc::new(file);
            file.scan_remains(|record| {
                remains.commits.insert(record.number);
                for item in record.items().flatten() {
                    remains.add_item(&file, record.number, item);
                }
            });
            remains.files.push(file);
        }
        Ok(remains)
    }

    fn add_item(
        &mut self,
        file: &Arc<JournalFile>,
        number: CommitNumber,
        item: journal::RecordItem<'_>,
    ) {
        if item.key.starts_with(b"c") {
            let facts = codec::unseal(item.value).and_then(CommitFacts::decode);
            if let Some(facts) = &facts {
                self.chains.insert(number, facts.chain);
            }
            let end = facts.map(|facts| facts.end(number));
            self.head = end
                .into_iter()
                .chain([self.head])
                .max_by_key(|end| end.number)
                .unwrap_or(self.head);
            return;
        }
        self.journal
            .insert(item.key.to_vec(), (Arc::clone(file), item.place));
    }

    /// Adds an opened copy of sled.
    pub(super) fn add_settled(&mut self, settled: SettledPart) {
        // sled panics on some damage.
        let told = quietly(|| {
            let told = settled.raw_value(SETTLED_KEY).ok().flatten();
            told.and_then(|end| record::decode_end(&end))
        });
        // An unreadable end counts as an empty log: records are found by their keys.
        let end = told.flatten().unwrap_or(LogHead::START);
        self.settled = Some(settled);
        self.settled_end = end.number;
        // The journal may reach further than sled, or be gone.
        if end.number > self.head.number {
            self.head = end;
        }
    }

    /// Returns the commits before the end that are neither in sled nor in the journal.
    pub fn lost(&self) -> Vec<RangeInclusive<u64>> {
        let (mut lost, mut last) = (vec![], self.settled_end.0);
        for CommitNumber(number) in self.commits.range(self.settled_end.next()..) {
            if *number > last + 1 {
                lost.push(last + 1..=number - 1);
            }
            last = *number;
        }
        lost
    }

    /// Closes the copy of sled.
    pub(super) fn close(self) -> Result<(), LogError> {
        self.settled.map_or(Ok(()), |settled| settled.close())
    }

    /// Returns whether nothing can be read of sled, nor of the journal.
    pub fn is_empty(&self) -> bool {
        self.settled.is_none() && self.journal.is_empty()
    }

    /// Returns the last end of the log that can be read.
    pub fn head(&self) -> LogHead {
        self.head
    }

    /// Returns the chain hash after a commit, if the commit can be read.
    pub fn chain(&self, number: CommitNumber) -> Option<ChainHash> {
        if number == CommitNumber(0) {
            return Some(ChainHash::START);
        }
        let settled = || {
            let facts = self.settled.as_ref()?.facts_from(number).ok()?;
            Some(CommitFacts::decode(facts.first()?)?.chain)
        };
        self.chains.get(&number).copied().or_else(settled)
    }

    /// Returns the keys of sled that begin with `prefix`, and their values, up to the first that
    /// sled cannot read.
    fn of_sled(&self, prefix: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + use<> {
        let settled = self.settled.as_ref();
        let pairs = settled.map(|settled| settled.readable_pairs(prefix));
        pairs.into_iter().flatten()
    }

    /// Returns the keys of the journal that begin with `prefix`, and their bodies.
    fn of_journal_from<'r>(
        &'r self,
        prefix: &'r [u8],
    ) -> impl Iterator<Item = (&'r Vec<u8>, Bytes)> + 'r {
        let items = self.journal.range(prefix.to_vec()..);
        let items = items.take_while(|(key, _)| key.starts_with(prefix));
        items.filter_map(|(key, (file, place))| Some((key, file.value(*place).ok()?)))
    }

    /// Returns the feeds whose names can be read, in the record of the name or in their settings.
    pub fn names(&self) -> BTreeMap<FeedName, FeedKey> {
        let of_sled: Vec<_> = self.of_sled(b"n").collect();
        let of_sled = of_sled
            .iter()
            .filter_map(|(key, value)| Some((key, Bytes::copy_from_slice(codec::unseal(value)?))));
        let named = of_sled.chain(self.of_journal_from(b"n"));
        let named = named.filter_map(|(key, body)| {
            let feed = codec::Reader(&body).feed()?;
            Some((record::name_of_key(key)?, feed))
        });
        let with_settings = self.of_sled(b"s").map(|(key, _)| key);
        let with_settings =
            with_settings.chain(self.of_journal_from(b"s").map(|(key, _)| key.clone()));
        let mut feeds: Vec<FeedKey> = with_settings
            .filter_map(|key| record::feed_of_key(&key))
            .collect();
        feeds.sort_unstable();
        feeds.dedup();
        let set = feeds.into_iter().filter_map(|feed| {
            let (_, settings) = self.settings(feed).pop()?;
            Some((settings.name, feed))
        });
        // If a name has two feeds here, the one in the name's own record counts, because it comes
        // last.
        set.chain(named).collect()
    }

    /// Returns the feeds that have a record in sled, or entries in the journal.
    pub fn feeds(&self) -> BTreeSet<FeedKey> {
        let of_sled = self.of_sled(b"f");
        let of_sled = of_sled.filter_map(|(key, _)| record::feed_of_key(&key));
        let of_journal = self.journal.keys();
        let of_journal = of_journal.filter_map(|key| Some(record::entry_of_key(key)?.0));
        of_sled.chain(of_journal).collect()
    }

    /// Returns a feed's head, if the head can be read.
    pub fn feed(&self, feed: FeedKey) -> Option<FeedHead> {
        let key = record::head_key(feed);
        let unsettled = self.of_journal_from(&key).next();
        // The journal's head is newer: sled has heads of settled chapters only.
        if let Some((_, body)) = unsettled {
            return record::decode_head(&body);
        }
        record::decode_head(&self.feed_record(feed)?.head)
    }

    /// Returns a feed's record in sled, if the record can be read.
    fn feed_record(&self, feed: FeedKey) -> Option<FeedRecord> {
        let value = self.of_sled(&record::feed_key(feed)).next()?.1;
        FeedRecord::decode(&Bytes::copy_from_slice(codec::unseal(&value)?))
    }

    /// Returns all of a feed's settings that can be read.
    pub fn settings(&self, feed: FeedKey) -> Vec<(Revision, Settings)> {
        let prefix = record::settings_prefix(feed);
        let mut bodies: BTreeMap<Revision, Option<Vec<u8>>> = BTreeMap::new();
        for (key, part) in self.of_sled(&prefix) {
            let Some(revision) = record::revision_of_key(&key) else {
                continue;
            };
            let body = bodies.entry(revision).or_insert_with(|| Some(vec![]));
            // One damaged part makes the whole settings unreadable.
            let joined = body.take().zip(codec::unseal(&part));
            *body = joined.map(|(body, part)| [&body, part].concat());
        }
        for (key, body) in self.of_journal_from(&prefix) {
            // The journal's copy replaces a copy in sled, which may be damaged.
            if let Some(revision) = record::revision_of_key(key) {
                bodies.insert(revision, Some(body.to_vec()));
            }
        }
        let read = |(revision, body): (Revision, Option<Vec<u8>>)| {
            Some((revision, serde_json::from_slice(&body?).ok()?))
        };
        bodies.into_iter().filter_map(read).collect()
    }

    /// Returns the facts of the commits that can be read, in order.
    pub fn facts(&self) -> BTreeMap<CommitNumber, CommitFacts> {
        let mut found = BTreeMap::new();
        let mut parts: Vec<(Vec<u8>, Vec<u8>)> = vec![];
        let mut finish = |parts: &mut Vec<(Vec<u8>, Vec<u8>)>| {
            let parts = std::mem::take(parts);
            let first = parts
                .first()
                .and_then(|(key, _)| record::commit_of_key(key));
            let body: Option<Vec<&[u8]>> =
                parts.iter().map(|(_, part)| codec::unseal(part)).collect();
            if let Some((first, body)) = first.zip(body) {
                let stored = Bytes::from(body.concat());
                let all = record::facts_in(&stored, 0).into_iter();
                let decoded = all.map_while(|facts| CommitFacts::decode(&facts));
                found.extend((first.0..).map(CommitNumber).zip(decoded));
            }
        };
        for (key, value) in self.of_sled(b"p") {
            let continues = parts.last().is_some_and(|(last, _)| {
                record::commit_of_key(last) == record::commit_of_key(&key)
            });
            if !continues {
                finish(&mut parts);
            }
            parts.push((key, value));
        }
        finish(&mut parts);
        for file in &self.files {
            file.scan_remains(|record| {
                let items = record.items().flatten();
                let facts = items.filter(|item| item.key.starts_with(b"c"));
                let facts = facts.filter_map(|item| codec::unseal(item.value));
                found.extend(
                    facts
                        .filter_map(CommitFacts::decode)
                        .map(|facts| (record.number, facts)),
                );
            });
        }
        found
    }

    /// Returns the defaults of a revision, if they can be read.
    pub fn defaults(&self, revision: Revision) -> Option<Defaults> {
        let key = record::defaults_key(revision);
        let unsettled = self.of_journal_from(&key).next();
        let body = if let Some((_, body)) = unsettled {
            body.to_vec()
        } else {
            let parts: Vec<_> = self.of_sled(&key).collect();
            let parts: Option<Vec<&[u8]>> =
                parts.iter().map(|(_, part)| codec::unseal(part)).collect();
            parts.filter(|parts| !parts.is_empty())?.concat()
        };
        serde_json::from_slice(&body).ok()
    }

    /// Returns how documents of a feed were opened, as far as that can be read.
    pub fn openings(&self, feed: FeedKey) -> Vec<(DocumentNumber, Opening)> {
        let prefix = record::documents_prefix(feed);
        let of_sled: Vec<_> = self.of_sled(&prefix).collect();
        let of_sled = of_sled
            .iter()
            .filter_map(|(_, value)| record::decode_opening(codec::unseal(value)?));
        let of_journal = self.of_journal_from(&prefix);
        let of_journal = of_journal.filter_map(|(_, body)| record::decode_opening(&body));
        let mut openings = BTreeMap::new();
        // Of a document that was opened anew, the journal's opening is the later one, and replaces
        // sled's.
        for opening in of_sled.chain(of_journal) {
            openings.insert(opening.name.number, opening);
        }
        openings.into_iter().collect()
    }

    /// Hands over a feed's readable entries: from the records in sled, from the tail, and from the
    /// journal. Where a settling broke off, some entries are in several of these places, and are
    /// handed over more than once.
    pub fn entries(&self, feed: FeedKey, mut take: impl FnMut(Entry)) {
        let prefix = record::entries_prefix(feed);
        let mut parts: Vec<(Vec<u8>, Vec<u8>)> = vec![];
        for (key, value) in self.of_sled(&prefix) {
            let continues = parts
                .last()
                .is_some_and(|(last, _)| record::entry_of_key(last) == record::entry_of_key(&key));
            if !continues {
                finish_record(&mut parts, &mut take);
            }
            parts.push((key, value));
        }
        finish_record(&mut parts, &mut take);
        if let Some(Tail { first, stored, .. }) = self.feed_record(feed).map(|record| record.tail) {
            let entries = record::decode_entries(first, &stored);
            entries.into_iter().flatten().for_each(&mut take);
        }
        for (key, body) in self.of_journal_from(&prefix) {
            let first = record::entry_of_key(key);
            let entries = first.and_then(|(_, first)| record::decode_entries(first, &body));
            entries.into_iter().flatten().for_each(&mut take);
        }
    }

    /// Returns a feed's readable entries at the given positions.
    pub fn entries_in(&self, feed: FeedKey, range: &Range<Position>) -> Vec<Entry> {
        let mut found = BTreeMap::new();
        let mut take = |entry: Entry| {
            if range.contains(&entry.at) {
                found.insert(entry.at, entry);
            }
        };
        if let Some(settled) = &self.settled {
            let mut entries = vec![];
            // Entries before the damage count, so the error is ignored.
            drop(settled.entries(feed, range, &mut entries));
            entries.into_iter().for_each(&mut take);
        }
        let prefix = record::entries_prefix(feed);
        let end = record::entry_key(feed, range.end);
        // The group that holds the first position may begin before the range.
        let before = record::entry_key(feed, range.start.next());
        let holder = self
            .journal
            .range(..before)
            .next_back()
            .map(|(key, _)| key.clone());
        let from = holder.filter(|key| key.starts_with(&prefix));
        let from = from.unwrap_or_else(|| record::entry_key(feed, range.start));
        for (key, (file, place)) in self.journal.range(from..end) {
            let first = record::entry_of_key(key);
            let body = file.value(*place).ok();
            let entries = first
                .zip(body)
                .and_then(|((_, first), body)| record::decode_entries(first, &body));
            entries.into_iter().flatten().for_each(&mut take);
        }
        found.into_values().collect()
    }
}

/// Hands over the entries of a record that was collected in parts.
fn finish_record(parts: &mut Vec<(Vec<u8>, Vec<u8>)>, take: &mut impl FnMut(Entry)) {
    let parts = std::mem::take(parts);
    let first = parts.first().and_then(|(key, _)| record::entry_of_key(key));
    let body: Option<Vec<&[u8]>> = parts.iter().map(|(_, part)| codec::unseal(part)).collect();
    // A record with a damaged part is passed over: an entry may span parts.
    if let Some(((_, first), body)) = first.zip(body) {
        let entries = record::decode_entries(first, &Bytes::from(body.concat()));
        entries.into_iter().flatten().for_each(take);
    }
}
