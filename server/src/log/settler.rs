//! The settler: a thread that settles full chapters, one after the other.
//!
//! Shell: threads. It yields to everybody else, since nothing waits for it but a chapter that has grown too large.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock};
use simplefeed_core::feed::CommitNumber;
use tracing::{debug, error, info, warn};

use super::{
    LogError, LogHead,
    barrier::{Barrier, Step, drop_pages_in, sync_folder, sync_tree},
    chapter::{Chapter, Chapters},
    held::FoundFile,
    record::{self, SETTLED_KEY},
    rehearsal::{Refusal, needed_bytes, rehearse},
    settled::{Settled, quietly},
    settling::{check_settled, settle, settle_end},
    sled_log::SPREAD_CHAPTERS,
    snapshots,
    space::is_full_at,
    witness::{Testimony, Witness},
};
use crate::lack::{advice, copy_of, lack_in};

/// Time between two notes of the last commit, each of which is a write.
const NOTED_AGAIN: Duration = Duration::from_millis(10);
/// Least rest before a settling that lacked something is begun again.
const REST_LEAST: Duration = Duration::from_secs(1);
/// How many times as long as a settling took that rest is, since each one reads much of the disk.
const REST_FACTOR: u32 = 10;

/// Settles chapters in a thread of its own.
pub(super) struct Settler {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    settled: Arc<Settled>,
    /// Folder of sled.
    folder: PathBuf,
    chapter_bytes: u64,
    chapters: Arc<RwLock<Chapters>>,
    barrier: Arc<dyn Barrier>,
    witness: Mutex<(Witness, Testimony)>,
    /// The last commit that was noted, and when.
    noted: Mutex<Option<(CommitNumber, Instant)>>,
    is_busy: AtomicBool,
    ending: AtomicBool,
    /// Locked while one of the two changes, and told of it.
    turn: Mutex<()>,
    turned: Condvar,
    displaced: Arc<AtomicBool>,
    /// The last settling, if it did not come to its end because the system lacked something.
    put_off: Mutex<Option<PutOff>>,
    /// Files that the settled part is in, by their names.
    files: Vec<FoundFile>,
    /// sled's last snapshot by its number, and sled's file, which must be as long as the snapshot says.
    snapshot: Mutex<Option<(u64, [FoundFile; 2])>>,
    /// Set when a settling fails: the log takes no more commits.
    failed: Arc<AtomicBool>,
}

/// A settling that is begun again.
struct PutOff {
    lack: io::Error,
    until: Instant,
}

/// What a settler works on.
pub(super) struct Work {
    pub(super) settled: Arc<Settled>,
    /// Folder of sled.
    pub(super) folder: PathBuf,
    pub(super) barrier: Arc<dyn Barrier>,
    pub(super) witness: (Witness, Testimony),
    /// Bytes of a chapter. A file that is used again has no more.
    pub(super) chapter_bytes: u64,
    /// Set when a settling fails because its files were moved, removed or replaced.
    pub(super) displaced: Arc<AtomicBool>,
    /// Files that the settled part is in, by their names.
    pub(super) files: Vec<FoundFile>,
}

impl std::fmt::Debug for Settler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settler")
            .field("folder", &self.shared.folder)
            .finish_non_exhaustive()
    }
}

impl Settler {
    /// Returns a settler of `chapters`. It sets `failed` if it cannot settle one.
    pub(super) fn new(
        work: Work,
        chapters: &Arc<RwLock<Chapters>>,
        failed: &Arc<AtomicBool>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                settled: work.settled,
                folder: work.folder,
                chapter_bytes: work.chapter_bytes,
                barrier: work.barrier,
                displaced: work.displaced,
                put_off: Mutex::default(),
                files: work.files,
                snapshot: Mutex::default(),
                witness: Mutex::new(work.witness),
                noted: Mutex::default(),
                chapters: Arc::clone(chapters),
                is_busy: AtomicBool::new(false),
                ending: AtomicBool::new(false),
                turn: Mutex::default(),
                turned: Condvar::new(),
                failed: Arc::clone(failed),
            }),
            thread: Mutex::default(),
        }
    }

    /// Returns whether a chapter is being settled.
    pub(super) fn is_busy(&self) -> bool {
        self.shared.is_busy.load(Ordering::Acquire)
    }

    /// Checks that the files of the settled part are at their places.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Displaced`] if the next opening would not find them.
    pub(super) fn check_files(&self) -> Result<(), LogError> {
        self.shared.check_files()
    }

    /// Waits until nothing is being settled. A settling that was put off does not count.
    pub(super) fn wait(&self) {
        let mut turn = self.shared.turn.lock();
        while self.is_busy() {
            self.shared.turned.wait(&mut turn);
        }
    }

    /// Begins to settle the full chapters, if the system gives a thread. A settling that was put off goes on by itself.
    pub(super) fn begin(&self) {
        let mut place = self.thread.lock();
        if self.is_busy() || (place.is_some() && self.shared.put_off.lock().is_some()) {
            return;
        }
        if let Some(ended) = place.take() {
            // `run` has caught the panics of a settling, and failed the log.
            drop(ended.join());
        }
        let shared = Arc::clone(&self.shared);
        shared.turn(true);
        let spawned = std::thread::Builder::new()
            .name("settler".into())
            .spawn(move || {
                run(&shared);
                shared.turn(false);
            });
        match spawned {
            Ok(thread) => *place = Some(thread),
            Err(lack) => {
                let error = LogError::lacking("start a thread for it", copy_of(&lack));
                self.shared.put_off(&error, lack, Duration::ZERO);
                self.shared.turn(false);
            }
        }
    }

    /// Returns whether the last settling was put off.
    pub(super) fn is_put_off(&self) -> bool {
        self.shared.is_put_off()
    }

    /// Returns why the last settling was put off.
    pub(super) fn lack(&self) -> io::Error {
        let put_off = self.shared.put_off.lock();
        let lack = put_off.as_ref().map(|put_off| copy_of(&put_off.lack));
        lack.unwrap_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Returns whether nothing is settled any more.
    pub(super) fn is_ending(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Ends a settling soon, which the next process begins again.
    pub(super) fn ask_to_end(&self) {
        let _turn = self.shared.turn.lock();
        self.shared.ending.store(true, Ordering::Release);
        self.shared.turned.notify_all();
    }

    /// Ends a settling, which the next process begins again. Waits for its end.
    pub(super) fn end(&self) {
        self.ask_to_end();
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
    }

    /// Writes the end of the settled part to the witness, durably.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn note_settled(&self) -> Result<(), LogError> {
        self.shared.testify(|_| {})
    }

    /// Notes a new file of the journal, durably: from now on the log is damaged without it.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn note_file(&self, first: CommitNumber) -> Result<(), LogError> {
        self.shared.testify(|testimony| testimony.newest = first)
    }

    /// Notes a commit that is in the journal, now and then. What was noted survives the process, and often a power cut: a
    /// journal that ends before it is damaged. The views' note has each commit.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn note_commit(&self, number: CommitNumber) -> Result<(), LogError> {
        let mut place = self.shared.witness.lock();
        let (witness, testimony) = &mut *place;
        testimony.end = number;
        let mut noted = self.shared.noted.lock();
        if noted.is_some_and(|(_, at)| at.elapsed() < NOTED_AGAIN) {
            return Ok(());
        }
        *noted = Some((number, Instant::now()));
        let written = witness.write(testimony);
        written.map_err(LogError::io("write", "witness"))
    }

    /// Notes the last commit, if that was put off. A failure is left to the next commit.
    pub(super) fn note_rest(&self) {
        // A holder writes the same note, and may wait for the disk; `/readyz` must not.
        let Some(mut place) = self.shared.witness.try_lock() else {
            return;
        };
        let (witness, testimony) = &mut *place;
        let mut noted = self.shared.noted.lock();
        let Some((commit, _)) = noted.as_mut().filter(|(commit, _)| *commit < testimony.end) else {
            return;
        };
        match witness.write(testimony) {
            Ok(()) => *commit = testimony.end,
            Err(error) => warn!(%error, "the witness cannot be written"),
        }
    }

    /// Notes where the log ends, durably.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn note_end(&self, end: CommitNumber) -> Result<(), LogError> {
        self.shared.testify(|testimony| testimony.end = end)
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn testify(&self, change: impl FnOnce(&mut Testimony)) -> Result<(), LogError> {
        let mut place = self.witness.lock();
        let (witness, testimony) = &mut *place;
        change(testimony);
        #[cfg(planted)]
        if crate::planted::is("witness-unsynced") {
            let written = witness.write(testimony);
            return written.map_err(LogError::io("write", "witness"));
        }
        let written = witness.write(testimony).and_then(|()| witness.sync());
        written.map_err(LogError::io("write", "witness"))
    }

    /// As [`Settler::check_files`].
    fn check_files(&self) -> Result<(), LogError> {
        self.files.iter().try_for_each(FoundFile::check)?;
        self.check_length()
    }

    /// Checks that sled's file is as long as its last snapshot says, and that the snapshot is there. A settling changes both,
    /// and may break off before the witness has the new snapshot.
    fn check_length(&self) -> Result<(), LogError> {
        // A settling holds it, over a sync.
        let Some(number) = self.witness.try_lock().map(|place| place.1.snapshot) else {
            return Ok(());
        };
        let may_change = || {
            let is_busy = self.is_busy.load(Ordering::Acquire);
            is_busy || self.ending.load(Ordering::Acquire) || self.is_put_off()
        };
        if may_change() || number == 0 {
            return Ok(());
        }
        let checked = self.check_snapshot(number);
        let place = self.witness.try_lock();
        let is_another = place.is_none_or(|place| place.1.snapshot != number);
        if is_another || may_change() {
            return Ok(());
        }
        checked
    }

    fn check_snapshot(&self, number: u64) -> Result<(), LogError> {
        let mut snapshot = self.snapshot.lock();
        if snapshot.as_ref().is_none_or(|(known, _)| *known != number) {
            let path = snapshots::path_of(&self.folder, number);
            let found = || -> Result<_, Refusal> {
                let needed = needed_bytes(&path)?;
                let file = FoundFile::find(path.clone())?.whole()?;
                Ok([
                    file,
                    FoundFile::find(self.folder.join("db"))?.at_least(needed),
                ])
            };
            match found() {
                Ok(found) => *snapshot = Some((number, found)),
                Err(Refusal::Io(error)) if error.kind() != io::ErrorKind::NotFound => {
                    // Such as a lack of handles. It is tried again at the next check.
                    warn!(%error, path = %path.display(), "sled's snapshot cannot be looked at");
                    return Ok(());
                }
                Err(refusal) => {
                    let what = refusal.to_string();
                    return Err(LogError::Displaced { what });
                }
            }
        }
        let mut files = snapshot.iter().flat_map(|(_, files)| files);
        files.try_for_each(FoundFile::check)
    }

    fn turn(&self, is_busy: bool) {
        let _turn = self.turn.lock();
        self.is_busy.store(is_busy, Ordering::Release);
        self.turned.notify_all();
    }

    /// Puts a settling off that took so long. It is told once, until one has come to its end.
    fn put_off(&self, error: &LogError, lack: io::Error, took: Duration) {
        let error: &(dyn std::error::Error + 'static) = error;
        let advice = advice(&lack);
        let put_off = PutOff {
            lack,
            until: Instant::now() + took.saturating_mul(REST_FACTOR).max(REST_LEAST),
        };
        if self.put_off.lock().replace(put_off).is_some() {
            debug!(error, "the journal still cannot be settled");
        } else {
            warn!(
                error,
                advice, "the journal cannot be settled now; nothing is lost, and it is tried again"
            );
        }
    }

    /// Waits until a settling that was put off has had its rest. Returns whether it is to be begun again.
    fn rest(&self) -> bool {
        let Some(until) = self.put_off.lock().as_ref().map(|put_off| put_off.until) else {
            return false;
        };
        self.turn(false);
        let mut turn = self.turn.lock();
        while !self.ending.load(Ordering::Acquire) {
            if self.turned.wait_until(&mut turn, until).timed_out() {
                self.is_busy.store(true, Ordering::Release);
                return true;
            }
        }
        false
    }

    fn is_put_off(&self) -> bool {
        self.put_off.lock().is_some()
    }

    fn go_on(&self) -> Result<(), LogError> {
        if self.ending.load(Ordering::Acquire) {
            return Err(LogError::Closing);
        }
        Ok(())
    }

    /// Checks that sled's recovery, which a reopening is, does no harm to its files. Without the check, files that were
    /// damaged meanwhile would become those of a shorter log. Returns what [`rehearse`] does.
    fn check_recovery(&self) -> Result<bool, LogError> {
        let snapshot = self.witness.lock().1.snapshot;
        rehearse(&self.folder, snapshot).map_err(|refusal| match refusal {
            Refusal::Io(source) => LogError::io("read", &self.folder)(source),
            Refusal::Harm(what) => LogError::damaged(what),
        })
    }

    /// Opens sled again behind a settling that did not come to its end, as a start does.
    fn recover(&self) -> Result<(), LogError> {
        self.settled.reopen(|| {
            // Pages behind a failed sync may not be on the disk.
            drop_pages_in(&self.folder).map_err(LogError::io("sync", &self.folder))?;
            self.check_recovery()?;
            let named = snapshots::remove_unfinished(&self.folder)
                .and_then(|()| snapshots::put_back(&self.folder))
                .and_then(|()| snapshots::keep(&self.folder));
            named.map_err(LogError::io("write to", &self.folder))
        })?;
        // sled syncs nothing of what it finds.
        sync_tree(&self.folder).map_err(LogError::io("sync", &self.folder))
    }

    /// Checks that sled has found all of a chapter. Its recovery may lose the last writes: at an opening, the journal has
    /// them. Behind a settling, the journal's copy is given up.
    fn check_settled(
        &self,
        (chapter, end): (&Chapter, &LogHead),
        is_whole: bool,
    ) -> Result<(), LogError> {
        // It was written last.
        if self.settled.raw_value(SETTLED_KEY)? != Some(record::encode_end(end)) {
            return Err(LogError::damaged(
                "sled has lost the end of what was settled",
            ));
        }
        // A segment that is gone was used again, or damage has taken it.
        if is_whole {
            return Ok(());
        }
        check_settled(chapter, &self.settled, &|| self.go_on())
    }

    fn settle_chapter(&self, chapter: &Chapter) -> Result<(), LogError> {
        self.barrier.begins(Step::Settling);
        if self.is_put_off() {
            self.go_on()?;
            self.recover()?;
        }
        if self.witness.lock().1.commit == CommitNumber(0) {
            // Not at the start: a log without settled commits makes sled anew at each one.
            self.settled.make_sweeping_tree()?;
        }
        settle(chapter, &self.settled, &|| self.go_on())?;
        // Before the mark, so that no recovery of sled finds the mark without the records.
        self.settled.flush()?;
        let Some(end) = settle_end(chapter, &self.settled)? else {
            return Ok(());
        };
        #[cfg(planted)]
        if crate::planted::is("witness-first") {
            let snapshot = snapshots::newest_number(&self.folder).unwrap_or(0);
            self.testify(|testimony| {
                testimony.commit = end.number;
                testimony.chain = end.chain;
                testimony.snapshot = snapshot;
            })?;
        }
        self.settled.flush()?;
        self.go_on()?;
        // Before the reopening, so that readers keep the open files.
        self.files.iter().try_for_each(FoundFile::check)?;
        self.barrier.begins(Step::Reopening);
        // sled writes a snapshot of its pages, on which the rehearsal of the next opening rests.
        let mut is_whole = false;
        self.settled.reopen(|| {
            is_whole = self.check_recovery()?;
            Ok(())
        })?;
        // sled panics on some damage.
        let checked = quietly(|| self.check_settled((chapter, &end), is_whole));
        let checked = checked.unwrap_or_else(|| Err(LogError::damaged("sled's files")));
        if !matches!(checked, Ok(()) | Err(LogError::Closing)) {
            // Readers must not take what sled has lost for what was never there.
            self.settled.close()?;
        }
        checked?;
        #[cfg(planted)]
        let sync_folder = |folder: &std::path::Path| {
            if crate::planted::is("sled-names-unsynced") {
                return Ok(());
            }
            sync_folder(folder)
        };
        sync_folder(&self.folder).map_err(LogError::io("sync", &self.folder))?;
        let snapshot = snapshots::release(&self.folder)
            .and_then(|()| snapshots::newest_number(&self.folder))
            .map_err(LogError::io("read", &self.folder))?;
        // Before the journal's copy goes: the next opening must find the settled one.
        self.files.iter().try_for_each(FoundFile::check)?;
        self.barrier.begins(Step::Recycling);
        // Before the file is used again: until now, the journal was the only sure copy.
        self.testify(|testimony| {
            testimony.commit = end.number;
            testimony.chain = end.chain;
            testimony.snapshot = snapshot;
        })
    }

    /// Puts a settling off that lacked something. Any other failure ends the log.
    fn break_off(&self, error: LogError, took: Duration) {
        // A file that was cut fails in many ways.
        let error = self.check_files().err().unwrap_or(error);
        let is_displaced = matches!(error, LogError::Displaced { .. });
        // sled panics on a full disk.
        let is_full = || is_full_at(&self.folder).then(|| io::ErrorKind::StorageFull.into());
        let lack = lack_in(&error).map(copy_of).or_else(is_full);
        if let Some(lack) = lack.filter(|_| !is_displaced) {
            return self.put_off(&error, lack, took);
        }
        *self.put_off.lock() = None;
        let error: &(dyn std::error::Error + 'static) = &error;
        error!(
            error,
            "the journal cannot be settled; the log takes no entries until the server is restarted; if this comes again, \
             use `simplefeed-server recover`"
        );
        self.displaced.fetch_or(is_displaced, Ordering::AcqRel);
        self.failed.store(true, Ordering::Release);
    }
}

/// Settles the full chapters, the oldest first.
fn run(shared: &Shared) {
    // The writer and the readers come first. Without the right to yield, it takes its share.
    let _yielding = rustix::process::nice(10);
    loop {
        let oldest = shared.chapters.read().full.front().map(Arc::clone);
        let Some(chapter) = oldest else {
            return;
        };
        let began = Instant::now();
        // sled panics on some failures of the disk.
        let settled = catch_unwind(AssertUnwindSafe(|| shared.settle_chapter(&chapter)));
        let panicked = |_| Err(LogError::damaged("a settling panicked"));
        match settled.unwrap_or_else(panicked) {
            Ok(()) => {
                if shared.put_off.lock().take().is_some() {
                    info!("the journal is settled again");
                }
                let file = Arc::clone(&chapter.file);
                // The next chapter is likely to become as long.
                let most = shared.chapter_bytes.saturating_mul(SPREAD_CHAPTERS);
                let kept = chapter.bytes().clamp(shared.chapter_bytes, most);
                shared.chapters.write().full.pop_front();
                drop(chapter);
                file.recycle(kept);
                shared.barrier.begins(Step::Done);
                debug!("a chapter is settled");
            }
            Err(LogError::Closing) => return,
            Err(error) => {
                shared.break_off(error, began.elapsed());
                if !shared.rest() {
                    return;
                }
            }
        }
    }
}
