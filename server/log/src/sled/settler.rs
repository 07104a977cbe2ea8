//! The settler: a thread that settles full chapters, one after the other.
//!
//! Shell: threads. The settler yields to all other threads, because appends wait for the settler
//! only if a chapter has grown too large.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
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
use simplefeed_process::lack::{advice, copy_of, lack_in};
use tracing::{debug, error, info, warn};

use super::{
    chapter::{Chapter, Chapters, SPREAD_CHAPTERS},
    record::{self, SETTLED_KEY},
    rehearsal::{RecoveryRefusal, needed_bytes, rehearse},
    settled::{SettledPart, quietly, why_panicked},
    settling::{check_settled, end_of, settle},
    snapshots,
    witness::{Testimony, Witness},
};
use crate::{
    LogError, LogHead,
    barrier::{Barrier, LogStep, drop_pages_in, sync_folder, sync_tree},
    sled::found_file::FoundFile,
};

/// Least time between two notes of the last commit, each of which is a write.
const NOTED_AGAIN: Duration = Duration::from_millis(10);
/// Rest before a settling that lacked something is begun again: so many times the time that the
/// settling took, within bounds.
const REST_FACTOR: u32 = 4;
const REST_LEAST: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1_000 });
const REST_MOST: Duration = Duration::from_secs(30);

/// Settles chapters in a thread of its own.
pub(super) struct Settler {
    shared: Arc<SettlerParts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct SettlerParts {
    settled: Arc<SettledPart>,
    /// Folder with sled's file `db` and its snapshots.
    folder: PathBuf,
    chapter_bytes: u64,
    chapters: Arc<RwLock<Chapters>>,
    barrier: Arc<dyn Barrier>,
    witness: Mutex<(Witness, Testimony)>,
    /// The last commit that was noted, and when.
    noted: Mutex<Option<(CommitNumber, Instant)>>,
    stage: Mutex<SettlerStage>,
    /// Notified when `stage` or `ending` changes in a way that a thread may wait for. `ending`
    /// changes only while `stage` is locked.
    turned: Condvar,
    ending: AtomicBool,
    displaced: Arc<AtomicBool>,
    /// Missing resource that put the last settling off.
    put_off: Mutex<Option<io::Error>>,
    /// Files of the settled part, which must stay where the opening found them.
    files: Vec<FoundFile>,
    /// Number of sled's last snapshot, with the snapshot's file and sled's file, which must be at
    /// least as long as the snapshot says.
    snapshot: Mutex<Option<(u64, [FoundFile; 2])>>,
    /// Set when a settling fails: the log takes no more commits.
    failed: Arc<AtomicBool>,
}

/// State of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettlerStage {
    /// The thread waits until there are full chapters.
    Idle,
    /// The thread settles, or is about to settle.
    Busy,
    /// The thread waits until a settling that was put off is begun again.
    Resting(Instant),
}

/// Work of the thread.
enum SettlerTask {
    /// A full chapter is settled.
    Settle(Arc<Chapter>),
    /// sled, which refuses reads, is opened again.
    Reopen,
}

/// The parts of a log that a settler works on.
pub(super) struct Work {
    pub(super) settled: Arc<SettledPart>,
    /// Folder with sled's file `db` and its snapshots.
    pub(super) folder: PathBuf,
    pub(super) barrier: Arc<dyn Barrier>,
    pub(super) witness: (Witness, Testimony),
    /// Length of a chapter, in bytes, from which on the chapter is settled. A file that is used
    /// again is cut to the length of the settled chapter, but never to fewer bytes than that.
    pub(super) chapter_bytes: u64,
    /// Set when a settling fails because a file was moved, removed or replaced.
    pub(super) displaced: Arc<AtomicBool>,
    /// Files of the settled part, which must stay where the opening found them.
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
    /// Returns a settler of `chapters`, which sets `failed` if a chapter cannot be settled.
    pub(super) fn new(
        work: Work,
        chapters: &Arc<RwLock<Chapters>>,
        failed: &Arc<AtomicBool>,
    ) -> Self {
        Self {
            shared: Arc::new(SettlerParts {
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
                stage: Mutex::new(SettlerStage::Idle),
                turned: Condvar::new(),
                ending: AtomicBool::new(false),
                failed: Arc::clone(failed),
            }),
            thread: Mutex::default(),
        }
    }

    /// Returns whether a chapter is being settled.
    pub(super) fn is_busy(&self) -> bool {
        self.shared.is_busy()
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
        let mut stage = self.shared.stage.lock();
        while *stage == SettlerStage::Busy {
            self.shared.turned.wait(&mut stage);
        }
    }

    /// Begins to settle the full chapters. A settling that was put off goes on by itself. If no
    /// thread could be started, the settling goes on with the next call.
    pub(super) fn begin(&self) {
        let mut place = self.thread.lock();
        // Only the first call starts the thread: a log that is only read never settles, and needs
        // no thread.
        if place.is_none() && !self.is_ending() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("settler".into());
            match thread.spawn(move || run(&shared)) {
                Ok(thread) => *place = Some(thread),
                Err(lack) => {
                    let error = LogError::lacking("start a thread", copy_of(&lack));
                    return self.shared.put_off(&error, lack);
                }
            }
        }
        let mut stage = self.shared.stage.lock();
        // Once the settler is to end, nothing is settled any more.
        if *stage == SettlerStage::Idle && !self.is_ending() {
            *stage = SettlerStage::Busy;
            self.shared.turned.notify_all();
        }
    }

    /// Returns whether a settling waits for a thread, which only another [`begin`](Self::begin)
    /// asks for.
    pub(super) fn lacks_thread(&self) -> bool {
        self.shared.is_put_off() && self.thread.lock().is_none()
    }

    /// Returns the error because of which the last settling was put off, if the system lacked a
    /// resource.
    pub(super) fn lack(&self) -> Option<io::Error> {
        self.shared.put_off.lock().as_ref().map(copy_of)
    }

    /// Returns whether the settler is to end, so that nothing is settled any more.
    pub(super) fn is_ending(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Asks a settling to end soon. The next process begins the settling again.
    pub(super) fn ask_to_end(&self) {
        let end = |_: &mut SettlerStage| self.shared.ending.store(true, Ordering::Release);
        self.shared.change_stage(end);
    }

    /// Ends a settling, and waits for the end. The next process begins the settling again.
    pub(super) fn end(&self) {
        self.ask_to_end();
        if let Some(thread) = self.thread.lock().take() {
            // `run` has caught a panic of a settling, and told of the failure.
            drop(thread.join());
        }
    }

    /// Writes the end of the settled part to the witness, durably.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn note_settled(&self) -> Result<(), LogError> {
        self.shared.change_testimony(|_| {})
    }

    /// Notes a new file of the journal, durably: from now on the log is damaged without that file.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn note_file(&self, first: CommitNumber) -> Result<(), LogError> {
        self.shared
            .change_testimony(|testimony| testimony.newest = first)
    }

    /// Notes a commit that is in the journal, now and then. A note survives the end of the process,
    /// and often a power cut. A journal that ends before the noted commit is damaged. Another note,
    /// beside the views, has each commit.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn note_commit(&self, number: CommitNumber) -> Result<(), LogError> {
        let mut place = self.shared.witness.lock();
        let (witness, testimony) = &mut *place;
        // Set even if the write is put off, so that the next write for any other reason has the
        // newest commit.
        testimony.end = number;
        let mut noted = self.shared.noted.lock();
        if noted.is_some_and(|(_, at)| at.elapsed() < NOTED_AGAIN) {
            return Ok(());
        }
        *noted = Some((number, Instant::now()));
        let written = witness.write(testimony);
        written.map_err(LogError::io("write", "witness"))
    }

    /// Notes the last commit, if its note was put off. A failure is left to the next commit.
    pub(super) fn note_rest(&self) {
        // Whoever holds the lock writes the same note, and may wait for the disk. `/readyz` calls
        // this function and must not wait.
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
        self.shared
            .change_testimony(|testimony| testimony.end = end)
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        self.end();
    }
}

impl SettlerParts {
    fn change_testimony(&self, change: impl FnOnce(&mut Testimony)) -> Result<(), LogError> {
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

    /// Checks that sled's file is as long as sled's last snapshot says, and that the snapshot is
    /// there. A settling changes both, and may break off before the witness has the new snapshot.
    /// So the check passes while a settling may be under way.
    fn check_length(&self) -> Result<(), LogError> {
        // A settling may hold the witness during a sync. The check passes then, and does not wait.
        let Some(number) = self.witness.try_lock().map(|place| place.1.snapshot) else {
            return Ok(());
        };
        let may_change =
            || self.is_busy() || self.ending.load(Ordering::Acquire) || self.is_put_off();
        if may_change() || number == 0 {
            return Ok(());
        }
        // The stage and the number are read before and after the check: a settling that began or
        // ended meanwhile explains any difference.
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
            let found = || -> Result<_, RecoveryRefusal> {
                let needed = needed_bytes(&path)?;
                let file = FoundFile::find(path.clone())?.whole()?;
                Ok([
                    file,
                    FoundFile::find(self.folder.join("db"))?.at_least(needed),
                ])
            };
            match found() {
                Ok(found) => *snapshot = Some((number, found)),
                Err(RecoveryRefusal::Io(error)) if error.kind() != io::ErrorKind::NotFound => {
                    // An error such as a lack of handles says nothing about the files. The next
                    // check tries again.
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

    fn is_busy(&self) -> bool {
        *self.stage.lock() == SettlerStage::Busy
    }

    fn change_stage(&self, change: impl FnOnce(&mut SettlerStage)) {
        // Under the lock of the stage, even where the stage stays: a waiting thread would else miss
        // a change of `ending`.
        change(&mut self.stage.lock());
        self.turned.notify_all();
    }

    /// Waits for work whose time has come; `None` at the end.
    fn next_task(&self) -> Option<SettlerTask> {
        let mut stage = self.stage.lock();
        loop {
            if self.ending.load(Ordering::Acquire) {
                *stage = SettlerStage::Idle;
                self.turned.notify_all();
                return None;
            }
            match *stage {
                // The chapter stays in the list until it is settled, because readers search the
                // list first.
                SettlerStage::Busy if !self.failed.load(Ordering::Acquire) => {
                    if let Some(oldest) = self.chapters.read().full.front() {
                        return Some(SettlerTask::Settle(Arc::clone(oldest)));
                    }
                    // Without a chapter, nobody else would open sled again.
                    if self.settled.is_lacking() || self.is_put_off() {
                        return Some(SettlerTask::Reopen);
                    }
                    *stage = SettlerStage::Idle;
                    self.turned.notify_all();
                }
                SettlerStage::Busy => {
                    *stage = SettlerStage::Idle;
                    self.turned.notify_all();
                }
                SettlerStage::Idle => self.turned.wait(&mut stage),
                SettlerStage::Resting(until) => {
                    // A notice ends the wait early, and the loop looks at `ending` again.
                    if self.turned.wait_until(&mut stage, until).timed_out() {
                        *stage = SettlerStage::Busy;
                    }
                }
            }
        }
    }

    /// Notes that the system lacks a resource. A warning is logged only if the kind of the error
    /// differs from the kind noted before.
    fn put_off(&self, error: &LogError, lack: io::Error) {
        let error: &(dyn std::error::Error + 'static) = error;
        let (advice, kind) = (advice(&lack), lack.kind());
        // Each retry comes here, and the same line each half minute would fill the log.
        let before = self.put_off.lock().replace(lack);
        if before.is_some_and(|before| before.kind() == kind) {
            debug!(error, "the journal still cannot be settled");
        } else {
            warn!(
                error,
                advice, "the journal cannot be settled now; nothing is lost, and it is tried again"
            );
        }
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

    /// Checks that a reopening of sled, which is a recovery, does no harm to sled's files. Without
    /// the check, files that were damaged meanwhile would become those of a shorter log. Returns
    /// the result of [`rehearse`].
    fn check_recovery(&self) -> Result<bool, LogError> {
        let snapshot = self.witness.lock().1.snapshot;
        rehearse(&self.folder, snapshot).map_err(|refusal| match refusal {
            RecoveryRefusal::Io(source) => LogError::io("read", &self.folder)(source),
            RecoveryRefusal::Harm(what) => LogError::damaged(what),
        })
    }

    /// Opens sled again after a settling that broke off, with the steps of a start.
    fn reopen_as_start(&self) -> Result<(), LogError> {
        self.settled.reopen(|| {
            // After a failed sync, pages in memory may not be on the disk.
            drop_pages_in(&self.folder).map_err(LogError::io("sync", &self.folder))?;
            self.check_recovery()?;
            let named = snapshots::remove_unfinished(&self.folder)
                .and_then(|()| snapshots::put_back(&self.folder))
                .and_then(|()| snapshots::keep(&self.folder));
            named.map_err(LogError::io("write to", &self.folder))
        })?;
        // sled syncs none of the files that it finds.
        sync_tree(&self.folder)
            .and_then(|()| snapshots::release(&self.folder))
            .map_err(LogError::io("sync", &self.folder))
    }

    /// Checks that sled has found all of a chapter. sled's recovery may lose the last writes. At an
    /// opening, the journal still has these writes. After a settling, the journal's copy is given
    /// up.
    fn check_settled(
        &self,
        (chapter, end): (&Chapter, &LogHead),
        is_whole: bool,
    ) -> Result<(), LogError> {
        // The end was written last, so its presence vouches for all writes before, unless a segment
        // is gone.
        if self.settled.raw_value(SETTLED_KEY)? != Some(record::encode_end(end)) {
            return Err(LogError::damaged(
                "sled has lost the end of what was settled",
            ));
        }
        // A segment goes only by damage, or when sled uses its room again. If no segment is gone,
        // nothing can be missing, and a search for each part would cost up to a tenth of all work
        // for an entry.
        if is_whole {
            return Ok(());
        }
        check_settled(chapter, &self.settled, &|| self.go_on())
    }

    fn settle_chapter(&self, chapter: &Chapter) -> Result<(), LogError> {
        self.barrier.begins(LogStep::Settling);
        if self.is_put_off() {
            self.go_on()?;
            self.reopen_as_start()?;
            // As at a start, a marked chapter is only checked. A kill in the middle of a second
            // writing would leave the mark beside half a chapter, and the next start would call the
            // log damaged.
            let end = end_of(chapter)?;
            let marked = self.settled.raw_value(SETTLED_KEY)?;
            if let Some(end) = end.filter(|end| marked == Some(record::encode_end(end))) {
                return self.take_over(chapter, &end, false);
            }
        }
        if self.witness.lock().1.commit == CommitNumber(0) {
            // The tree is not made at the start, because a log without settled commits makes sled
            // anew at each start.
            self.settled.make_sweeping_tree()?;
        }
        settle(chapter, &self.settled, &|| self.go_on())?;
        // The records are durable before the mark, so that no recovery of sled finds the mark
        // without the records.
        self.settled.flush()?;
        let Some(end) = end_of(chapter)? else {
            return Ok(());
        };
        self.settled.put(SETTLED_KEY, &record::encode_end(&end))?;
        #[cfg(planted)]
        if crate::planted::is("witness-first") {
            let snapshot = snapshots::newest_number(&self.folder).unwrap_or(0);
            self.change_testimony(|testimony| {
                testimony.commit = end.number;
                testimony.chain = end.chain;
                testimony.snapshot = snapshot;
            })?;
        }
        self.settled.flush()?;
        self.go_on()?;
        // Checked before the reopening, so that readers keep the open files if the check fails.
        self.files.iter().try_for_each(FoundFile::check)?;
        self.barrier.begins(LogStep::Reopening);
        // At a reopening, sled writes a snapshot of its pages. The rehearsal of the next opening
        // needs that snapshot.
        let mut is_whole = false;
        self.settled.reopen(|| {
            is_whole = self.check_recovery()?;
            Ok(())
        })?;
        self.take_over(chapter, &end, is_whole)
    }

    /// Checks a chapter in sled, and names it in the witness: from then on, nobody needs the
    /// journal's copy.
    fn take_over(&self, chapter: &Chapter, end: &LogHead, is_whole: bool) -> Result<(), LogError> {
        // sled panics on some damage, and a panic must not leave readers with the open database.
        let checked = quietly(|| self.check_settled((chapter, end), is_whole));
        let checked = checked.unwrap_or_else(|| {
            // Readers must not take lost records for records that never existed. sled is not closed
            // here, because a closing after a panic may take for ever.
            self.settled.give_up();
            resume_unwind(Box::new("sled panicked"))
        });
        if checked.as_ref().is_err_and(is_harm) {
            // Closed, so that no reader takes lost records for records that never existed.
            let _unclosed = self.settled.close();
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
        // Checked once more before the journal's copy goes: the next opening must find the settled
        // copy.
        self.files.iter().try_for_each(FoundFile::check)?;
        self.barrier.begins(LogStep::Recycling);
        // The witness names the chapter before its file is used again: until then, the journal is
        // the only sure copy.
        self.change_testimony(|testimony| {
            testimony.commit = end.number;
            testimony.chain = end.chain;
            testimony.snapshot = snapshot;
        })
    }

    /// Opens sled again, and notes the new snapshot: the checks of the files expect the noted
    /// snapshot.
    fn reopen_sled(&self) -> Result<(), LogError> {
        self.go_on()?;
        self.reopen_as_start()?;
        let snapshot = snapshots::newest_number(&self.folder);
        let snapshot = snapshot.map_err(LogError::io("read", &self.folder))?;
        self.change_testimony(|testimony| testimony.snapshot = snapshot)
    }

    /// Settles a chapter and gives the chapter's file up, or opens sled again.
    fn work_on(&self, task: SettlerTask) {
        let began = Instant::now();
        // sled panics on some failures of the disk.
        let done = catch_unwind(AssertUnwindSafe(|| match &task {
            SettlerTask::Settle(chapter) => self.settle_chapter(chapter),
            SettlerTask::Reopen => self.reopen_sled(),
        }));
        match done {
            Ok(Ok(())) => {
                if self.put_off.lock().take().is_some() {
                    info!("the journal can be settled again");
                }
                let SettlerTask::Settle(chapter) = task else {
                    // Readers wait for each reopening, and the next read may fail again, so a rest
                    // comes before the next reopening.
                    return self.rest_for(REST_LEAST);
                };
                let file = Arc::clone(&chapter.file);
                // The next chapter is likely to become as long, and a file that keeps its room
                // needs no new blocks.
                let most = self.chapter_bytes.saturating_mul(SPREAD_CHAPTERS);
                let kept = chapter.bytes().clamp(self.chapter_bytes, most);
                // Removed after the note in the witness: from here on, readers find these commits
                // in sled only.
                self.chapters.write().full.pop_front();
                // The file is used again for a later chapter only if nobody else holds it.
                drop(chapter);
                file.recycle(kept);
                self.barrier.begins(LogStep::Done);
                debug!("a chapter is settled");
            }
            Ok(Err(LogError::Closing)) => self.change_stage(|stage| *stage = SettlerStage::Idle),
            Ok(Err(error)) => self.break_off(error, began.elapsed()),
            // sled may wait for ever after a panic, so this process does not open sled again.
            Err(_panic) => self.fail_log(&why_panicked(&self.folder, "a settling panicked")),
        }
    }

    /// Puts off a settling that lacked something. The rest follows from the time that the settling
    /// took. Any other failure ends the log.
    fn break_off(&self, error: LogError, took: Duration) {
        // A cut file fails in many ways. The check names the cause.
        let error = self.check_files().err().unwrap_or(error);
        let Some(lack) = lack_in(&error).map(copy_of) else {
            return self.fail_log(&error);
        };
        // After a failure of its own, sled may refuse reads until the next opening.
        if matches!(error, LogError::Storage(_)) {
            self.settled.note_failure();
        }
        self.put_off(&error, lack);
        let rest = took
            .saturating_mul(REST_FACTOR)
            .clamp(REST_LEAST, REST_MOST);
        self.rest_for(rest);
    }

    fn rest_for(&self, time: Duration) {
        self.change_stage(|stage| *stage = SettlerStage::Resting(Instant::now() + time));
    }

    /// Ends the log after a failure: the log takes no entries until the server is restarted.
    fn fail_log(&self, error: &LogError) {
        let is_displaced = matches!(error, LogError::Displaced { .. });
        let error: &(dyn std::error::Error + 'static) = error;
        let what_next = match lack_in(error) {
            Some(_) => "what it lacks is no damage",
            None => "if this comes again, use `simplefeed-server recover`",
        };
        error!(
            error,
            "the journal cannot be settled; the log takes no entries until the server is restarted; {what_next}"
        );
        // A log that has failed no longer waits for a resource that the system lacks, so nobody is
        // told to wait.
        *self.put_off.lock() = None;
        self.displaced.fetch_or(is_displaced, Ordering::AcqRel);
        self.failed.store(true, Ordering::Release);
    }
}

/// Returns whether an error may mean that sled has lost something.
fn is_harm(error: &LogError) -> bool {
    !matches!(error, LogError::Closing) && lack_in(error).is_none()
}

/// Settles the full chapters, the oldest first, until the end.
fn run(shared: &SettlerParts) {
    // The writer and the readers come first. Where the system refuses the lower priority, the
    // settler runs with the usual priority.
    let _yielding = rustix::process::nice(10);
    while let Some(task) = shared.next_task() {
        let done = catch_unwind(AssertUnwindSafe(|| shared.work_on(task)));
        // The panic came from outside of the settling itself. The log must not go on without a
        // settler.
        if done.is_err() {
            shared.fail_log(&LogError::damaged("a settling panicked"));
        }
    }
}
