//! The journal: the way of each commit into the log, one write and one sync.
//!
//! Shell: files below `<data>/journal`. Commits are appended to the newest file. A full file is
//! settled: the content goes to sled, and the room is used again. Zeros fill a file before records
//! do, because a sync that need not record new blocks takes half the time.
//!
//! ```text
//! file     "SFJ1" | number of its first commit u64 | chain hash before it 32 | CRC-32 u32 | zeros up to 512
//! record   length u32 | CRC-32 u32 | number u64 | link u64 | items, filled up to 8 bytes
//! item     length of the key u8 | key | length of the value | value; the first has the facts of the commit
//! ```
//!
//! The length is that of the items; the CRC covers everything behind the CRC. The link is the
//! beginning of the chain hash before the commit. A file that is used again still has old records
//! behind the end of the new ones. Their numbers are smaller, so no reader takes them for new
//! records.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::{fs::OFlags, io::Errno};
use simplefeed_core::{feed::CommitNumber, history::ChainHash};
use simplefeed_process::{lack::unless_lacking, regular};
use tracing::warn;

use crate::codec::{Reader, RecordWriter, seal, unseal};
#[cfg(planted)]
use crate::planted;
use crate::{
    LogError,
    barrier::{Barrier, LogStep, drop_pages, sync_folder},
    durable::{self, create_private_folder},
    held::{self, FileIdentity, visible_path},
};

const MAGIC: &[u8; 4] = b"SFJ1";
/// Bytes that a disk writes as a whole or not at all.
const SECTOR_BYTES: u64 = 512;
/// Offset of the first record, so that the head of a file has a sector of its own.
const HEAD_BYTES: u64 = SECTOR_BYTES;
const RECORD_HEAD_BYTES: usize = 24;
const RECORD_HEAD_LENGTH: u64 = 24;
/// Bytes of a record up to the end of its number. If they lie in one sector, a right number vouches
/// for the length, which comes before the number.
const NUMBERED_BYTES: u64 = 16;
/// Length of a commit's key, and bytes of a record up to the end of the first key, which is a
/// commit's key.
const COMMIT_KEY_BYTES: u8 = 9;
const LIKELY_BYTES: u64 = RECORD_HEAD_LENGTH + 1 + 9;
/// Numbers of commits in one file are nearer to each other than this. Other bytes that are read as
/// a number are hardly ever so near.
const NUMBERS_APART: u64 = 1 << 32;
/// Records begin at multiples of this.
const ALIGNMENT: usize = 8;
/// Least and most bytes of zeros that are written ahead.
const AHEAD_BYTES: [u64; 2] = [64 * 1024, 1024 * 1024];
/// Zeros that are written at a time. They are static: otherwise, the system would have to map and
/// clear new memory for each write.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
/// Bytes read at a time when a file is read from its beginning.
const READ_BYTES: u64 = 1024 * 1024;
/// Name of a file whose content is settled, and whose room is used again.
const SPARE: &str = "spare";
/// Longest time in which commits are acknowledged without a look for the newest file by name.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The place of a value in a file of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalPlace {
    at: u32,
    length: u32,
}

#[cfg(test)]
impl JournalPlace {
    /// Returns a place whose value is not whole.
    pub(super) fn shortened(self) -> Self {
        let length = self.length - 1;
        Self { length, ..self }
    }
}

/// A file of the journal, for readers. A removed file stays readable.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    identity: FileIdentity,
    path: PathBuf,
    /// Number of the first commit in the file.
    pub(super) first: CommitNumber,
    /// Chain hash before that commit.
    before: ChainHash,
    /// Length of the file, in bytes, when it was opened, or when the journal began the next file.
    length: AtomicU64,
    /// Whether a value of the file was found damaged: the next opening refuses such a log.
    is_damaged: AtomicBool,
}

impl JournalFile {
    /// Returns the value at a place, whose checksum is right.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk, or that the value is damaged.
    pub(super) fn value(&self, place: JournalPlace) -> Result<Bytes, LogError> {
        // Noted for the writer: a file with a damaged value takes no more commits, because the next
        // opening would refuse the log.
        let value = self.whole_value(place);
        if let Err(LogError::Damaged { .. }) = value {
            self.is_damaged.store(true, Ordering::Release);
        }
        value
    }

    fn whole_value(&self, place: JournalPlace) -> Result<Bytes, LogError> {
        // The length needs no bound: the index takes places only from records whose checksum was
        // right.
        let mut value = vec![0; usize::try_from(place.length).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut value, u64::from(place.at));
        read.map_err(LogError::io("read", &self.path))?;
        let damaged = || {
            let path = visible_path(&self.path);
            LogError::damaged(format!("{} at {}", path.display(), place.at))
        };
        // The value is sliced and not copied: value and checksum share an allocation.
        let length = unseal(&value).ok_or_else(damaged)?.len();
        Ok(Bytes::from(value).slice(..length))
    }

    /// Returns whether a value of the file was found damaged.
    pub(super) fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Acquire)
    }

    fn damage_at(&self, at: u64, what: &str) -> LogError {
        let path = visible_path(&self.path);
        LogError::damaged(format!("{} {what} at {at}", path.display()))
    }

    /// Hands over the records from the beginning on. Returns the offset behind the last one.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk, or the error of `take`. A damaged record is no error here:
    /// the scan ends before that record, and [`check_end`](Self::check_end) judges the rest.
    pub(super) fn scan(
        &self,
        mut take: impl FnMut(&JournalRecord<'_>) -> Result<(), LogError>,
    ) -> Result<u64, LogError> {
        let length = self.file_length()?;
        let (mut at, mut number) = (HEAD_BYTES, self.first);
        let mut piece = ReadAhead::default();
        // A record of an earlier use of the file is whole, too. Only its number, which is smaller,
        // tells that the new records have ended.
        while let Some(record) = self.record_at(at, length, &mut piece)?
            && record.number == number
        {
            take(&record)?;
            at += record.bytes();
            number = number.next();
        }
        Ok(at)
    }

    /// Checks that no acknowledged commit is missing behind the records, which end at `end`. A
    /// crash may have torn a commit there, but only the last one. `next` is the number of that
    /// commit.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk, that the file was cut or extended, or that there is a later
    /// commit, so that the commit at `end` was acknowledged and is damaged.
    pub(super) fn check_end(&self, end: u64, next: CommitNumber) -> Result<(), LogError> {
        let length = self.file_length()?;
        let (mut at, mut piece) = (end, ReadAhead::default());
        // A file grows before a record is written, so no record reaches over the end of the file.
        let head = self.bytes_at(at, RECORD_HEAD_LENGTH, length, &mut piece)?;
        let head = head.and_then(RecordHead::decode_head);
        // If length and number lie in two sectors, a power cut may have kept only one of these. The
        // length may then come from an earlier use of the file, and proves nothing.
        let is_whole = at / SECTOR_BYTES == (at + NUMBERED_BYTES - 1) / SECTOR_BYTES;
        let is_cut = |head: &RecordHead| {
            let end = at + RECORD_HEAD_LENGTH + u64::from(head.length);
            is_whole && head.number == next && end > length
        };
        let [least, _] = AHEAD_BYTES;
        if head.is_some_and(|head| is_cut(&head)) {
            return Err(self.damage_at(end, "is cut short"));
        }
        #[cfg(planted)]
        if planted::is("torn-is-damage") {
            let rest = self.bytes_at(at, 8, length, &mut piece)?;
            if rest.is_some_and(|rest| rest.iter().any(|byte| *byte != 0)) {
                return Err(self.damage_at(end, "is torn"));
            }
        }
        if !length.is_multiple_of(least) {
            return Err(
                self.damage_at(length, "was cut or extended, for no file of a journal ends")
            );
        }
        let step = u64::try_from(ALIGNMENT).unwrap_or(1);
        while at < length {
            // Records of an earlier use of the file have smaller numbers.
            let number = self.likely_record(at, length, &mut piece)?;
            let is_later = number.is_some_and(|number| number > next);
            if is_later && self.record_at(at, length, &mut piece)?.is_some() {
                return Err(self.damage_at(end, "is damaged"));
            }
            at += step;
        }
        Ok(())
    }

    fn file_length(&self) -> Result<u64, LogError> {
        let file = self.file.metadata();
        Ok(file.map_err(LogError::io("measure", &self.path))?.len())
    }

    /// Returns the number of the record that seems to begin at an offset. This look reads few
    /// bytes. A checksum would cover as many bytes as the length says, and any four bytes may stand
    /// for a length.
    fn likely_record(
        &self,
        at: u64,
        length: u64,
        piece: &mut ReadAhead,
    ) -> Result<Option<CommitNumber>, LogError> {
        let Some(seen) = self.bytes_at(at, LIKELY_BYTES, length, piece)? else {
            return Ok(None);
        };
        // The first item of each record has the commit's number in its key.
        let (head, item) = seen.split_at(RECORD_HEAD_BYTES);
        let Some(found) = item.strip_prefix(&[COMMIT_KEY_BYTES, b'c']) else {
            return Ok(None);
        };
        let number = RecordHead::decode_head(head).map(|head| head.number);
        // An entry's text has no bytes 0, so the text cannot counterfeit a number that is near.
        let begins = |number: &CommitNumber| {
            number.0.abs_diff(self.first.0) < NUMBERS_APART && *found == number.0.to_be_bytes()
        };
        Ok(number.filter(begins))
    }

    /// Returns the record at an offset, if the record is whole.
    fn record_at<'p>(
        &self,
        at: u64,
        length: u64,
        piece: &'p mut ReadAhead,
    ) -> Result<Option<JournalRecord<'p>>, LogError> {
        let Some(head) = self.bytes_at(at, RECORD_HEAD_LENGTH, length, piece)? else {
            return Ok(None);
        };
        let Some(head) = RecordHead::decode_head(head) else {
            return Ok(None);
        };
        let bytes = RECORD_HEAD_LENGTH + u64::from(head.length);
        let Some(record) = self.bytes_at(at, bytes, length, piece)? else {
            return Ok(None);
        };
        let (_, checked) = record.split_at(8);
        let (_, items) = record.split_at(RECORD_HEAD_BYTES);
        if crc32fast::hash(checked) != head.checksum {
            return Ok(None);
        }
        let number = head.number;
        let link = head.link;
        Ok(Some(JournalRecord {
            number,
            link,
            at,
            items,
        }))
    }

    /// Returns bytes of the file, or `None` beyond its end. Reads ahead.
    fn bytes_at<'p>(
        &self,
        at: u64,
        count: u64,
        length: u64,
        piece: &'p mut ReadAhead,
    ) -> Result<Option<&'p [u8]>, LogError> {
        if at.saturating_add(count) > length {
            return Ok(None);
        }
        let held = piece.at + u64::try_from(piece.bytes.len()).unwrap_or(u64::MAX);
        // `check_end` and `scan_remains` look at each eighth byte, so a read for each look would
        // take far too long.
        if at < piece.at || at + count > held {
            let wanted = count.max(READ_BYTES).min(length - at);
            piece.bytes.resize(usize::try_from(wanted).unwrap_or(0), 0);
            piece.at = at;
            let read = self.file.read_exact_at(&mut piece.bytes, at);
            read.map_err(LogError::io("read", &self.path))?;
        }
        let from = usize::try_from(at - piece.at).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Ok(piece.bytes.get(from..from.saturating_add(count)))
    }
}

/// Bytes of a file that were read ahead.
#[derive(Debug, Default)]
struct ReadAhead {
    at: u64,
    bytes: Vec<u8>,
}

struct RecordHead {
    length: u32,
    checksum: u32,
    number: CommitNumber,
    link: [u8; 8],
}

impl RecordHead {
    fn decode_head(head: &[u8]) -> Option<Self> {
        let mut from = Reader(head);
        let head = Self {
            length: u32::from_be_bytes(from.chunk()?),
            checksum: u32::from_be_bytes(from.chunk()?),
            number: CommitNumber(from.long()?),
            link: from.chunk()?,
        };
        // Zeros are no record.
        (head.length > 0).then_some(head)
    }
}

/// A record of a commit in a file.
#[derive(Debug)]
pub(super) struct JournalRecord<'p> {
    /// Number of the commit.
    pub(super) number: CommitNumber,
    link: [u8; 8],
    at: u64,
    items: &'p [u8],
}

impl<'p> JournalRecord<'p> {
    /// Returns whether the record's commit follows a commit with this chain hash.
    pub(super) fn follows(&self, chain: &ChainHash) -> bool {
        self.link == link_of(chain)
    }

    /// Returns the bytes that the record takes in the file.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = (RECORD_HEAD_BYTES + self.items.len()).next_multiple_of(ALIGNMENT);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Returns the keys and values, and the place of each value. `None` stands for an unreadable
    /// item.
    pub(super) fn items(&self) -> impl Iterator<Item = Option<RecordItem<'p>>> + use<'p> {
        let (whole, at) = (self.items, self.at);
        let mut from = Reader(whole);
        std::iter::from_fn(move || {
            (!from.0.is_empty()).then(|| {
                let [key] = from.chunk::<1>()?;
                let key = from.bytes(usize::from(key))?;
                let length = from.length()?;
                let offset = RECORD_HEAD_BYTES + (whole.len() - from.0.len());
                let value = from.bytes(length)?;
                let place = JournalPlace {
                    at: u32::try_from(at + u64::try_from(offset).ok()?).ok()?,
                    length: u32::try_from(length).ok()?,
                };
                Some(RecordItem { key, value, place })
            })
        })
    }
}

/// A key and its value in a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordItem<'p> {
    pub(super) key: &'p [u8],
    /// The value and the checksum behind it.
    pub(super) value: &'p [u8],
    pub(super) place: JournalPlace,
}

fn link_of(chain: &ChainHash) -> [u8; 8] {
    let (link, _) = chain.0.0.split_first_chunk().expect("a hash has 32 bytes");
    *link
}

/// Returns the bytes of a record.
fn encode_record(
    number: CommitNumber,
    before: &ChainHash,
    items: &[(Vec<u8>, Vec<u8>)],
) -> Vec<u8> {
    let bytes = items.iter().map(|(key, value)| key.len() + value.len() + 6);
    let mut out = RecordWriter(Vec::with_capacity(
        RECORD_HEAD_BYTES + bytes.sum::<usize>() + 8,
    ));
    // Room for the length and the checksum, which are known only after the items.
    out.bytes(&[0; 8]);
    out.long(number.0);
    out.bytes(&link_of(before));
    for (key, value) in items {
        out.bytes(&[u8::try_from(key.len()).expect("keys are short")]);
        out.bytes(key);
        out.length(value.len());
        out.bytes(value);
    }
    let RecordWriter(mut record) = out;
    let length = u32::try_from(record.len() - RECORD_HEAD_BYTES).expect("a commit is below 4 GiB");
    let checksum = crc32fast::hash(record.split_at(8).1);
    let head = [length.to_be_bytes(), checksum.to_be_bytes()].concat();
    record.splice(..8, head);
    record
}

/// A look that found the newest file by name.
#[derive(Clone, Copy, Debug)]
struct NameCheck {
    /// Time at which the look began.
    at: Instant,
    /// Number of names that the file had.
    names: u64,
}

/// The journal, for the writer.
pub(super) struct Journal {
    folder: PathBuf,
    /// Path of the folder by name, where the next opening looks for the files.
    name: PathBuf,
    /// Path of the newest file below `name`.
    place: PathBuf,
    barrier: Arc<dyn Barrier>,
    file: Arc<JournalFile>,
    /// Offset of the next record.
    end: u64,
    /// Length of the file, in bytes: the records, and room for more behind them.
    written: u64,
    /// The last look by name before an answer; `None` if no such look has found this file.
    looked: Option<NameCheck>,
}

impl Journal {
    /// Begins a journal behind the commit with the chain hash `before`.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn create(
        folder: &Path,
        barrier: Arc<dyn Barrier>,
        first: CommitNumber,
        before: ChainHash,
    ) -> Result<Self, LogError> {
        create_private_folder(folder).map_err(LogError::io("create", folder))?;
        let (file, written) = create_file(folder, &*barrier, first, before)?;
        Ok(Self {
            folder: folder.into(),
            name: folder.into(),
            place: file.path.clone(),
            barrier,
            file: Arc::new(file),
            end: HEAD_BYTES,
            written,
            looked: None,
        })
    }

    /// Sets the name of the folder, which was opened by a handle.
    pub(super) fn named(self, name: PathBuf) -> Self {
        let place = self.file.place_in(&name);
        Self {
            name,
            place,
            ..self
        }
    }

    /// Goes on behind the records of the newest file, which end at `end`.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn resume(
        folder: &Path,
        barrier: Arc<dyn Barrier>,
        file: Arc<JournalFile>,
        end: u64,
    ) -> Result<Self, LogError> {
        let written = file.file_length()?;
        // The last commit may have been written and not synced by an earlier process. Without this
        // sync, readers would see that commit before it is durable.
        let synced = barrier.sync(&file.file);
        synced.map_err(LogError::io("sync", &file.path))?;
        Ok(Self {
            folder: folder.into(),
            name: folder.into(),
            place: file.path.clone(),
            barrier,
            file,
            end,
            written,
            looked: None,
        })
    }

    /// Returns the newest file.
    pub(super) fn file(&self) -> &Arc<JournalFile> {
        &self.file
    }

    /// Returns the bytes of the newest file that hold records.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Appends a commit, and calls `seen` with the record. By then the commit would survive a power
    /// cut, and the file is checked: the next opening finds the commit, unless the file was moved
    /// within [`LOOK_EVERY`].
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk, that the file is not at its place, or the error of `seen`.
    /// The next opening may find the commit all the same.
    pub(super) fn append(
        &mut self,
        number: CommitNumber,
        before: &ChainHash,
        items: &[(Vec<u8>, Vec<u8>)],
        seen: impl FnOnce(&JournalRecord<'_>) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let bytes = encode_record(number, before, items);
        let record = JournalRecord {
            number,
            link: link_of(before),
            at: self.end,
            items: bytes.split_at(RECORD_HEAD_BYTES).1,
        };
        let end = self.end + record.bytes();
        self.write_ahead(end)?;
        // The record is one write, so that a torn write is one torn record at the end.
        let path = &self.file.path;
        let written = self.file.file.write_all_at(&bytes, self.end);
        written.map_err(LogError::io("write", path))?;
        #[cfg(planted)]
        if planted::is("append-unsynced") || planted::is("shown-first") {
            seen(&record)?;
            self.end = end;
            if planted::is("shown-first") {
                // Readers get their time to see it.
                std::thread::park_timeout(Duration::from_millis(3));
                self.barrier
                    .sync(&self.file.file)
                    .map_err(LogError::io("sync", path))?;
            }
            return Ok(());
        }
        let synced = self.barrier.sync(&self.file.file);
        synced.map_err(LogError::io("sync", path))?;
        // Checked after the sync and before the answer: a commit in a file that was moved away is
        // lost to the next start, however durable the bytes are.
        self.check_before_answer()?;
        seen(&record)?;
        self.end = end;
        Ok(())
    }

    /// Checks that the newest file has all of its names and the length that the journal gave the
    /// file. A moved file has both. Only the look by name notices a move. That look takes three
    /// times as long, so only one such look is due in each [`LOOK_EVERY`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::check_place`], which has the last word: a further name does no harm.
    fn check_before_answer(&mut self) -> Result<(), LogError> {
        let is_whole = |looked: NameCheck| {
            let expected = (looked.names, self.written);
            looked.at.elapsed() < LOOK_EVERY
                && held::look_at(&self.file.file).is_ok_and(|found| found == expected)
        };
        if self.looked.is_some_and(is_whole) && !self.file.is_damaged() {
            return Ok(());
        }
        // The time is taken before the look, so that a move during the look falls into the next
        // interval.
        let at = Instant::now();
        // The name that a file has lost can be the one that counts, so a change of the number of
        // names makes a look by name due at once.
        let names = held::look_at(&self.file.file).map(|(names, _)| names);
        self.check_place()?;
        self.looked = names.ok().map(|names| NameCheck { at, names });
        Ok(())
    }

    /// Checks that the name leads to the newest file, that the file has the length that the journal
    /// gave, and that all values read from the file were whole.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Displaced`] if one of these is not the case.
    pub(super) fn check_place(&self) -> Result<(), LogError> {
        let path = &self.place;
        let is_whole = |(found, length)| found == self.file.identity && length == self.written;
        let is_there = held::look(path).is_ok_and(is_whole);
        let what = match is_there {
            true if !self.file.is_damaged() => return Ok(()),
            true => "holds damaged records",
            false => "was removed, replaced, cut or moved",
        };
        let what = format!("{} {what}", path.display());
        Err(LogError::Displaced { what })
    }

    /// Makes the file long enough for a record that ends at `end`. Small records get zeros ahead of
    /// them.
    fn write_ahead(&mut self, end: u64) -> Result<(), LogError> {
        if end <= self.written {
            return Ok(());
        }
        // Growth would give a cut file its length back, with zeros in place of acknowledged
        // records.
        self.check_place()?;
        let [least, most] = AHEAD_BYTES;
        let ahead = self.written.clamp(least, most);
        let length = end.max(self.written + ahead).next_multiple_of(least);
        let (file, path) = (&self.file.file, &self.file.path);
        // The length comes first, in whole steps, so that any other length is damage.
        file.set_len(length).map_err(LogError::io("write", path))?;
        let from = std::mem::replace(&mut self.written, length);
        // A large record needs few syncs for many bytes anyway, so zeros ahead would save little.
        if end - self.end <= most {
            for at in (from..length).step_by(ZEROS.len()) {
                let rest = usize::try_from(length - at).unwrap_or(usize::MAX);
                let zeros = ZEROS.get(..rest).unwrap_or(&ZEROS);
                let written = file.write_all_at(zeros, at);
                written.map_err(LogError::io("write", path))?;
            }
        }
        self.barrier.sync(file).map_err(LogError::io("sync", path))
    }

    /// Begins a new file with commit `first`; the other files are only read from now on.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk, or that the newest file is not at its place: nobody would
    /// look at that file again before it is settled.
    pub(super) fn rotate(
        &mut self,
        first: CommitNumber,
        before: ChainHash,
    ) -> Result<(), LogError> {
        self.check_place()?;
        self.barrier.begins(LogStep::Rotating);
        // The file never grows again. From now on, another length is a sign of damage (`is_in`).
        self.file.length.store(self.written, Ordering::Release);
        let (file, written) = create_file(&self.folder, &*self.barrier, first, before)?;
        self.place = file.place_in(&self.name);
        self.file = Arc::new(file);
        // The last look was for the former file.
        self.looked = None;
        (self.end, self.written) = (HEAD_BYTES, written);
        Ok(())
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("file", &self.file.path)
            .finish_non_exhaustive()
    }
}

fn name_of(first: CommitNumber) -> String {
    format!("{:020}", first.0)
}

/// Opens the spare file, or makes one. A link, or a file with a second name, belongs to somebody
/// else. In that case, the function removes the name `spare`, writes nothing to the file, and makes
/// a new one.
#[expect(clippy::disallowed_methods, reason = "a durable rename follows")]
fn open_spare(spare: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).write(true).truncate(false);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.custom_flags(i32::try_from(flags.bits()).unwrap_or(0));
    match options.open(spare) {
        Ok(file) => {
            let found = file.metadata()?;
            // Some file systems count no links.
            if found.is_file() && found.nlink() <= 1 {
                return Ok(file);
            }
        }
        // The error of `NOFOLLOW` for a link.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {}
        Err(error) => return Err(error),
    }
    fs::remove_file(spare)?;
    options.create_new(true).open(spare)
}

/// Makes a durable file without records. Returns the file and its length.
#[cfg_attr(
    planted,
    expect(
        clippy::disallowed_methods,
        reason = "a planted bug renames without a sync"
    )
)]
fn create_file(
    folder: &Path,
    barrier: &dyn Barrier,
    first: CommitNumber,
    before: ChainHash,
) -> Result<(JournalFile, u64), LogError> {
    let (spare, path) = (folder.join(SPARE), folder.join(name_of(first)));
    // The name `spare` must be durable before the new head is written. A power cut could else bring
    // back the former name of the settled file, and the new head would not fit that name.
    #[cfg(planted)]
    let sync_folder = |folder: &Path| match planted::is("head-before-name") {
        true => Ok(()),
        false => sync_folder(folder),
    };
    sync_folder(folder).map_err(LogError::io("sync", folder))?;
    let file = open_spare(&spare).map_err(LogError::io("create", &spare))?;
    // A failure is no reason to stop: a reader may still hold the lock of the file under the former
    // name.
    let _locked = file.try_lock();
    let mut head = RecordWriter(MAGIC.to_vec());
    head.long(first.0);
    head.bytes(&before.0.0);
    let mut head = seal(head.0);
    let length = file.metadata().map(|file| file.len());
    let length = length.map_err(LogError::io("measure", &spare))?;
    let [least, _] = AHEAD_BYTES;
    if length < least {
        file.set_len(least).map_err(LogError::io("write", &spare))?;
        head.resize(usize::try_from(least).unwrap_or(0), 0);
    }
    // Somebody may have changed the length of the spare file. A later opening takes any length but
    // whole steps for damage.
    let length = length.max(least) / least * least;
    file.set_len(length)
        .map_err(LogError::io("write", &spare))?;
    let written = file.write_all_at(&head, 0);
    written.map_err(LogError::io("write", &spare))?;
    let synced = barrier.sync(&file);
    synced.map_err(LogError::io("sync", &spare))?;
    // The name is durable before the first record. A power cut could else take the file away, and
    // acknowledged commits with it.
    rename_spare(&spare, &path).map_err(LogError::io("rename", &spare))?;
    let file = JournalFile {
        identity: identity_of(&file, &path)?,
        length: AtomicU64::new(length),
        is_damaged: AtomicBool::default(),
        file,
        path,
        first,
        before,
    };
    Ok((file, length))
}

fn rename_spare(spare: &Path, path: &Path) -> io::Result<()> {
    #[cfg(planted)]
    if planted::is("name-unsynced") {
        return fs::rename(spare, path);
    }
    durable::rename(spare, path)
}

fn identity_of(file: &File, path: &Path) -> Result<FileIdentity, LogError> {
    let found = file.metadata().map_err(LogError::io("measure", path))?;
    Ok(FileIdentity::of(&found))
}

fn length_of(file: &File, path: &Path) -> Result<u64, LogError> {
    let found = file.metadata().map_err(LogError::io("measure", path))?;
    Ok(found.len())
}

/// Opens the files of a journal, oldest first.
///
/// # Errors
///
/// Returns the failure of the disk, or that the head of a file is damaged.
pub(super) fn open_files(folder: &Path) -> Result<Vec<JournalFile>, LogError> {
    let failed = LogError::io("read", folder);
    let items = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        items => items.and_then(Iterator::collect::<io::Result<Vec<_>>>),
    };
    let mut files = vec![];
    for path in items.map_err(failed)?.into_iter().map(|item| item.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The spare file, and whatever an operator has put there, are passed over.
        let Some(first) = name.parse().ok().map(CommitNumber) else {
            continue;
        };
        let open = regular::open_as(&path, OpenOptions::new().read(true).write(true));
        let file = open.map_err(LogError::io("open", &path))?;
        let mut head = [0; 48];
        let decoded = match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            // A failing disk is no damage: `recover` would be the wrong advice.
            read => Some(read.map_err(LogError::io("read", &path))?),
        };
        let decoded = decoded.and_then(|()| {
            let mut from = Reader(unseal(&head)?);
            let is_ours = from.chunk::<4>()? == *MAGIC && from.long()? == first.0;
            is_ours.then_some(ChainHash(from.digest()?))
        });
        let damaged = || {
            let path = visible_path(&path);
            LogError::damaged(format!("the head of {} is unreadable", path.display()))
        };
        let before = decoded.ok_or_else(damaged)?;
        files.push(JournalFile {
            identity: identity_of(&file, &path)?,
            length: AtomicU64::new(length_of(&file, &path)?),
            is_damaged: AtomicBool::default(),
            file,
            path,
            first,
            before,
        });
    }
    files.sort_by_key(|file| file.first);
    Ok(files)
}

/// Opens the files of a damaged journal, oldest first. A damaged head is no obstacle.
///
/// # Errors
///
/// Returns the error if the process lacks a resource, such as file handles. Otherwise, a file that
/// is unread only because of the lack would count as lost.
pub(super) fn open_remains(folder: &Path) -> io::Result<Vec<JournalFile>> {
    let items = unless_lacking(fs::read_dir(folder))?;
    let mut files = vec![];
    for item in items.into_iter().flatten() {
        let Some(item) = unless_lacking(item)? else {
            continue;
        };
        let first = item.file_name().to_str().and_then(|name| name.parse().ok());
        let (Some(first), path) = (first, item.path()) else {
            continue;
        };
        let Some(file) = unless_lacking(regular::open(&path))? else {
            continue;
        };
        let Some(found) = unless_lacking(file.metadata())? else {
            continue;
        };
        files.push(JournalFile {
            identity: FileIdentity::of(&found),
            length: AtomicU64::new(found.len()),
            is_damaged: AtomicBool::default(),
            file,
            path,
            first: CommitNumber(first),
            // The hash in the head is not read: the head may be damaged, and a salvage compares no
            // chain hashes of files.
            before: ChainHash::START,
        });
    }
    files.sort_by_key(|file| file.first);
    Ok(files)
}

impl JournalFile {
    /// Hands over every record whose checksum is right, except records of an earlier use of the
    /// file.
    pub(super) fn scan_remains(&self, mut take: impl FnMut(&JournalRecord<'_>)) {
        let length = self.file_length().unwrap_or(0);
        let (mut at, mut piece) = (HEAD_BYTES, ReadAhead::default());
        let step = u64::try_from(ALIGNMENT).unwrap_or(1);
        while at < length {
            let likely = self.likely_record(at, length, &mut piece);
            let likely = likely.ok().flatten();
            at += match likely.map(|_| self.record_at(at, length, &mut piece)) {
                Some(Ok(Some(record))) => {
                    if record.number >= self.first {
                        take(&record);
                    }
                    // A whole record of an earlier use is passed over as well: nothing newer lies
                    // within such a record.
                    record.bytes()
                }
                _ => step,
            };
        }
    }

    /// Locks the file for this process. Returns whether another process holds the lock: a copy of
    /// the folder by hard links shares the file, and has a lock file of its own.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(self.file.try_lock(), Err(TryLockError::WouldBlock))
    }

    fn place_in(&self, folder: &Path) -> PathBuf {
        folder.join(self.path.file_name().unwrap_or_default())
    }

    /// Returns whether a folder has the file under the same name and with the same length. Callers
    /// do not ask about the newest file, which grows.
    pub(super) fn is_in(&self, folder: &Path) -> bool {
        let length = self.length.load(Ordering::Acquire);
        let is_whole = |(found, found_length)| found == self.identity && found_length == length;
        held::look(&self.place_in(folder)).is_ok_and(is_whole)
    }

    /// Makes sure that reads see the disk. After a failed sync, the system keeps pages that never
    /// got to the disk, and counts them as written.
    ///
    /// # Errors
    ///
    /// Returns the failure of the disk.
    pub(super) fn drop_pages(&self) -> Result<(), LogError> {
        drop_pages(&self.file).map_err(LogError::io("sync", &self.path))
    }

    /// Cuts the file off behind `most` bytes, because each start reads the newest file to the end.
    fn shorten_to(&self, most: u64) -> io::Result<()> {
        let [least, _] = AHEAD_BYTES;
        let most = most.max(least).checked_next_multiple_of(least);
        match most {
            Some(most) if self.file.metadata()?.len() > most => self.file.set_len(most),
            _ => Ok(()),
        }
    }

    /// Returns whether the file begins behind a commit with this chain hash.
    pub(super) fn follows(&self, chain: &ChainHash) -> bool {
        self.before == *chain
    }

    /// Gives at most `most` bytes of a settled file to a later file. A file that is still being
    /// read is removed instead, and so is any file while there is a spare one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the next opening tries it again, and a file gets its room only behind a sync"
    )]
    pub(super) fn recycle(self: Arc<Self>, most: u64) {
        let spare = self.path.with_file_name(SPARE);
        let path = self.path.clone();
        if !self.identity.is_at(&path) {
            warn!(path = %visible_path(&path).display(), "a settled file was removed or replaced");
            return;
        }
        // A reader holds the file by its handle and needs no name, but needs the content: a file
        // with readers is not used again.
        let unread = Arc::into_inner(self).filter(|_| !spare.exists());
        let done = match unread {
            Some(settled) => settled
                .shorten_to(most)
                .and_then(|()| fs::rename(&path, &spare)),
            None => fs::remove_file(&path),
        };
        // Only a warning: the next opening tries again, so the room is lost only until then.
        if let Err(error) = done {
            warn!(%error, path = %visible_path(&path).display(), "a settled file cannot be used again");
        }
    }
}

#[cfg(test)]
mod tests;
