//! Logs of storage versions 1 and 2, which had no journal: all of them was in sled.
//!
//! Shell: the data folder. After a clean stop, sled may open such a log in place if its files are still as they were;
//! else it gets a copy, the copy is checked against the old witness, and only a good one takes the place of the
//! original. From then on the log has a journal.

use std::{fs, io, os::unix::fs::FileExt as _, path::Path, sync::Arc, time::SystemTime};

use simplefeed_core::{commit::ChangeOutline, feed::CommitNumber};
use simplefeed_process::regular;
use tracing::info;

use super::{
    LogError, LogHead,
    barrier::{Barrier, Step, sync_tree},
    folder::{DataFolder, OpenError, copy_folder},
    journal::Journal,
    record::{self, CommitFacts, SETTLED_KEY, STORAGE_VERSION, VERSION_KEY},
    rehearsal::SEGMENT_BYTES,
    settled::Settled,
    snapshots,
    space::{folder_bytes, free_bytes},
    witness::{Testimony, Witness},
};

/// Commits at the end that are read before an old log is taken over.
const CHECKED_COMMITS: u64 = 16;
/// Most bytes of sled's files of which every one is read before sled may work in place.
const LOOKED_AT_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };
/// Bytes of one sample, and most samples of a file of a large log.
const LOOK_BYTES: usize = 16 * 1024;
const LOOKS_MAX: u64 = 4_096;

/// Brings a log of storage version 1 or 2 to this version. Returns its new testimony.
///
/// # Errors
///
/// See [`OpenError`].
pub(super) fn upgrade(
    data: &DataFolder,
    barrier: &Arc<dyn Barrier>,
    witness: &mut Witness,
    old: &Testimony,
) -> Result<Testimony, OpenError> {
    barrier.begins(Step::Upgrading);
    if is_unchanged(data) {
        // Gone before sled may write: a crash from here on is an unclean stop.
        data.remove_file("clean")?;
        snapshots::remove_unfinished(&data.path("sled")).map_err(data.io("remove", "sled"))?;
    } else {
        put_copy_in_place(data, old)?;
    }
    info!("the log is brought to storage version {STORAGE_VERSION}");
    barrier.begins(Step::Upgrading);
    let sled = data.path("sled");
    let settled = open_old(data, "sled")?;
    let end = check(&settled, old, CHECKED_COMMITS).map_err(|error| data.open_error(error))?;
    let converted = convert(&settled, end).and_then(|()| settled.close());
    converted.map_err(|error| data.open_error(error))?;
    sync_tree(&sled).map_err(data.io("sync", "sled"))?;
    barrier.begins(Step::Upgrading);
    let first = end.number.next();
    let journal = data.path("journal");
    Journal::create(&journal, Arc::clone(barrier), first, end.chain)
        .map_err(|error| data.open_error(error))?;
    let testimony = Testimony {
        commit: end.number,
        chain: end.chain,
        snapshot: snapshots::newest_number(&sled).map_err(data.io("read", "sled"))?,
        newest: first,
        end: end.number,
    };
    // Last: until now, the log counts as an old one that was not closed.
    witness
        .write(&testimony)
        .and_then(|()| witness.sync())
        .map_err(data.io("write", "witness"))?;
    Ok(testimony)
}

/// Removes from a log of this version what an upgrade has left, which may have broken off before.
///
/// # Errors
///
/// See [`OpenError`].
#[expect(
    clippy::disallowed_methods,
    reason = "the mark means nothing in this version"
)]
pub(super) fn remove_rest(data: &DataFolder) -> Result<(), OpenError> {
    for name in ["sled.before", "sled.opening"] {
        data.remove_folder(name)?;
    }
    // The mark of a clean stop, which is not true any more.
    let _gone = fs::remove_file(data.path("clean"));
    Ok(())
}

/// Returns whether the last stop was clean and sled's files are unchanged since. sled's recovery overwrites
/// segments that look torn, so the files are compared before: every byte of a small log; of a large one, which cannot be read in the
/// time of a start, the time of the last write, the length and some bytes of each file.
fn is_unchanged(data: &DataFolder) -> bool {
    let Ok(mark) = regular::read_text(data.path("clean")) else {
        return false;
    };
    let folder = data.path("sled");
    let found = folder_bytes(&folder).and_then(|bytes| {
        let mut hasher = crc32fast::Hasher::new();
        look_at(&folder, bytes > LOOKED_AT_BYTES_MAX, &mut hasher)?;
        let checksum = hasher.finalize();
        Ok(format!(", sled {bytes} bytes, CRC-32 {checksum:08x}\n"))
    });
    // The number of the storage version comes first.
    found.is_ok_and(|found| mark.ends_with(&found))
}

/// Adds the files of a folder to a checksum, in the order of their names; of a large folder, only times,
/// lengths and samples.
fn look_at(folder: &Path, large: bool, hasher: &mut crc32fast::Hasher) -> io::Result<()> {
    let mut paths = vec![];
    for item in fs::read_dir(folder)? {
        paths.push(item?.path());
    }
    // `read_dir` has no order, and the checksum must be the same each time.
    paths.sort();
    let mut buffer = vec![0; LOOK_BYTES];
    for path in paths {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        if path.is_dir() {
            look_at(&path, large, hasher)?;
            continue;
        }
        let file = regular::open(path)?;
        let length = file.metadata()?.len();
        hasher.update(&length.to_be_bytes());
        let look = u64::try_from(LOOK_BYTES).unwrap_or(u64::MAX);
        let mut stride = look;
        if large {
            // The time of the last write covers the bytes between the samples.
            let written = file.metadata()?.modified()?;
            let since = written.duration_since(SystemTime::UNIX_EPOCH);
            hasher.update(&since.unwrap_or_default().as_nanos().to_be_bytes());
            stride = (length / LOOKS_MAX).max(look);
        }
        let next = |at: &u64| Some(at + stride).filter(|next| *next < length);
        // The end of the file is always a sample, so that its last bytes are covered.
        let end = length.saturating_sub(look);
        for at in std::iter::successors(Some(0), next).chain([end]) {
            let read = file.read_at(&mut buffer, at)?;
            hasher.update(buffer.get(..read).unwrap_or_default());
        }
    }
    Ok(())
}

/// Checks a copy and puts it in the place of the original, which is kept until the upgrade is done.
fn put_copy_in_place(data: &DataFolder, old: &Testimony) -> Result<(), OpenError> {
    let source = source(data, old)?;
    // sled may have released segments at the end of its file; then every commit is checked.
    let checked = if is_shorter(data, source, old)? {
        u64::MAX
    } else {
        CHECKED_COMMITS
    };
    // An earlier opening that broke off has left it.
    data.remove_folder("sled.opening")?;
    make_room(data, source)?;
    let copy = data.path("sled.opening");
    copy_folder(&data.path(source), &copy).map_err(data.io("copy to", "sled.opening"))?;
    snapshots::remove_unfinished(&data.path("sled.opening"))
        .map_err(data.io("remove", "sled.opening"))?;
    let checked = open_old(data, "sled.opening").and_then(|settled| {
        let checked = check(&settled, old, checked).and_then(|_| settled.close());
        checked.map_err(|error| data.open_error(error))
    });
    if let Err(error) = checked {
        data.remove_folder("sled.opening")?;
        return Err(error);
    }
    // Before the swap: a power cut must not leave a partial copy in the place of the original.
    sync_tree(&copy).map_err(data.io("sync", "sled.opening"))?;
    if source == "sled" {
        data.remove_folder("sled.before")?;
        data.rename("sled", "sled.before")?;
    }
    data.rename("sled.opening", "sled")
}

/// Returns the folder to copy from.
fn source(data: &DataFolder, old: &Testimony) -> Result<&'static str, OpenError> {
    let db = fs::metadata(data.path("sled").join("db"));
    // An empty file without any commit is left of a first start that broke off.
    let begun = |bytes: u64| bytes > 0 || old.commit > CommitNumber(0);
    if db.is_ok_and(|db| begun(db.len())) {
        return Ok("sled");
    }
    // The last opening stopped between the two renames of a swap. This folder is checked like any other copy.
    if !data.path("sled").exists() && data.path("sled.before").join("db").exists() {
        return Ok("sled.before");
    }
    Err(data.damaged("sled/db is missing"))
}

/// Returns whether sled's file is shorter than the witness recorded, by whole segments, which sled itself may have
/// released since. Any other file that is shorter has lost something.
fn is_shorter(data: &DataFolder, source: &str, old: &Testimony) -> Result<bool, OpenError> {
    let path = data.path(source).join("db");
    let found = fs::metadata(path)
        .map_err(data.io("measure", source))?
        .len();
    let expected = old.snapshot;
    if found >= expected || (found > 0 && found.is_multiple_of(SEGMENT_BYTES)) {
        return Ok(found < expected);
    }
    let what = format!("{source}/db has {found} bytes and had {expected}");
    Err(data.damaged(what))
}

/// Makes sure that there is room for a copy. An original kept since an earlier unclean stop is removed only if there
/// is none otherwise: the log in its place was checked.
fn make_room(data: &DataFolder, source: &str) -> Result<(), OpenError> {
    let needed = folder_bytes(&data.path(source)).map_err(data.io("measure", source))?;
    let free = || free_bytes(&data.path).map_err(data.io("measure", ""));
    if free()? >= needed {
        return Ok(());
    }
    // That original may be the source itself.
    if source != "sled.before" {
        data.remove_folder("sled.before")?;
    }
    let free = free()?;
    if free >= needed {
        return Ok(());
    }
    Err(OpenError::NoRoom {
        folder: data.held().name().into(),
        needed,
        free,
    })
}

/// Opens sled, and refuses a storage version that this program does not know.
fn open_old(data: &DataFolder, name: &str) -> Result<Settled, OpenError> {
    let settled = Settled::open(&data.path(name)).map_err(|error| data.unopened(name, error))?;
    let version = settled.raw_value(VERSION_KEY);
    let version = version.map_err(|error| data.open_error(error))?;
    let version = version.and_then(|version| version.first_chunk::<4>().copied());
    match version.map(u32::from_be_bytes) {
        None => Err(data.damaged("its storage version is missing")),
        Some(version) if version > STORAGE_VERSION => Err(OpenError::Newer {
            folder: data.held().name().into(),
            version,
        }),
        Some(_) => Ok(settled),
    }
}

/// Checks an old log: not behind its witness, its newest `commits` and their feeds readable. Returns where it ends.
fn check(settled: &Settled, old: &Testimony, commits: u64) -> Result<LogHead, LogError> {
    let end = end_of(settled)?;
    if end.number < old.commit {
        let what = format!("it ends at commit {} and had {}", end.number, old.commit);
        return Err(LogError::damaged(what));
    }
    // Another log may have as many commits, but not the same chain hash.
    if old.commit > CommitNumber(0) && facts_of(settled, old.commit)?.chain != old.chain {
        let what = format!("commit {} is not what it was", old.commit);
        return Err(LogError::damaged(what));
    }
    for number in end.number.0.saturating_sub(commits) + 1..=end.number.0 {
        for change in facts_of(settled, CommitNumber(number))?.changes {
            check_change(settled, &change)?;
        }
    }
    Ok(end)
}

/// Checks that the entries of a change are there, and that the head of their feed counts them.
fn check_change(settled: &Settled, change: &ChangeOutline) -> Result<(), LogError> {
    let ChangeOutline::Entries { feed, first, count } = *change else {
        return Ok(());
    };
    let end = simplefeed_core::feed::Position(first.0 + count);
    let mut entries = vec![];
    settled.entries(feed, &(first..end), &mut entries)?;
    let head = settled.head(feed)?;
    let head = head.and_then(|head| record::decode_head(&head));
    let counts_them = head.is_some_and(|head| head.next >= end);
    if counts_them && u64::try_from(entries.len()).is_ok_and(|found| found == count) {
        return Ok(());
    }
    let what = format!("entries from {first} on of feed {} are missing", feed.0);
    Err(LogError::damaged(what))
}

fn facts_of(settled: &Settled, number: CommitNumber) -> Result<CommitFacts, LogError> {
    let facts = settled.facts_from(number)?.into_iter().next();
    let facts = facts.and_then(|facts| CommitFacts::decode(&facts));
    facts.ok_or_else(|| LogError::damaged(format!("commit {number} is missing")))
}

/// Returns the end of an old log, which its last commit tells.
pub(super) fn end_of(settled: &Settled) -> Result<LogHead, LogError> {
    match settled.last_of(b'c')? {
        None => Ok(LogHead::START),
        Some(key) => {
            let number = record::commit_of_key(&key);
            let number = number.ok_or_else(|| record::damaged("commit", &key))?;
            Ok(facts_of(settled, number)?.end(number))
        }
    }
}

/// Gives an old log what it lacks. The version comes last, so that a conversion that breaks off is begun again.
fn convert(settled: &Settled, end: LogHead) -> Result<(), LogError> {
    // In version 1, ids were keys of sled; they are in files of their own, made from the commits.
    settled.remove(b"i")?;
    settled.put(SETTLED_KEY, &record::encode_end(&end))?;
    settled.make_sweeping_tree()?;
    settled.put(VERSION_KEY, &STORAGE_VERSION.to_be_bytes())?;
    settled.flush()?;
    settled.reopen(|| Ok(()))
}
