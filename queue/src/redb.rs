//! The queue of one process, in one file of `redb`.
//!
//! Shell: one file, and two threads. One thread changes the file, the other checks that the file is
//! still there. Changes that arrive during a commit share the next commit, so that many workers
//! cost one sync. Leases are in memory only, so a lease waits for no commit: leases end with the
//! process that gave them, and so do the workers that hold them. Notes, due times, failures and
//! quotas are in the file before a call returns.
//!
//! A storage error closes the queue: only a new opening of the file shows which changes were made.

mod leases;
#[cfg(test)]
mod power_cuts;
mod tables;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use redb::Database;
use tokio::sync::{mpsc, oneshot, watch};

use self::{
    leases::{DuePlace, Leases},
    tables::{TablesReader, TablesWriter},
};
use crate::{
    clock::Clock,
    error::QueueError,
    instant::later,
    job::{
        Dead, Existing, Extension, FailureOutcome, Finish, JobFailure, Namespace, NewJob,
        ScheduleOutcome, Stats, TokenStanding, Want, check_bytes, check_count,
    },
    limits::Limit,
    queue::{Queue, TakeOutcome},
    quota::{QuotaReport, Reservation},
};

/// Bytes of the file that are kept in memory.
const CACHE_BYTES: usize = 64 * 1024 * 1024;
/// Changes that wait in the channel to the thread; callers with further changes wait for room.
const WRITES_MAX: usize = 1_024;
/// Largest number of changes that share a commit.
const GROUP_MAX: usize = 256;

/// A queue in a file. The drop of the last clone closes the queue, once the calls under way have
/// ended.
#[derive(Clone, Debug)]
pub struct Redb {
    writes: mpsc::Sender<Write>,
    shared: Arc<OpenFile>,
    changes: Arc<watch::Sender<()>>,
}

/// Makes the file of a new queue. The file gets the final name only when the file is complete: redb
/// would refuse a file of which a power cut has kept the length and not the bytes.
#[expect(
    clippy::disallowed_methods,
    reason = "the opening syncs the folder; a second name that comes back goes before another queue is made"
)]
fn make_file(path: &Path) -> Result<(), redb::DatabaseError> {
    if path.exists() {
        return Ok(());
    }
    let storage = |why: io::Error| redb::DatabaseError::Storage(redb::StorageError::Io(why));
    // Another process that makes the same queue waits for this lock, and then finds the file. If
    // the folder cannot be locked, the work goes on without a lock.
    let lock = |folder: File| folder.lock().map(|()| folder);
    let _locked = File::open(folder_of(path)).and_then(lock).ok();
    // The other process may have finished while this one waited for the lock.
    if path.exists() {
        return Ok(());
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = Path::new(&unfinished);
    // A start that was killed here leaves a file that redb may refuse.
    match fs::remove_file(unfinished) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(storage(why)),
        _ => {}
    }
    drop(redb::Builder::new().create(unfinished)?);
    // Before the name: a power cut must not keep the name of a file without bytes.
    let synced = File::open(unfinished).and_then(|file| file.sync_all());
    synced.map_err(storage)?;
    // Not a rename: another process may have made the queue meanwhile. If the file system has no
    // hard links, redb makes the queue later, under the final name.
    drop(fs::hard_link(unfinished, path));
    fs::remove_file(unfinished).map_err(storage)
}

/// Makes the name of a file durable.
fn sync_name(path: &Path) -> io::Result<()> {
    // If the path is a link, the name of the file behind the link is synced.
    let path = path.canonicalize()?;
    match File::open(folder_of(&path)).and_then(|folder| folder.sync_all()) {
        // Nothing more can be done if this process may not read the folder, or if the folder cannot
        // be synced.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// Returns the folder that holds a file.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        // The parent of a name without a folder is empty.
        _ => Path::new("."),
    }
}

/// Time between two checks of the queue's file.
const LOOK: Duration = Duration::from_secs(1);

/// The file of a queue. The next process must find this file under the same name, and whole.
#[derive(Debug)]
struct QueueFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Length of the file after the last commit. The lock is held while a commit changes the
    /// length.
    length: Mutex<u64>,
}

impl QueueFile {
    fn of_file(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let found = fs::metadata(&path)?;
        Ok(Self {
            path,
            device: found.dev(),
            inode: found.ino(),
            length: Mutex::new(found.len()),
        })
    }

    /// Checks that the name still leads to the same file, which is at least as long as after the
    /// last commit.
    fn check_file(&self, length: u64) -> io::Result<()> {
        use io::ErrorKind::{NotADirectory, NotFound};

        let is_it = |found: &fs::Metadata| {
            (found.dev(), found.ino()) == (self.device, self.inode) && found.len() >= length
        };
        match fs::metadata(&self.path) {
            Ok(found) if is_it(&found) => return Ok(()),
            // Any other error proves nothing: the folder may be unreadable for a moment only.
            Err(error) if !matches!(error.kind(), NotFound | NotADirectory) => return Ok(()),
            Ok(_) | Err(_) => {}
        }
        let why = format!(
            "{} was removed, replaced or cut: what the queue had since is lost with it",
            self.path.display()
        );
        Err(io::Error::new(NotFound, why))
    }

    /// Checks the file each second, and closes the queue if the file was removed, replaced or cut.
    #[expect(clippy::disallowed_methods, reason = "a thread of its own")]
    fn watch_file(&self, writes: &mpsc::WeakSender<Write>) {
        loop {
            std::thread::sleep(LOOK);
            // A strong sender would keep the queue's threads alive after the drop of the last
            // handle.
            let Some(writes) = writes.upgrade() else {
                return;
            };
            // The lock waits for a commit under way: that commit changes the length, and the check
            // could take a whole file for a cut one.
            let length = self.length.lock();
            if self.check_file(*length).is_err() {
                drop(length);
                // An empty change makes the other thread commit. Each commit checks the file, and
                // this commit fails. If the channel is full, the changes there fail instead.
                let nothing: Write = Box::new(|_| Ok(Box::new(drop)));
                drop(writes.try_send(nothing));
                return;
            }
        }
    }
}

/// State that leasing calls share with the thread that changes the file.
#[derive(Debug)]
struct OpenFile {
    database: Arc<Database>,
    leases: Mutex<Leases>,
    /// Held by a search in file and leases, and after a commit while the leases are brought up to
    /// date. A search may read the file as it was before a commit. Until that search ends, the
    /// leases must still name the jobs that the commit has changed.
    still: Mutex<()>,
    /// Why the queue is closed, if the file failed.
    failure: OnceLock<Arc<StorageError>>,
    clock: Clock,
    /// `None` in a test that keeps the bytes elsewhere.
    file: Option<Arc<QueueFile>>,
}

/// An error of redb. (Boxed by redb itself where it is large.)
type StorageError = redb::Error;
/// Sends the answer of a call, once its change is committed.
type CallAnswer = Box<dyn FnOnce(Result<(), Arc<StorageError>>) + Send>;
/// A change of the file.
type Write = Box<dyn FnOnce(&mut TablesWriter<'_, '_>) -> Result<CallAnswer, StorageError> + Send>;

/// Returns the error of a call that has changed nothing.
fn failed_error(why: Arc<StorageError>) -> QueueError {
    QueueError::Storage {
        doing: "using the queue's file".to_owned(),
        why: Box::new(why),
    }
}

/// Returns the error of a change that may be in the file or not.
fn lost_error(why: Arc<StorageError>) -> QueueError {
    QueueError::Lost {
        doing: "changing the queue's file".to_owned(),
        why: Box::new(why),
    }
}

impl Redb {
    /// Opens the queue in a file, which is made if there is none.
    ///
    /// # Errors
    ///
    /// If the file is no queue, cannot be read or made, or is open in another process.
    pub fn open(path: &Path, clock: Clock) -> Result<Self, QueueError> {
        let refused = |why: StorageError| QueueError::Storage {
            doing: format!("opening the queue {}", path.display()),
            why: Box::new(why),
        };
        // redb panics at some damaged pages.
        let opened = std::panic::catch_unwind(|| Self::open_whole(path, clock));
        opened.unwrap_or_else(|_panic| {
            let why = io::Error::new(io::ErrorKind::InvalidData, "the file is damaged");
            Err(refused(StorageError::Io(why)))
        })
    }

    fn open_whole(path: &Path, clock: Clock) -> Result<Self, QueueError> {
        let refused = |why: StorageError| QueueError::Storage {
            doing: format!("opening the queue {}", path.display()),
            why: Box::new(why),
        };
        make_file(path).map_err(|why| match why {
            redb::DatabaseError::DatabaseAlreadyOpen => QueueError::InUse(path.to_path_buf()),
            why => refused(why.into()),
        })?;
        let database = redb::Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create(path);
        let database = database.map_err(|why| match why {
            redb::DatabaseError::DatabaseAlreadyOpen => QueueError::InUse(path.to_path_buf()),
            why => refused(why.into()),
        })?;
        // redb syncs the file and not the name. Without the name, every job would be gone.
        sync_name(path).map_err(|why| refused(StorageError::Io(why)))?;
        let file = QueueFile::of_file(path).map_err(|why| refused(StorageError::Io(why)))?;
        let file = Arc::new(file);
        let queue = Self::work_on(database, clock, Some(Arc::clone(&file))).map_err(refused)?;
        let writes = queue.writes.downgrade();
        let spawned = std::thread::Builder::new()
            .name("queue-file".to_owned())
            .spawn(move || file.watch_file(&writes));
        spawned.map_err(|why| refused(StorageError::Io(why)))?;
        Ok(queue)
    }

    /// Starts the thread that changes the file.
    fn work_on(
        database: Database,
        clock: Clock,
        file: Option<Arc<QueueFile>>,
    ) -> Result<Self, StorageError> {
        let opening = tables::prepare(&database)?;
        if let Some(file) = &file {
            // The making of the tables has changed the length.
            *file.length.lock() = fs::metadata(&file.path)?.len();
        }
        let (writes, received) = mpsc::channel(WRITES_MAX);
        let changes = Arc::new(watch::Sender::new(()));
        let shared = Arc::new(OpenFile {
            database: Arc::new(database),
            leases: Mutex::new(Leases::of_opening(opening)),
            still: Mutex::new(()),
            failure: OnceLock::new(),
            clock,
            file,
        });
        let thread = Thread {
            shared: Arc::clone(&shared),
            received,
            changes: Arc::clone(&changes),
        };
        let spawned = std::thread::Builder::new()
            .name("queue".to_owned())
            .spawn(move || thread.run());
        spawned.map_err(StorageError::Io)?;
        Ok(Self {
            writes,
            shared,
            changes,
        })
    }

    /// Changes the file, in the thread that writes it, and waits for the commit.
    async fn write_change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut TablesWriter<'_, '_>) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let (answer, answered) = oneshot::channel();
        let write: Write = Box::new(|writing| {
            let result = change(writing)?;
            Ok(Box::new(|committed| {
                // A caller that has gone needs no answer: the change is committed all the same.
                drop(answer.send(committed.map(|()| result).map_err(lost_error)));
            }))
        });
        let sent = self.writes.send(write).await;
        sent.map_err(|_ended| self.closed_error())?;
        answered.await.map_err(|_ended| self.closed_error())?
    }

    fn check_open(&self) -> Result<(), QueueError> {
        if self.writes.is_closed() || self.shared.failure.get().is_some() {
            return Err(self.closed_error());
        }
        Ok(())
    }

    /// Returns the error of a call once the queue is closed.
    fn closed_error(&self) -> QueueError {
        match self.shared.failure.get() {
            None => QueueError::Closed,
            Some(why) => QueueError::Failed {
                why: Box::new(Arc::clone(why)),
            },
        }
    }

    /// Reads the file on another thread than the one that changes the file. If the read fails, the
    /// thread that changes the file ends, and the queue is closed. If the caller has gone, `undo`
    /// gets the result.
    async fn read_file<T: Send + 'static>(
        &self,
        read: impl FnOnce(&TablesReader<'_>) -> Result<T, StorageError> + Send + 'static,
        undo: impl FnOnce(&mut Leases, T) + Send + 'static,
    ) -> Result<T, QueueError> {
        self.check_open()?;
        let (answer, answered) = oneshot::channel();
        let (shared, writes) = (Arc::clone(&self.shared), self.writes.clone());
        let changes = Arc::clone(&self.changes);
        // A read of the disk would block all tasks of the runtime's thread.
        tokio::task::spawn_blocking(move || {
            let result = read(&shared.begin_reading());
            if result.is_err() {
                // If the channel is full, the changes there should fail as well.
                let failing: Write = Box::new(|_| {
                    let said = "the file could not be read".to_owned();
                    Err(StorageError::Corrupted(said))
                });
                drop(writes.try_send(failing));
            }
            let result = result.map_err(|why| failed_error(Arc::new(why)));
            if let Err(Ok(unseen)) = answer.send(result) {
                undo(&mut shared.leases.lock(), unseen);
                // Jobs may be free again, so a waiting worker may have a batch.
                changes.send_replace(());
            }
        });
        answered.await.map_err(|_ended| self.closed_error())?
    }
}

impl OpenFile {
    fn begin_reading(&self) -> TablesReader<'_> {
        TablesReader {
            database: &self.database,
            leases: &self.leases,
            still: &self.still,
            now: self.clock.now(),
        }
    }
}

/// The thread that changes the file.
struct Thread {
    shared: Arc<OpenFile>,
    received: mpsc::Receiver<Write>,
    changes: Arc<watch::Sender<()>>,
}

impl Drop for Thread {
    /// Wakes waiting workers, which search again and find that the queue is closed.
    fn drop(&mut self) {
        // Before the wake: a worker that searches again must find the queue closed.
        self.received.close();
        // Without this wake, waiting workers would notice the end only at their next poll.
        self.changes.send_replace(());
    }
}

impl Thread {
    /// Commits changes until the last handle is dropped, or the storage fails.
    fn run(mut self) {
        let mut group = Vec::with_capacity(GROUP_MAX);
        while self.received.blocking_recv_many(&mut group, GROUP_MAX) > 0 {
            match self.commit_changes(group.drain(..)) {
                // Answered after the leases were brought up to date: a caller that leases next must
                // find the new jobs.
                Ok(deliveries) => deliveries.into_iter().for_each(|deliver| deliver(Ok(()))),
                Err(why) => {
                    tracing::error!(error = %why, "the queue's file failed, so the queue is closed");
                    return;
                }
            }
        }
    }

    /// Commits changes together. If one change fails, none is made. The callers of the changes
    /// before the failed one get the error; the other callers hear that the queue is closed.
    fn commit_changes(
        &self,
        writes: impl Iterator<Item = Write>,
    ) -> Result<Vec<CallAnswer>, Arc<StorageError>> {
        let mut deliveries = Vec::with_capacity(GROUP_MAX);
        let done = self.make_changes(writes, &mut deliveries).map_err(Arc::new);
        if let Err(why) = &done {
            // Set before the answers: a caller with an answer may call again at once.
            if self.shared.failure.set(Arc::clone(why)).is_ok() {
                // The database is never dropped now: at a drop, redb writes to the file, and a file
                // that was cut would look whole again.
                std::mem::forget(Arc::clone(&self.shared.database));
            }
            for deliver in deliveries.drain(..) {
                deliver(Err(Arc::clone(why)));
            }
        }
        let moved = done?;
        {
            let _still = self.shared.still.lock();
            self.shared.leases.lock().show(moved);
        }
        // After the leases: a worker that searches earlier would pass by the jobs that this commit
        // changed.
        self.changes.send_replace(());
        Ok(deliveries)
    }

    fn make_changes(
        &self,
        writes: impl Iterator<Item = Write>,
        deliveries: &mut Vec<CallAnswer>,
    ) -> Result<Vec<(Namespace, DuePlace)>, StorageError> {
        let OpenFile {
            database,
            leases,
            clock,
            file,
            ..
        } = &*self.shared;
        let mut length = file.as_ref().map(|file| file.length.lock());
        if let Some((file, length)) = file.as_ref().zip(length.as_ref()) {
            // A commit into a file without a name would be lost with the process.
            file.check_file(**length)?;
        }
        let transaction = database.begin_write()?;
        let mut writing = TablesWriter::new(&transaction, leases, clock.now())?;
        for write in writes {
            deliveries.push(write(&mut writing)?);
        }
        let moved = writing.end()?;
        transaction.commit()?;
        if let Some((file, length)) = file.as_ref().zip(length.as_mut()) {
            // A commit may make the file shorter. If the file is gone, the check before the next
            // commit notices.
            **length = fs::metadata(&file.path).map_or(**length, |found| found.len());
        }
        Ok(moved)
    }
}

impl Queue for Redb {
    async fn schedule(
        &self,
        jobs: Vec<NewJob>,
        existing: Existing,
    ) -> Result<Vec<ScheduleOutcome>, QueueError> {
        check_count(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        self.write_change(move |writing| {
            jobs.iter()
                .map(|job| writing.schedule(job, existing))
                .collect()
        })
        .await
    }

    async fn take(&self, namespace: &Namespace, want: Want) -> Result<TakeOutcome, QueueError> {
        want.check()?;
        let namespace = namespace.clone();
        self.read_file(
            move |reading| reading.take(&namespace, want),
            Leases::give_back,
        )
        .await
    }

    async fn extend(&self, extensions: Vec<Extension>) -> Result<Vec<TokenStanding>, QueueError> {
        check_count(extensions.len())?;
        extensions
            .iter()
            .filter_map(|one| one.note.as_deref())
            .try_for_each(check_bytes)?;
        if extensions.iter().all(|one| one.note.is_none()) {
            // Leases are not in the file, so nothing need be written.
            self.check_open()?;
            let now = self.shared.clock.now();
            let mut leases = self.shared.leases.lock();
            let mut is_earlier = false;
            let extend = |one: &Extension| match leases.extend(one, now) {
                Some(former) => {
                    is_earlier |= later(now, one.lease) < former.until;
                    TokenStanding::Yes
                }
                None => TokenStanding::Lost,
            };
            let standings = extensions.iter().map(extend).collect();
            drop(leases);
            if is_earlier {
                // A worker that gives a job back shortens the lease. Waiting workers would wait
                // until the former end of the lease.
                self.changes.send_replace(());
            }
            return Ok(standings);
        }
        self.write_change(move |writing| extensions.iter().map(|one| writing.extend(one)).collect())
            .await
    }

    async fn finish(&self, finishes: Vec<Finish>) -> Result<Vec<TokenStanding>, QueueError> {
        check_count(finishes.len())?;
        finishes.iter().try_for_each(Finish::check)?;
        self.write_change(move |writing| writing.finish(&finishes))
            .await
    }

    async fn fail(&self, failures: Vec<JobFailure>) -> Result<Vec<FailureOutcome>, QueueError> {
        check_count(failures.len())?;
        self.write_change(move |writing| failures.iter().map(|one| writing.fail(one)).collect())
            .await
    }

    async fn dead(
        &self,
        namespace: &Namespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Dead>, QueueError> {
        check_count(limit)?;
        let (namespace, after) = (namespace.clone(), after.map(str::to_owned));
        self.read_file(
            move |reading| reading.dead(&namespace, after.as_deref(), limit),
            |_, _| {},
        )
        .await
    }

    async fn retry(&self, namespace: &Namespace, keys: Vec<String>) -> Result<usize, QueueError> {
        check_count(keys.len())?;
        let namespace = namespace.clone();
        self.write_change(move |writing| writing.retry(&namespace, &keys))
            .await
    }

    async fn remove(&self, namespace: &Namespace, keys: Vec<String>) -> Result<usize, QueueError> {
        check_count(keys.len())?;
        let namespace = namespace.clone();
        self.write_change(move |writing| writing.remove(&namespace, &keys))
            .await
    }

    async fn bring_forward(
        &self,
        namespace: &Namespace,
        due: Duration,
        lease: Duration,
    ) -> Result<usize, QueueError> {
        let namespace = namespace.clone();
        self.write_change(move |writing| writing.bring_forward(&namespace, due, lease))
            .await
    }

    async fn stats(&self, namespace: &Namespace) -> Result<Stats, QueueError> {
        let namespace = namespace.clone();
        self.read_file(move |reading| reading.stats(&namespace), |_, _| {})
            .await
    }

    async fn reserve(
        &self,
        credential: &str,
        requests: u32,
        limit: Limit,
    ) -> Result<Reservation, QueueError> {
        let credential = credential.to_owned();
        self.write_change(move |writing| writing.reserve(&credential, requests, limit))
            .await?
    }

    async fn report(&self, credential: &str, report: QuotaReport) -> Result<(), QueueError> {
        let credential = credential.to_owned();
        self.write_change(move |writing| writing.report(&credential, report))
            .await
    }

    async fn now(&self) -> Result<DateTime<Utc>, QueueError> {
        Ok(self.shared.clock.now())
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Due;

    /// Goal: a file whose pages are lost behind a whole header is refused with an error, and
    /// without a panic.
    /// Method: redb, which is dropped after a cut, writes such a file.
    #[tokio::test]
    async fn a_file_without_its_pages_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue");
        let name = Namespace::new("things").unwrap();
        let queue = Redb::open(&path, Clock::Real).unwrap();
        let job = NewJob::new(&name, "a", Due::After(Duration::ZERO));
        queue.schedule(vec![job], Existing::Keep).await.unwrap();
        drop(queue);
        // The threads of the queue end a little later than the queue.
        let database = loop {
            match redb::Builder::new().create(&path) {
                Err(redb::DatabaseError::DatabaseAlreadyOpen) => tokio::task::yield_now().await,
                opened => break opened.unwrap(),
            }
        };
        let cut = File::options().write(true).open(&path).unwrap();
        cut.set_len(0).unwrap();
        let write = database.begin_write();
        drop(write.map(redb::WriteTransaction::commit));
        drop(database);
        let refused = Redb::open(&path, Clock::Real).map(drop);
        assert!(
            matches!(refused, Err(QueueError::Storage { .. })),
            "{refused:?}"
        );
    }

    /// Goal: a queue outlives a time in which its folder cannot be read.
    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    async fn a_folder_that_cannot_be_read_for_a_moment_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [shown, away] = ["shown", "away"].map(|name| folder.path().join(name));
        fs::create_dir(&shown).unwrap();
        let queue = Redb::open(&shown.join("queue"), Clock::Real).unwrap();
        let name = Namespace::new("things").unwrap();
        let schedule = |key: &str| {
            let job = NewJob::new(&name, key, Due::After(Duration::ZERO));
            queue.schedule(vec![job], Existing::Keep)
        };
        fs::rename(&shown, &away).unwrap();
        // A link to itself is an error that is not "not found", for root as well.
        std::os::unix::fs::symlink(&shown, &shown).unwrap();
        tokio::time::sleep(2 * LOOK).await;
        schedule("a").await.unwrap();
        fs::remove_file(&shown).unwrap();
        fs::rename(&away, &shown).unwrap();
        schedule("b").await.unwrap();
        assert_eq!(queue.stats(&name).await.unwrap().due, 2);
    }

    /// Goal: a queue whose file is removed, replaced or cut under it is closed within seconds,
    /// whether somebody asks or not.
    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    async fn a_file_that_goes_away_is_noticed() {
        type Damage = fn(&Path) -> io::Result<()>;
        let damages: [Damage; 3] = [
            |path| fs::remove_file(path),
            |path| {
                fs::write(path.with_extension("new"), "x")
                    .and_then(|()| fs::rename(path.with_extension("new"), path))
            },
            |path| File::options().write(true).open(path)?.set_len(4_096),
        ];
        for damage in damages {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue");
            let queue = Redb::open(&path, Clock::Real).unwrap();
            let name = Namespace::new("things").unwrap();
            let schedule = |key: &str| {
                let job = NewJob::new(&name, key, Due::After(Duration::ZERO));
                queue.schedule(vec![job], Existing::Keep)
            };
            schedule("a").await.unwrap();
            damage(&path).unwrap();
            // No call is made: the change of the queue ends the wait.
            let mut changes = queue.changes();
            let told = tokio::time::timeout(Duration::from_secs(30), changes.changed());
            told.await.unwrap().unwrap();
            for _ in 0..2 {
                let refused = schedule("b").await;
                assert!(
                    matches!(refused, Err(QueueError::Failed { .. })),
                    "{refused:?}"
                );
            }
            let left = fs::read(&path).ok();
            drop(queue);
            assert!(fs::read(&path).ok() == left, "it is left as it is");
        }
    }
}
