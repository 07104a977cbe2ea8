//! Writing of archived documents: which are due, and in which order their files reach the disk.
//!
//! Shell: files. The order is told in [`archive`](super).

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    digest::Digest,
    feed::{DocumentName, DocumentNumber, FeedKey, FeedName},
    limits::INDEX_BLOCK_DOCUMENTS,
    settings::Settings,
};
use simplefeed_log::{LogError, Series, held::visible_path, settings_of};
use simplefeed_process::regular;
use simplefeed_resource::gzip::SMALLEST;
use tracing::warn;

use crate::documents::{
    frozen::FrozenDocument,
    index,
    manifest::{ManifestRecord, TOGETHER_MAX},
    sidecar::Sidecar,
    stranger::{OwnDocument, Stranger, document_of_another_log},
};
use crate::{
    error::ViewError,
    files::{CodedFile, FrozenFiles, Remade, failed, gunzip, twin_of},
    follower::Grace,
};

use super::Archive;

/// Size of rendered documents, in bytes, beyond which a batch is written even if it has fewer than
/// `TOGETHER_MAX` documents.
const TOGETHER_BYTES_MAX: usize = 8 * 1024 * 1024;

impl Archive {
    /// Moves the files of a feed to the tree where they belong now, and archives all documents up
    /// to `newest` there. Without `newest`, the files are only moved. Documents in the manifest are
    /// left alone. Returns the number of documents that were archived, which may be too few if
    /// `grace` is over.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub fn archive(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        newest: Option<DocumentNumber>,
        grace: &Grace<'_>,
    ) -> Result<u64, ViewError> {
        let Some(head) = log.feed(feed)? else {
            return Ok(0);
        };
        let settings = settings_of(log, feed, head.revision)?;
        let name = &settings.name;
        let (mut made, mut together) = (0, vec![]);
        // The lock ends with this block, because `make` and `write_together` lock for themselves.
        {
            let _writing = self.folders.writing();
            self.choose_tree(&settings)?;
        }
        let last = newest.map_or(0, DocumentNumber::get);
        if newest.is_some() {
            self.check_records(log, feed, name)?;
        }
        for number in self.manifests.count_before_hole(name)? + 1..=last {
            let Some(number) = DocumentNumber::new(number) else {
                continue;
            };
            let frozen = FrozenDocument::render(log, feed, number)?;
            // A document that completes an index block is written alone, because the block needs
            // the records of all documents before.
            let alone = frozen.is_none() || number.get().is_multiple_of(INDEX_BLOCK_DOCUMENTS);
            let bytes: usize = together
                .iter()
                .map(|frozen: &FrozenDocument| frozen.bytes.len())
                .sum();
            if alone || together.len() == TOGETHER_MAX || bytes > TOGETHER_BYTES_MAX {
                made += self.write_together(name, &mut together)?;
                if !grace.lasts() {
                    return Ok(made);
                }
            }
            match frozen {
                Some(frozen) if !alone => together.push(frozen),
                _ => made += u64::from(self.make(log, feed, name, number, None)?.is_some()),
            }
        }
        made += self.write_together(name, &mut together)?;
        Ok(made)
    }

    /// Compares the newest records of closed documents with the log, from the newest back to the
    /// first that is right. This happens once for each feed and start. All records behind the right
    /// one are forgotten, because they are about documents that the log lacks. Such records stay
    /// where somebody copies an older folder over a later one. Records of timelines are not
    /// compared, because that would take long.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn check_records(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        name: &FeedName,
    ) -> Result<(), ViewError> {
        if self.checked.lock().contains(&feed) {
            return Ok(());
        }
        // With this lock, nobody records documents meanwhile.
        let _writing = self.folders.writing();
        let Some(head) = log.feed(feed)? else {
            return Ok(());
        };
        let settings = settings_of(log, feed, head.revision)?;
        let closed = head.open.opening.name.number.get() - 1;
        let count = self.manifests.count_before_hole(name)?;
        let mut own = count.min(closed);
        while !settings.is_timeline()
            && let Some(number) = DocumentNumber::new(own)
            && let Some(record) = self.manifests.get(name, number)?
        {
            // The bytes are compared, because two logs that part may give the same instants.
            let is_own = match FrozenDocument::render(log, feed, number) {
                Ok(Some(frozen)) => record.identity.digest == Digest::of(&frozen.bytes),
                Ok(None) => record.is_lost(),
                // A damaged log cannot contradict the document.
                Err(LogError::Damaged { .. }) => true,
                Err(error) => return Err(error.into()),
            };
            if is_own {
                break;
            }
            // The logs may have parted earlier: the search goes back to the last common document.
            own -= 1;
        }
        if let Some(first) = DocumentNumber::new(own + 1).filter(|first| first.get() <= count) {
            warn!(feed = %name, document = %first, "the records of its documents from this one on are another log's");
            self.manifests.forget(name, first)?;
        }
        self.checked.lock().insert(feed);
        Ok(())
    }

    /// Archives those of the given feeds that have a single document to archive. These documents
    /// share their syncs; each alone would need nine syncs. Returns the feeds whose documents are
    /// archived; [`archive`](Self::archive) is for the others.
    ///
    /// # Errors
    ///
    /// Returns why the documents cannot be written. Some of them may be archived.
    pub(in crate::documents) fn archive_singles(
        &self,
        log: &dyn Series,
        feeds: &[(FeedKey, Option<DocumentNumber>)],
    ) -> Result<BTreeSet<FeedKey>, ViewError> {
        let (mut singles, mut bytes) = (vec![], 0);
        for (feed, newest) in feeds {
            // A damaged feed is left to `archive`, which reports the damage.
            if let Some(newest) = newest
                && let Ok(Some((name, frozen))) = self.single(log, *feed, *newest)
            {
                bytes += frozen.bytes.len();
                singles.push((*feed, name, frozen));
            }
            if bytes > TOGETHER_BYTES_MAX {
                break;
            }
        }
        let documents = singles.iter();
        let documents = documents.map(|(_, name, frozen)| (name, std::slice::from_ref(frozen)));
        let documents: Vec<_> = documents.collect();
        if !documents.is_empty() {
            let _writing = self.folders.writing();
            self.write_all(&documents)?;
        }
        Ok(singles.into_iter().map(|(feed, ..)| feed).collect())
    }

    /// Returns a feed's document `newest` and the feed's name, if all documents before it are
    /// archived. A document that completes an index block is left to `archive`.
    pub(super) fn single(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        newest: DocumentNumber,
    ) -> Result<Option<(FeedName, FrozenDocument)>, ViewError> {
        let Some(head) = log.feed(feed)? else {
            return Ok(None);
        };
        let settings = settings_of(log, feed, head.revision)?;
        self.check_records(log, feed, &settings.name)?;
        let before = self.manifests.count_before_hole(&settings.name)?;
        if newest.get() != before + 1 || newest.get().is_multiple_of(INDEX_BLOCK_DOCUMENTS) {
            return Ok(None);
        }
        // The lock ends with this block, because `archive_singles` locks once for all documents.
        {
            let _writing = self.folders.writing();
            self.choose_tree(&settings)?;
        }
        let frozen = FrozenDocument::render(log, feed, newest)?;
        Ok(frozen.map(|frozen| (settings.name, frozen)))
    }

    pub(super) fn write_together(
        &self,
        feed: &FeedName,
        documents: &mut Vec<FrozenDocument>,
    ) -> Result<u64, ViewError> {
        let documents = std::mem::take(documents);
        if !documents.is_empty() {
            let _writing = self.folders.writing();
            self.write(feed, &documents)?;
        }
        Ok(u64::try_from(documents.len()).unwrap_or(u64::MAX))
    }

    /// Makes the files of document `number`. If the document is closed, but has lost entries, only
    /// records the loss. Uses the compressed twin of the archive `like`, if that twin decodes to
    /// the right bytes. Returns the document's name, and the outcome; `None` if the document is
    /// open or lost.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub fn make(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        name: &FeedName,
        number: DocumentNumber,
        like: Option<&Self>,
    ) -> Result<Option<(DocumentName, Remade)>, ViewError> {
        let _writing = self.folders.writing();
        if let Some(head) = log.feed(feed)? {
            let settings = settings_of(log, feed, head.revision)?;
            self.choose_tree(&settings)?;
        }
        if let Some(frozen) = FrozenDocument::render(log, feed, number)? {
            if let Some(like) = like {
                // The copy gets the twin that readers of the original have.
                self.adopt_twin(like, name, &frozen)?;
            }
            let document = frozen.opening.name;
            let remade = self.write(name, &[frozen])?;
            return Ok(Some((document, remade)));
        }
        // A closed document that cannot be rendered has lost entries. The record of the loss keeps
        // the manifest without holes.
        let opening = log.opening(feed, number)?;
        if let Some((opening, successor)) = opening.zip(log.opening(feed, number.next())?) {
            let lost = ManifestRecord::lost(&opening, &successor);
            let settings = settings_of(log, feed, opening.revision)?;
            self.create_folders(&[&self.folder(name)])?;
            let mut files = FrozenFiles::of(&self.folders);
            // A lost document completes an index block, too.
            self.close_index_block(&mut files, name, &settings, &lost)?;
            // As in `write_all`, the files are durable before the record is written.
            files.put_in_place()?;
            self.manifests.record(name, &[lost])?;
        }
        Ok(None)
    }

    /// Forgets the records from the open document on: these records belong to another log.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn forget_open(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        name: &FeedName,
    ) -> Result<(), ViewError> {
        let _writing = self.folders.writing();
        if let Some(head) = log.feed(feed)? {
            self.manifests.forget(name, head.open.opening.name.number)?;
        }
        Ok(())
    }

    /// Copies the compressed twin of a document from another archive, because another compressor
    /// would give other bytes. A twin with other content is not copied.
    pub(super) fn adopt_twin(
        &self,
        from: &Self,
        feed: &FeedName,
        frozen: &FrozenDocument,
    ) -> Result<(), ViewError> {
        let name = frozen.opening.name.to_string();
        let file = Path::new(feed.as_str()).join(&name);
        let twins = from.folders_of_feeds().into_iter();
        let mut twins = twins.map(|folder| regular::read_document(twin_of(&folder.join(&file))));
        let length = frozen.bytes.len();
        let decodes =
            |twin: &Vec<u8>| gunzip(twin, length).is_ok_and(|bytes| bytes == *frozen.bytes);
        // A twin that is missing or decodes to other bytes is made anew by the next write.
        let Some(twin) = twins.find_map(|twin| twin.ok().filter(decodes)) else {
            return Ok(());
        };
        let folder = self.folder(feed);
        self.create_folders(&[&folder])?;
        let path = twin_of(&folder.join(name));
        let mut files = FrozenFiles::of(&self.folders);
        files.write(&path, &twin, frozen.successor.opened)?;
        files.put_in_place()
    }

    pub(super) fn create_folders(&self, folders: &[&Path]) -> Result<(), ViewError> {
        let created = self.folders.create(folders);
        created.map_err(|(folder, error)| failed("create", folder)(error))
    }

    /// Writes archived documents of a feed and records them. Returns the worst outcome among their
    /// files.
    pub(super) fn write(
        &self,
        feed: &FeedName,
        documents: &[FrozenDocument],
    ) -> Result<Remade, ViewError> {
        self.write_all(&[(feed, documents)])
    }

    /// Writes archived documents of several feeds, which share their syncs, and records them.
    pub(super) fn write_all(
        &self,
        feeds: &[(&FeedName, &[FrozenDocument])],
    ) -> Result<Remade, ViewError> {
        // All places are checked before the first write, so a refusal leaves nothing behind.
        for (feed, documents) in feeds {
            for frozen in *documents {
                self.check_place(feed, frozen)?;
            }
        }
        let folders = feeds.iter().flat_map(|(feed, _)| {
            let sidecars = self.folders.sidecars.join(feed.as_str());
            [self.folder(feed), sidecars]
        });
        let folders: Vec<PathBuf> = folders.collect();
        let paths: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
        self.create_folders(&paths)?;
        // Somebody may have made the tree anew since the start, and the new tree is not locked.
        self.folders.keep_locked().map_err(|error| {
            let source = io::Error::new(io::ErrorKind::ResourceBusy, error);
            failed("lock", &self.folders.www)(source)
        })?;
        let mut files = FrozenFiles::of(&self.folders);
        // The folders are opened before anything is written, so that no failed write is missed.
        for folder in &folders {
            files.open_folder(folder)?;
        }
        let begins = |documents: &[FrozenDocument]| {
            let first = documents.first();
            first.is_some_and(|frozen| frozen.opening.name.number == DocumentNumber::OLDEST)
        };
        if feeds.iter().any(|(_, documents)| begins(documents)) {
            // An earlier process may have been killed before the names of these folders were
            // durable. So the names are synced again.
            for folder in folders.iter().filter_map(|folder| folder.parent()) {
                files.open_folder(folder)?;
            }
        }
        let (mut records, mut worst) = (vec![], Remade::Identical);
        for (feed, documents) in feeds {
            let (archived, remade) = self.add_files(&mut files, feed, documents)?;
            records.push((*feed, archived));
            worst = worst.max(remade);
        }
        // Files first, records last: a record promises durable files.
        files.put_in_place()?;
        let records = records.iter().map(|(feed, archived)| (*feed, &**archived));
        self.manifests.record_all(&records.collect::<Vec<_>>())?;
        Ok(worst)
    }

    /// Checks that a document does not replace a document of another log. Both trees are checked,
    /// because the other log may have shown a feed that this log has closed.
    pub(super) fn check_place(
        &self,
        feed: &FeedName,
        frozen: &FrozenDocument,
    ) -> Result<(), ViewError> {
        let name = frozen.opening.name;
        for folder in self.folders_of_feeds() {
            let path = folder.join(feed.as_str()).join(name.to_string());
            let other = document_of_another_log(&path, &OwnDocument::of(frozen));
            let Some(other) = other.map_err(failed("read", &path))? else {
                continue;
            };
            // If the record has the digest of these bytes, this log is the one that was served, and
            // somebody has put the file there, or the file is damaged. A sidecar may have been made
            // beside another tree. So the sidecar counts only where the file may be this log's own
            // document with rot.
            let [recorded, sidecar] = self.told_digests(feed, name);
            let sidecar = sidecar.filter(|_| other == Stranger::Likely);
            let own = Digest::of(&frozen.bytes);
            if ![recorded, sidecar].contains(&Some(own)) {
                return Err(replaced_by(path));
            }
        }
        Ok(())
    }

    /// Adds the files of a feed's documents. Returns the records of these documents, and the worst
    /// outcome.
    pub(super) fn add_files(
        &self,
        files: &mut FrozenFiles,
        feed: &FeedName,
        documents: &[FrozenDocument],
    ) -> Result<(Vec<ManifestRecord>, Remade), ViewError> {
        let folder = self.folder(feed);
        let (mut records, mut worst) = (vec![], Remade::Identical);
        for frozen in documents {
            let mtime = frozen.successor.opened;
            let path = folder.join(frozen.opening.name.to_string());
            // Readers may have the recorded twin, so only that twin is kept. Without a record, any
            // twin that decodes to these bytes is kept.
            let recorded = self.manifests.get(feed, frozen.opening.name.number);
            let recorded = recorded.ok().flatten().map(|recorded| recorded.gzip);
            let (gzip, twin) = files.write_twin(&path, &frozen.bytes, mtime, SMALLEST, recorded)?;
            let document = files.write(&path, &frozen.bytes, mtime)?;
            if let Some(linked) = linked_name(frozen) {
                // The predecessor links to this name for ever, and a plain web server cannot
                // redirect.
                let path = folder.join(linked.to_string());
                let other = document_of_another_log(&path, &OwnDocument::of(frozen));
                if other.map_err(failed("read", &path))?.is_some() {
                    let path = visible_path(&path);
                    warn!(path = %path.display(), "another document has this name, and is left alone");
                } else {
                    let (_, twin) =
                        files.write_twin(&path, &frozen.bytes, mtime, SMALLEST, recorded)?;
                    worst = worst
                        .max(twin)
                        .max(files.write(&path, &frozen.bytes, mtime)?);
                }
            }
            let sidecar = self.sidecar_path(feed, frozen.opening.name);
            let sidecar = files.write(&sidecar, &Sidecar::of(frozen).to_bytes(), mtime)?;
            let archived = frozen.archived_as(CodedFile::of(&gzip));
            // Before the record, because the growing index links to the block as soon as the record
            // is there.
            let block = self.close_index_block(files, feed, &frozen.settings, &archived)?;
            records.push(archived);
            worst = [twin, document, sidecar, block]
                .into_iter()
                .fold(worst, Remade::max);
        }
        Ok((records, worst))
    }

    /// Writes the index block that a document completes, if there is one.
    pub(super) fn close_index_block(
        &self,
        files: &mut FrozenFiles,
        feed: &FeedName,
        settings: &Settings,
        last: &ManifestRecord,
    ) -> Result<Remade, ViewError> {
        let block = index::block_closed_by(&self.manifests, feed, &settings.id, last)?;
        let Some(block) = block else {
            return Ok(Remade::Identical);
        };
        let path = self.folder(feed).join(&block.name);
        // No record names the twin of a block, so any right twin is kept.
        let (_, twin) = files.write_twin(&path, &block.bytes, block.closed, SMALLEST, None)?;
        Ok(twin.max(files.write(&path, &block.bytes, block.closed)?))
    }
}

/// Returns the name by which the predecessor links to a document, if a restoration has renamed the
/// document.
pub(super) fn linked_name(frozen: &FrozenDocument) -> Option<DocumentName> {
    let opening = &frozen.opening;
    (opening.linked != opening.name).then_some(opening.linked)
}

/// Returns the error that the document in a file belongs to another log.
pub(super) fn replaced_by(path: PathBuf) -> ViewError {
    let source = LogError::replaced_beside(&visible_path(&path));
    ViewError::Replaced { path, source }
}
