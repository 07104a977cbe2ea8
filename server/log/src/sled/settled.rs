//! The settled part of the log, in sled.
//!
//! Shell: sled, which no other file names. One settling at a time writes values to sled. Readers
//! make sled write, too: sled divides and joins pages as readers pass. Readers look for no value
//! that the last settling has not stored. A settling that moves a value stores the new copy first,
//! and removes the old copy afterwards. Readers read a feed's record before the records of entries,
//! so they miss no entry that moves from the one to the others.
//!
//! sled writes a page again after ten changes and after each split, and frees a segment once half
//! of it is garbage. Values that arrive in the order of their keys therefore cost five times their
//! bytes. So the keys go ahead with empty values. The pages have split by the time the values come,
//! and sled writes each page once.

use std::{
    cell::Cell,
    collections::VecDeque,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Once,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use simplefeed_core::feed::FeedKey;
use simplefeed_process::{
    lack::{ask_for_files, ask_for_threads, check_memory, copy_of, lack_in},
    regular,
};
use sled::{Db, Mode};

use super::{
    record::{self, STORAGE_VERSION, VERSION_KEY},
    snapshots,
    tail::FeedRecord,
    watchdog::Watchdog,
};
use crate::codec;
use crate::{
    LogError,
    space::{is_full_at, try_room},
};

/// sled's page cache, in bytes.
const CACHE_BYTES: u64 = 16 * 1024 * 1024;
/// Number of threads that sled begins with, and of some that sled begins under load.
const SLED_THREADS: usize = 12;
/// Number of files that an opening of sled and its rehearsal have open at the same time.
const SLED_FILES: usize = 8;
/// Whether sled has its threads. sled begins them once, for all logs of a process.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);
/// Number of keys that go ahead of their values: more than a page has.
const AHEAD_KEYS: usize = 20;
/// Number of keys that are removed at a time.
const REMOVED_AT_ONCE: usize = 100;
/// Number of reads and writes between two sweeps of sled's cache.
const SWEPT_AFTER: usize = 5_000;
/// Number of keys of the tree that sweeps: about two pages for each of the 256 parts of the cache.
const SWEEP_KEYS: u32 = 5_000;
/// Number of reads of each page in a sweep. sled counts a part of its cache after 64 reads. So a
/// part with two of these pages is counted in each sweep, and a part with one page in every second
/// sweep.
const SWEEP_READS: usize = 32;
/// Bytes that a snapshot may have beyond twice the bytes of the snapshot before: enough for the
/// first snapshot.
const SNAPSHOT_SLACK_BYTES: usize = 1024 * 1024;
/// Least number of keys on a page of the tree that sweeps.
const SWEEP_STRIDE: usize = 8;

/// The settled part of a log.
pub(super) struct SettledPart {
    folder: PathBuf,
    /// `None` after a closing, and while sled cannot be opened again.
    db: RwLock<Option<Db>>,
    /// Missing resource because of which sled could not be opened again. A later settling opens
    /// sled.
    lack: Mutex<Option<io::Error>>,
    /// Whether sled has failed since the last opening.
    has_failed: AtomicBool,
    closing: AtomicBool,
    /// Whether sled may have lost something, so that nothing is read any more.
    is_given_up: AtomicBool,
    touched: AtomicUsize,
    /// Number of changes and openings in a test until the disk counts as full.
    #[cfg(test)]
    pub(super) puts_left: AtomicUsize,
    /// Work of another thread in a test, between two reads.
    #[cfg(test)]
    pub(super) meanwhile: Mutex<Option<Meanwhile>>,
}

impl fmt::Debug for SettledPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settled")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// Number of reads, and work that comes after them.
#[cfg(test)]
pub(super) type Meanwhile = (usize, Box<dyn FnOnce() + Send>);

/// Keys with their values.
type KeyValues = Vec<(Vec<u8>, Vec<u8>)>;

impl SettledPart {
    /// Opens sled in `folder`. The opening is a recovery, which writes to the folder.
    ///
    /// # Errors
    ///
    /// Returns why sled refuses the folder. sled panics on some damaged databases; such a panic is
    /// a refusal here.
    pub(super) fn open(folder: &Path) -> Result<Self, LogError> {
        Ok(Self {
            db: RwLock::new(Some(open_db(folder)?)),
            folder: folder.into(),
            lack: Mutex::default(),
            has_failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            touched: AtomicUsize::new(0),
            #[cfg(test)]
            puts_left: AtomicUsize::new(usize::MAX),
            #[cfg(test)]
            meanwhile: Mutex::default(),
        })
    }

    /// Makes every read fail from now on.
    pub(super) fn end_reading(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Returns the value of a key, without its checksum.
    ///
    /// # Errors
    ///
    /// Returns sled's failure, or that the value is damaged.
    pub(super) fn value(&self, kind: &str, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        let db = self.read_db()?;
        let value = self
            .open_one(db.as_ref())?
            .get(key)
            .map_err(|error| self.read_failure(error))?;
        // A settling puts keys ahead of their values, so a key without a value stands for no value.
        let value = value.filter(|value| !value.is_empty());
        let unsealed = |value: sled::IVec| {
            let body = codec::unseal(&value).ok_or_else(|| record::damaged(kind, key))?;
            Ok(body.to_vec())
        };
        value.map(unsealed).transpose()
    }

    /// Returns a feed's record.
    ///
    /// # Errors
    ///
    /// Returns sled's failure, or that the record is damaged.
    pub(super) fn feed_record(&self, feed: FeedKey) -> Result<Option<FeedRecord>, LogError> {
        let key = record::feed_key(feed);
        let decode = |body: Vec<u8>| {
            let record = FeedRecord::decode(&Bytes::from(body));
            record.ok_or_else(|| record::damaged("feed", &key))
        };
        let value = self.value("feed", &key)?;
        self.note_pages(self.db.read().as_ref(), 1);
        value.map(decode).transpose()
    }

    /// Returns a feed's head in encoded form.
    ///
    /// # Errors
    ///
    /// Returns sled's failure, or that the record is damaged.
    pub(super) fn head(&self, feed: FeedKey) -> Result<Option<Bytes>, LogError> {
        Ok(self.feed_record(feed)?.map(|record| record.head))
    }

    /// Returns a stored value with all of its bytes, and checks nothing.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn raw_value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        let db = self.read_db()?;
        let value = self
            .open_one(db.as_ref())?
            .get(key)
            .map_err(|error| self.read_failure(error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Returns a body that is stored in parts.
    ///
    /// # Errors
    ///
    /// Returns sled's failure, or that a part is damaged.
    pub(super) fn joined(&self, kind: &str, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        // One byte longer than any part number, so that no part is behind the end of the range.
        let behind = [key, &[0xff; record::PART_KEY_BYTES + 1]].concat();
        let found = self.join_range(kind, key.to_vec(), &behind)?;
        Ok(found.into_iter().next().map(|(_, body)| body))
    }

    /// Returns the records from the one that holds `at` on, up to `end`, under keys without the
    /// number of the part. A record holds its own key, and all keys up to the next record that
    /// begin with the same `prefix` bytes.
    ///
    /// # Errors
    ///
    /// Returns sled's failure, or that a record is damaged.
    pub(super) fn records(
        &self,
        kind: &str,
        at: &[u8],
        end: &[u8],
        prefix: usize,
    ) -> Result<KeyValues, LogError> {
        let behind = [at, &[0xff; record::PART_KEY_BYTES + 1]].concat();
        let db = self.read_db()?;
        let before = self
            .open_one(db.as_ref())?
            .get_lt(&behind)
            .map_err(|error| self.read_failure(error))?;
        drop(db);
        let holder = before
            .map(|(key, _)| base_of(&key).to_vec())
            .filter(|key| key.get(..prefix) == at.get(..prefix));
        self.join_range(kind, holder.unwrap_or_else(|| at.to_vec()), end)
    }

    fn join_range(&self, kind: &str, from: Vec<u8>, end: &[u8]) -> Result<KeyValues, LogError> {
        let mut found: KeyValues = vec![];
        let db = self.read_db()?;
        for item in self.open_one(db.as_ref())?.range(from..end.to_vec()) {
            let (key, value) = item.map_err(|error| self.read_failure(error))?;
            // A settling has put this key ahead of its value.
            if value.is_empty() {
                continue;
            }
            let part = codec::unseal(&value).ok_or_else(|| record::damaged(kind, &key))?;
            // Part numbers are big-endian, so the parts of a record come in order.
            match found.last_mut() {
                Some((last, body)) if last.as_slice() == base_of(&key) => {
                    body.extend_from_slice(part);
                }
                _ => found.push((base_of(&key).to_vec(), part.to_vec())),
            }
        }
        self.note_pages(db.as_ref(), found.len());
        Ok(found)
    }

    /// Returns at most `max` pairs whose keys begin with `prefix`, from the key `from` on. The
    /// values have their checksums, which are not compared.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn pairs(
        &self,
        from: &[u8],
        prefix: &[u8],
        max: usize,
    ) -> Result<KeyValues, LogError> {
        let db = self.read_db()?;
        let range = self.open_one(db.as_ref())?.range(from.to_vec()..).take(max);
        let mut found = vec![];
        for item in range {
            let (key, value) = item.map_err(|error| self.read_failure(error))?;
            if !key.starts_with(prefix) {
                break;
            }
            found.push((key.to_vec(), value.to_vec()));
        }
        self.note_pages(db.as_ref(), found.len());
        Ok(found)
    }

    /// Returns the storage version of sled's records, if this program writes another one.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn other_version(&self) -> Result<Option<u32>, LogError> {
        let version = self.raw_value(VERSION_KEY)?;
        let version = version.and_then(|version| version.first_chunk::<4>().copied());
        if let Some(version) = version.map(u32::from_be_bytes)
            && version != STORAGE_VERSION
        {
            return Ok(Some(version));
        }
        let db = self.read_db()?;
        let db = self.open_one(db.as_ref())?;
        // An older program that upgraded a log noted this version, but left commits in records of
        // their own, and heads beside feeds' records.
        for kind in [b"c", b"h"] {
            if let Some(found) = db.scan_prefix(kind).keys().next() {
                found.map_err(|error| self.read_failure(error))?;
                return Ok(Some(BEFORE_RECORDS_OF_FEEDS));
            }
        }
        Ok(None)
    }

    /// Returns all pairs whose keys begin with `prefix`, up to the first that sled cannot read.
    pub(super) fn readable_pairs(
        &self,
        prefix: &[u8],
    ) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + use<> {
        let items = self.db.read().as_ref().map(|db| db.scan_prefix(prefix));
        let items = items.into_iter().flatten().map_while(Result::ok);
        items.map(|(key, value)| (key.to_vec(), value.to_vec()))
    }

    /// Stores a value of one part.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), LogError> {
        #[cfg(test)]
        self.take_a_put()?;
        let db = self.db.read();
        self.open_one(db.as_ref())?
            .insert(key, value)
            .map_err(storage_error)?;
        self.note_pages(db.as_ref(), 1);
        Ok(())
    }

    /// Removes the keys that begin with `prefix`, as damage does.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    #[cfg(test)]
    pub(super) fn remove(&self, prefix: &[u8]) -> Result<(), LogError> {
        let db = self.db.read();
        let db = self.open_one(db.as_ref())?;
        for key in db.scan_prefix(prefix).keys() {
            db.remove(key.map_err(storage_error)?)
                .map_err(storage_error)?;
        }
        Ok(())
    }

    /// Removes the keys from `from` on, up to `end`.
    ///
    /// # Errors
    ///
    /// Returns sled's failure, or that of `go_on`, which is asked now and then.
    pub(super) fn remove_range(
        &self,
        from: &[u8],
        end: &[u8],
        go_on: &dyn Fn() -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        loop {
            let db = self.db.read();
            // In pieces, because a feed may have millions of records, and a settling must end soon
            // when the server stops.
            let keys = self.open_one(db.as_ref())?.range(from..end).keys();
            let found: sled::Result<Vec<_>> = keys.take(REMOVED_AT_ONCE).collect();
            let found = found.map_err(storage_error)?;
            drop(db);
            if found.is_empty() {
                return Ok(());
            }
            go_on()?;
            for key in found {
                self.remove_key(&key)?;
            }
        }
    }

    fn remove_key(&self, key: &[u8]) -> Result<(), LogError> {
        #[cfg(test)]
        self.take_a_put()?;
        let db = self.db.read();
        self.open_one(db.as_ref())?
            .remove(key)
            .map_err(storage_error)?;
        Ok(())
    }

    /// Stores pairs in the order in which they come. Pairs in the order of their keys cost least.
    pub(super) fn putting(&self) -> Putting<'_> {
        Putting {
            settled: self,
            ahead: VecDeque::new(),
        }
    }

    /// Makes all stored values durable.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn flush(&self) -> Result<(), LogError> {
        let db = self.db.read();
        let db = self.open_one(db.as_ref())?;
        // If a write fails, sled does not wake every thread that waits for a flush. A second flush
        // does.
        let again = db.clone();
        let watchdog = Watchdog::new(move || drop(again.flush()));
        watchdog.during(|| db.flush()).map_err(storage_error)?;
        Ok(())
    }

    /// Closes sled and opens sled again: an opening writes a snapshot of where the pages are. In
    /// between, `check` looks at sled's files, which no thread has open. Readers wait meanwhile. If
    /// the opening fails, readers get errors until a later call succeeds.
    ///
    /// # Errors
    ///
    /// Returns why the opening failed, or the error of `check`.
    pub(super) fn reopen(
        &self,
        check: impl FnOnce() -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        #[cfg(test)]
        self.take_a_put()?;
        // On a full disk, or without handles, sled stays open, so that reads go on.
        ask_for_files(SLED_FILES).map_err(LogError::io("open", &self.folder))?;
        // An opening writes a snapshot, so the room is tried while sled still answers reads.
        let fits = try_room(&self.folder, self.snapshot_bytes()?);
        fits.map_err(LogError::io("write to", &self.folder))?;
        // sled removes the last snapshot before the new one has its name durably.
        snapshots::keep(&self.folder).map_err(LogError::io("write to", &self.folder))?;
        let mut db = self.db.write();
        drop(db.take());
        let opened = wait_for_release(&self.folder)
            .and_then(|()| check())
            .and_then(|()| open_db(&self.folder));
        // Set before readers get the lock: if sled is closed and no reason is noted, they take the
        // log for stopped.
        let lack = opened.as_ref().err().and_then(|error| lack_in(error));
        *self.lack.lock() = lack.map(copy_of);
        *db = Some(opened?);
        // Only after a successful opening: until then, sled may refuse reads.
        self.has_failed.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns the most bytes that the next snapshot may have.
    fn snapshot_bytes(&self) -> Result<usize, LogError> {
        let failed = || LogError::io("read", &self.folder);
        let mut most = 0;
        for item in std::fs::read_dir(&self.folder).map_err(failed())? {
            let item = item.map_err(failed())?;
            if item.file_name().to_string_lossy().starts_with("snap.") {
                most = item.metadata().map_err(failed())?.len().max(most);
            }
        }
        // A settling adds some pages, and sled itself a few more.
        Ok(usize::try_from(most).unwrap_or(0) * 2 + SNAPSHOT_SLACK_BYTES)
    }

    /// Closes sled.
    ///
    /// # Errors
    ///
    /// Returns that sled's threads do not let go of the file.
    pub(super) fn close(&self) -> Result<(), LogError> {
        // Reads after a closing get `Stopped`: no later settling opens sled again.
        *self.lack.lock() = None;
        drop(self.db.write().take());
        wait_for_release(&self.folder)
    }

    /// Notes that sled has failed: reads may fail, too, until the next opening of sled.
    pub(super) fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Returns the error of a failed read. After a write that lacked something, sled refuses reads
    /// until the next opening.
    fn read_failure(&self, error: sled::Error) -> LogError {
        let error = storage_error(error);
        if lack_in(&error).is_some() {
            self.note_failure();
        }
        error
    }

    /// Makes every read fail: sled may have lost something.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Returns whether reads may fail until the next opening of sled.
    pub(super) fn is_lacking(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) || self.lack.lock().is_some()
    }

    fn open_one<'d>(&self, db: Option<&'d Db>) -> Result<&'d Db, LogError> {
        let closed = || match self.lack.lock().as_ref() {
            Some(lack) => LogError::lacking("read what is settled", copy_of(lack)),
            None => LogError::Stopped,
        };
        db.ok_or_else(closed)
    }

    fn read_db(&self) -> Result<RwLockReadGuard<'_, Option<Db>>, LogError> {
        #[cfg(test)]
        self.let_others_work();
        // Checked before the lock is taken: an opening of sled holds the lock until the end, and
        // reads must end soon at a stop.
        if self.closing.load(Ordering::Acquire) {
            return Err(LogError::Closing);
        }
        if self.is_given_up.load(Ordering::Acquire) {
            return Err(LogError::Stopped);
        }
        Ok(self.db.read())
    }

    /// Notes reads and writes. sled counts the pages in its cache only when 64 reads of one of its
    /// 256 parts have come together, so many large pages stay uncounted. Now and then, this
    /// function reads so many small pages that all parts are counted.
    fn note_pages(&self, db: Option<&Db>, pages: usize) {
        let before = self.touched.fetch_add(pages, Ordering::Relaxed);
        // Each sweep is thousands of reads, so there is only one sweep for `SWEPT_AFTER` pages.
        if before / SWEPT_AFTER == (before + pages) / SWEPT_AFTER {
            return;
        }
        let Some(tree) = db.and_then(|db| db.open_tree("sweep").ok()) else {
            return;
        };
        // A failure shows at the next read that somebody waits for.
        for number in (0..SWEEP_KEYS).step_by(SWEEP_STRIDE) {
            for _ in 0..SWEEP_READS {
                drop(tree.get(number.to_be_bytes()));
            }
        }
    }

    /// Makes the tree that sweeps the cache.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn make_sweeping_tree(&self) -> Result<(), LogError> {
        let db = self.db.read();
        let tree = self
            .open_one(db.as_ref())?
            .open_tree("sweep")
            .map_err(storage_error)?;
        for number in 0..SWEEP_KEYS {
            let key = number.to_be_bytes();
            // A settling that is begun again would else change each page of the tree once more.
            if tree.get(key).map_err(storage_error)?.is_none() {
                tree.insert(key, &[]).map_err(storage_error)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl SettledPart {
    fn take_a_put(&self) -> Result<(), LogError> {
        let less = |left: usize| left.checked_sub(1);
        let left = self
            .puts_left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        let full = |_none| LogError::io("write", &self.folder)(io::ErrorKind::StorageFull.into());
        left.map(drop).map_err(full)
    }

    fn let_others_work(&self) {
        let mut meanwhile = self.meanwhile.lock();
        match meanwhile.take() {
            Some((0, work)) => {
                drop(meanwhile);
                work();
            }
            Some((reads, work)) => *meanwhile = Some((reads - 1, work)),
            None => {}
        }
    }
}

/// Pairs on their way into sled.
pub(super) struct Putting<'s> {
    settled: &'s SettledPart,
    ahead: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Putting<'_> {
    /// Stores a body in parts.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn put(&mut self, key: &[u8], body: &[u8]) -> Result<(), LogError> {
        for (part, value) in record::parts(body) {
            self.put_value(record::part_key(key, part), value)?;
        }
        Ok(())
    }

    /// Stores a value, which has a checksum, unchanged.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn put_value(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), LogError> {
        // Keys that are scattered among old keys make few pages split. To put such keys ahead of
        // their values would only cost one more change.
        if self
            .ahead
            .back()
            .is_some_and(|(last, _)| is_run(last, &key))
        {
            self.settled.put(&key, &[])?;
        }
        self.ahead.push_back((key, value));
        if self.ahead.len() > AHEAD_KEYS {
            self.put_next()?;
        }
        Ok(())
    }

    fn put_next(&mut self) -> Result<(), LogError> {
        match self.ahead.pop_front() {
            Some((key, value)) => self.settled.put(&key, &value),
            None => Ok(()),
        }
    }

    /// Stores the rest.
    ///
    /// # Errors
    ///
    /// Returns sled's failure.
    pub(super) fn finish(mut self) -> Result<(), LogError> {
        // The last keys have gone ahead, so their values must follow before the settling counts as
        // stored.
        while !self.ahead.is_empty() {
            self.put_next()?;
        }
        Ok(())
    }
}

/// Returns whether two keys belong to one run of new keys: entries or documents of one feed, or
/// facts.
fn is_run(one: &[u8], next: &[u8]) -> bool {
    // Kind and feed, which have 1 and 16 bytes; of facts, which belong to no feed, the kind alone.
    let kind_and_feed = |key: &[u8]| match key.first() {
        Some(b'e' | b'd') => key.get(..17).map(<[u8]>::to_vec),
        Some(b'p') => Some(vec![b'p']),
        _ => None,
    };
    kind_and_feed(one).is_some_and(|first| Some(first) == kind_and_feed(next))
}

fn base_of(key: &[u8]) -> &[u8] {
    let length = key.len().saturating_sub(record::PART_KEY_BYTES);
    key.get(..length).unwrap_or_default()
}

fn open_db(folder: &Path) -> Result<Db, LogError> {
    let open = || {
        sled::Config::new()
            .path(folder)
            .cache_capacity(CACHE_BYTES)
            // Only a settling writes values, and asks for each flush.
            .flush_every_ms(None)
            .mode(Mode::LowSpace)
            .open()
    };
    // sled waits for ever where one of its threads cannot be started, so the threads are asked for
    // before.
    if !HAS_THREADS.load(Ordering::Acquire) {
        ask_for_threads(SLED_THREADS).map_err(LogError::io("start", "the threads of sled"))?;
    }
    match quietly(open) {
        Some(Ok(db)) => {
            HAS_THREADS.store(true, Ordering::Release);
            Ok(db)
        }
        Some(Err(error)) => Err(storage_error(error)),
        None => Err(why_panicked(folder, "sled cannot read its files")),
    }
}

/// Returns the cause of a panic of sled in `folder`: a lack of a resource, or damage. The panic
/// does not name the cause.
pub(super) fn why_panicked(folder: &Path, damaged: &str) -> LogError {
    // Damage is the last answer: the advice for damage is wrong where the system lacks something.
    if is_full_at(folder) {
        return LogError::io("write", folder)(io::ErrorKind::StorageFull.into());
    }
    if let Err(lack) = check_memory() {
        return LogError::io("open", folder)(lack);
    }
    match ask_for_threads(SLED_THREADS) {
        Err(lack) => LogError::io("start", "the threads of sled")(lack),
        Ok(()) => LogError::damaged(damaged),
    }
}

/// Waits until sled's threads have released the file, which they do some time after the last handle
/// is dropped.
fn wait_for_release(folder: &Path) -> Result<(), LogError> {
    let path = folder.join("db");
    let failed = || LogError::io("open", &path);
    // Without a file, there is no lock to wait for.
    let found = match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed())?,
    };
    // The opening of a pipe would wait.
    if !found.is_file() {
        return Ok(());
    }
    let file = regular::open(&path).map_err(failed())?;
    let deadline = std::time::Instant::now() + RELEASE_WAIT;
    // sled holds a lock of its file as long as it has the file open. Our lock ends when `file` is
    // dropped.
    while file.try_lock().is_err() {
        if std::time::Instant::now() > deadline {
            return Err(LogError::io("close", &path)(
                io::ErrorKind::ResourceBusy.into(),
            ));
        }
        // The system has no wait for a lock with a deadline.
        std::thread::park_timeout(std::time::Duration::from_millis(2));
    }
    Ok(())
}

/// Last storage version with commits in records of their own, or with heads beside the records of
/// feeds.
const BEFORE_RECORDS_OF_FEEDS: u32 = 3;
/// How long to wait for sled's threads to let go of a database just closed.
const RELEASE_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Runs work that may make sled panic. Returns `None` after a panic, and prints nothing of the
/// panic.
pub fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOKED: Once = Once::new();
    thread_local! {
        static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    }
    // All threads of the process share the hook, so the first call sets a hook that asks whether
    // the panicking thread is quiet.
    HOOKED.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                hook(panic);
            }
        }));
    });
    // The former value is put back, because this call may be within another one.
    let before = IS_QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_QUIET.set(before);
    done.ok()
}

fn storage_error(error: sled::Error) -> LogError {
    match error {
        // sled's error does not return the I/O error as its source, which `is_full` looks for.
        sled::Error::Io(error) => LogError::Storage(Box::new(error)),
        error => LogError::Storage(Box::new(error)),
    }
}
