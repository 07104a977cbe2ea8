//! The settler: a thread that settles full chapters, one after the other.
//!
//! Shell: threads. It yields to everybody else, since nothing waits for it but a chapter that has grown too large.

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
    LogError, LogHead,
    barrier::{Barrier, Step, drop_pages_in, sync_folder, sync_tree},
    chapter::{Chapter, Chapters, SPREAD_CHAPTERS},
    held::FoundFile,
    record::{self, SETTLED_KEY},
    rehearsal::{Refusal, needed_bytes, rehearse},
    settled::{Settled, quietly, why_panicked},
    settling::{check_settled, end_of, settle},
    snapshots,
    witness::{Testimony, Witness},
};

/// Time between two notes of the last commit, each of which is a write.
const NOTED_AGAIN: Duration = Duration::from_millis(10);
/// Rest before a settling that lacked something is begun again: so many times as long as it took, within bounds.
const REST_FACTOR: u32 = 4;
const REST_LEAST: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1_000 });
const REST_MOST: Duration = Duration::from_secs(30);

/// Settles chapters in a thread of its own.
pub(super) struct Settler {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    settled: Arc<Settled>,
    /// Folder with sled's file `db` and its snapshots.
    folder: PathBuf,
    chapter_bytes: u64,
    chapters: Arc<RwLock<Chapters>>,
    barrier: Arc<dyn Barrier>,
    witness: Mutex<(Witness, Testimony)>,
    /// The last commit that was noted, and when.
    noted: Mutex<Option<(CommitNumber, Instant)>>,
    stage: Mutex<Stage>,
    /// Notified at each change of `stage`, and of `ending`, which changes while `stage` is locked.
    turned: Condvar,
    ending: AtomicBool,
    displaced: Arc<AtomicBool>,
    /// Missing resource that put the last settling off.
    put_off: Mutex<Option<io::Error>>,
    /// Files that the settled part is in, by their names.
    files: Vec<FoundFile>,
    /// sled's last snapshot by its number, and sled's file, which must be as long as the snapshot says.
    snapshot: Mutex<Option<(u64, [FoundFile; 2])>>,
    /// Set when a settling fails: the log takes no more commits.
    failed: Arc<AtomicBool>,
}

/// State of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits until there are full chapters.
    Idle,
    /// It settles, or is about to.
    Busy,
    /// It waits until a settling that was put off is begun again.
    Resting(Instant),
}

/// Work of the thread.
enum Task {
    /// A full chapter is settled.
    Settle(Arc<Chapter>),
    /// sled, which refuses reads, is opened again.
    Reopen,
}

/// What a settler works on.
pub(super) struct Work {
    pub(super) settled: Arc<Settled>,
    /// Folder with sled's file `db` and its snapshots.
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
                stage: Mutex::new(Stage::Idle),
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
        while *stage == Stage::Busy {
            self.shared.turned.wait(&mut stage);
        }
    }

    /// Begins to settle the full chapters. A settling that was put off goes on by itself, or, if it was for want of a thread,
    /// with the next call.
    pub(super) fn begin(&self) {
        let mut place = self.thread.lock();
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
        // At the end, nobody settles any more.
        if *stage == Stage::Idle && !self.is_ending() {
            *stage = Stage::Busy;
            self.shared.turned.notify_all();
        }
    }

    /// Returns whether a settling waits for a thread, which only another [`begin`](Self::begin) asks for.
    pub(super) fn lacks_thread(&self) -> bool {
        self.shared.is_put_off() && self.thread.lock().is_none()
    }

    /// Returns the missing resource that put the last settling off, if one did.
    pub(super) fn lack(&self) -> Option<io::Error> {
        self.shared.put_off.lock().as_ref().map(copy_of)
    }

    /// Returns whether nothing is settled any more.
    pub(super) fn is_ending(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Ends a settling soon, which the next process begins again.
    pub(super) fn ask_to_end(&self) {
        let end = |_: &mut Stage| self.shared.ending.store(true, Ordering::Release);
        self.shared.change(end);
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
        let may_change =
            || self.is_busy() || self.ending.load(Ordering::Acquire) || self.is_put_off();
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

    fn is_busy(&self) -> bool {
        *self.stage.lock() == Stage::Busy
    }

    fn change(&self, change: impl FnOnce(&mut Stage)) {
        change(&mut self.stage.lock());
        self.turned.notify_all();
    }

    /// Waits for work whose time has come; `None` at the end.
    fn next(&self) -> Option<Task> {
        let mut stage = self.stage.lock();
        loop {
            if self.ending.load(Ordering::Acquire) {
                *stage = Stage::Idle;
                self.turned.notify_all();
                return None;
            }
            match *stage {
                Stage::Busy if !self.failed.load(Ordering::Acquire) => {
                    if let Some(oldest) = self.chapters.read().full.front() {
                        return Some(Task::Settle(Arc::clone(oldest)));
                    }
                    if self.settled.is_lacking() || self.is_put_off() {
                        return Some(Task::Reopen);
                    }
                    *stage = Stage::Idle;
                    self.turned.notify_all();
                }
                Stage::Busy => {
                    *stage = Stage::Idle;
                    self.turned.notify_all();
                }
                Stage::Idle => self.turned.wait(&mut stage),
                Stage::Resting(until) => {
                    if self.turned.wait_until(&mut stage, until).timed_out() {
                        *stage = Stage::Busy;
                    }
                }
            }
        }
    }

    /// Notes a missing resource. Only another one than before is logged as a warning.
    fn put_off(&self, error: &LogError, lack: io::Error) {
        let error: &(dyn std::error::Error + 'static) = error;
        let (advice, kind) = (advice(&lack), lack.kind());
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
        sync_tree(&self.folder)
            .and_then(|()| snapshots::release(&self.folder))
            .map_err(LogError::io("sync", &self.folder))
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
            // As at a start, a marked chapter is not written again: its mark would stand beside half a chapter.
            let end = end_of(chapter)?;
            let marked = self.settled.raw_value(SETTLED_KEY)?;
            if let Some(end) = end.filter(|end| marked == Some(record::encode_end(end))) {
                return self.take_over(chapter, &end, false);
            }
        }
        if self.witness.lock().1.commit == CommitNumber(0) {
            // Not at the start: a log without settled commits makes sled anew at each one.
            self.settled.make_sweeping_tree()?;
        }
        settle(chapter, &self.settled, &|| self.go_on())?;
        // Before the mark, so that no recovery of sled finds the mark without the records.
        self.settled.flush()?;
        let Some(end) = end_of(chapter)? else {
            return Ok(());
        };
        self.settled.put(SETTLED_KEY, &record::encode_end(&end))?;
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
        self.take_over(chapter, &end, is_whole)
    }

    /// Checks a chapter in sled, and gives up the journal's copy of it.
    fn take_over(&self, chapter: &Chapter, end: &LogHead, is_whole: bool) -> Result<(), LogError> {
        // sled panics on some damage.
        let checked = quietly(|| self.check_settled((chapter, end), is_whole));
        let checked = checked.unwrap_or_else(|| {
            // Readers must not take what sled has lost for what was never there. To close it might take for ever.
            self.settled.give_up();
            resume_unwind(Box::new("sled panicked"))
        });
        if checked.as_ref().is_err_and(is_harm) {
            // As above.
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

    /// Opens sled again, and notes its snapshot: the checks of the files expect the noted one.
    fn reopen(&self) -> Result<(), LogError> {
        self.go_on()?;
        self.recover()?;
        let snapshot = snapshots::newest_number(&self.folder);
        let snapshot = snapshot.map_err(LogError::io("read", &self.folder))?;
        self.testify(|testimony| testimony.snapshot = snapshot)
    }

    /// Settles a chapter, and gives its file up; or opens sled again.
    fn work(&self, task: Task) {
        let began = Instant::now();
        // sled panics on some failures of the disk.
        let done = catch_unwind(AssertUnwindSafe(|| match &task {
            Task::Settle(chapter) => self.settle_chapter(chapter),
            Task::Reopen => self.reopen(),
        }));
        match done {
            Ok(Ok(())) => {
                if self.put_off.lock().take().is_some() {
                    info!("the journal can be settled again");
                }
                let Task::Settle(chapter) = task else {
                    // Readers wait for each of them, and the next read may fail again.
                    return self.rest(REST_LEAST);
                };
                let file = Arc::clone(&chapter.file);
                // The next chapter is likely to become as long.
                let most = self.chapter_bytes.saturating_mul(SPREAD_CHAPTERS);
                let kept = chapter.bytes().clamp(self.chapter_bytes, most);
                self.chapters.write().full.pop_front();
                drop(chapter);
                file.recycle(kept);
                self.barrier.begins(Step::Done);
                debug!("a chapter is settled");
            }
            Ok(Err(LogError::Closing)) => self.change(|stage| *stage = Stage::Idle),
            Ok(Err(error)) => self.break_off(error, began.elapsed()),
            // sled may wait for ever behind a panic, so this process does not open it again.
            Err(_panic) => self.fail(&why_panicked(&self.folder, "a settling panicked")),
        }
    }

    /// Puts a settling off that took so long and lacked something. Any other failure ends the log.
    fn break_off(&self, error: LogError, took: Duration) {
        // A file that was cut fails in many ways.
        let error = self.check_files().err().unwrap_or(error);
        let Some(lack) = lack_in(&error).map(copy_of) else {
            return self.fail(&error);
        };
        // Behind a failure of its own, sled may refuse reads until it is opened again.
        if matches!(error, LogError::Storage(_)) {
            self.settled.note_failure();
        }
        self.put_off(&error, lack);
        let rest = took
            .saturating_mul(REST_FACTOR)
            .clamp(REST_LEAST, REST_MOST);
        self.rest(rest);
    }

    fn rest(&self, time: Duration) {
        self.change(|stage| *stage = Stage::Resting(Instant::now() + time));
    }

    /// Ends the log after a failure: it takes no entries until the server is restarted.
    fn fail(&self, error: &LogError) {
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
        *self.put_off.lock() = None;
        self.displaced.fetch_or(is_displaced, Ordering::AcqRel);
        self.failed.store(true, Ordering::Release);
    }
}

/// Returns whether sled has lost something.
fn is_harm(error: &LogError) -> bool {
    !matches!(error, LogError::Closing) && lack_in(error).is_none()
}

/// Settles the full chapters, the oldest first, until the end.
fn run(shared: &Shared) {
    // The writer and the readers come first. Without the right to yield, it takes its share.
    let _yielding = rustix::process::nice(10);
    while let Some(task) = shared.next() {
        let done = catch_unwind(AssertUnwindSafe(|| shared.work(task)));
        if done.is_err() {
            shared.fail(&LogError::damaged("a settling panicked"));
        }
    }
}
