//! The entry log on a disk, in sled.
//!
//! Shell: sled; the only file that names it (with [`opening`](super::opening), which decides when
//! sled may touch its files). An append is one atomic batch, sled's flush, the [`Barrier`], the witness;
//! only then do readers see it, and only then does it return.
//!
//! sled shows a batch to readers as soon as it is applied. Until the barrier is passed, the heads of the
//! feeds it changes are therefore kept aside as they were (in `shadow`), and a reader that finds a newer
//! one takes the one kept aside. A reader asks sled first and looks aside second: if nothing is kept aside
//! by then, sled's answer was behind the barrier.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use simplefeed_core::{
    commit::{Change, ChangeOutline, Commit, Outline},
    digest::Digest,
    entry::Entry,
    feed::{CommitNumber, DocumentNumber, EntryId, FeedKey, FeedName, Position, Revision},
    history::ChainHash,
    plan::{FeedHead, Known, Opening},
    settings::Settings,
};
use sled::{Batch, Db};
use tracing::{info, warn};

use super::{
    Commits, Ids, LogError, LogHead, Room, Series,
    announcements::{Announcements, OUTLINE_CHANGES_MAX},
    barrier::Barrier,
    ids::IdIndex,
    record::{self, CommitFacts, STORAGE_VERSION, VERSION_KEY},
    space,
    watchdog::Watchdog,
    witness::{Testimony, Witness},
    writing::{Shadow, Writing},
};
use crate::codec;

/// Missing commits above which rebuilding the index of ids is logged, because it takes long.
const SLOW_COMMITS: u64 = 100_000;

/// The entry log on a disk.
pub struct SledLog {
    db: Db,
    file: PathBuf,
    /// `None` in a log opened only to be checked.
    durability: Option<Durability>,
    /// Index of ids; `None` while the log is being opened.
    ids: RwLock<Option<IdIndex>>,
    /// The end, as far as the barrier has been passed.
    head: RwLock<LogHead>,
    /// The heads of feeds changed by the commit that has not passed the barrier, as they were.
    shadow: RwLock<Shadow>,
    announcements: Announcements,
    failed: AtomicBool,
    closing: AtomicBool,
    /// Bytes of the largest commit refused for lack of room; 0 once there was room again.
    wanted: AtomicU64,
}

/// Parts that make an append durable.
pub(super) struct Durability {
    pub(super) barrier: Box<dyn Barrier>,
    pub(super) witness: Mutex<Witness>,
    pub(super) watchdog: Watchdog,
}

impl fmt::Debug for SledLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledLog")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl SledLog {
    /// Wraps an opened database. Without `durability` it can be read and takes no commits.
    ///
    /// # Errors
    ///
    /// Returns why the last commit cannot be read.
    pub(super) fn new(
        db: Db,
        file: PathBuf,
        durability: Option<Durability>,
    ) -> Result<Self, LogError> {
        let head = read_head(&db)?;
        Ok(Self {
            db,
            file,
            // Without durability the log counts as failed, so that it refuses every commit.
            failed: AtomicBool::new(durability.is_none()),
            closing: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            durability,
            ids: RwLock::default(),
            head: RwLock::new(head),
            shadow: RwLock::default(),
            announcements: Announcements::behind(head.number),
        })
    }

    /// Wraps a database whose end may be damaged, for salvage. It takes no commits.
    pub(super) fn salvaged(db: Db, file: PathBuf) -> Self {
        // An unreadable end counts as an empty log: salvage finds records by their keys.
        let head = read_head(&db).unwrap_or(LogHead::START);
        Self {
            db,
            file,
            failed: AtomicBool::new(true),
            closing: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            durability: None,
            ids: RwLock::default(),
            head: RwLock::new(head),
            shadow: RwLock::default(),
            announcements: Announcements::default(),
        }
    }

    /// Returns keys and values that begin with `prefix`, up to the first that sled cannot read.
    pub(super) fn raw(&self, prefix: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + use<> {
        let items = self.db.scan_prefix(prefix).map_while(Result::ok);
        items.map(|(key, value)| (key.to_vec(), value.to_vec()))
    }

    /// Opens the index of ids in `folder`, and brings it up to date.
    ///
    /// # Errors
    ///
    /// Returns why the folder cannot be used, or which part of the log cannot be read.
    pub(super) fn index_ids(&self, folder: &Path) -> Result<(), LogError> {
        *self.ids.write() = Some(self.open_ids(folder)?);
        Ok(())
    }

    fn open_ids(&self, folder: &Path) -> Result<IdIndex, LogError> {
        let chain = |number| self.chain(number).ok().flatten();
        // An unreadable chain hash fits no run, so the ids of that run are read from the commits.
        let opened = IdIndex::open(folder, chain);
        let mut ids = opened.map_err(LogError::io("use", folder))?;
        let missing = self.head().number.0 - ids.covered().0;
        if missing > SLOW_COMMITS {
            info!(commits = missing, "the index of ids is made again");
        }
        // One commit at a time: a commit may be as large as a request.
        while ids.covered() < self.head().number {
            let number = ids.covered().next();
            let Some(facts) = self.facts_of(number)? else {
                break;
            };
            let mut entries = vec![];
            for change in &facts.changes {
                if let ChangeOutline::Entries { feed, first, count } = *change {
                    let added = self.all_entries(feed, first, count)?;
                    entries.extend(added.into_iter().map(|entry| (feed, entry)));
                }
            }
            let added = entries
                .iter()
                .map(|(feed, entry)| (*feed, &entry.id, entry.at));
            ids.add_ids(number, facts.chain, added);
        }
        Ok(ids)
    }

    /// Rebuilds the index of ids if a damaged run was found. Lookups wait meanwhile.
    fn heal_ids(&self) -> Result<(), LogError> {
        let is_damaged = |ids: &Option<IdIndex>| ids.as_ref().is_some_and(IdIndex::is_damaged);
        // A read lock first: the usual case must not hold up lookups.
        if !is_damaged(&self.ids.read()) {
            return Ok(());
        }
        let mut place = self.ids.write();
        // Another thread may have rebuilt the index between the two locks.
        if let Some(ids) = place.as_mut().filter(|ids| ids.is_damaged()) {
            // A merge in progress would write into the folder that is opened again below.
            ids.wait();
            let folder = ids.folder().to_path_buf();
            *ids = self.open_ids(&folder)?;
        }
        Ok(())
    }

    /// Returns the `count` entries from `first` on, or an error if any of them is missing.
    fn all_entries(
        &self,
        feed: FeedKey,
        first: Position,
        count: u64,
    ) -> Result<Vec<Entry>, LogError> {
        let entries = self.entries(feed, first..Position(first.0 + count))?;
        if u64::try_from(entries.len()).is_ok_and(|found| found == count) {
            return Ok(entries);
        }
        let what = format!("entries from {first} on of feed {} are missing", feed.0);
        Err(LogError::Damaged { what })
    }

    /// Brings a log of storage version 1 to this one. There, ids were keys of sled; they are removed once
    /// they are in the index.
    ///
    /// # Errors
    ///
    /// Returns sled's error.
    pub(super) fn upgrade(&self) -> Result<(), LogError> {
        let version = STORAGE_VERSION.to_be_bytes();
        let found = self.stored_value(VERSION_KEY)?;
        if found.is_some_and(|found| *found == version) {
            return Ok(());
        }
        info!("the log is brought to storage version {STORAGE_VERSION}");
        for key in self.db.scan_prefix(b"i").keys() {
            let key = key.map_err(storage_error)?;
            self.db.remove(key).map_err(storage_error)?;
        }
        // The version comes last, so that an upgrade that breaks off is begun again.
        self.db
            .insert(VERSION_KEY, &version)
            .map_err(storage_error)?;
        Ok(())
    }

    /// Returns the database, for closing, once the index of ids is written.
    pub(super) fn into_parts(self) -> (Db, Option<Durability>, LogHead) {
        let ids = self.ids.into_inner();
        if let Some(ids) = ids {
            ids.close();
        }
        let head = self.head.into_inner();
        (self.db, self.durability, head)
    }

    /// Makes every read fail from now on, so that work still in progress ends.
    pub fn end_reading(&self) {
        self.closing.store(true, Ordering::Release);
    }

    fn readable_db(&self) -> Result<&Db, LogError> {
        if self.closing.load(Ordering::Acquire) {
            return Err(LogError::Closing);
        }
        Ok(&self.db)
    }

    fn stored_value(&self, key: &[u8]) -> Result<Option<sled::IVec>, LogError> {
        self.readable_db()?.get(key).map_err(storage_error)
    }

    fn joined_parts(&self, kind: &str, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        read_parts(self.readable_db()?, kind, key)
    }

    /// Returns a feed's head, even if it has not passed the barrier. For the writer.
    fn stored_head(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError> {
        let key = record::head_key(feed);
        let Some(value) = self.stored_value(&key)? else {
            return Ok(None);
        };
        let head = record::decode_head(&value).ok_or_else(|| record::damaged("head", &key))?;
        Ok(Some(head))
    }

    fn visible_head(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError> {
        // sled first, the shadow second. In the other order, a commit that begins in between would be
        // visible before its barrier.
        let stored = self.stored_head(feed)?;
        let shadow = self.shadow.read();
        Ok(shadow.get(&feed).cloned().unwrap_or(stored))
    }

    /// Returns the batch of a commit, the end of the log after it, and the heads of the changed feeds as
    /// they were. Stores nothing.
    fn prepare_batch(&self, commit: &Commit) -> Result<(Batch, LogHead, Shadow), LogError> {
        let head = self.head();
        assert!(
            commit.number == head.number.next(),
            "commits are appended in order"
        );
        assert!(
            commit.instant > head.last,
            "a commit is later than the one before it"
        );
        let mut writing = Writing::new(commit, head);
        for change in &commit.changes {
            writing.change(change, |feed| self.stored_head(feed))?;
        }
        // Before `finish`, which consumes the heads.
        let before = writing.before();
        let (items, head) = writing.finish(commit, head);
        let mut batch = Batch::default();
        for (key, value) in items {
            batch.insert(key, value);
        }
        Ok((batch, head, before))
    }

    fn store_batch(
        &self,
        durability: &Durability,
        batch: Batch,
        head: LogHead,
    ) -> Result<(), LogError> {
        // sled keeps a batch whole or drops it, also across a crash.
        self.db.apply_batch(batch).map_err(storage_error)?;
        let flush = || self.db.flush();
        durability.watchdog.during(flush).map_err(storage_error)?;
        // Before the witness: testimony of a commit that a power cut takes away would make the next opening
        // refuse a sound log.
        durability
            .barrier
            .sync()
            .map_err(LogError::io("sync", &self.file))?;
        let file_bytes = std::fs::metadata(&self.file)
            .map_err(LogError::io("measure", &self.file))?
            .len();
        let testimony = Testimony {
            commit: head.number,
            chain: head.chain,
            file_bytes,
        };
        // Not synced here: the next barrier or `settle` does that, and an older testimony is still true.
        durability
            .witness
            .lock()
            .write(&testimony)
            .map_err(LogError::io("write", &self.file))
    }

    fn facts_of(&self, number: CommitNumber) -> Result<Option<CommitFacts>, LogError> {
        // sled shows a commit before its barrier; readers must not see it.
        if number > self.head().number {
            return Ok(None);
        }
        let key = record::commit_key(number);
        let body = self.joined_parts("commit", &key)?;
        // A commit up to the head is there. Its absence taken for the end of the log would end every replay early.
        let body = body.ok_or_else(|| LogError::damaged(format!("commit {number} is missing")))?;
        CommitFacts::decode(&body)
            .map(Some)
            .ok_or_else(|| record::damaged("commit", &key))
    }

    fn commit(&self, number: CommitNumber) -> Result<Option<Commit>, LogError> {
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
                let settings = super::settings_of(self, feed, revision)?;
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
}

impl Commits for SledLog {
    fn append(&self, commit: &Commit) -> Result<ChainHash, LogError> {
        let durability = self.durability.as_ref().filter(|_| self.is_open());
        let durability = durability.ok_or(LogError::Stopped)?;
        let (batch, head, before) = self.prepare_batch(commit)?;
        // Before sled applies the batch and shows the new heads.
        *self.shadow.write() = before;
        self.store_batch(durability, batch, head).inspect_err(|_| {
            // The state of the disk is unknown now. Head and shadow stay, so readers see the log before
            // this commit.
            self.failed.store(true, Ordering::Release);
        })?;
        // Behind the barrier, so that no run covers a commit that a power cut can take away.
        if let Some(ids) = &mut *self.ids.write() {
            ids.add(commit, head.chain);
        }
        // The end stays locked until the shadow is gone: a reader of the new end sees the new heads, too.
        let mut end = self.head.write();
        *end = head;
        self.shadow.write().clear();
        drop(end);
        self.announcements.announce(commit);
        // No reason to fail: the commit is durable, and the next lookup tries the repair again.
        if let Err(error) = self.heal_ids() {
            warn!(%error, "the index of ids cannot be made again");
        }
        Ok(head.chain)
    }

    fn announcements(&self) -> &Announcements {
        &self.announcements
    }

    fn head(&self) -> LogHead {
        *self.head.read()
    }

    fn commits(&self, from: CommitNumber, max: usize) -> Result<Vec<Commit>, LogError> {
        let mut commits = vec![];
        // Number 0 stands for the empty log.
        let mut number = from.max(CommitNumber(1));
        while commits.len() < max
            && let Some(commit) = self.commit(number)?
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
        // A commit may have as many changes as a batch has entries, so commits alone are no bound.
        while outlines.len() < max && changes < OUTLINE_CHANGES_MAX {
            match self.facts_of(number) {
                Ok(Some(facts)) => {
                    let outline = facts.outline(number);
                    changes += outline.changes.len();
                    outlines.push(outline);
                    number = number.next();
                }
                // What comes before damage is sound: the next call meets the damage first.
                Err(_) if !outlines.is_empty() => break,
                Ok(None) => break,
                Err(error) => return Err(error),
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
}

impl Series for SledLog {
    fn entries(&self, feed: FeedKey, range: Range<Position>) -> Result<Vec<Entry>, LogError> {
        let mut entries = vec![];
        if range.is_empty() {
            return Ok(entries);
        }
        // The record that holds the first position begins there or before.
        let behind = record::entry_key(feed, range.start.next());
        let db = self.readable_db()?;
        let before = db.get_lt(&behind).map_err(storage_error)?;
        let holder = before.and_then(|(key, _)| record::entry_of_key(&key));
        let first = match holder {
            Some((holder, first)) if holder == feed => first,
            // The record before belongs to another feed, whose keys precede this feed's.
            _ => range.start,
        };
        let end = record::entry_key(feed, range.end);
        let mut open: Option<(Position, Vec<u8>)> = None;
        for item in db.range(record::entry_key(feed, first)..end) {
            let (key, value) = item.map_err(storage_error)?;
            let broken = || record::damaged("entry", &key);
            let (_, at) = record::entry_of_key(&key).ok_or_else(broken)?;
            let part = codec::unseal(&value).ok_or_else(broken)?;
            // Parts of one record have the same position and follow each other.
            match &mut open {
                Some((first, body)) if *first == at => body.extend_from_slice(part),
                _ => {
                    take_entries(open.take(), &range, &mut entries)?;
                    open = Some((at, part.to_vec()));
                }
            }
        }
        take_entries(open, &range, &mut entries)?;
        Ok(entries)
    }

    fn feed(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError> {
        self.visible_head(feed)
    }

    fn named(&self, name: &FeedName) -> Result<Option<FeedHead>, LogError> {
        let key = record::name_key(name);
        let Some(value) = self.stored_value(&key)? else {
            return Ok(None);
        };
        let feed = codec::unseal(&value).and_then(|body| codec::Reader(body).feed());
        self.visible_head(feed.ok_or_else(|| record::damaged("name", &key))?)
    }

    fn settings(&self, feed: FeedKey, revision: Revision) -> Result<Option<Settings>, LogError> {
        let key = record::settings_key(feed, revision);
        let Some(body) = self.joined_parts("settings", &key)? else {
            return Ok(None);
        };
        serde_json::from_slice(&body).map(Some).map_err(|error| {
            LogError::damaged(format!(
                "settings {} of feed {}: {error}",
                revision.0, feed.0
            ))
        })
    }

    fn opening(
        &self,
        feed: FeedKey,
        document: DocumentNumber,
    ) -> Result<Option<Opening>, LogError> {
        let key = record::document_key(feed, document);
        let Some(value) = self.stored_value(&key)? else {
            return Ok(None);
        };
        record::decode_opening(&value)
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
        for item in self.readable_db()?.range(from..vec![b'n' + 1]) {
            if feeds.len() == max {
                break;
            }
            let (key, _) = item.map_err(storage_error)?;
            let name = record::name_of_key(&key).ok_or_else(|| record::damaged("name", &key))?;
            // A feed whose creation has not passed the barrier has no visible head.
            if let Some(head) = self.named(&name)? {
                feeds.push((name, head));
            }
        }
        Ok(feeds)
    }
}

impl Ids for SledLog {
    fn find(&self, feed: FeedKey, id: &EntryId) -> Result<Option<Known>, LogError> {
        let look = || match &*self.ids.read() {
            Some(ids) => ids.find(feed, id).map_err(LogError::io("read", "ids")),
            None => Err(LogError::Stopped),
        };
        // A damaged run loses its file when it is found, so the second look reads a rebuilt index.
        let found = look().or_else(|_damaged| {
            self.heal_ids()?;
            look()
        })?;
        let Some(at) = found else {
            return Ok(None);
        };
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
        Ok(Some(Known {
            at,
            document: super::document_of(self, feed, &entry)?,
            sent: entry.sent,
            fragment,
        }))
    }
}

impl Room for SledLog {
    fn is_open(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    fn has_room_for(&self, bytes: u64) -> Result<bool, LogError> {
        let log = std::fs::metadata(&self.file).map_err(LogError::io("measure", &self.file))?;
        let folder = self.file.parent().unwrap_or(&self.file);
        let free = space::free_bytes(folder).map_err(LogError::io("measure", folder))?;
        // The log is full until the refused commit fits: refusing large commits while taking small ones would
        // flip `/readyz` with each request.
        let wanted = self.wanted.load(Ordering::Acquire).max(bytes);
        let has_room = free >= space::needed_bytes(log.len(), wanted);
        self.wanted
            .store(if has_room { 0 } else { wanted }, Ordering::Release);
        Ok(has_room)
    }

    fn settle(&self) -> Result<(), LogError> {
        match &self.durability {
            Some(durability) => durability
                .witness
                .lock()
                .sync()
                .map_err(LogError::io("sync", &self.file)),
            None => Ok(()),
        }
    }
}

/// Adds the entries of a record that lie within `range`.
fn take_entries(
    record: Option<(Position, Vec<u8>)>,
    range: &Range<Position>,
    entries: &mut Vec<Entry>,
) -> Result<(), LogError> {
    let Some((first, body)) = record else {
        return Ok(());
    };
    let damaged = || LogError::damaged(format!("the record of entry {first}"));
    let decoded = record::decode_entries(first, &Bytes::from(body)).ok_or_else(damaged)?;
    entries.extend(
        decoded
            .into_iter()
            .filter(|entry| range.contains(&entry.at)),
    );
    Ok(())
}

fn read_parts(db: &Db, kind: &str, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
    let mut body: Option<Vec<u8>> = None;
    // Part numbers are big-endian, so the parts come in order.
    for item in db.scan_prefix(key) {
        let (key, value) = item.map_err(storage_error)?;
        let part = codec::unseal(&value).ok_or_else(|| record::damaged(kind, &key))?;
        body.get_or_insert_default().extend_from_slice(part);
    }
    Ok(body)
}

/// Returns the end of the log, from the record of its last commit.
fn read_head(db: &Db) -> Result<LogHead, LogError> {
    let end = vec![b'c' + 1];
    // Without a commit, this finds no key or one of another kind.
    let last = db.get_lt(end).map_err(storage_error)?;
    let Some(number) = last.and_then(|(key, _)| record::commit_of_key(&key)) else {
        return Ok(LogHead::START);
    };
    let key = record::commit_key(number);
    let body = read_parts(db, "commit", &key)?.unwrap_or_default();
    let facts = CommitFacts::decode(&body).ok_or_else(|| record::damaged("commit", &key))?;
    let CommitFacts {
        last,
        chain,
        epoch,
        feeds,
        ..
    } = facts;
    Ok(LogHead {
        number,
        last,
        chain,
        epoch,
        feeds,
    })
}

fn storage_error(error: sled::Error) -> LogError {
    match error {
        // sled's error does not return the I/O error as its source, which `is_full` looks for.
        sled::Error::Io(error) => LogError::Storage(Box::new(error)),
        error => LogError::Storage(Box::new(error)),
    }
}

#[cfg(test)]
impl SledLog {
    /// Loses the record of a commit, as rot does.
    pub(super) fn lose(&self, number: CommitNumber) {
        let parts = self.db.scan_prefix(record::commit_key(number)).keys();
        for part in parts.map(Result::unwrap) {
            self.db.remove(part).unwrap();
        }
    }
}
