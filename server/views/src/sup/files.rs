//! Archived SUP documents as files, and the records of the durable files.
//!
//! Shell: files. Public documents are below `www`, where any web server can serve them for ever.
//! For closed feeds the updates are kept, from which each reader's document is made. Documents link
//! to a window once the record of that window is on the disk.

use std::{fs::OpenOptions, io, os::unix::fs::FileExt as _, path::PathBuf};

use bytes::Bytes;
use flate2::Compression;
use simplefeed_core::{
    feed::{CommitNumber, Epoch, EpochNumber, FeedKey},
    sup::SupId,
    timestamp::Timestamp,
};
use simplefeed_log::{
    barrier::sync_folder,
    codec::{Reader, RecordWriter},
    durable::create_folder,
};
use simplefeed_process::{lack::lack_in, regular};
use simplefeed_resource::Visibility;
use uuid::Uuid;

use super::windows::{SeriesStart, SupWindow, SupWindows, Update, file_name, series_name};
use crate::{
    error::ViewError,
    files::{CodedFile, FrozenFiles, Remade, failed, gunzip, replace_unsynced, twin_of},
    folders::Folders,
    shown::ShownLog,
};

/// Maximum number of commits that one read of the log returns.
const COMMITS_TOGETHER: usize = 1_000;
const RECORD_BYTES: usize = 88;
const RECORD_LENGTH: u64 = 88;
const UPDATE_BYTES: usize = 32;
/// The level at which twins are compressed. While many feeds change, windows close each second.
/// [`SMALLEST`] would make their twins 5 % smaller, and take three times as long. Levels 4 to 6
/// make them hardly smaller.
///
/// [`SMALLEST`]: simplefeed_resource::gzip::SMALLEST
const LEVEL: Compression = Compression::new(3);

/// Record of an archived window, of fixed size in a file of each series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRecord {
    /// Number of the window, and the epoch of its cut.
    pub name: EpochNumber,
    /// First second, which is the last second of the window before.
    pub since: i64,
    /// Last second, which the next window repeats.
    pub until: i64,
    /// Last commit before the last second.
    pub commit: CommitNumber,
    /// Length and digest of the file, without a coding.
    pub file: CodedFile,
}

impl WindowRecord {
    fn of_window(window: &SupWindow, file: CodedFile) -> Self {
        Self {
            name: window.name,
            since: window.since,
            until: window.until,
            commit: window.commit,
            file,
        }
    }

    fn encode_record(&self) -> [u8; RECORD_BYTES] {
        let mut out = RecordWriter(Vec::with_capacity(RECORD_BYTES));
        out.long(self.name.number);
        out.long(self.name.epoch.0.into());
        out.long(self.since.cast_unsigned());
        out.long(self.until.cast_unsigned());
        out.long(self.commit.0);
        out.long(self.file.bytes);
        out.bytes(&self.file.digest.0);
        // The checksum takes eight bytes, so records stay aligned to eight.
        let checksum = crc32fast::hash(&out.0);
        out.long(checksum.into());
        out.0.try_into().expect("a record has its size")
    }

    fn decode_record(record: &[u8; RECORD_BYTES]) -> Option<Self> {
        let mut from = Reader(record);
        let number = from.long()?;
        let epoch = Epoch(u32::try_from(from.long()?).ok()?);
        let [since, until] = [from.long()?, from.long()?].map(u64::cast_signed);
        let (commit, bytes) = (CommitNumber(from.long()?), from.long()?);
        let digest = from.digest()?;
        let found = Self {
            name: EpochNumber { number, epoch },
            since,
            until,
            commit,
            file: CodedFile { bytes, digest },
        };
        // The decoded record is encoded again and compared, which checks the checksum, too.
        (found.encode_record() == *record).then_some(found)
    }
}

/// Name of the view, of the folder of records, and of the label in metrics.
pub const NAME: &str = "sup";

/// Files of the archived SUP documents.
#[derive(Clone, Debug)]
pub struct SupFiles {
    folders: Folders,
    views: PathBuf,
}

impl SupFiles {
    /// Returns the files in some folders: public documents below `www`, updates of closed feeds
    /// below `closed`, and the records in the view's own folder.
    pub(crate) fn new(folders: &Folders) -> Self {
        Self {
            folders: folders.clone(),
            views: folders.of_view(NAME),
        }
    }

    fn window_path(&self, visibility: Visibility, name: EpochNumber) -> PathBuf {
        match visibility {
            Visibility::Public => self
                .folders
                .www
                .join(series_name(visibility))
                .join(file_name(name)),
            Visibility::Private => self
                .folders
                .closed
                .join(series_name(visibility))
                .join(format!("{name}.updates")),
        }
    }

    fn records_path(&self, visibility: Visibility) -> PathBuf {
        self.views
            .join(format!("{}.windows", series_name(visibility)))
    }

    /// Returns the record of window `number`, if there is a durable one.
    ///
    /// # Errors
    ///
    /// Returns why the records cannot be read.
    pub fn record(
        &self,
        visibility: Visibility,
        number: u64,
    ) -> Result<Option<WindowRecord>, ViewError> {
        let path = self.records_path(visibility);
        let file = match regular::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        let offset = number
            .checked_sub(1)
            .and_then(|before| before.checked_mul(RECORD_LENGTH));
        let mut record = [0; RECORD_BYTES];
        let read = offset.map(|offset| file.read_exact_at(&mut record, offset));
        // A damaged or torn record counts as missing, and the next start writes the record again.
        let found = read
            .and_then(Result::ok)
            .and_then(|()| WindowRecord::decode_record(&record));
        // A record has the number of its window, so a record in the wrong place counts as damaged.
        Ok(found.filter(|found| found.name.number == number))
    }

    /// Returns the records of a series, up to the first that is damaged.
    fn read_records(&self, visibility: Visibility) -> Result<Vec<WindowRecord>, ViewError> {
        let path = self.records_path(visibility);
        let bytes = match regular::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            Err(error) => return Err(failed("read", &path)(error)),
        };
        // A last record that a power cut has shortened is left out.
        let (records, _) = bytes.as_chunks::<RECORD_BYTES>();
        let decoded = (1..).zip(records).map_while(|(number, record)| {
            let record = WindowRecord::decode_record(record)?;
            (record.name.number == number).then_some(record)
        });
        Ok(decoded.collect())
    }

    /// Returns the point at which a series goes on, so that everything from second `oldest` on is
    /// known: behind the newest window that ends before that second. `newest` is the last commit of
    /// the log; records of later commits belong to another log.
    ///
    /// # Errors
    ///
    /// Returns why the records cannot be read.
    pub(crate) fn beginning(
        &self,
        visibility: Visibility,
        oldest: i64,
        newest: CommitNumber,
    ) -> Result<SeriesStart, ViewError> {
        let records = self.read_records(visibility)?;
        let fits = |record: &&WindowRecord| record.until < oldest && record.commit < newest;
        let last = records.iter().rev().find(fits);
        let count = last.map_or(0, |record| record.name.number);
        let idle = self.idle_note(visibility).filter(|(cuts, commit)| {
            // The note holds only if it was made for all windows that have records now, and the
            // series goes on behind the last of them.
            let all = u64::try_from(records.len()).is_ok_and(|all| all == count);
            *cuts == count && all && *commit <= newest
        });
        Ok(SeriesStart {
            cut: last.map(|record| (record.name, record.until)),
            commit: last.map(|record| record.commit).unwrap_or_default(),
            idle: idle.map(|(_, commit)| commit),
        })
    }

    fn idle_path(&self, visibility: Visibility) -> PathBuf {
        self.views.join(format!("{}.idle", series_name(visibility)))
    }

    /// Returns the note of a series: a number of windows, and the commit up to which no update
    /// followed them.
    fn idle_note(&self, visibility: Visibility) -> Option<(u64, CommitNumber)> {
        let text = regular::read_text(self.idle_path(visibility)).ok()?;
        let (cuts, commit) = text.trim().split_once(' ')?;
        Some((cuts.parse().ok()?, CommitNumber(commit.parse().ok()?)))
    }

    /// Notes that no update followed the first `cuts` windows, up to a commit. Losing the note
    /// costs time, nothing else.
    ///
    /// # Errors
    ///
    /// Returns why the note cannot be written.
    pub(crate) fn note_idle(
        &self,
        visibility: Visibility,
        cuts: u64,
        commit: CommitNumber,
    ) -> Result<(), ViewError> {
        create_folder(&self.views).map_err(failed("create", &self.views))?;
        let path = self.idle_path(visibility);
        let note = format!("{cuts} {commit}\n");
        // Without a sync, because a lost note costs time only.
        replace_unsynced(&path, note.as_bytes()).map_err(failed("write", &path))
    }

    /// Makes a window durable. Right files are left alone.
    ///
    /// # Errors
    ///
    /// Returns why the window cannot be written.
    pub(crate) fn write(
        &self,
        visibility: Visibility,
        window: &SupWindow,
    ) -> Result<Remade, ViewError> {
        // This lock keeps out a rebuild, which writes the same files.
        let _writing = self.folders.writing();
        let path = self.window_path(visibility, window.name);
        let folder = path.parent().unwrap_or(&path);
        create_folder(folder).map_err(failed("create", folder))?;
        let bytes = bytes_of(visibility, window);
        let modified = Timestamp::from_micros(window.until * 1_000_000);
        let mut files = FrozenFiles::of(&self.folders);
        let mut remade = Remade::Identical;
        // Updates of closed feeds are never sent as they are, so they need no twin.
        if visibility == Visibility::Public {
            let (_, twin) = files.write_twin(&path, &bytes, modified, LEVEL, None)?;
            remade = remade.max(twin);
        }
        remade = remade.max(files.write(&path, &bytes, modified)?);
        let record = WindowRecord::of_window(window, CodedFile::of(&bytes));
        // After a crash, right files may lack their record, or a sync.
        if remade == Remade::Identical
            && self.record(visibility, window.name.number)? == Some(record)
        {
            return Ok(remade);
        }
        #[cfg(planted)]
        if crate::planted::is("window-unsynced") {
            files.put_in_place_unsynced()?;
            self.note_window(visibility, &record)?;
            return Ok(remade);
        }
        files.put_in_place()?;
        // The record comes last, because a record promises durable files.
        self.note_window(visibility, &record)?;
        Ok(remade)
    }

    /// Writes the record of a durable window, durably.
    #[expect(clippy::disallowed_methods, reason = "`sync_folder` follows")]
    fn note_window(&self, visibility: Visibility, record: &WindowRecord) -> Result<(), ViewError> {
        create_folder(&self.views).map_err(failed("create", &self.views))?;
        let path = self.records_path(visibility);
        let mut options = OpenOptions::new();
        let file = regular::open_as(&path, options.create(true).write(true).truncate(false));
        let offset = (record.name.number - 1) * RECORD_LENGTH;
        file.and_then(|file| {
            file.write_all_at(&record.encode_record(), offset)?;
            file.sync_data()?;
            // The file may be new, and a new name must be durable as well.
            sync_folder(&self.views)
        })
        .map_err(failed("write", &path))
    }

    /// Compares the stored bytes of a window with the record.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if the bytes differ from the record.
    pub(crate) fn look_at(
        &self,
        visibility: Visibility,
        record: &WindowRecord,
    ) -> Result<(), ViewError> {
        match visibility {
            Visibility::Public => self.document(record).map(drop),
            Visibility::Private => self.window(record).map(drop),
        }
    }

    /// Returns the fault of an archived window, if there is one. A window without a record is not
    /// archived yet.
    ///
    /// # Errors
    ///
    /// Returns why the records cannot be read.
    pub(crate) fn fault(
        &self,
        visibility: Visibility,
        window: &SupWindow,
    ) -> Result<Option<String>, ViewError> {
        let Some(record) = self.record(visibility, window.name.number)? else {
            return Ok(None);
        };
        if record != WindowRecord::of_window(window, CodedFile::of(&bytes_of(visibility, window))) {
            let (series, file) = (series_name(visibility), file_name(window.name));
            return Ok(Some(format!("{series}/{file} is not what the log says")));
        }
        match self.look_at(visibility, &record) {
            // A lack of file handles or memory is no fault of the window.
            Err(error) if lack_in(&error).is_some() => Err(error),
            looked => Ok(looked.err().map(|error| error.to_string())),
        }
    }

    /// Returns the bytes of a public window, plain and compressed.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if the bytes differ from the record.
    pub fn document(&self, record: &WindowRecord) -> Result<(Bytes, Bytes), ViewError> {
        let path = self.window_path(Visibility::Public, record.name);
        let bytes = regular::read(&path).map_err(failed("read", &path))?;
        let twin_path = twin_of(&path);
        let twin = regular::read(&twin_path).map_err(failed("read", &twin_path))?;
        let is_right = |bytes: &[u8]| CodedFile::of(bytes) == record.file;
        // The record has no digest of the twin, so the decoded bytes are compared.
        if is_right(&bytes) && gunzip(&twin, bytes.len()).is_ok_and(|bytes| is_right(&bytes)) {
            return Ok((bytes.into(), twin.into()));
        }
        Err(ViewError::Damaged { path })
    }

    /// Returns an archived window of the series of closed feeds, with the updates of all these
    /// feeds.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if the bytes differ from the record.
    pub fn window(&self, record: &WindowRecord) -> Result<SupWindow, ViewError> {
        let path = self.window_path(Visibility::Private, record.name);
        let bytes = regular::read(&path).map_err(failed("read", &path))?;
        if CodedFile::of(&bytes) != record.file {
            return Err(ViewError::Damaged { path });
        }
        let before = record
            .name
            .number
            .checked_sub(1)
            .filter(|before| *before > 0);
        let previous = match before {
            Some(number) => self.record(Visibility::Private, number)?,
            None => None,
        };
        Ok(SupWindow {
            name: record.name,
            previous: previous.map(|previous| previous.name),
            since: record.since,
            until: record.until,
            commit: record.commit,
            updates: decode_updates(&bytes),
        })
    }
}

/// Calls `each` with every closed window of a log, of both series.
///
/// # Errors
///
/// Returns why the log cannot be read, or the error of `each`.
pub(crate) fn every_window(
    log: &dyn ShownLog,
    mut each: impl FnMut(Visibility, &SupWindow) -> Result<(), ViewError>,
) -> Result<(), ViewError> {
    // Period 0, because archived windows do not depend on the periods offered.
    let mut windows = SupWindows::new(SeriesStart::default(), SeriesStart::default(), 0);
    let mut next = CommitNumber(1);
    loop {
        let outlines = log.outlines(next, COMMITS_TOGETHER)?;
        let Some(last) = outlines.last() else {
            return Ok(());
        };
        next = last.number.next();
        for outline in &outlines {
            for (visibility, window) in windows.take(outline, log)? {
                each(visibility, &window)?;
                // The window counts as durable at once, so that older updates are forgotten.
                windows.archived(visibility, &window);
            }
        }
    }
}

/// Returns the bytes of the file of an archived window.
fn bytes_of(visibility: Visibility, window: &SupWindow) -> Vec<u8> {
    match visibility {
        Visibility::Public => window.document(|_| true),
        Visibility::Private => encode_updates(window),
    }
}

/// Encodes each update as the key of the feed (16 bytes), the SUP-ID (8) and the second (8).
fn encode_updates(window: &SupWindow) -> Vec<u8> {
    let mut out = Vec::with_capacity(window.updates.len() * UPDATE_BYTES);
    for (feed, id, second) in &window.updates {
        out.extend_from_slice(feed.0.as_bytes());
        out.extend_from_slice(id.as_str().as_bytes());
        out.extend_from_slice(&second.to_be_bytes());
    }
    out
}

fn decode_updates(bytes: &[u8]) -> Vec<Update> {
    let (updates, _) = bytes.as_chunks::<UPDATE_BYTES>();
    let decode = |update: &[u8; UPDATE_BYTES]| {
        let (feed, rest) = update.split_first_chunk::<16>()?;
        let (id, second) = rest.split_first_chunk::<8>()?;
        let id = SupId::parse(std::str::from_utf8(id).ok()?)?;
        let second = i64::from_be_bytes(*second.first_chunk::<8>()?);
        Some((FeedKey(Uuid::from_bytes(*feed)), id, second))
    };
    // The caller has compared the digest, so every update can be decoded.
    updates.iter().filter_map(decode).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn window(number: u64) -> SupWindow {
        let name = |number| EpochNumber {
            number,
            epoch: Epoch(if number > 2 { 1_800_000_000 } else { 1 }),
        };
        let since = i64::try_from(number).unwrap() * 100;
        SupWindow {
            name: name(number),
            previous: (number > 1).then(|| name(number - 1)),
            since,
            until: since + 100,
            commit: CommitNumber(number * 10),
            updates: (0..50)
                .map(|n| (FeedKey(Uuid::from_u128(n)), SupId::of_bits(n), since + 1))
                .collect(),
        }
    }

    #[test]
    fn a_window_is_written_once_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let files = SupFiles::new(&Folders::new(folder.path(), None));
        for number in 1..=4 {
            for visibility in Visibility::ALL {
                let window = window(number);
                assert_eq!(files.record(visibility, number).unwrap(), None);
                assert_eq!(files.write(visibility, &window).unwrap(), Remade::New);
                assert_eq!(files.write(visibility, &window).unwrap(), Remade::Identical);
            }
        }
        let record = files.record(Visibility::Public, 3).unwrap().unwrap();
        let (bytes, twin) = files.document(&record).unwrap();
        assert_eq!(bytes, window(3).document(|_| true));
        assert_eq!(gunzip(&twin, bytes.len()).unwrap(), bytes);
        assert!(folder.path().join("www/sup/3-1800000000.json.gz").exists());
        let record = files.record(Visibility::Private, 3).unwrap().unwrap();
        assert_eq!(files.window(&record).unwrap(), window(3));
        assert!(!folder.path().join("www/sup-closed").exists());
    }

    /// Goal: a restart knows everything from some second on, and nothing of another log.
    #[test]
    fn a_series_goes_on_behind_a_window_that_is_old_enough() {
        let folder = tempfile::tempdir().unwrap();
        let files = SupFiles::new(&Folders::new(folder.path(), None));
        let visibility = Visibility::Public;
        let begins = |oldest, newest| {
            let beginning = files
                .beginning(visibility, oldest, CommitNumber(newest))
                .unwrap();
            beginning.commit.0
        };
        assert_eq!(begins(1_000, 100), 0);
        for number in 1..=4 {
            files.write(visibility, &window(number)).unwrap();
        }
        assert_eq!(begins(1_000, 100), 40);
        assert_eq!(
            begins(500, 100),
            30,
            "one that ends at 500 may have more in that second"
        );
        assert_eq!(begins(401, 100), 30);
        assert_eq!(begins(1_000, 25), 20);
        assert_eq!(begins(0, 100), 0);
    }

    /// Goal: a restart skips commits without updates, and makes damaged records again.
    #[test]
    fn a_series_goes_on_where_nothing_happened() {
        let folder = tempfile::tempdir().unwrap();
        let files = SupFiles::new(&Folders::new(folder.path(), None));
        let visibility = Visibility::Private;
        let begins = |oldest| {
            let beginning = files
                .beginning(visibility, oldest, CommitNumber(100))
                .unwrap();
            (beginning.commit.0, beginning.idle.map(|idle| idle.0))
        };
        files.note_idle(visibility, 0, CommitNumber(90)).unwrap();
        assert_eq!(begins(1_000), (0, Some(90)));
        for number in 1..=3 {
            files.write(visibility, &window(number)).unwrap();
        }
        assert_eq!(begins(1_000), (30, None));
        files.note_idle(visibility, 3, CommitNumber(90)).unwrap();
        assert_eq!(begins(1_000), (30, Some(90)));
        assert_eq!(
            begins(400),
            (20, None),
            "what was told lately is read again"
        );
        files.note_idle(visibility, 3, CommitNumber(101)).unwrap();
        assert_eq!(begins(1_000), (30, None), "that is of another log");

        let records = files.records_path(visibility);
        let mut bytes = fs::read(&records).unwrap();
        bytes[RECORD_BYTES + 3] ^= 1;
        fs::write(&records, bytes).unwrap();
        assert_eq!(
            begins(1_000),
            (10, None),
            "behind the last record before the damage"
        );
    }

    #[test]
    fn damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let files = SupFiles::new(&Folders::new(folder.path(), None));
        files.write(Visibility::Public, &window(1)).unwrap();
        let path = folder.path().join("www/sup/1.json");
        let record = files.record(Visibility::Public, 1).unwrap().unwrap();
        let fault = |window| files.fault(Visibility::Public, &window).unwrap();
        assert_eq!((fault(window(1)), fault(window(2))), (None, None));
        let mut another = window(1);
        another.updates.pop();
        assert!(fault(another).unwrap().starts_with("sup/1.json is not"));
        fs::write(&path, b"{}").unwrap();
        assert!(matches!(
            files.document(&record),
            Err(ViewError::Damaged { .. })
        ));
        assert!(fault(window(1)).unwrap().contains("sup/1.json"));
        assert_eq!(
            files.write(Visibility::Public, &window(1)).unwrap(),
            Remade::Different
        );
        files.document(&record).unwrap();

        let records = files.records_path(Visibility::Public);
        let mut bytes = fs::read(&records).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            fs::write(&records, &bytes).unwrap();
            assert_eq!(
                files.record(Visibility::Public, 1).unwrap(),
                None,
                "byte {at}"
            );
            bytes[at] ^= 1;
        }
    }
}
