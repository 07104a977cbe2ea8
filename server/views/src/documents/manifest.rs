//! The manifest: a record of each archived document that is a durable file, with the digests of its
//! bytes.
//!
//! Shell: one file per feed, with a record of fixed size for each archived document, in the order
//! of the documents. A document is *archived* for readers once the manifest has a record. Until
//! then the document is served from the log and not called immutable.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    digest::Digest,
    feed::{DocumentName, DocumentNumber, Epoch, FeedName, Position},
    plan::Opening,
    timestamp::Timestamp,
};
use simplefeed_log::{
    codec::{Reader, RecordWriter, seal},
    held::visible_path,
};
use simplefeed_process::regular;

use crate::{error::ViewError, files::CodedFile, folders::Folders};

const RECORD_BYTES: usize = 160;
const RECORD_LENGTH: u64 = 160;
/// Maximum number of records in one write. A power cut may lose any of these records.
pub(super) const TOGETHER_MAX: usize = 32;

/// Facts about an archived document, as recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestRecord {
    /// Number of the document, and the epoch in its name.
    pub name: DocumentName,
    /// Epoch in which the next document was opened. An index block that this document closes has
    /// this epoch in its name.
    pub closed_in: Epoch,
    /// Position of the oldest entry.
    pub first: Position,
    /// Number of entries, lost ones included.
    pub entries: u64,
    /// Timestamp of the commit that opened the document.
    pub opened: Timestamp,
    /// Timestamp of the newest entry: the feed-level `updated` of the document.
    pub updated: Timestamp,
    /// Timestamp of the commit that closed the document: the bytes are final since then.
    pub closed: Timestamp,
    /// The document without a coding: length and digest.
    pub identity: CodedFile,
    /// The gzip twin: length and digest.
    pub gzip: CodedFile,
}

impl ManifestRecord {
    /// Returns the record of a document whose entries were lost, in whole or in part.
    pub fn lost(opening: &Opening, successor: &Opening) -> Self {
        // Length 0 marks the loss, because no document is empty.
        let nothing = CodedFile {
            bytes: 0,
            digest: Digest([0; 32]),
        };
        Self {
            name: opening.name,
            // The epoch at the cut, which no later restoration changes.
            closed_in: successor.linked.epoch,
            first: opening.first,
            entries: successor.first.0 - opening.first.0,
            opened: opening.opened,
            // The newest entry may be lost, so the opening gives the instant.
            updated: opening.opened,
            closed: successor.opened,
            identity: nothing,
            gzip: nothing,
        }
    }

    /// Whether the document has no file, because its entries were lost.
    pub fn is_lost(&self) -> bool {
        self.identity.bytes == 0
    }

    fn encode_record(&self) -> [u8; RECORD_BYTES] {
        let mut out = RecordWriter(Vec::with_capacity(RECORD_BYTES));
        out.long(self.name.number.get());
        out.bytes(&self.name.epoch.0.to_be_bytes());
        out.bytes(&self.closed_in.0.to_be_bytes());
        out.long(self.first.0);
        out.long(self.entries);
        for instant in [self.opened, self.updated, self.closed] {
            out.instant(instant);
        }
        for coded in [self.identity, self.gzip] {
            out.long(coded.bytes);
            out.bytes(&coded.digest.0);
        }
        // The last bytes before the checksum are unused, and zero.
        out.0.resize(RECORD_BYTES - 4, 0);
        let sealed = seal(out.0);
        sealed.try_into().expect("a record has its size")
    }

    fn decode_record(record: &[u8; RECORD_BYTES]) -> Option<Self> {
        let mut from = Reader(record);
        let number = DocumentNumber::new(from.long()?)?;
        let (epoch, closed_in) = (from.chunk()?, from.chunk()?);
        let (epoch, closed_in) = (u32::from_be_bytes(epoch), u32::from_be_bytes(closed_in));
        let (first, entries) = (Position(from.long()?), from.long()?);
        let (opened, updated, closed) = (from.instant()?, from.instant()?, from.instant()?);
        let mut coded = || {
            let (bytes, digest) = (from.long()?, from.digest()?);
            Some(CodedFile { bytes, digest })
        };
        let archived = Self {
            name: DocumentName {
                number,
                epoch: Epoch(epoch),
            },
            closed_in: Epoch(closed_in),
            first,
            entries,
            opened,
            updated,
            closed,
            identity: coded()?,
            gzip: coded()?,
        };
        // The decoded record is encoded again and compared, which checks the checksum and the
        // unused bytes, too.
        (archived.encode_record() == *record).then_some(archived)
    }
}

/// Manifests of all feeds, each a file in one folder.
#[derive(Clone, Debug)]
pub struct Manifests {
    folder: PathBuf,
    folders: Folders,
}

impl Manifests {
    /// Returns the manifests in `folder`, which is one of the server's folders.
    pub(crate) fn new(folders: &Folders, folder: &Path) -> Self {
        Self {
            folder: folder.into(),
            folders: folders.clone(),
        }
    }

    /// Returns the feeds that have a manifest.
    pub(crate) fn feeds(&self) -> BTreeSet<FeedName> {
        let items = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = items.filter_map(|item| {
            let name = item.file_name();
            FeedName::parse(name.to_str()?.strip_suffix(".manifest")?)
        });
        names.collect()
    }

    fn manifest_path(&self, feed: &FeedName) -> PathBuf {
        self.folder.join(format!("{feed}.manifest"))
    }

    fn io_error(
        &self,
        action: &'static str,
        feed: &FeedName,
    ) -> impl FnOnce(io::Error) -> ViewError + use<> {
        let path = visible_path(&self.manifest_path(feed));
        move |source| ViewError::Io {
            action,
            path,
            source,
        }
    }

    fn existing_file(&self, feed: &FeedName) -> Result<Option<File>, ViewError> {
        match regular::open(self.manifest_path(feed)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.io_error("open", feed)(error)),
        }
    }

    /// Returns the number of a feed's documents that have a record.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn count(&self, feed: &FeedName) -> Result<u64, ViewError> {
        let count = self.record_count(feed)?;
        let Some(last) = DocumentNumber::new(count) else {
            return Ok(0);
        };
        // A power cut may leave a last record of zeros. Such a record does not count, and the next
        // write replaces it.
        match self.get(feed, last) {
            Err(ViewError::DamagedRecord { .. }) => Ok(count - 1),
            found => found.map(|_| count),
        }
    }

    /// Returns the number of a feed's records before the first damaged record, or of all records if
    /// none is damaged. A power cut may have kept only some pages of the last write. The archive
    /// goes on at the damaged record.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn count_before_hole(&self, feed: &FeedName) -> Result<u64, ViewError> {
        let count = self.record_count(feed)?;
        // Only records of the last write can be damaged this way, because each write is synced
        // before the next.
        let before = count.saturating_sub(u64::try_from(TOGETHER_MAX).unwrap_or(count));
        let Some(first) = DocumentNumber::new(before + 1).filter(|_| count > 0) else {
            return Ok(0);
        };
        match self.range(feed, first, count - before) {
            Err(ViewError::DamagedRecord { document, .. }) => Ok(document - 1),
            found => found.map(|_| count),
        }
    }

    fn record_count(&self, feed: &FeedName) -> Result<u64, ViewError> {
        let Some(file) = self.existing_file(feed)? else {
            return Ok(0);
        };
        let length = file
            .metadata()
            .map_err(self.io_error("measure", feed))?
            .len();
        // A power cut may have shortened the last record, which then does not count.
        Ok(length / RECORD_LENGTH)
    }

    /// Returns the facts of an archived document, or `None` if the document is not archived yet.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn get(
        &self,
        feed: &FeedName,
        document: DocumentNumber,
    ) -> Result<Option<ManifestRecord>, ViewError> {
        Ok(self.range(feed, document, 1)?.pop())
    }

    /// Returns the facts of at most `max` archived documents from `first` on.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn range(
        &self,
        feed: &FeedName,
        first: DocumentNumber,
        max: u64,
    ) -> Result<Vec<ManifestRecord>, ViewError> {
        let Some(mut file) = self.existing_file(feed)? else {
            return Ok(vec![]);
        };
        let start = (first.get() - 1).checked_mul(RECORD_LENGTH);
        // No file reaches beyond `i64::MAX` bytes, and no system seeks there.
        let Some(start) = start.filter(|start| i64::try_from(*start).is_ok()) else {
            return Ok(vec![]);
        };
        let mut bytes = vec![];
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.take(max * RECORD_LENGTH).read_to_end(&mut bytes))
            .map_err(self.io_error("read", feed))?;
        // A last record that a power cut has shortened does not count.
        let (records, _) = bytes.as_chunks::<RECORD_BYTES>();
        (first.get()..)
            .zip(records)
            .map(|(document, record)| {
                // A record has the number of its document, so a record in the wrong place counts as
                // damaged.
                let archived = ManifestRecord::decode_record(record)
                    .filter(|found| found.name.number.get() == document);
                archived.ok_or_else(|| ViewError::DamagedRecord {
                    path: self.manifest_path(feed),
                    document,
                })
            })
            .collect()
    }

    /// Records that documents are archived, durably and in one write. The documents must follow
    /// each other, and all documents before them must have records already.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub fn record(&self, feed: &FeedName, archived: &[ManifestRecord]) -> Result<(), ViewError> {
        self.record_all(&[(feed, archived)])
    }

    /// Records documents of several feeds, as [`record`](Self::record) does for one feed. All share
    /// a sync.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    #[expect(clippy::disallowed_methods, reason = "the sync of the folder follows")]
    pub(crate) fn record_all(
        &self,
        feeds: &[(&FeedName, &[ManifestRecord])],
    ) -> Result<(), ViewError> {
        let Some((some_feed, _)) = feeds.first() else {
            return Ok(());
        };
        let created = self.folders.create(&[&self.folder]);
        created.map_err(|(_, error)| self.io_error("create", some_feed)(error))?;
        // Opened before the first write, so that the sync by this handle misses no failure.
        let folder =
            regular::open_folder(&self.folder).map_err(self.io_error("open", some_feed))?;
        let (mut opened, mut is_new) = (vec![], false);
        for (feed, archived) in feeds {
            let Some(first) = archived.first() else {
                continue;
            };
            let path = self.manifest_path(feed);
            is_new |= !path.exists();
            let mut options = OpenOptions::new();
            let file = regular::open_as(&path, options.create(true).write(true).truncate(false));
            let file = file.map_err(self.io_error("write", feed))?;
            // The offset follows from the document's number and not from the file's length, so that
            // a torn record is replaced.
            let offset = (first.name.number.get() - 1) * RECORD_LENGTH;
            let records: Vec<u8> = archived
                .iter()
                .flat_map(ManifestRecord::encode_record)
                .collect();
            opened.push((*feed, file, records, offset));
        }
        let written = opened.iter().try_for_each(|(feed, file, records, offset)| {
            let written = file.write_all_at(records, *offset);
            written.map_err(self.io_error("write", feed))
        });
        // All files are synced even after a failed write, because a record that is there counts as
        // durable.
        let files: Vec<&File> = opened.iter().map(|(_, file, ..)| file).collect();
        let synced = self.folders.sync(&files, &[&folder]);
        synced.map_err(self.io_error("sync", some_feed))?;
        // The name of a new file must be durable as well.
        if is_new {
            let synced = self.folders.sync(&[&folder], &[]);
            synced.map_err(self.io_error("sync", some_feed))?;
        }
        written
    }

    /// Forgets the records of a feed's documents from `first` on.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn forget(&self, feed: &FeedName, first: DocumentNumber) -> Result<(), ViewError> {
        if self.existing_file(feed)?.is_none() {
            return Ok(());
        }
        let file = regular::open_as(self.manifest_path(feed), OpenOptions::new().write(true))
            .map_err(self.io_error("write", feed))?;
        let length = file
            .metadata()
            .map_err(self.io_error("measure", feed))?
            .len();
        let kept = length.min((first.get() - 1) * RECORD_LENGTH);
        // Synced, because records of another log that came back would make files of that log pass
        // for this log's.
        file.set_len(kept)
            .and_then(|()| file.sync_all())
            .map_err(self.io_error("shorten", feed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archived(number: u64) -> ManifestRecord {
        ManifestRecord {
            name: DocumentName {
                number: DocumentNumber::new(number).unwrap(),
                epoch: Epoch(1),
            },
            closed_in: Epoch(2),
            first: Position(number * 100),
            entries: 100,
            opened: Timestamp::from_micros(-5),
            updated: Timestamp::from_micros(6),
            closed: Timestamp::from_micros(7),
            identity: CodedFile::of(b"identity"),
            gzip: CodedFile::of(b"gzip"),
        }
    }

    #[test]
    fn records_are_read_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::new(&Folders::new(folder.path(), None), folder.path());
        let feed = FeedName::parse("a").unwrap();
        assert_eq!(manifests.count(&feed).unwrap(), 0);
        for number in 1..=3 {
            manifests.record(&feed, &[archived(number)]).unwrap();
        }
        assert_eq!(manifests.count(&feed).unwrap(), 3);
        let two = DocumentNumber::new(2).unwrap();
        assert_eq!(
            manifests.range(&feed, two, 9).unwrap(),
            [archived(2), archived(3)]
        );
        assert_eq!(
            manifests
                .get(&feed, DocumentNumber::new(4).unwrap())
                .unwrap(),
            None
        );
        manifests.forget(&feed, two).unwrap();
        assert_eq!(manifests.count(&feed).unwrap(), 1);
    }

    /// Goal: whichever pages of the last write a power cut keeps, the records before are sound, and
    /// the rest is written again.
    #[test]
    fn a_torn_write_counts_up_to_its_first_hole() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::new(&Folders::new(folder.path(), None), folder.path());
        let feed = FeedName::parse("a").unwrap();
        let records: Vec<_> = (1..=40).map(archived).collect();
        let (before, together) = records.split_at(40 - TOGETHER_MAX);
        manifests.record(&feed, before).unwrap();
        for lost in [0..2, 5..6, 0..together.len(), 30..32, 31..32] {
            manifests.record(&feed, together).unwrap();
            assert_eq!(manifests.count(&feed).unwrap(), 40);
            let path = manifests.manifest_path(&feed);
            let mut bytes = fs::read(&path).unwrap();
            let at = |index: usize| (before.len() + index) * RECORD_BYTES;
            bytes[at(lost.start)..at(lost.end)].fill(0);
            fs::write(&path, &bytes).unwrap();
            let expected = u64::try_from(before.len() + lost.start).unwrap();
            let found = manifests.count_before_hole(&feed).unwrap();
            assert_eq!(found, expected, "{lost:?}");
        }
    }

    #[test]
    fn a_changed_record_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::new(&Folders::new(folder.path(), None), folder.path());
        let feed = FeedName::parse("a").unwrap();
        manifests.record(&feed, &[archived(1)]).unwrap();
        let path = manifests.manifest_path(&feed);
        let mut bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(
                manifests.get(&feed, DocumentNumber::OLDEST).is_err(),
                "byte {at}"
            );
            bytes[at] ^= 1;
        }
    }
}
