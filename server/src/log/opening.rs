//! Opening and closing a log on a disk, without ever letting sled destroy the only copy.
//!
//! Shell: the data folder. sled's recovery overwrites pages that it takes for torn, and can so empty a
//! damaged database without a word. So it works in place only after a clean stop, if its files are still
//! the same, as far as a start has time to check; otherwise it gets a copy, the copy is checked against the
//! witness, and only a good one takes the place of the original.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use simplefeed_core::{
    commit::{Change, Commit},
    feed::CommitNumber,
};
use sled::{Db, Mode};
use tracing::info;

use super::{
    Commits as _, EntryLog, LogError, Room as _, Series as _,
    barrier::{Barrier, DiskBarrier, sync_folder, sync_tree},
    folder::{CONTROL_SOCKET, DataFolder, OpenError, copy_folder},
    record::{STORAGE_VERSION, VERSION_KEY},
    sled_log::{Durability, SledLog},
    space::{folder_bytes, free_bytes},
    store::{Store, StoreError},
    watchdog::Watchdog,
    witness::Testimony,
};
use crate::watermark::Watermark;

/// sled's page cache, in bytes. Its memory is about twice this.
const CACHE_BYTES: u64 = 128 * 1024 * 1024;
/// The unit in which sled shortens its file.
const SEGMENT_BYTES: u64 = 512 * 1024;
/// Commits at the end whose checksums and chain are checked at every opening.
const CHECKED_COMMITS: u64 = 16;

/// An opened log, and the folder it must be closed into.
#[derive(Debug)]
pub struct OpenedLog {
    /// The log, checked against its witness.
    pub log: SledLog,
    /// Its data folder, locked until this is dropped.
    pub folder: DataFolder,
}

/// Opens the log in `folder`, creating both if there is none.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open(folder: &Path) -> Result<OpenedLog, OpenError> {
    open_with(folder, |path| Ok(Box::new(DiskBarrier::new(path)?)))
}

/// Returns whether there is no log in a folder yet.
///
/// # Errors
///
/// Returns that there is something else in it: a mistyped path is no place for a log.
fn is_new(folder: &Path) -> Result<bool, OpenError> {
    // A missing folder is new; an unreadable one is refused when it is locked.
    let Ok(items) = fs::read_dir(folder) else {
        return Ok(true);
    };
    let names =
        items.filter_map(|item| Some(item.ok()?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect();
    let has = |name: &str| names.iter().any(|found| found == name);
    if has("witness") || has("sled") || has("sled.before") {
        return Ok(false);
    }
    // Files that a server makes beside or before a log, and `lost+found` at the root of a file system.
    let expected = [
        "lock",
        "www",
        "closed",
        "sidecars",
        "views",
        "ids",
        "watermark",
        "restored",
        "clean",
        CONTROL_SOCKET,
        "lost+found",
    ];
    match names.iter().find(|name| !expected.contains(&name.as_str())) {
        Some(found) => Err(OpenError::Foreign {
            folder: folder.into(),
            found: found.clone(),
        }),
        None => Ok(true),
    }
}

/// Copies the log in `folder` to `scratch`, in any state, and opens the copy for salvage. `None` if sled
/// cannot open any of it.
///
/// # Errors
///
/// Returns why it cannot be copied, or that a server has it open.
pub fn salvage(folder: &Path, scratch: &Path) -> Result<Option<SledLog>, OpenError> {
    // A folder that was never locked is left without a lock.
    let lock = folder
        .join("lock")
        .exists()
        .then(|| DataFolder::lock(folder));
    let _lock = match lock.transpose() {
        // No server has a folder open that cannot be written.
        Err(OpenError::Io { .. }) => None,
        lock => lock?,
    };
    let copied = DataFolder::lock(scratch)?;
    let mut best: Option<SledLog> = None;
    // After an unclean stop there may be two; the one that reaches further counts.
    for name in ["sled", "sled.before"] {
        let from = folder.join(name);
        if !from.join("db").exists() {
            continue;
        }
        copy_folder(&from, &copied.path(name)).map_err(copied.io("copy to", name))?;
        copied.remove_leftovers(name)?;
        let Ok(db) = copied.open_any(name) else {
            continue;
        };
        // Records of a newer layout would be misread.
        if let Err(newer @ OpenError::Newer { .. }) = copied.check_version(&db) {
            return Err(newer);
        }
        let log = SledLog::salvaged(db, copied.path(name).join("db"));
        let further = |best: &SledLog| best.head().number < log.head().number;
        if best.as_ref().is_none_or(further) {
            best = Some(log);
        }
    }
    Ok(best)
}

/// Removes the copy that was made to [`salvage`] a log.
///
/// # Errors
///
/// Returns why it cannot be removed.
pub fn discard(log: Option<SledLog>, scratch: &Path) -> Result<(), OpenError> {
    drop(log);
    let copied = DataFolder::lock(scratch)?;
    // sled's threads may still write to the folder.
    copied.wait_for_release()?;
    fs::remove_dir_all(scratch).map_err(copied.io("remove", ""))
}

/// Opens the log in `folder`, which must be there, for checking or exporting it.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open_existing(folder: &Path) -> Result<OpenedLog, OpenError> {
    // `open` would create a log.
    if !folder.join("witness").exists() && !folder.join("sled").exists() {
        return Err(OpenError::Absent {
            folder: folder.into(),
        });
    }
    open(folder)
}

/// Opens the log in `folder` with another barrier: for tests, and for copies that are synced as a whole.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open_with(
    folder: &Path,
    barrier: impl FnOnce(&Path) -> io::Result<Box<dyn Barrier>>,
) -> Result<OpenedLog, OpenError> {
    // Before the lock, which creates the folder: a mistyped path is left as it is.
    let is_new = is_new(folder)?;
    let data = DataFolder::lock(folder)?;
    if is_new {
        info!(folder = %folder.display(), "a new log");
    }
    // Before sled writes anything, because the barrier makes sled sync its writes.
    let barrier = barrier(&data.path).map_err(data.io("sync", ""))?;
    let (witness, testimony) = data.witness()?;
    let db = if data.stopped_cleanly() {
        // Gone before sled may write: a crash from here on is an unclean stop.
        data.remove_file("clean")?;
        data.open_in_place()?
    } else {
        data.open_copy(&testimony)?
    };
    let flushed = db.clone();
    let flush = move || drop(flushed.flush());
    let durability = Durability {
        barrier,
        witness: Mutex::new(witness),
        watchdog: Watchdog::new(flush).map_err(data.io("watch over", "sled"))?,
    };
    let log = SledLog::new(db, data.path("sled").join("db"), Some(durability))
        .map_err(|error| data.damaged(error.to_string()))?;
    data.check(&log, &testimony, CHECKED_COMMITS)?;
    // The index comes first: the upgrade removes ids that are keys of sled.
    log.index_ids(&data.path("ids"))
        .and_then(|()| log.upgrade())
        .map_err(|error| data.open_error(error))?;
    data.write_process_id()?;
    Ok(OpenedLog { log, folder: data })
}

/// Store of a log in sled: a data folder.
#[derive(Debug)]
pub struct SledStore {
    log: Arc<SledLog>,
    folder: DataFolder,
}

impl From<OpenedLog> for SledStore {
    fn from(OpenedLog { log, folder }: OpenedLog) -> Self {
        Self {
            log: Arc::new(log),
            folder,
        }
    }
}

impl Store for SledStore {
    fn log(&self) -> Arc<dyn EntryLog> {
        Arc::<SledLog>::clone(&self.log)
    }

    fn watermark(&self) -> io::Result<Watermark> {
        Watermark::open(&self.folder.watermark())
    }

    fn is_restored(&self) -> bool {
        self.folder.is_restored()
    }

    fn epoch_has_begun(&self) -> Result<(), StoreError> {
        Ok(self.folder.epoch_has_begun()?)
    }

    fn control_socket(&self) -> Option<PathBuf> {
        Some(self.folder.control_socket())
    }

    fn end_reading(&self) {
        self.log.end_reading();
    }

    fn close(self: Box<Self>) -> Result<bool, StoreError> {
        let Self { log, folder } = *self;
        // The log can be closed only by its last owner.
        let Ok(log) = Arc::try_unwrap(log) else {
            return Ok(false);
        };
        OpenedLog { log, folder }.close()?;
        Ok(true)
    }
}

impl OpenedLog {
    /// Closes the log so that the next opening need not doubt it.
    ///
    /// # Errors
    ///
    /// Returns the failed write; the next opening then checks a copy.
    pub fn close(self) -> Result<(), OpenError> {
        let Self { log, folder } = self;
        // After a failed commit, the state of the disk is unknown. Without the clean mark, the next opening
        // checks a copy.
        if !log.is_open() {
            return Ok(());
        }
        let (db, durability, head) = log.into_parts();
        let Some(Durability {
            barrier,
            witness,
            watchdog,
        }) = durability
        else {
            return Ok(());
        };
        watchdog
            .during(|| db.flush())
            .map_err(|error| folder.damaged(error.to_string()))?;
        drop((watchdog, db));
        folder.wait_for_release()?;
        // sled notes where its pages are only while it opens, and the next opening reads everything written
        // since. If that is much, it is read now, when no client waits for an answer.
        if folder.has_grown()? {
            drop(folder.open_in_place()?);
            folder.wait_for_release()?;
        }
        // Before the witness and the mark, which vouch for the files.
        barrier.sync().map_err(folder.io("sync", "sled"))?;
        let file_bytes = folder.file_bytes()?;
        let testimony = Testimony {
            commit: head.number,
            chain: head.chain,
            file_bytes,
        };
        let mut witness = witness.into_inner();
        witness
            .write(&testimony)
            .and_then(|()| witness.sync())
            .map_err(folder.io("write", "witness"))?;
        // The original of an unclean stop has served: the log in its place is synced.
        folder.remove_folder("sled.before")?;
        // Last, because the mark stands for everything above.
        folder.write_clean_mark()?;
        sync_folder(&folder.path).map_err(folder.io("sync", ""))
    }
}

impl DataFolder {
    fn open_error(&self, error: LogError) -> OpenError {
        match error {
            LogError::Io {
                action,
                path,
                source,
            } => OpenError::Io {
                action,
                path,
                source,
            },
            error => self.damaged(error.to_string()),
        }
    }

    fn open_in_place(&self) -> Result<Db, OpenError> {
        self.remove_leftovers("sled")?;
        self.open_sled("sled")
    }

    /// After an unclean stop, or at the very first start: checks a copy and puts it in place.
    fn open_copy(&self, testimony: &Testimony) -> Result<Db, OpenError> {
        let source = self.source(testimony)?;
        // An earlier opening that broke off has left it.
        self.remove_folder("sled.opening")?;
        if let Some(source) = &source {
            let bytes = self.check_length(source, testimony)?;
            self.make_room(source)?;
            let copy = self.path("sled.opening");
            copy_folder(&self.path(source), &copy).map_err(self.io("copy to", "sled.opening"))?;
            self.remove_leftovers("sled.opening")?;
            let db = self
                .open_sled("sled.opening")
                .and_then(|db| self.check_copy(db, testimony, bytes));
            if let Err(error) = db {
                self.remove_folder("sled.opening")?;
                return Err(error);
            }
            // Before the swap: a power cut must not leave a partial copy in the place of the original.
            sync_tree(&copy).map_err(self.io("sync", "sled.opening"))?;
            self.swap_in(source)?;
        } else {
            // Leftovers of a first start that broke off would stop sled for ever.
            self.remove_folder("sled")?;
        }
        self.open_sled("sled")
    }

    /// Makes sure that there is room for a copy. An original kept since an earlier unclean stop is removed
    /// only if there is none otherwise: the log in its place was checked.
    fn make_room(&self, source: &str) -> Result<(), OpenError> {
        let measure = |name: &str| folder_bytes(&self.path(name)).map_err(self.io("measure", name));
        let free = || free_bytes(&self.path).map_err(self.io("measure", ""));
        let needed = measure(source)?;
        if free()? >= needed {
            return Ok(());
        }
        // That original may be the source itself.
        if source != "sled.before" {
            self.remove_folder("sled.before")?;
        }
        let free = free()?;
        if free >= needed {
            return Ok(());
        }
        Err(OpenError::NoRoom {
            folder: self.path.clone(),
            needed,
            free,
        })
    }

    /// Returns the folder to copy from, or `None` if there has never been a log.
    fn source(&self, testimony: &Testimony) -> Result<Option<&'static str>, OpenError> {
        let db = fs::metadata(self.path("sled").join("db"));
        // An empty file without any commit is left of a first start that broke off.
        let begun = |bytes: u64| bytes > 0 || testimony.commit > CommitNumber(0);
        if db.is_ok_and(|db| begun(db.len())) {
            return Ok(Some("sled"));
        }
        // The last opening stopped between the two renames of a swap. This folder is checked like any other
        // copy.
        if !self.path("sled").exists() && self.path("sled.before").join("db").exists() {
            return Ok(Some("sled.before"));
        }
        if testimony.commit == CommitNumber(0) {
            return Ok(None);
        }
        Err(self.damaged("sled/db is missing"))
    }

    /// Returns the length of sled's file, which is refused if it is shorter than the witness recorded:
    /// something is lost, unless sled itself has released whole segments at its end since.
    fn check_length(&self, source: &str, testimony: &Testimony) -> Result<u64, OpenError> {
        let path = self.path(source).join("db");
        let found = fs::metadata(path)
            .map_err(self.io("measure", source))?
            .len();
        let expected = testimony.file_bytes;
        if found >= expected || (found > 0 && found.is_multiple_of(SEGMENT_BYTES)) {
            return Ok(found);
        }
        let what = format!("{source}/db has {found} bytes and had {expected}");
        Err(self.damaged(what))
    }

    fn swap_in(&self, source: &str) -> Result<(), OpenError> {
        if source == "sled" {
            self.remove_folder("sled.before")?;
            self.rename("sled", "sled.before")?;
        }
        self.rename("sled.opening", "sled")
    }

    /// Checks a copy of a database whose file had `bytes` bytes.
    fn check_copy(&self, db: Db, testimony: &Testimony, bytes: u64) -> Result<(), OpenError> {
        let file = self.path("sled.opening").join("db");
        let log = SledLog::new(db, file, None).map_err(|error| self.damaged(error.to_string()))?;
        // sled may have released segments at the end of its file; then every commit is checked.
        let shorter = bytes < testimony.file_bytes;
        let commits = if shorter { u64::MAX } else { CHECKED_COMMITS };
        self.check(&log, testimony, commits)?;
        let (db, ..) = log.into_parts();
        db.flush()
            .map_err(|error| self.damaged(error.to_string()))?;
        drop(db);
        self.wait_for_release()
    }

    /// Checks an opened log: not behind the witness, its end sound, its newest feeds consistent.
    ///
    /// `commits` is the number of commits at the end that are checked.
    fn check(&self, log: &SledLog, testimony: &Testimony, commits: u64) -> Result<(), OpenError> {
        let damaged = |error: LogError| self.damaged(error.to_string());
        let head = log.head();
        if head.number < testimony.commit {
            let what = format!(
                "it ends at commit {} and had {}",
                head.number, testimony.commit
            );
            return Err(self.damaged(what));
        }
        // Another log may have as many commits, but not the same chain hash.
        if log.chain(testimony.commit).map_err(damaged)? != Some(testimony.chain) {
            return Err(self.damaged(format!("commit {} is not what it was", testimony.commit)));
        }
        let first = head.number.0.saturating_sub(commits - 1).max(1);
        let mut chain = log.chain(CommitNumber(first - 1)).map_err(damaged)?;
        for number in first..=head.number.0 {
            let commits = log.commits(CommitNumber(number), 1).map_err(damaged)?;
            if let Some(commit) = commits.first() {
                self.check_heads(log, commit)?;
            }
            let extended = commits
                .first()
                .zip(chain)
                .map(|(commit, chain)| chain.extend(&commit.encode()));
            chain = log.chain(CommitNumber(number)).map_err(damaged)?;
            if extended.is_none() || extended != chain {
                return Err(self.damaged(format!("commit {number} does not fit the chain")));
            }
        }
        Ok(())
    }

    /// Checks that the heads of the feeds that a commit changed can be read and count its entries.
    fn check_heads(&self, log: &SledLog, commit: &Commit) -> Result<(), OpenError> {
        let damaged = |error: LogError| self.damaged(error.to_string());
        for change in &commit.changes {
            let Change::Entry { feed, at, .. } = change else {
                continue;
            };
            let head = log.feed(*feed).map_err(damaged)?;
            if head.is_none_or(|head| head.next <= *at) {
                let what = format!("the head of feed {} does not know entry {at}", feed.0);
                return Err(self.damaged(what));
            }
        }
        Ok(())
    }

    /// Opens sled, and refuses a storage version that this program does not know.
    fn open_sled(&self, name: &str) -> Result<Db, OpenError> {
        let db = self.open_any(name)?;
        self.check_version(&db)?;
        Ok(db)
    }

    /// Opens sled. It panics on some damaged databases; a panic is a refusal here.
    fn open_any(&self, name: &str) -> Result<Db, OpenError> {
        let path = self.path(name);
        let open = || {
            sled::Config::new()
                .path(&path)
                .cache_capacity(CACHE_BYTES)
                // The flush in the background bounds the loss, should the barrier have a bug.
                .flush_every_ms(Some(500))
                .mode(Mode::LowSpace)
                .open()
        };
        let db = match quietly(open) {
            Some(Ok(db)) => db,
            Some(Err(error)) => {
                return Err(self.damaged(format!("{name} cannot be opened: {error}")));
            }
            None => return Err(self.damaged(format!("{name} cannot be opened: sled gave up"))),
        };
        Ok(db)
    }

    fn check_version(&self, db: &Db) -> Result<(), OpenError> {
        let damaged = |error: sled::Error| self.damaged(error.to_string());
        match db.get(VERSION_KEY).map_err(damaged)? {
            None if db.is_empty() => {
                // Before any commit, so that a log without version is damaged.
                db.insert(VERSION_KEY, &STORAGE_VERSION.to_be_bytes())
                    .map_err(damaged)?;
                Ok(())
            }
            None => Err(self.damaged("its storage version is missing")),
            Some(version) => {
                let version = version
                    .first_chunk::<4>()
                    .copied()
                    .map_or(0, u32::from_be_bytes);
                if version > STORAGE_VERSION {
                    return Err(OpenError::Newer {
                        folder: self.path.clone(),
                        version,
                    });
                }
                Ok(())
            }
        }
    }
}

/// Runs work that may make sled panic. Returns `None` if it did, and prints nothing of the panic.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The hook is the process's: a panic of another thread is not printed meanwhile either.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(work));
    std::panic::set_hook(hook);
    done.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::witness::Witness;

    fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = vec![];
        for item in fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path));
            } else {
                found.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
        found.sort();
        found
    }

    /// A first start may break off anywhere: before its file has a byte, nothing was ever stored.
    #[test]
    fn a_first_start_that_broke_off_is_begun_again() {
        for leftover in ["conf", "db"] {
            let folder = tempfile::tempdir().unwrap();
            drop(Witness::create(&folder.path().join("witness")).unwrap());
            fs::create_dir(folder.path().join("sled")).unwrap();
            fs::write(folder.path().join("sled/conf"), "half").unwrap();
            if leftover == "db" {
                fs::write(folder.path().join("sled/db"), "").unwrap();
            }
            let opened = open(folder.path()).unwrap();
            assert_eq!(opened.log.head().number, CommitNumber(0), "{leftover}");
            opened.close().unwrap();
        }
    }

    /// Goal: however much was written, the opening after a clean stop reads little of it.
    /// Method: sled's note of where its pages are, which it writes when it opens only, is there after the
    /// stop. After little was written nothing is, because no time is spent on it.
    #[test]
    fn a_stop_leaves_little_to_read_for_the_next_opening() {
        for (kib, noted) in [(100_u32, false), (4_000, true)] {
            let folder = tempfile::tempdir().unwrap();
            let OpenedLog { log, folder: data } = open(folder.path()).unwrap();
            let (db, durability, head) = log.into_parts();
            for number in 0..kib {
                db.insert(number.to_be_bytes(), vec![7; 1024]).unwrap();
            }
            let log = SledLog::new(db, data.path("sled").join("db"), durability).unwrap();
            OpenedLog { log, folder: data }.close().unwrap();
            let is_note = |(path, _): &(PathBuf, Vec<u8>)| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("snap."))
            };
            assert_eq!(files(folder.path()).iter().any(is_note), noted, "{kib} KiB");
            let data = DataFolder::lock(folder.path()).unwrap();
            assert!(data.stopped_cleanly());
            drop(data);
            assert_eq!(open(folder.path()).unwrap().log.head(), head);
        }
    }

    /// Goal: a program that is older than its log touches nothing.
    /// Method: the stored version is one that does not exist yet; after a clean stop and after none.
    #[test]
    fn a_newer_storage_version_is_refused_untouched() {
        for clean in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let opened = open(folder.path()).unwrap();
            let newer = STORAGE_VERSION + 1;
            let OpenedLog { log, folder: data } = opened;
            let (db, durability, head) = log.into_parts();
            db.insert(VERSION_KEY, &newer.to_be_bytes()).unwrap();
            let log = SledLog::new(db, data.path("sled").join("db"), durability).unwrap();
            assert_eq!(log.head(), head);
            OpenedLog { log, folder: data }.close().unwrap();
            let mark = folder.path().join("clean");
            if clean {
                // As the newer program would have written it.
                let said = fs::read_to_string(&mark).unwrap();
                let ours = format!("storage {STORAGE_VERSION},");
                assert!(said.starts_with(&ours), "{said}");
                fs::write(&mark, said.replace(&ours, &format!("storage {newer},"))).unwrap();
            } else {
                fs::remove_file(&mark).unwrap();
            }
            let before = files(folder.path());
            let refused = open(folder.path()).unwrap_err();
            assert!(
                matches!(refused, OpenError::Newer { version, .. } if version == newer),
                "{refused}"
            );
            assert!(before == files(folder.path()), "the refusal changed a file");
        }
    }
}
