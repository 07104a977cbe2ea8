//! Lookups in the log on a disk: in the chapters first, else in sled.
//!
//! Shell: files of the journal, sled, and locks.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use simplefeed_core::{
    commit::{Change, ChangeOutline, Commit, Outline},
    digest::Digest,
    entry::Entry,
    feed::{CommitNumber, DocumentNumber, EntryId, FeedKey, FeedName, Position, Revision},
    history::ChainHash,
    plan::{FeedHead, KnownEntry, Opening},
    settings::{Defaults, Settings},
};
use tracing::error;

use super::{
    chapter::Chapter,
    journal::{JournalFile, JournalPlace},
    record::{self, CommitFacts},
    settled::SettledPart,
    sled_log::SledLog,
    tail::FeedRecord,
};
use crate::codec;
use crate::{
    Append, Commits, FeedHeads, Ids, LogError, LogHead, LogRoom, Series, Space,
    announcements::{Announcements, OUTLINE_CHANGES_MAX},
    held::visible_path,
    space,
};

impl SledLog {
    /// Returns the value that `find` finds in the newest chapter that has one.
    fn find_unsettled(
        &self,
        find: impl Fn(&Chapter) -> Option<JournalPlace>,
    ) -> Result<Option<Bytes>, LogError> {
        let chapters = self.chapters.read();
        let found = chapters
            .all()
            .rev()
            .find_map(|chapter| Some((Arc::clone(&chapter.file), find(chapter)?)));
        // The disk is read without the lock, because a commit needs the lock.
        drop(chapters);
        found.map(|(file, place)| file.value(place)).transpose()
    }

    /// Returns the value of a key that is stored whole.
    fn keyed_value(&self, kind: &str, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        match self.find_unsettled(|chapter| chapter.keyed(key))? {
            Some(value) => Ok(Some(value.to_vec())),
            None => self.settled.value(kind, key),
        }
    }

    /// Returns the value of a key that sled has in parts.
    fn long_value(&self, kind: &str, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        match self.find_unsettled(|chapter| chapter.keyed(key))? {
            Some(body) => Ok(Some(body.to_vec())),
            None => self.settled.joined(kind, key),
        }
    }

    pub(super) fn facts_of(&self, number: CommitNumber) -> Result<Option<CommitFacts>, LogError> {
        if number > self.head().number {
            return Ok(None);
        }
        let first = self.facts_from(number)?.into_iter().next();
        decode_facts(number, first).map(Some)
    }

    /// Returns the facts of a commit that is not after the head, and the facts of later commits in
    /// the same record.
    fn facts_from(&self, number: CommitNumber) -> Result<Vec<Vec<u8>>, LogError> {
        match self.find_unsettled(|chapter| chapter.facts(number))? {
            Some(facts) => Ok(vec![facts.to_vec()]),
            None => self.settled.facts_from(number),
        }
    }

    fn find_commit(&self, number: CommitNumber) -> Result<Option<Commit>, LogError> {
        let Some(facts) = self.facts_of(number)? else {
            return Ok(None);
        };
        let mut changes = vec![];
        for change in facts.changes {
            self.expand_change(change, &mut changes)?;
        }
        Ok(Some(Commit {
            number,
            instant: facts.instant,
            changes,
        }))
    }

    fn expand_change(
        &self,
        change: ChangeOutline,
        changes: &mut Vec<Change>,
    ) -> Result<(), LogError> {
        match change {
            ChangeOutline::Settings { feed, revision } => {
                let settings = crate::settings_of(self, feed, revision)?;
                changes.push(Change::Settings {
                    feed,
                    revision,
                    settings,
                });
            }
            ChangeOutline::Opened {
                feed,
                document,
                first,
                revision,
            } => {
                changes.push(Change::Opened {
                    feed,
                    document,
                    first,
                    revision,
                });
            }
            ChangeOutline::Entries { feed, first, count } => {
                let entries = self.all_entries(feed, first, count)?;
                changes.extend(entries.into_iter().map(|entry| Change::Entry {
                    feed,
                    at: entry.at,
                    id: entry.id,
                    sent: entry.sent,
                    digest: Digest::of(&entry.fragment),
                    fragment: entry.fragment,
                }));
            }
            ChangeOutline::Epoch { epoch } => changes.push(Change::Epoch { epoch }),
            ChangeOutline::Following { feed, change } => {
                changes.push(Change::Following { feed, change });
            }
            ChangeOutline::Defaults { revision } => {
                let missing = || LogError::damaged(format!("defaults {} are missing", revision.0));
                let defaults = self.defaults(revision)?.ok_or_else(missing)?;
                changes.push(Change::Defaults { revision, defaults });
            }
            ChangeOutline::Lost {
                feed,
                next,
                history,
            } => changes.push(Change::Lost {
                feed,
                next,
                history,
            }),
        }
        Ok(())
    }

    /// Returns names and the feeds of these names, where the key is `from` or larger: names in
    /// chapters, and at most `max` names in sled.
    fn names_from(&self, from: &[u8], max: usize) -> Result<BTreeMap<Vec<u8>, FeedKey>, LogError> {
        let mut names = BTreeMap::new();
        let mut unsettled: Vec<(Vec<u8>, Arc<JournalFile>, JournalPlace)> = vec![];
        let chapters = self.chapters.read();
        for chapter in chapters.all() {
            let of_names = chapter
                .keyed_from(from)
                .take_while(|(key, _)| key.first() == Some(&b'n'));
            let found = of_names.take(max);
            unsettled
                .extend(found.map(|(key, place)| (key.clone(), Arc::clone(&chapter.file), *place)));
        }
        drop(chapters);
        let decode = |key: &[u8], body: &[u8]| {
            codec::Reader(body)
                .feed()
                .ok_or_else(|| record::damaged("name", key))
        };
        // sled is read after the chapters: a chapter that is settled meanwhile is in sled by then.
        for (key, value) in self.settled.pairs(from, b"n", max)? {
            let body = codec::unseal(&value).ok_or_else(|| record::damaged("name", &key))?;
            let feed = decode(&key, body)?;
            names.insert(key, feed);
        }
        for (key, file, place) in unsettled {
            let feed = decode(&key, &file.value(place)?)?;
            names.insert(key, feed);
        }
        Ok(names)
    }
}

/// Decodes the facts of a commit that is not after the head. A missing commit is damage: taken for
/// the end of the log, the gap would end every replay early.
fn decode_facts(number: CommitNumber, facts: Option<Vec<u8>>) -> Result<CommitFacts, LogError> {
    let missing = || LogError::damaged(format!("commit {number} is missing"));
    let damaged = || record::damaged("commit", &record::commit_key(number));
    CommitFacts::decode(&facts.ok_or_else(missing)?).ok_or_else(damaged)
}

impl SettledPart {
    /// Returns the encoded facts of a settled commit, and of later commits in the same record.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub(super) fn facts_from(&self, number: CommitNumber) -> Result<Vec<Vec<u8>>, LogError> {
        let (at, end) = (record::facts_key(number), record::facts_key(number.next()));
        let records = self.records("commit", &at, &end, 1)?;
        let found = records.first().and_then(|(key, body)| {
            let index = number.0.checked_sub(record::commit_of_key(key)?.0)?;
            Some(record::facts_in(&Bytes::copy_from_slice(body), index))
        });
        Ok(found.unwrap_or_default())
    }

    /// Adds the settled entries of a feed at the given positions to an empty list.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub(super) fn entries(
        &self,
        feed: FeedKey,
        range: &Range<Position>,
        entries: &mut Vec<Entry>,
    ) -> Result<(), LogError> {
        if range.is_empty() {
            return Ok(());
        }
        // The feed's record is read before the records of entries: a settling may turn the tail
        // into such a record in between.
        let feed_record = self.feed_record(feed);
        let is_in_tail =
            |record: &FeedRecord| record.tail.first <= range.start && range.end <= record.tail.end;
        if !matches!(&feed_record, Ok(Some(record)) if is_in_tail(record)) {
            self.entries_of_records(feed, range, entries)?;
        }
        let rest = entries.last().map_or(range.start, |last| last.at.next())..range.end;
        if rest.is_empty() {
            return Ok(());
        }
        // The failure is returned only now: entries of sound records are in the list by now.
        let tail = feed_record?.map(|record| record.tail).unwrap_or_default();
        if tail.reaches_into(&rest) {
            take_entries(tail.first, &tail.stored, &rest, entries)?;
        }
        Ok(())
    }

    fn entries_of_records(
        &self,
        feed: FeedKey,
        range: &Range<Position>,
        entries: &mut Vec<Entry>,
    ) -> Result<(), LogError> {
        let at = record::entry_key(feed, range.start);
        let end = record::entry_key(feed, range.end);
        let prefix = record::entries_prefix(feed).len();
        for (key, body) in self.records("entry", &at, &end, prefix)? {
            let (_, first) =
                record::entry_of_key(&key).ok_or_else(|| record::damaged("entry", &key))?;
            take_entries(first, &Bytes::from(body), range, entries)?;
        }
        Ok(())
    }
}

/// Adds the entries of a record that lie within `range`.
fn take_entries(
    first: Position,
    record: &Bytes,
    range: &Range<Position>,
    entries: &mut Vec<Entry>,
) -> Result<(), LogError> {
    let damaged = || LogError::damaged(format!("the record of entry {first}"));
    let decoded = record::decode_entries(first, record).ok_or_else(damaged)?;
    let wanted = decoded
        .into_iter()
        .filter(|entry| range.contains(&entry.at));
    entries.extend(wanted);
    Ok(())
}

impl Commits for SledLog {
    fn announcements(&self) -> &Announcements {
        &self.announcements
    }

    fn head(&self) -> LogHead {
        self.chapters.read().head
    }

    fn commits(&self, from: CommitNumber, max: usize) -> Result<Vec<Commit>, LogError> {
        let mut commits = vec![];
        // Number 0 stands for the empty log.
        let mut number = from.max(CommitNumber(1));
        while commits.len() < max
            && let Some(commit) = self.find_commit(number)?
        {
            commits.push(commit);
            number = number.next();
        }
        Ok(commits)
    }

    fn outlines(&self, from: CommitNumber, max: usize) -> Result<Vec<Outline>, LogError> {
        let mut outlines: Vec<Outline> = vec![];
        let mut changes = 0;
        let mut number = from.max(CommitNumber(1));
        // A commit may have as many changes as a batch has entries, so the number of commits alone
        // is no bound.
        while outlines.len() < max && changes < OUTLINE_CHANGES_MAX {
            if number > self.head().number {
                break;
            }
            // Commits that are stored together are read together.
            let stored = match self.facts_from(number) {
                Ok(stored) if stored.is_empty() => vec![None],
                Ok(stored) => stored.into_iter().map(Some).collect(),
                Err(_) if !outlines.is_empty() => break,
                Err(error) => return Err(error),
            };
            for facts in stored {
                if outlines.len() == max || changes >= OUTLINE_CHANGES_MAX {
                    break;
                }
                match decode_facts(number, facts) {
                    Ok(facts) => {
                        let outline = facts.outline(number);
                        changes += outline.weight();
                        outlines.push(outline);
                        number = number.next();
                    }
                    // The outlines before the damage are sound, and are returned. The next call
                    // meets the damage first.
                    Err(_) if !outlines.is_empty() => return Ok(outlines),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(outlines)
    }

    fn chain(&self, number: CommitNumber) -> Result<Option<ChainHash>, LogError> {
        if number == CommitNumber(0) {
            return Ok(Some(ChainHash::START));
        }
        Ok(self.facts_of(number)?.map(|facts| facts.chain))
    }

    fn check_seen(&self) -> Result<(), LogError> {
        self.check_seen_before()
    }
}

impl Append for SledLog {
    fn append(&self, commit: &Commit) -> Result<ChainHash, LogError> {
        self.append_after(commit, &FeedHeads::new())
    }

    fn append_after(&self, commit: &Commit, before: &FeedHeads) -> Result<ChainHash, LogError> {
        if !self.is_open() {
            return Err(LogError::Stopped);
        }
        let chain = self.store(commit, before).map_err(|error| match error {
            LogError::Lacking { .. } => error,
            // If the whole folder was moved, the error names the folder and not a file in it.
            LogError::Displaced { .. } => self.folder.check().err().unwrap_or(error),
            // A cut file fails in many ways. The check names the cause.
            error => self.check_others().err().unwrap_or(error),
        });
        let chain = chain.inspect_err(|error| {
            // Nothing was written, so the log stays open.
            if matches!(error, LogError::Lacking { .. }) {
                return;
            }
            if matches!(error, LogError::Displaced { .. }) {
                self.displaced.store(true, Ordering::Release);
            }
            // The state of the disk is unknown now. Readers see the log as it was before this
            // commit.
            self.failed.store(true, Ordering::Release);
        })?;
        // Added after the sync, so that no run covers a commit that a power cut can take away.
        self.add_ids(commit, chain);
        self.announcements.announce(commit);
        Ok(chain)
    }

    fn note_seen(&self) -> Result<(), LogError> {
        self.note_seen_durably()
    }
}

impl Series for SledLog {
    fn entries(&self, feed: FeedKey, range: Range<Position>) -> Result<Vec<Entry>, LogError> {
        let mut groups: Vec<(Arc<JournalFile>, Position, JournalPlace)> = vec![];
        let chapters = self.chapters.read();
        // Entries before the feed's first unsettled entry are settled, and stay so while a settling
        // goes on.
        let unsettled = chapters.all().find_map(|chapter| chapter.first_of(feed));
        for chapter in chapters.all() {
            for (first, place) in chapter.groups(feed, &range) {
                groups.push((Arc::clone(&chapter.file), *first, *place));
            }
        }
        drop(chapters);
        let mut entries = vec![];
        let end = unsettled.map_or(range.end, |first| range.end.min(first));
        self.settled
            .entries(feed, &(range.start..end), &mut entries)?;
        for (file, first, place) in groups {
            take_entries(first, &file.value(place)?, &range, &mut entries)?;
        }
        Ok(entries)
    }

    fn feed(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError> {
        let head = match self.find_unsettled(|chapter| chapter.head(feed))? {
            Some(head) => Some(head),
            None => self.settled.head(feed)?,
        };
        let damaged = || record::damaged("head", &record::head_key(feed));
        let decode = |head: Bytes| record::decode_head(&head).ok_or_else(damaged);
        head.map(decode).transpose()
    }

    fn named(&self, name: &FeedName) -> Result<Option<FeedHead>, LogError> {
        let key = record::name_key(name);
        let Some(body) = self.keyed_value("name", &key)? else {
            return Ok(None);
        };
        let feed = codec::Reader(&body).feed();
        self.feed(feed.ok_or_else(|| record::damaged("name", &key))?)
    }

    fn settings(&self, feed: FeedKey, revision: Revision) -> Result<Option<Settings>, LogError> {
        let Some(body) = self.long_value("settings", &record::settings_key(feed, revision))? else {
            return Ok(None);
        };
        serde_json::from_slice(&body).map(Some).map_err(|error| {
            LogError::damaged(format!(
                "settings {} of feed {}: {error}",
                revision.0, feed.0
            ))
        })
    }

    fn defaults(&self, revision: Revision) -> Result<Option<Defaults>, LogError> {
        let body = self.long_value("defaults", &record::defaults_key(revision))?;
        let damaged = |error| LogError::damaged(format!("defaults {}: {error}", revision.0));
        body.map(|body| serde_json::from_slice(&body).map_err(damaged))
            .transpose()
    }

    fn opening(
        &self,
        feed: FeedKey,
        document: DocumentNumber,
    ) -> Result<Option<Opening>, LogError> {
        let key = record::document_key(feed, document);
        let Some(body) = self.keyed_value("document", &key)? else {
            return Ok(None);
        };
        record::decode_opening(&body)
            .map(Some)
            .ok_or_else(|| record::damaged("document", &key))
    }

    fn feeds(
        &self,
        after: Option<&FeedName>,
        max: usize,
    ) -> Result<Vec<(FeedName, FeedHead)>, LogError> {
        let mut from = after.map_or_else(|| vec![b'n'], record::name_key);
        if after.is_some() {
            // The least key behind `after`.
            from.push(0);
        }
        let mut feeds = vec![];
        for (key, feed) in self.names_from(&from, max)?.into_iter().take(max) {
            let name = record::name_of_key(&key).ok_or_else(|| record::damaged("name", &key))?;
            if let Some(head) = self.feed(feed)? {
                feeds.push((name, head));
            }
        }
        Ok(feeds)
    }
}

impl Ids for SledLog {
    fn find_all(
        &self,
        feed: FeedKey,
        ids: &[&EntryId],
    ) -> Result<HashMap<EntryId, KnownEntry>, LogError> {
        let look = || match &*self.ids.read() {
            Some(index) => index.find(feed, ids).map_err(LogError::io("read", "ids")),
            None => Err(LogError::Stopped),
        };
        // A lookup that meets a damaged run removes the file of that run, so the second look reads
        // a rebuilt index.
        let found = look().or_else(|_damaged| {
            self.heal_ids()?;
            look()
        })?;
        let known = found
            .into_iter()
            .map(|(id, at)| Ok((id.clone(), self.known_at(feed, id, at)?)));
        known.collect()
    }
}

impl SledLog {
    /// Returns the entry at the position that the index has for an id.
    fn known_at(&self, feed: FeedKey, id: &EntryId, at: Position) -> Result<KnownEntry, LogError> {
        let missing = || LogError::damaged(format!("entry {at} of feed {} is missing", feed.0));
        let entry = self
            .entries(feed, at..at.next())?
            .pop()
            .ok_or_else(missing)?;
        if entry.id != *id {
            let what = format!("entry {at} of feed {} is found under another id", feed.0);
            return Err(LogError::Damaged { what });
        }
        let fragment = Digest::of(&entry.fragment);
        Ok(KnownEntry {
            at,
            document: crate::contract::document_of(self, feed, &entry)?,
            sent: entry.sent,
            fragment,
        })
    }
}

impl LogRoom for SledLog {
    fn is_open(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    fn is_displaced(&self) -> bool {
        // After a failed commit, the file may have any length, so nothing is checked.
        if self.is_open()
            && let Err(error) = self.check_place()
        {
            error!(%error, "the log takes no entries until the server is restarted");
            self.displaced.store(true, Ordering::Release);
            self.failed.store(true, Ordering::Release);
        }
        self.displaced.load(Ordering::Acquire)
    }

    fn is_lacking(&self) -> bool {
        self.refuses()
    }

    fn end_as_replaced(&self, document: &Path) {
        *self.replaced_by.lock() = Some(visible_path(document));
        self.failed.store(true, Ordering::Release);
    }

    fn replaced_by(&self) -> Option<PathBuf> {
        self.replaced_by.lock().clone()
    }

    fn room_for(&self, bytes: u64) -> Result<Space, LogError> {
        let chapters = self.chapters.read();
        let (unsettled, feeds) = (chapters.bytes(), chapters.feeds());
        drop(chapters);
        let on_disk = space::free_bytes_of(self.folder.held().handle())
            .map_err(LogError::io("measure", &self.folder.path))?;
        // sled's file is the longest, or will be.
        let in_files = space::bytes_left_for(&self.folder.path("sled/db"), unsettled);
        let free = in_files.map_or(on_disk, |in_files| in_files.min(on_disk));
        let is_of_files = free < on_disk;
        // The log counts as full until the refused commit fits. If it refused large commits and
        // took small ones, `/readyz` would flip with each request.
        let wanted = self.wanted.load(Ordering::Acquire).max(bytes);
        let feeds = u64::try_from(feeds).unwrap_or(u64::MAX);
        let needed = space::needed_bytes(unsettled, feeds, wanted);
        let space = Space {
            free,
            needed,
            is_of_files,
        };
        let refused = if space.is_enough() { 0 } else { wanted };
        self.wanted.store(refused, Ordering::Release);
        Ok(space)
    }
}
