//! The entry log on a disk: the journal, and sled behind it.
//!
//! Shell: the data folder, and locks. An append is one write and one sync of the journal. Only then
//! do readers see the commit, and only then does the append return. Chapters in memory are an index
//! of the commits in the journal. A full chapter is settled: a thread packs the commits into sled,
//! and the journal uses the file again.
//!
//! ```text
//! append ──► journal ──► chapter ──► (256 MiB) ──► sled ──► witness ──► the chapter goes
//! readers ◄───────────── chapters, the newest first; else sled
//! ```
//!
//! A reader asks the chapters first, and then sled for all that comes before them. A chapter goes
//! only after sled has all of its commits, so readers miss nothing.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use simplefeed_core::{
    commit::{ChangeOutline, Commit},
    entry::Entry,
    feed::{FeedKey, Position},
    history::ChainHash,
};
use simplefeed_process::lack::{copy_of, lack_in};
use tracing::{info, warn};

use super::{
    chapter::{Chapter, Chapters, SPREAD_CHAPTERS},
    folder::DataFolder,
    ids::IdIndex,
    journal::{Journal, JournalFile},
    settled::SettledPart,
    settler::{Settler, Work},
    writing::{CommitKeys, Items},
};
use crate::{
    Commits as _, FeedHeads, LogError, LogHead, Series as _,
    announcements::Announcements,
    seen::{self, ReadersEnd, SeenNote},
};

/// Number of commits missing from the index of ids above which the rebuilding is logged, because it
/// takes long.
const SLOW_COMMITS: u64 = 100_000;
/// Memory of a chapter, in bytes, from which on the chapter is settled, however small the file is.
const CHAPTER_MEMORY_MAX: usize = 64 * 1024 * 1024;
/// Least time between two checks that nobody else has locked the folder.
const CHECKED_AGAIN: Duration = Duration::from_secs(1);
/// Time after a failure to make a file of the journal in which the log counts as one that takes no
/// commits. After that time, the next commit shows whether a file can be made.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Bound on a chapter while the chapter before it is being settled, in times of the usual size. At
/// that bound, appends wait.
const BACKLOG_MAX: u64 = 4;

/// The entry log on a disk.
pub struct SledLog {
    pub(super) settled: Arc<SettledPart>,
    pub(super) chapters: Arc<RwLock<Chapters>>,
    journal: Mutex<Journal>,
    /// Locked after the journal, never before.
    seen: Mutex<SeenNote>,
    /// The last commit that readers had seen before this opening.
    seen_before: ReadersEnd,
    settler: Settler,
    /// Length of a chapter, in bytes, from which on the chapter is settled.
    chapter_bytes: u64,
    /// Number of ids in memory from which on these ids become a file.
    fresh_ids: usize,
    /// Index of ids; `None` while the log is being opened.
    pub(super) ids: RwLock<Option<IdIndex>>,
    pub(super) announcements: Announcements,
    pub(super) failed: Arc<AtomicBool>,
    /// Whether the opened folder or files were moved, removed or replaced.
    pub(super) displaced: Arc<AtomicBool>,
    /// A document beside the log that belongs to another log.
    pub(super) replaced_by: Mutex<Option<PathBuf>>,
    pub(super) folder: Arc<DataFolder>,
    /// Time of the last failure to make a file of the journal for want of a resource; `None` after
    /// a success.
    unrotated: Mutex<Option<Instant>>,
    /// When the folder was checked last.
    checked: Mutex<Instant>,
    /// Bytes of the largest commit refused for lack of room; 0 once there was room again.
    pub(super) wanted: AtomicU64,
}

impl fmt::Debug for SledLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledLog")
            .field("folder", &self.folder.held().name())
            .finish_non_exhaustive()
    }
}

impl SledLog {
    /// Puts an opened log together.
    pub(super) fn new(
        folder: Arc<DataFolder>,
        chapters: Chapters,
        journal: Journal,
        work: Work,
        (seen, seen_before): (SeenNote, ReadersEnd),
        fresh_ids: usize,
    ) -> Self {
        let chapter_bytes = work.chapter_bytes;
        let announcements = Announcements::behind(chapters.head.number);
        let (chapters, failed) = (Arc::new(RwLock::new(chapters)), Arc::default());
        let displaced = Arc::clone(&work.displaced);
        Self {
            settled: Arc::clone(&work.settled),
            settler: Settler::new(work, &chapters, &failed),
            chapters,
            journal: Mutex::new(journal),
            seen: Mutex::new(seen),
            seen_before,
            chapter_bytes,
            fresh_ids,
            ids: RwLock::default(),
            announcements,
            failed,
            displaced,
            replaced_by: Mutex::default(),
            folder,
            unrotated: Mutex::default(),
            checked: Mutex::new(Instant::now()),
            wanted: AtomicU64::new(0),
        }
    }

    /// Stores a commit, and returns the chain hash after the commit. Heads of feeds that are not in
    /// `known` are read.
    pub(super) fn store(&self, commit: &Commit, known: &FeedHeads) -> Result<ChainHash, LogError> {
        let mut journal = self.journal.lock();
        // The head changes only under the lock of the journal, so `before` stays right up to the
        // append.
        let before = self.head();
        self.go_on_settling();
        let prepared = self.prepare_commit(commit, before, known);
        // Nothing is written yet, so a lack of a resource fails this commit only, and does not end
        // the log. sled may refuse reads while a settling is put off.
        let (items, head) = prepared.map_err(|error| match lack_in(&error) {
            Some(lack) => LogError::lacking("read what is settled", copy_of(lack)),
            None => error,
        })?;
        // Checked before the append: a folder that was moved, or that another process has locked,
        // must get no commit.
        self.check_folder()?;
        self.make_place(&mut journal, before)?;
        journal.append(commit.number, &before.chain, &items, |record| {
            // Noted before readers see the commit: a failure fails the commit.
            self.settler.note_commit(head.number)?;
            self.note_seen(&head)?;
            // The head changes with the chapter: a reader of the new end sees the new heads of
            // feeds, too.
            let mut chapters = self.chapters.write();
            let added = chapters.newest.add(record);
            assert!(added.is_some(), "what was just written can be read");
            chapters.head = head;
            self.announcements.invalidate(commit);
            Ok(())
        })?;
        Ok(head.chain)
    }

    /// Checks the folder, unless the last check is less than a second old: a commit looks at its
    /// own file anyway.
    fn check_folder(&self) -> Result<(), LogError> {
        let mut checked = self.checked.lock();
        if checked.elapsed() < CHECKED_AGAIN {
            return Ok(());
        }
        self.check_others()?;
        // Set only after a check that passed: after a failed check, the next commit checks again.
        *checked = Instant::now();
        Ok(())
    }

    /// Checks the folder, its lock, the settled files and the older files of the journal.
    pub(super) fn check_others(&self) -> Result<(), LogError> {
        self.folder.check()?;
        self.settler.check_files()?;
        let journal = self.folder.name_of("journal");
        let chapters = self.chapters.read();
        let is_whole = |file: &JournalFile| file.is_in(&journal) && !file.is_damaged();
        if chapters.full.iter().all(|full| is_whole(&full.file)) {
            return Ok(());
        }
        let what = format!(
            "a file in {} was removed, replaced, cut, damaged or moved",
            journal.display()
        );
        Err(LogError::Displaced { what })
    }

    /// Checks that the next opening would find this log.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Displaced`] if the next opening would find another log or none.
    pub(super) fn check_place(&self) -> Result<(), LogError> {
        self.check_others()?;
        self.settler.note_rest();
        // A commit that is being written checks its file itself.
        let journal = self.journal.try_lock();
        journal.map_or(Ok(()), |journal| journal.check_place())
    }

    fn note_seen(&self, head: &LogHead) -> Result<(), LogError> {
        let noted = self.seen.lock().write(ReadersEnd::of(head));
        noted.map_err(|error| self.unnoted_end(error))
    }

    /// Notes the end of the log as seen by readers, durably: the note of a killed process may lag
    /// behind.
    pub(super) fn note_seen_durably(&self) -> Result<(), LogError> {
        self.note_seen(&self.head())?;
        let synced = self.seen.lock().sync();
        synced.map_err(|error| self.unnoted_end(error))
    }

    fn unnoted_end(&self, error: io::Error) -> LogError {
        LogError::io("write", self.folder.name_of("views").join(seen::NAME))(error)
    }

    /// Checks that the log has the last commit that readers had seen before this opening.
    pub(super) fn check_seen_before(&self) -> Result<(), LogError> {
        self.seen_before.check(self)
    }

    /// Returns the items of a commit, and the end of the log after it. Stores nothing.
    fn prepare_commit(
        &self,
        commit: &Commit,
        head: LogHead,
        known: &FeedHeads,
    ) -> Result<(Items, LogHead), LogError> {
        head.assert_before(commit);
        let stored = |feed| match known.get(&feed) {
            Some(head) => {
                // A comparison in each build would cost the read that `known` saves.
                debug_assert!(
                    self.feed(feed)
                        .map_or(true, |stored| stored.as_ref() == Some(head)),
                    "a known head is what the log has"
                );
                Ok(Some(head.clone()))
            }
            None => self.feed(feed),
        };
        let mut writing = CommitKeys::new(commit, head);
        for change in &commit.changes {
            writing.change(change, stored)?;
        }
        Ok(writing.finish(commit, head))
    }

    /// Begins a new chapter if the newest chapter is full. Waits if the chapter before is still
    /// being settled and the newest chapter has grown too large meanwhile.
    fn make_place(&self, journal: &mut Journal, head: LogHead) -> Result<(), LogError> {
        let is_full = |bytes, memory| {
            journal.bytes() > bytes || self.chapters.read().newest.memory() > memory
        };
        // Settling writes the record of each feed, so entries over many feeds share that cost only
        // in larger chapters.
        let is_spread = self.chapters.read().newest.is_spread();
        let chapters = if is_spread { SPREAD_CHAPTERS } else { 1 };
        let bytes = self.chapter_bytes.saturating_mul(chapters);
        if !is_full(bytes, CHAPTER_MEMORY_MAX) {
            return Ok(());
        }
        // A settling that failed is not begun again.
        let has_failed = self.failed.load(Ordering::Acquire);
        if self.settler.is_busy() || (!has_failed && self.settle_rest()) {
            // Commits go on beside a settling as long as the newest chapter may grow.
            if self.has_place() {
                return Ok(());
            }
            self.settler.wait();
        }
        // Without a settler, the chapters would grow without end.
        if self.failed.load(Ordering::Acquire) {
            return Err(LogError::Stopped);
        }
        // If the log is being closed, the settler settles nothing more, and the next process
        // settles the chapters.
        if !self.settler.is_ending() && !self.chapters.read().full.is_empty() {
            // The noted lack may be gone by now, because the settler goes on meanwhile.
            let busy = || io::ErrorKind::ResourceBusy.into();
            let lack = self.settler.lack().unwrap_or_else(busy);
            return Err(LogError::lacking("settle the journal", lack));
        }
        self.begin_chapter(journal, head)
    }

    /// Asks the settler to go on, if a settling waits for a thread, or if sled refuses reads after
    /// a failure of its own.
    fn go_on_settling(&self) {
        if self.settled.is_lacking() || self.settler.lacks_thread() {
            self.settler.begin();
        }
    }

    /// Returns whether reads or commits are refused because the system lacks a resource.
    pub(super) fn refuses(&self) -> bool {
        self.go_on_settling();
        let refused = *self.unrotated.lock();
        refused.is_some_and(|at| at.elapsed() < REFUSED_FOR)
            || self.settled.is_lacking()
            || (self.settler.lack().is_some() && !self.has_place())
    }

    /// Returns whether the newest chapter may grow while the chapter before it is not settled.
    fn has_place(&self) -> bool {
        let most = self.chapter_bytes.saturating_mul(BACKLOG_MAX);
        let chapters = self.chapters.read();
        chapters.newest.bytes() <= most && chapters.newest.memory() <= 2 * CHAPTER_MEMORY_MAX
    }

    fn begin_chapter(&self, journal: &mut Journal, head: LogHead) -> Result<(), LogError> {
        // After a failure, there may be a file with the name of the next commit already. So the
        // newest file takes no commit until a new file is made.
        let rotated = journal.rotate(head.number.next(), head.chain);
        let lack = |error: &LogError| lack_in(error).map(copy_of);
        let lack = rotated.as_ref().err().and_then(lack);
        *self.unrotated.lock() = lack.is_some().then(Instant::now);
        if let Some(lack) = lack {
            return Err(LogError::lacking("begin a file of the journal", lack));
        }
        rotated?;
        // Noted before the first commit in the file: without the note, a lost file would go
        // unnoticed.
        self.settler.note_file(head.number.next())?;
        let mut chapters = self.chapters.write();
        let full = std::mem::replace(
            &mut chapters.newest,
            Chapter::new(Arc::clone(journal.file())),
        );
        chapters.full.push_back(Arc::new(full));
        drop(chapters);
        self.settler.begin();
        Ok(())
    }

    /// Settles chapters that an earlier process left, or whose settling was put off. Returns
    /// whether such chapters exist.
    pub(super) fn settle_rest(&self) -> bool {
        let has_full = !self.chapters.read().full.is_empty();
        if has_full {
            self.settler.begin();
        }
        has_full
    }

    /// Asks a settling to end soon: the journal still has all of the chapter. Later settlings end
    /// before they have done anything.
    pub(crate) fn end_settling(&self) {
        self.settler.ask_to_end();
    }

    /// Writes the findings of the opening to the witness, before settled files are used again.
    pub(super) fn note_settled(&self) -> Result<(), LogError> {
        self.settler.note_settled()
    }

    /// Opens the index of ids in `folder`, and adds the ids of later commits.
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
        let opened = IdIndex::open(folder, self.fresh_ids, chain);
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
    pub(super) fn heal_ids(&self) -> Result<(), LogError> {
        let is_damaged = |ids: &Option<IdIndex>| ids.as_ref().is_some_and(IdIndex::is_damaged);
        // A read lock is enough to look for damage, so without damage, which is the usual case, no
        // lookup waits.
        if !is_damaged(&self.ids.read()) {
            return Ok(());
        }
        let mut place = self.ids.write();
        // Another thread may have rebuilt the index between the two locks.
        if let Some(ids) = place.as_mut().filter(|ids| ids.is_damaged()) {
            // A merge in progress would write into the folder that is opened anew below.
            ids.wait();
            let folder = ids.folder().to_path_buf();
            *ids = self.open_ids(&folder)?;
        }
        Ok(())
    }

    /// Adds a durable commit to the index of ids.
    pub(super) fn add_ids(&self, commit: &Commit, chain: ChainHash) {
        if let Some(ids) = &mut *self.ids.write() {
            ids.add(commit, chain);
        }
        // A failed repair is no failure of the commit, which is durable. The next lookup tries the
        // repair again.
        if let Err(error) = self.heal_ids() {
            warn!(%error, "the index of ids cannot be made again");
        }
    }

    /// Returns the `count` entries from `first` on, or an error if any of them is missing.
    pub(super) fn all_entries(
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

    /// Makes every read fail from now on, so that work still in progress ends.
    pub fn end_reading(&self) {
        self.settled.end_reading();
    }

    /// Closes the log: breaks off a settling, whose chapter the journal still has, and notes where
    /// the log ends.
    ///
    /// # Errors
    ///
    /// Returns the failed write. Nothing acknowledged is lost.
    pub(super) fn close(self) -> Result<(), LogError> {
        let (head, failed) = (self.head(), self.failed.load(Ordering::Acquire));
        let ids = self.ids.into_inner();
        self.settler.end();
        // Closed after the end of the settler, which holds sled open.
        self.settled.close()?;
        if let Some(ids) = ids {
            ids.close();
        }
        // After a failed commit, nobody knows where the log ends on the disk.
        if failed {
            return Ok(());
        }
        self.settler.note_end(head.number)
    }
}

#[cfg(test)]
impl SledLog {
    /// Begins another chapter, and waits for the end of its settling.
    pub(super) fn rotate(&self) {
        let mut journal = self.journal.lock();
        self.settler.wait();
        self.begin_chapter(&mut journal, self.head()).unwrap();
        self.settler.wait();
    }

    /// Waits for the end of a settling.
    pub(crate) fn wait_for_settling(&self) {
        self.settler.wait();
    }

    /// Settles all there is.
    pub(crate) fn settle_all(&self) {
        let mut journal = self.journal.lock();
        self.settler.wait();
        self.begin_chapter(&mut journal, self.head()).unwrap();
        self.settler.wait();
        assert!(self.chapters.read().full.is_empty());
    }

    /// Loses the facts of a commit, as damage does.
    pub(crate) fn lose(&self, number: simplefeed_core::feed::CommitNumber) {
        self.chapters.write().newest.lose(number);
    }
}
