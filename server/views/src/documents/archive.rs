//! Archived documents as files, which any web server can serve for ever.
//!
//! Shell: files below the trees `www` and `closed`, and sidecars beside these trees. The writes
//! keep an order, so that a record promises durable files: twin, document and sidecar are synced
//! and renamed into place, and only then does the manifest get the record. Only a document with a
//! record is called immutable. Documents that are closed at about the same time share the syncs,
//! also those of several feeds.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use simplefeed_core::{
    digest::Digest,
    feed::{CommitNumber, DocumentName, DocumentNumber, FeedKey, FeedName},
    history::ChainHash,
    settings::Settings,
};
use simplefeed_log::seen::ReadersEnd;
use simplefeed_process::{lack::unless_lacking, regular};

use super::{
    frozen::FrozenDocument,
    index,
    manifest::{ManifestRecord, Manifests},
    sidecar::Sidecar,
    stranger::{OwnDocument, document_of_another_log},
};
use crate::{
    error::ViewError,
    files::{CodedFile, decoded_twin, failed, replace_unsynced},
    folders::Folders,
};

mod copies;
mod salvage;
mod trees;
mod writing;

pub use salvage::{Evidence, SalvageRemains};
use writing::linked_name;

/// Name of the view, of the folder of records, and of the label in metrics.
pub const NAME: &str = "archive-files";

/// Feeds with work to do, each with the newest document that is to be archived; `None` if only the
/// files of the feed may have to move.
pub(super) type ArchiveWork = BTreeMap<FeedKey, Option<DocumentNumber>>;

/// Call that wakes the follower of the log.
type Wake = Box<dyn Fn() + Send + Sync>;

/// Folders and manifests of the archived documents. Clones share the work to do, the notes of
/// finished work, and the locks of the folders.
#[derive(Clone)]
pub struct Archive {
    folders: Folders,
    views: PathBuf,
    /// Work of commits that the view has applied.
    pub(super) waiting: Arc<Mutex<ArchiveWork>>,
    /// Documents of timelines that readers have asked for, and that are still to be archived.
    pub(super) wanted: Arc<Mutex<ArchiveWork>>,
    wake: Arc<OnceLock<Wake>>,
    /// Feeds whose records were compared with the log since the start.
    checked: Arc<Mutex<HashSet<FeedKey>>>,
    /// Documents that the follower of the log has archived since the start.
    made: Arc<AtomicU64>,
    /// Manifests of all feeds, below `views`.
    pub manifests: Manifests,
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").finish_non_exhaustive()
    }
}

impl Archive {
    /// Returns the archive in some folders.
    pub fn new(folders: &Folders) -> Self {
        let views = folders.of_view(NAME);
        Self {
            folders: folders.clone(),
            manifests: Manifests::new(folders, &views),
            views,
            waiting: Arc::default(),
            wanted: Arc::default(),
            wake: Arc::default(),
            checked: Arc::default(),
            made: Arc::default(),
        }
    }

    /// Asks the follower of the log to archive a document of a timeline, and all documents before
    /// it. The documents of a timeline are archived only once somebody reads them.
    pub(super) fn want(&self, feed: FeedKey, document: DocumentNumber) {
        let mut wanted = self.wanted.lock();
        let newest = wanted.entry(feed).or_insert(None);
        *newest = (*newest).max(Some(document));
        // Unlocked before the wake, because the woken follower needs this lock at once.
        drop(wanted);
        self.wake();
    }

    /// Wakes the follower of the log, so that it looks for work.
    pub(super) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Calls `wake` whenever there is new work for the follower of the log, such as a document that
    /// a reader has asked for.
    pub fn when_wanted(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A second call changes nothing: only a second server over the same archive would make that
        // call.
        let _first = self.wake.set(Box::new(wake));
    }

    /// Returns how many of a feed's documents, from the oldest on, belong into files: all closed
    /// documents, or in a timeline the documents up to the newest that somebody has asked for.
    pub(super) fn documents_due(
        &self,
        name: &FeedName,
        settings: &Settings,
        open: DocumentNumber,
    ) -> Result<u64, ViewError> {
        let closed = open.get() - 1;
        if settings.is_timeline() {
            // Records can be lost while their files stay, and web servers show these files. So the
            // larger number counts.
            let asked_for = self.manifests.count(name)?;
            let filed = self.filed_documents(name).last().copied().unwrap_or(0);
            let asked_for = asked_for.max(filed);
            return Ok(asked_for.min(closed));
        }
        Ok(closed)
    }

    /// Returns the numbers of the documents that have a file, recorded or not. Records can be lost,
    /// and a web server shows every file in the folder.
    pub(super) fn filed_documents(&self, name: &FeedName) -> BTreeSet<u64> {
        let files = fs::read_dir(self.folder(name))
            .into_iter()
            .flatten()
            .flatten();
        let documents = files.filter_map(|file| DocumentName::of_file(file.file_name().to_str()?));
        documents.map(|name| name.number.get()).collect()
    }

    /// Returns the bytes of an archived document, plain or compressed.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if the bytes differ from the record.
    pub fn read(
        &self,
        feed: &FeedName,
        archived: &ManifestRecord,
        gzip: bool,
    ) -> Result<Bytes, ViewError> {
        let (suffix, coded) = if gzip {
            (".gz", archived.gzip)
        } else {
            ("", archived.identity)
        };
        let name = format!("{}{suffix}", archived.name);
        let mut path = self.folder(feed).join(&name);
        // The record bounds the read, because a damaged file may have any length.
        let mut read = regular::read_at_most(&path, coded.bytes);
        if read.is_err() {
            // After the path was made, a closed feed may have been opened to all readers. The
            // opening moves the feed's folder to the other tree.
            path = self.folder(feed).join(&name);
            read = regular::read_at_most(&path, coded.bytes);
        }
        let bytes = match read {
            // A file that is too long is damaged: empty bytes fail the comparison below.
            Err(error) if regular::is_too_long(&error) => vec![],
            read => read.map_err(failed("read", &path))?,
        };
        // Each read checks the digest, so a damaged file is never served.
        if CodedFile::of(&bytes) == coded {
            return Ok(bytes.into());
        }
        Err(ViewError::Damaged { path })
    }

    /// Returns whether the sidecar of a document is missing, or differs from the sidecar that the
    /// log gives.
    ///
    /// # Errors
    ///
    /// Returns the error if the process lacks a resource, such as file handles. A faulty file
    /// counts as a difference.
    pub(crate) fn sidecar_differs(
        &self,
        feed: &FeedName,
        frozen: &FrozenDocument,
    ) -> Result<bool, ViewError> {
        let path = self.sidecar_path(feed, frozen.opening.name);
        let found = found_in(&path, regular::read_document(&path))?;
        Ok(found.is_none_or(|found| found != Sidecar::of(frozen).to_bytes()))
    }

    fn sidecar_path(&self, feed: &FeedName, document: DocumentName) -> PathBuf {
        let name = document.to_string().replace(".atom", ".json");
        self.folders.sidecars.join(feed.as_str()).join(name)
    }

    /// Returns the folder of the view's own records.
    pub(super) fn folder_of_records(&self) -> &Path {
        &self.views
    }

    /// Returns the two folders, one in each tree, that have a subfolder for each feed.
    pub(super) fn folders_of_feeds(&self) -> [PathBuf; 2] {
        [&self.folders.www, &self.folders.closed].map(|tree| tree.join("feeds"))
    }

    /// Returns whether a renamed document is missing, or wrong, under the name by which the
    /// document before links to it.
    ///
    /// # Errors
    ///
    /// Returns the error if the process lacks a resource, such as file handles. A faulty file
    /// counts as a difference.
    pub(crate) fn second_name_differs(
        &self,
        feed: &FeedName,
        frozen: &FrozenDocument,
    ) -> Result<bool, ViewError> {
        // Only a document that a restoration has renamed has a second name.
        let Some(linked) = linked_name(frozen) else {
            return Ok(false);
        };
        let path = self.folder(feed).join(linked.to_string());
        let twin = found_in(&path, decoded_twin(&path, frozen.bytes.len()))?;
        let file = found_in(&path, regular::read_document(&path))?;
        let is_right = |bytes: Option<Vec<u8>>| bytes.is_some_and(|bytes| bytes == *frozen.bytes);
        let differs = !(is_right(file) && is_right(twin));
        // Under this name, the archive lets a document of another log stay. So such a document is
        // no difference.
        let other = || document_of_another_log(&path, &OwnDocument::of(frozen));
        Ok(differs && other().is_ok_and(|other| other.is_none()))
    }

    /// Returns whether a closed index block or its twin is missing, or differs from `block`.
    ///
    /// # Errors
    ///
    /// Returns the error if the process lacks a resource, such as file handles. A faulty file
    /// counts as a difference.
    pub(crate) fn block_differs(
        &self,
        feed: &FeedName,
        block: &index::ClosedBlock,
    ) -> Result<bool, ViewError> {
        let path = self.folder(feed).join(&block.name);
        let right = |bytes: Vec<u8>| *bytes == *block.bytes;
        let twin = found_in(&path, decoded_twin(&path, block.bytes.len()))?;
        let file = found_in(&path, regular::read_document(&path))?;
        Ok(!(file.is_some_and(right) && twin.is_some_and(right)))
    }

    /// Returns the number of documents that the follower of the log has archived since the start.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    pub(super) fn count_made(&self, documents: u64) {
        self.made.fetch_add(documents, Ordering::Relaxed);
    }

    /// Returns the last commit whose work is done.
    pub fn cursor(&self) -> ReadersEnd {
        let text = regular::read_text(self.views.join("cursor")).unwrap_or_default();
        let mut words = text.split(' ');
        let mut read = || {
            let commit = CommitNumber(words.next()?.parse().ok()?);
            let chain = ChainHash(Digest::parse(words.next()?)?);
            Some(ReadersEnd { commit, chain })
        };
        // A damaged cursor counts as missing: with a wrong number or hash, this log would seem to
        // have replaced another one. Without a cursor, the follower goes through all commits, and
        // finds the files that are there.
        let cursor = read().filter(|cursor| text == text_of(*cursor));
        cursor.unwrap_or(ReadersEnd::NOTHING)
    }

    /// Writes the cursor, which says that the work of all commits up to `cursor` is done. A lost
    /// cursor costs time, nothing else.
    ///
    /// # Errors
    ///
    /// Returns why the cursor cannot be written.
    pub fn save_cursor(&self, cursor: ReadersEnd) -> Result<(), ViewError> {
        self.create_folders(&[&self.views])?;
        let path = self.views.join("cursor");
        let text = text_of(cursor);
        // Without a sync, because a lost cursor costs time only.
        replace_unsynced(&path, text.as_bytes()).map_err(failed("write", &path))
    }
}

/// Returns the text of the cursor's file: the number of a commit, its chain hash, and the CRC-32 of
/// both.
fn text_of(cursor: ReadersEnd) -> String {
    let text = format!("{} {}", cursor.commit, cursor.chain.0);
    // The checksum tells a damaged cursor from the cursor of another log.
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text} {sum:08x}\n")
}

/// Returns the value read from a file, or `None` if the file is at fault.
fn found_in<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, ViewError> {
    unless_lacking(read).map_err(failed("read", path))
}
