//! Opening a log on a disk, so that sled never destroys the only copy of a commit.
//!
//! Shell: the data folder. sled gets no values between two settlings. sled's recovery writes, so a
//! rehearsal comes first. The journal is read before all else. A refusal before the opening of sled
//! leaves all files unchanged. A later refusal leaves the changes of sled's recovery, and notes
//! beside the log.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use simplefeed_core::feed::CommitNumber;
use simplefeed_process::lack::lack_in;
use tracing::info;

use super::{
    chapter::{Chapter, Chapters},
    folder::{CONTROL_SOCKET, DataFolder, OpenError, copy_folder, failed},
    ids::FRESH_IDS,
    journal::{self, Journal, JournalFile},
    record::{self, CommitFacts, SETTLED_KEY, STORAGE_VERSION, VERSION_KEY},
    rehearsal::{RecoveryRefusal, rehearse},
    salvage::Remains,
    settled::{SettledPart, quietly, why_panicked},
    settler::Work,
    settling::check_settled,
    sled_log::SledLog,
    snapshots,
    witness::{self, Testimony, Witness, WitnessStatement},
};
use crate::moment::MomentNote;
use crate::watermark::Watermark;
use crate::{
    LogError, LogHead, WritableLog,
    barrier::{Barrier, DiskBarrier, LogStep, drop_pages_in, sync_folder, sync_tree},
    durable::create_private_folder,
    held::HeldFolder,
    seen::{self, ReadersEnd, SeenNote},
    sled::found_file::FoundFile,
    store::{LogStore, StoreError},
};

/// Length of a chapter, in bytes, from which on the chapter is settled. Small in unit tests, so
/// that they see many chapters.
const CHAPTER_BYTES: u64 = if cfg!(test) {
    16 * 1024
} else {
    256 * 1024 * 1024
};

/// How a log uses the disk.
pub struct Disk {
    /// Barrier that makes commits durable.
    pub barrier: Arc<dyn Barrier>,
    /// Length of a chapter, in bytes, from which on the chapter is settled.
    pub chapter_bytes: u64,
    /// Number of ids in memory from which on these ids become a file.
    pub fresh_ids: usize,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk")
            .field("chapter_bytes", &self.chapter_bytes)
            .field("fresh_ids", &self.fresh_ids)
            .finish_non_exhaustive()
    }
}

impl Disk {
    /// Returns a disk with this barrier and the usual bounds.
    pub fn behind(barrier: impl Barrier + 'static) -> Self {
        Self {
            barrier: Arc::new(barrier),
            chapter_bytes: CHAPTER_BYTES,
            fresh_ids: FRESH_IDS,
        }
    }
}

/// An opened log, with the data folder that stays locked until the log is closed.
#[derive(Debug)]
pub struct OpenedLog {
    /// The log, checked against its witness.
    pub log: SledLog,
    /// Data folder of the log, locked until this value is dropped.
    pub folder: Arc<DataFolder>,
}

/// Opens the log in `folder`, creating both if there is none.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open(folder: &Path) -> Result<OpenedLog, OpenError> {
    let barrier = DiskBarrier::new().map_err(|source| OpenError::Io {
        action: "sync",
        path: folder.into(),
        source,
    })?;
    open_with(folder, &Disk::behind(barrier))
}

/// Returns whether there is no log in a folder yet.
///
/// # Errors
///
/// Returns that the folder has foreign files, because a mistyped path is no place for a log, or
/// that it has the remains of another log.
fn is_new(folder: &Path) -> Result<bool, OpenError> {
    // A missing folder is new. The lock refuses an unreadable folder.
    let Ok(items) = fs::read_dir(folder) else {
        return Ok(true);
    };
    let names =
        items.filter_map(|item| Some(item.ok()?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect();
    let has = |name: &str| names.iter().any(|found| found == name);
    if has("witness") || has("journal") || has("sled") {
        return Ok(false);
    }
    // Files that a server makes beside or before a log, and `lost+found` at the root of a file
    // system.
    let expected = [
        "lock",
        "www",
        "closed",
        "sidecars",
        "views",
        "ids",
        "watermark",
        "clock",
        "restored",
        CONTROL_SOCKET,
        "lost+found",
    ];
    // Folders of documents are expected only if they have no files.
    refuse_remains(folder)?;
    match names.iter().find(|name| !expected.contains(&name.as_str())) {
        Some(found) => Err(OpenError::Foreign {
            folder: folder.into(),
            found: found.clone(),
        }),
        None => Ok(true),
    }
}

/// Refuses to begin a log where another log has left documents, or other files that follow from its
/// commits: they would be taken for files of the new log.
fn refuse_remains(folder: &Path) -> Result<(), OpenError> {
    // An operator may have files of their own in `www`.
    let made = [
        "www/feeds",
        "www/sup",
        "closed/feeds",
        "sidecars",
        "views",
        "ids",
    ];
    for name in made {
        let path = folder.join(name);
        let found = first_file(&path).map_err(|source| OpenError::Io {
            action: "read",
            path,
            source,
        })?;
        if let Some(found) = found {
            return Err(OpenError::Damaged {
                folder: folder.into(),
                what: format!("its log is missing, and {} is there", found.display()),
            });
        }
    }
    Ok(())
}

/// Returns a file below a folder, if there is any.
///
/// # Errors
///
/// Returns why the folder cannot be read: in an unreadable folder, a file might be there unseen.
fn first_file(folder: &Path) -> io::Result<Option<PathBuf>> {
    let items = match fs::read_dir(folder) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        items => items?,
    };
    for item in items {
        let path = item?.path();
        if !path.is_dir() {
            return Ok(Some(path));
        }
        if let Some(found) = first_file(&path)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Reads the remains of the log in `folder`, in any state. sled's files are copied to `scratch`
/// first, because an opening changes the files.
///
/// # Errors
///
/// Returns why the remains cannot be read, that a server has the log open, or that another version
/// of this program wrote the log.
pub fn salvage(folder: &Path, scratch: &Path) -> Result<Remains, OpenError> {
    if DataFolder::is_locked(folder) {
        let (folder, holder) = (folder.into(), String::new());
        return Err(OpenError::Locked { folder, holder });
    }
    // A folder that was never locked is left without a lock file.
    let lock = folder
        .join("lock")
        .exists()
        .then(|| DataFolder::lock(folder));
    let _lock = match lock.transpose() {
        // A folder that cannot be written needs no lock: no server can have it open.
        Err(OpenError::Io { .. }) => None,
        lock => lock?,
    };
    if let Some(WitnessStatement::Other(version)) = witness::read(&folder.join("witness")) {
        // Records of another layout would be misread.
        return Err(OpenError::of_version(folder, version));
    }
    let copied = DataFolder::lock(scratch)?;
    let journal = folder.join("journal");
    let mut remains = Remains::of_journal(&journal).map_err(failed("read", &journal))?;
    let sled = folder.join("sled");
    if !sled.join("db").exists() {
        return Ok(remains);
    }
    copy_folder(&sled, &copied.path("sled")).map_err(copied.io("copy to", "sled"))?;
    snapshots::remove_unfinished(&copied.path("sled"))
        .and_then(|()| snapshots::put_back(&copied.path("sled")))
        .map_err(copied.io("write to", "sled"))?;
    // Opened by the path of `scratch`: the handle of the locked folder is closed before sled is.
    match SettledPart::open(&scratch.join("sled")) {
        Ok(settled) => {
            refuse_other(&settled, folder)?;
            remains.add_settled(settled);
        }
        // Without this error, sled's entries would count as lost.
        Err(error) if lack_in(&error).is_some() => return Err(copied.open_error(error)),
        Err(_damaged) => {}
    }
    Ok(remains)
}

/// Removes the copy that [`salvage`] has made.
///
/// # Errors
///
/// Returns why the copy cannot be removed.
#[expect(
    clippy::disallowed_methods,
    reason = "a folder for unfinished work that comes back is nobody's"
)]
pub fn discard(remains: Remains, scratch: &Path) -> Result<(), OpenError> {
    let copied = DataFolder::lock(scratch)?;
    // Closed before the removal, because sled's threads may still write to the folder.
    remains.close().map_err(|error| copied.open_error(error))?;
    fs::remove_dir_all(scratch).map_err(copied.io("remove", ""))
}

/// Opens the log in `folder`, which must be there, for checking or exporting it.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open_existing(folder: &Path) -> Result<OpenedLog, OpenError> {
    // `open` would create a log.
    for name in ["witness", "journal", "sled"] {
        let path = folder.join(name);
        let exists = path.try_exists().map_err(|source| OpenError::Io {
            action: "find",
            path,
            source,
        })?;
        if exists {
            return open(folder);
        }
    }
    Err(OpenError::Absent {
        folder: folder.into(),
    })
}

/// Opens the log in `folder` on a disk with another barrier or other bounds.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open_with(folder: &Path, disk: &Disk) -> Result<OpenedLog, OpenError> {
    // Checked before the lock, which creates files: a folder at a mistyped path stays unchanged.
    let is_new = is_new(folder)?;
    let data = DataFolder::lock(folder)?;
    disk.barrier.begins(LogStep::Opening);
    if is_new {
        info!(folder = %folder.display(), "a new log");
    }
    let (witness, said) = find_witness(&data, disk)?;
    let testimony = match said {
        WitnessStatement::Current(testimony) => testimony,
        WitnessStatement::Other(version) => {
            return Err(OpenError::of_version(data.held().name(), version));
        }
    };
    let data = Arc::new(data);
    let log = open_log(&data, disk, witness, testimony)?;
    // Lookups of ids fail until the index is there.
    log.index_ids(&data.path("ids"))
        .map_err(|error| data.open_error(error))?;
    data.write_process_id()?;
    disk.barrier.begins(LogStep::Done);
    Ok(OpenedLog { log, folder: data })
}

/// Opens the witness, or begins a log.
fn find_witness(data: &DataFolder, disk: &Disk) -> Result<(Witness, WitnessStatement), OpenError> {
    let path = data.path("witness");
    if path.exists() {
        let (mut witness, said) = Witness::open(&path).map_err(data.io("read", "witness"))?;
        return match said {
            Some(said) => Ok((witness, said)),
            // The very first start broke off before the witness was on the disk.
            None if !has_commits(data)? => {
                let testimony = begin_log(data, disk, &mut witness)?;
                Ok((witness, WitnessStatement::Current(testimony)))
            }
            None => Err(data.damaged("its witness is unreadable")),
        };
    }
    // A log whose witness is gone must not pass for a new one.
    if has_commits(data)? {
        return Err(data.damaged("its witness is missing"));
    }
    // Checked again under the lock: another process may have begun a log here after the first
    // check.
    refuse_remains(data.held().name())?;
    // The journal is made before the witness: a witness without a journal would be damage, but a
    // journal without commits is begun again.
    begin_journal(data, disk)?;
    let witness = Witness::create(&path).map_err(data.io("create", "witness"))?;
    sync_folder(&data.path).map_err(data.io("sync", ""))?;
    Ok((witness, WitnessStatement::Current(Testimony::NOTHING)))
}

/// Makes the first file of the journal, durably, before the witness exists.
fn begin_journal(data: &DataFolder, disk: &Disk) -> Result<(), OpenError> {
    let (barrier, start) = (Arc::clone(&disk.barrier), LogHead::START);
    Journal::create(&data.path("journal"), barrier, CommitNumber(1), start.chain)
        .map_err(|error| data.open_error(error))?;
    Ok(())
}

/// Begins a log whose witness has no testimony yet.
fn begin_log(
    data: &DataFolder,
    disk: &Disk,
    witness: &mut Witness,
) -> Result<Testimony, OpenError> {
    begin_journal(data, disk)?;
    witness
        .write(&Testimony::NOTHING)
        .and_then(|()| witness.sync())
        .map_err(data.io("write", "witness"))?;
    Ok(Testimony::NOTHING)
}

/// Returns whether the folder has files that may hold commits.
fn has_commits(data: &DataFolder) -> Result<bool, OpenError> {
    let in_journal = match journal::open_files(&data.path("journal")) {
        Ok(files) => {
            let is_empty = |file: &JournalFile| file.scan(|_| Err(LogError::Stopped)).is_ok();
            !files.iter().all(is_empty)
        }
        Err(error) if lack_in(&error).is_some() => return Err(data.open_error(error)),
        // An unreadable journal may have commits, so a new log must not replace it.
        Err(_) => true,
    };
    #[cfg(planted)]
    let in_journal = in_journal
        || crate::planted::is("begun-is-damaged")
            && journal::open_files(&data.path("journal")).is_ok_and(|files| !files.is_empty());
    let sled = fs::metadata(data.path("sled").join("db")).is_ok_and(|db| db.len() > 0);
    Ok(in_journal || sled)
}

/// Opens a log of this storage version.
fn open_log(
    data: &Arc<DataFolder>,
    disk: &Disk,
    witness: Witness,
    testimony: Testimony,
) -> Result<SledLog, OpenError> {
    let (mut read, mut unused) = read_sure(data, &testimony)?;
    // A settling takes full chapters, so beside the newest chapter alone, none was under way.
    let stood_still = read.chapters.len() == 1;
    let settled = open_settled(data, &testimony, stood_still)?;
    // An earlier process may have been killed before it synced the names in these folders.
    for folder in [data.path("journal"), data.path.clone()] {
        #[cfg(planted)]
        if crate::planted::is("opening-names-unsynced") {
            break;
        }
        sync_folder(&folder).map_err(data.io("sync", ""))?;
    }
    let failed = |error| data.open_error(error);
    let end = settled_end(&settled, &testimony).map_err(failed)?;
    // These chapters are marked as settled in sled, but the settling broke off before it wrote the
    // witness. sled may have lost parts of such a chapter, and the journal's copy is given up next.
    for (chapter, _) in read.settled_chapters(end) {
        // sled panics on some damage.
        let checked = quietly(|| check_settled(chapter, &settled, &|| Ok(())));
        let panicked = || Err(why_panicked(&data.path("sled"), "sled's files"));
        checked.unwrap_or_else(panicked).map_err(failed)?;
    }
    unused.extend(take_settled(data, &mut read, end)?);
    let Some((newest, end_of_newest)) = read.chapters.pop() else {
        return Err(data.damaged("its journal is missing"));
    };
    let head = read.head.unwrap_or(end);
    let snapshot = snapshots::newest_number(&data.path("sled")).map_err(data.io("read", "sled"))?;
    let testimony = Testimony {
        commit: end.number,
        chain: end.chain,
        snapshot,
        newest: newest.file.first,
        end: testimony.end,
    };
    let barrier = Arc::clone(&disk.barrier);
    let file = Arc::clone(&newest.file);
    let journal = Journal::resume(&data.path("journal"), barrier, file, end_of_newest);
    let journal = journal.map(|journal| journal.named(data.name_of("journal")));
    let full = read.chapters.into_iter().map(|(mut chapter, _)| {
        chapter.was_left = true;
        Arc::new(chapter)
    });
    let chapters = Chapters {
        full: full.collect(),
        newest,
        head,
    };
    let work = Work {
        settled: Arc::new(settled),
        folder: data.path("sled"),
        barrier: Arc::clone(&disk.barrier),
        witness: (witness, testimony),
        chapter_bytes: disk.chapter_bytes,
        displaced: Arc::default(),
        files: found_files(data)?,
    };
    let seen = open_seen(data, &head)?;
    let journal = journal.map_err(failed)?;
    let log = SledLog::new(
        Arc::clone(data),
        chapters,
        journal,
        work,
        seen,
        disk.fresh_ids,
    );
    // Without this note, the next start would miss the settled files, which are used again below.
    log.note_settled().map_err(failed)?;
    for file in unused {
        file.recycle(disk.chapter_bytes);
    }
    Ok(log)
}

/// Finds the files without which the next opening would refuse the settled part.
fn found_files(data: &DataFolder) -> Result<Vec<FoundFile>, OpenError> {
    let find = |name: &str| FoundFile::find(data.name_of(name));
    let db = find("sled/db").map_err(data.io("find", "sled/db"))?;
    // The witness never gets shorter. The length of sled's file follows from sled's snapshot, and
    // is checked with the snapshot.
    let witness = find("witness").and_then(FoundFile::whole);
    Ok(vec![db, witness.map_err(data.io("find", "witness"))?])
}

/// Opens the note of the last commit that readers have seen. The note lies in the folder of the
/// views: whoever puts an older log in the place of a newer one leaves the files of the views as
/// they are.
fn open_seen(data: &DataFolder, head: &LogHead) -> Result<(SeenNote, ReadersEnd), OpenError> {
    let folder = data.path("views");
    create_private_folder(&folder).map_err(data.io("create", "views"))?;
    let end = ReadersEnd {
        commit: head.number,
        chain: head.chain,
    };
    SeenNote::open(&folder.join(seen::NAME), end).map_err(data.io("open", "views/seen"))
}

/// Chapters of the journal, and the end of the log.
struct ReadJournal {
    /// Chapters, oldest first, each with the offset behind its last record.
    chapters: Vec<(Chapter, u64)>,
    /// End of the log, unless the journal has no commit.
    head: Option<LogHead>,
}

impl ReadJournal {
    /// Returns the chapters that sled has, if the log was settled up to `end`.
    fn settled_chapters(&self, end: LogHead) -> impl Iterator<Item = &(Chapter, u64)> {
        let chapters = self.chapters.iter();
        chapters.take_while(move |(chapter, _)| chapter.file.first <= end.number)
    }
}

/// Reads the journal, which must reach as far as the testimony. Pages of a failed sync are read
/// from the disk again.
fn read_sure(
    data: &DataFolder,
    testimony: &Testimony,
) -> Result<(ReadJournal, Vec<Arc<JournalFile>>), OpenError> {
    // Files are only read here, so that a refusal leaves them unchanged.
    let (mut read, mut unused) = read_journal(data, testimony)?;
    // The witness names a commit only after its sync. So the sync of later commits may have failed,
    // and their pages may be in memory only.
    if read.head.is_some_and(|head| head.number > testimony.end)
        && let Some((newest, _)) = read.chapters.pop()
    {
        let dropped = newest.file.drop_pages();
        dropped.map_err(|error| data.open_error(error))?;
        // Dropped before the second reading: two indexes would take twice the memory, and the locks
        // of the files would refuse the second reading.
        drop((std::mem::take(&mut read.chapters), newest));
        unused.clear();
        (read, unused) = read_journal(data, testimony)?;
    }
    // A journal without commits ends where the settled part does.
    let known = read.head.map_or(testimony.commit, |head| head.number);
    if known < testimony.end {
        let what = format!("it ends at commit {known} and had {}", testimony.end);
        return Err(data.damaged(what));
    }
    Ok((read, unused))
}

/// Reads the files from the first unsettled commit on. Returns the older files, too.
fn read_journal(
    data: &DataFolder,
    testimony: &Testimony,
) -> Result<(ReadJournal, Vec<Arc<JournalFile>>), OpenError> {
    let failed = |error| data.open_error(error);
    let mut files = journal::open_files(&data.path("journal")).map_err(failed)?;
    let missing = |first: CommitNumber| {
        data.damaged(format!("its journal from commit {first} on is missing"))
    };
    // The lock of the folder is not enough: a copy of the folder by hard links has another lock
    // file, but shares these files.
    if files.iter().any(JournalFile::is_in_use) {
        return Err(OpenError::Locked {
            folder: data.name_of("journal"),
            holder: String::new(),
        });
    }
    let first = testimony.commit.next();
    let begin = files.iter().position(|file| file.first == first);
    let rest = files.split_off(begin.ok_or_else(|| missing(first))?);
    // Only the witness shows that the newest file is gone: the other files follow each other even
    // without that file.
    if !rest.iter().any(|file| file.first == testimony.newest) {
        return Err(missing(testimony.newest));
    }
    let mut read = ReadJournal {
        chapters: vec![],
        head: None,
    };
    let (mut chain, mut next, last) = (testimony.chain, first, rest.len() - 1);
    for (index, file) in rest.into_iter().enumerate() {
        if file.first != next || !file.follows(&chain) {
            return Err(missing(next));
        }
        let mut chapter = Chapter::new(Arc::new(file));
        let file = Arc::clone(&chapter.file);
        let end = file.scan(|record| {
            let damaged = || LogError::damaged(format!("commit {} in its journal", record.number));
            let is_next = record.follows(&chain) && chapter.add(record).is_some();
            let facts = chapter.facts(record.number).filter(|_| is_next);
            let facts = chapter.value(facts.ok_or_else(damaged)?)?;
            let facts = CommitFacts::decode(&facts).ok_or_else(damaged)?;
            chain = facts.chain;
            read.head = Some(facts.end(record.number));
            Ok(())
        });
        let end = end.map_err(failed)?;
        next = chapter.next();
        // Only the end of the newest file is checked: the chain hash in the next file vouches for
        // the end of each older file.
        if index == last {
            file.check_end(end, next).map_err(failed)?;
        }
        read.chapters.push((chapter, end));
    }
    Ok((read, files.into_iter().map(Arc::new).collect()))
}

/// Opens sled, if the opening does no harm.
#[expect(
    clippy::disallowed_methods,
    reason = "the next opening removes a probe that comes back"
)]
fn open_settled(
    data: &DataFolder,
    testimony: &Testimony,
    stood_still: bool,
) -> Result<SettledPart, OpenError> {
    let folder = data.path("sled");
    // A kill may have left the probe of an earlier process.
    let _absent = fs::remove_file(data.path("sled.probe"));
    if testimony.commit == CommitNumber(0) {
        // All commits are in the journal, so the remains of a broken first settling are of no use.
        data.remove_folder("sled")?;
        create_private_folder(&folder).map_err(data.io("create", "sled"))?;
        let settled = SettledPart::open(&folder).map_err(|error| data.unopened("sled", error))?;
        let begun = settled
            .put(VERSION_KEY, &STORAGE_VERSION.to_be_bytes())
            .and_then(|()| settled.flush());
        begun.map_err(|error| data.open_error(error))?;
        // sled does not sync its configuration, and the first settling gives up the journal's copy
        // of the commits.
        sync_tree(&folder).map_err(data.io("sync", "sled"))?;
        return Ok(settled);
    }
    // A settling may have broken off with a failed sync, and the rehearsal must see what is on the
    // disk.
    if !stood_still {
        drop_pages_in(&folder).map_err(data.io("sync", "sled"))?;
    }
    check_access(data)?;
    match rehearse(&folder, testimony.snapshot) {
        Ok(_is_whole) => {}
        Err(RecoveryRefusal::Io(source)) => return Err(data.io("read", "sled")(source)),
        Err(RecoveryRefusal::Harm(what)) => return Err(data.damaged(what)),
    }
    let named = snapshots::remove_unfinished(&folder)
        .and_then(|()| snapshots::put_back(&folder))
        .and_then(|()| snapshots::keep(&folder));
    named.map_err(data.io("write to", "sled"))?;
    let settled = SettledPart::open(&folder).map_err(|error| data.unopened("sled", error))?;
    // sled syncs none of the files that it finds, and the journal's copy may be given up next.
    sync_tree(&folder)
        .and_then(|()| snapshots::release(&folder))
        .map_err(data.io("sync", "sled"))?;
    refuse_other(&settled, data.held().name())?;
    Ok(settled)
}

/// Refuses sled's records if another version of the program wrote them: this version would misread
/// them.
fn refuse_other(settled: &SettledPart, named: &Path) -> Result<(), OpenError> {
    // sled panics on some damage. Unreadable records are found, and named, where they are needed.
    let other = quietly(|| settled.other_version().ok().flatten());
    match other.flatten() {
        Some(version) => Err(OpenError::of_version(named, version)),
        None => Ok(()),
    }
}

/// Checks that sled's file can be written, and that no other process has the file open. The lock of
/// the folder does not show such a process if it has opened a copy of the folder by hard links,
/// which shares sled's file.
fn check_access(data: &DataFolder) -> Result<(), OpenError> {
    let path = data.path("sled").join("db");
    // The rehearsal refuses a path that leads to no regular file. Opening one here could wait, as
    // for a pipe.
    if !fs::metadata(&path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let file = fs::File::options().read(true).write(true).open(&path);
    let file = file.map_err(data.io("write to", "sled/db"))?;
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::Locked {
            folder: data.name_of("sled"),
            holder: String::new(),
        }),
        // A file system without locks shows none.
        _ => Ok(()),
    }
}

/// Returns the end of the settled part, which is not before the commit of the witness.
fn settled_end(settled: &SettledPart, testimony: &Testimony) -> Result<LogHead, LogError> {
    if testimony.commit == CommitNumber(0) {
        return Ok(LogHead::START);
    }
    let end = settled.raw_value(SETTLED_KEY)?;
    let end = end.and_then(|end| record::decode_end(&end));
    let end = end.ok_or_else(|| LogError::damaged("sled has lost its end"))?;
    let is_behind = end.number < testimony.commit;
    // An end after the commit of the testimony is no fault: a kill came between the settling and
    // the note in the witness.
    if is_behind || (end.number == testimony.commit && end.chain != testimony.chain) {
        let what = format!("commit {} is not what it was", testimony.commit);
        return Err(LogError::damaged(what));
    }
    Ok(end)
}

/// Removes chapters that are in sled although the witness does not name them yet. Returns the files
/// of these chapters.
fn take_settled(
    data: &DataFolder,
    read: &mut ReadJournal,
    end: LogHead,
) -> Result<Vec<Arc<JournalFile>>, OpenError> {
    let settled = read.settled_chapters(end).count();
    let settled = read.chapters.drain(..settled);
    let files = settled.map(|(chapter, _)| chapter.file).collect();
    // Checked before any file is given up: a hole between sled and the journal must stay as it is
    // for `recover`.
    let goes_on = read.chapters.first().is_some_and(|(chapter, _)| {
        chapter.file.first == end.number.next() && chapter.file.follows(&end.chain)
    });
    if goes_on {
        return Ok(files);
    }
    let what = format!("its journal does not go on behind commit {}", end.number);
    Err(data.damaged(what))
}

/// Store of a log in sled: a data folder.
#[derive(Debug)]
pub struct SledStore {
    log: Arc<SledLog>,
    folder: Arc<DataFolder>,
}

#[cfg(test)]
impl SledStore {
    /// Waits for the end of a settling.
    pub(crate) fn wait_for_settling(&self) {
        self.log.wait_for_settling();
    }
}

impl From<OpenedLog> for SledStore {
    fn from(OpenedLog { log, folder }: OpenedLog) -> Self {
        Self {
            log: Arc::new(log),
            folder,
        }
    }
}

impl LogStore for SledStore {
    fn log(&self) -> Arc<dyn WritableLog> {
        Arc::<SledLog>::clone(&self.log)
    }

    fn watermark(&self) -> Result<Watermark, StoreError> {
        let path = self.folder.watermark();
        Ok(Watermark::open(&path).map_err(failed("open", &path))?)
    }

    fn moment(&self) -> Option<MomentNote> {
        Some(self.folder.moment())
    }

    fn folder(&self) -> Option<HeldFolder> {
        Some(self.folder.held().clone())
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

    fn begin_work(&self) {
        self.log.settle_rest();
    }

    fn end_work(&self) {
        self.log.end_settling();
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
    /// Closes the log, and notes where the log ends.
    ///
    /// # Errors
    ///
    /// Returns the failed write. Nothing acknowledged is lost.
    pub fn close(self) -> Result<(), OpenError> {
        let Self { log, folder } = self;
        log.close().map_err(|error| folder.open_error(error))
    }
}

#[cfg(test)]
mod tests {
    use simplefeed_core::{commit::Commit, timestamp::Timestamp};

    use super::*;
    use crate::{Append as _, Commits as _, fixtures::create};

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

    /// A first start may break off anywhere: until the witness has a testimony, nothing was ever
    /// stored.
    #[test]
    fn a_first_start_that_broke_off_is_begun_again() {
        for leftover in ["journal", "spare", "witness", "sled"] {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            fs::create_dir(path("journal")).unwrap();
            match leftover {
                "spare" => fs::write(path("journal/spare"), [0; 100]).unwrap(),
                "witness" => fs::write(path("witness"), [0; 7]).unwrap(),
                "sled" => {
                    drop(open(folder.path()).unwrap());
                    fs::write(path("sled/db"), "half").unwrap();
                }
                _ => {}
            }
            let opened = open(folder.path()).unwrap();
            assert_eq!(opened.log.head().number, CommitNumber(0), "{leftover}");
            opened.close().unwrap();
        }
    }

    /// Goal: records of an older layout are refused, by a start and by `recover`, though the
    /// witness names this version, or is gone.
    #[test]
    fn records_of_an_older_version_are_refused() {
        let others: [(&[u8], &[u8]); 3] =
            [(VERSION_KEY, &[0, 0, 0, 3]), (b"h1", b""), (b"c1", b"")];
        for (key, value) in others {
            let folder = tempfile::tempdir().unwrap();
            let opened = open(folder.path()).unwrap();
            let commit = Commit {
                number: CommitNumber(1),
                instant: Timestamp::from_micros(1),
                changes: create(1),
            };
            opened.log.append(&commit).unwrap();
            opened.log.settled.put(key, value).unwrap();
            opened.log.settle_all();
            opened.close().unwrap();
            let is_refused = |refused: OpenError| match refused {
                OpenError::Older { version, .. } => assert_eq!(version, 3),
                refused => panic!("{key:?}: {refused}"),
            };
            is_refused(open(folder.path()).unwrap_err());
            for is_told in [true, false] {
                if !is_told {
                    fs::remove_file(folder.path().join("witness")).unwrap();
                }
                let scratch = tempfile::tempdir().unwrap();
                is_refused(salvage(folder.path(), scratch.path()).unwrap_err());
            }
        }
    }

    /// Goal: a log of another storage version is named, and left untouched.
    #[test]
    fn another_storage_version_is_refused_untouched() {
        for version in [1, STORAGE_VERSION - 1, STORAGE_VERSION + 1] {
            let folder = tempfile::tempdir().unwrap();
            open(folder.path()).unwrap().close().unwrap();
            let path = folder.path().join("witness");
            let mut slots = fs::read(&path).unwrap();
            // The oldest versions had shorter slots.
            let length = if version == 1 { 60 } else { 76 };
            for slot in [0, 512] {
                let other = slots.get_mut(slot..slot + length).unwrap();
                other[3] = char::from_digit(version, 10).unwrap().try_into().unwrap();
                let sealed = crate::codec::seal(other.to_vec());
                slots[slot..slot + length + 4].copy_from_slice(&sealed);
            }
            fs::write(&path, slots).unwrap();
            let before = files(folder.path());
            let scratch = tempfile::tempdir().unwrap();
            for refused in [
                open(folder.path()).unwrap_err(),
                salvage(folder.path(), scratch.path()).unwrap_err(),
            ] {
                let found = match refused {
                    OpenError::Newer { version, .. } if version > STORAGE_VERSION => version,
                    OpenError::Older { version, .. } if version < STORAGE_VERSION => version,
                    refused => panic!("{refused}"),
                };
                assert_eq!(found, version);
            }
            assert!(before == files(folder.path()), "the refusal changed a file");
        }
    }
}
