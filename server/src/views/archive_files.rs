//! Archived documents as files, which any web server can serve for ever.
//!
//! Shell: files below `www`, beside it the sidecars. The view itself is small: a commit that opens a
//! document closes the one before it, which is then rendered from the log once. The order in which
//! things reach the disk is the promise: twin, document, sidecar, each synced and renamed into
//! place; then the manifest. Only what is in the manifest is called immutable.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    feed::{CommitNumber, DocumentName, DocumentNumber, FeedKey, FeedName},
    limits::INDEX_BLOCK_DOCUMENTS,
    settings::Settings,
};
use tracing::{error, info};

use super::{
    View,
    error::ArchiveError,
    frozen::Frozen,
    frozen_files::{FrozenFiles, Remade, TEMPORARY, create_folder, failed, gunzip, twin_of},
    index,
    manifest::{Archived, Coded, ManifestError, Manifests},
    sidecar::Sidecar,
    sup_files::SupFiles,
};
use crate::{
    log::{EntryLog, LogError, Series, settings_of},
    stop::Stop,
};

/// Commits between two notes of how far the view has come.
const CURSOR_COMMITS: u64 = 1_024;
/// Commits looked at together, and documents of a feed put on the disk together, by a view that is behind.
const COMMITS_TOGETHER: u64 = 256;
const TOGETHER_MAX: usize = 32;
const TOGETHER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The pause before looking again.
const PACE: Duration = Duration::from_millis(50);
/// The pause after a file could not be written.
const RETRY: Duration = Duration::from_secs(1);

/// The view: which documents a commit closes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArchiveFiles;

/// Archive all documents of a feed up to this one, in the tree where its files belong now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveUpTo {
    /// The feed.
    pub feed: FeedKey,
    /// The newest document that is closed; `None` if only the tree may be another one.
    pub document: Option<DocumentNumber>,
}

impl View for ArchiveFiles {
    const NAME: &'static str = "archive-files";
    type Effect = ArchiveUpTo;

    fn apply(&mut self, commit: &Commit, _: &dyn Series) -> Result<Vec<ArchiveUpTo>, LogError> {
        let closed = commit.changes.iter().filter_map(|change| match change {
            Change::Opened { feed, document, .. } => Some(ArchiveUpTo {
                feed: *feed,
                document: Some(document.previous()?),
            }),
            Change::Settings { feed, settings, .. } => {
                settings.choices.closed.map(|_| ArchiveUpTo {
                    feed: *feed,
                    document: None,
                })
            }
            _ => None,
        });
        Ok(closed.collect())
    }
}

/// What is left of an archived document.
#[derive(Debug)]
pub struct Salvaged {
    /// The bytes of its file or of its twin.
    pub bytes: Option<Bytes>,
    /// Whether anything says that these are the right bytes. If not, nothing says that they are wrong.
    pub proven: bool,
    /// Its sidecar.
    pub sidecar: Option<Sidecar<'static>>,
    /// Its record in the manifest.
    pub record: Option<Archived>,
}

/// Returns the name by which the document before links to a document, if a restoration has given it another one.
fn linked_name(frozen: &Frozen) -> Option<DocumentName> {
    let opening = &frozen.opening;
    (opening.linked != opening.name).then_some(opening.linked)
}

/// The folders of the archived documents.
#[derive(Clone, Debug)]
pub struct Archive {
    www: PathBuf,
    /// Where the files of closed feeds are, which no web server sees.
    closed: PathBuf,
    sidecars: PathBuf,
    views: PathBuf,
    /// The last commit whose closed documents are files, as far as this process knows.
    reached: Arc<AtomicU64>,
    /// Documents that were made files of by whoever follows the log.
    made: Arc<AtomicU64>,
    /// Held while files are written: `rebuild` may run beside the server.
    writing: Arc<Mutex<()>>,
    /// The manifests of all feeds.
    pub manifests: Manifests,
}

impl Archive {
    /// Returns the archive of the data folder `data`, with its documents below `www` if given,
    /// else below `<data>/www`.
    pub fn new(data: &Path, www: Option<&Path>) -> Self {
        let views = data.join("views").join(ArchiveFiles::NAME);
        Self {
            www: www.map_or_else(|| data.join("www"), Path::to_path_buf),
            closed: data.join("closed"),
            sidecars: data.join("sidecars"),
            manifests: Manifests::new(&views),
            views,
            reached: Arc::default(),
            made: Arc::default(),
            writing: Arc::default(),
        }
    }

    /// Returns the folder whose files a web server may serve.
    pub fn www(&self) -> &Path {
        &self.www
    }

    /// Returns what is archived of updates, beside the documents.
    pub fn sup_files(&self) -> SupFiles {
        let views = self.views.parent().unwrap_or(&self.views);
        SupFiles::beside(&self.www, &self.closed, views, &self.writing)
    }

    fn folder(&self, feed: &FeedName) -> PathBuf {
        let closed = folder_in(&self.closed, feed);
        if closed.is_dir() {
            closed
        } else {
            folder_in(&self.www, feed)
        }
    }

    /// Whether a web server may show files of a feed.
    pub fn shows(&self, feed: &FeedName) -> bool {
        folder_in(&self.www, feed).exists()
    }

    /// Sees to it that the files of a feed are in the tree where they belong: a closed feed may have been
    /// opened. It is in the closed tree as long as it has a folder there, so that a move that was broken
    /// off is begun again.
    fn choose_tree(&self, feed: &FeedName, is_closed: bool) -> Result<(), ArchiveError> {
        let closed = folder_in(&self.closed, feed);
        if is_closed {
            return create_folder(&closed).map_err(failed("create", &closed));
        }
        if !closed.is_dir() {
            return Ok(());
        }
        let open = folder_in(&self.www, feed);
        create_folder(&open).map_err(failed("create", &open))?;
        let mut paths = vec![];
        for item in fs::read_dir(&closed).map_err(failed("read", &closed))? {
            paths.push(item.map_err(failed("read", &closed))?.path());
        }
        for paths in paths.chunks(TOGETHER_MAX) {
            // Copied, because the trees may be on two file systems.
            let mut files = FrozenFiles::default();
            for path in paths {
                let name = path.file_name().unwrap_or_default();
                if !name.to_string_lossy().ends_with(TEMPORARY) {
                    files.copy(path, &open.join(name))?;
                }
            }
            files.put_in_place()?;
        }
        // Gone at once, under a name that no feed has.
        let gone = closed.with_file_name(format!("{feed}{TEMPORARY}!"));
        let _leftover = fs::remove_dir_all(&gone);
        fs::rename(&closed, &gone).map_err(failed("remove", &closed))?;
        fs::remove_dir_all(&gone).map_err(failed("remove", &gone))
    }

    /// Returns the bytes of an archived document, as they are or compressed.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Damaged`] if the file is not what was archived.
    pub fn read(
        &self,
        feed: &FeedName,
        archived: &Archived,
        gzip: bool,
    ) -> Result<Bytes, ArchiveError> {
        let (suffix, coded) = if gzip {
            (".gz", archived.gzip)
        } else {
            ("", archived.identity)
        };
        let name = format!("{}{suffix}", archived.name);
        let mut path = self.folder(feed).join(&name);
        let mut read = fs::read(&path);
        if read.is_err() {
            // The feed may have been opened that very moment.
            path = self.folder(feed).join(&name);
            read = fs::read(&path);
        }
        let bytes = read.map_err(failed("read", &path))?;
        if Coded::of(&bytes) == coded {
            return Ok(bytes.into());
        }
        Err(ArchiveError::Damaged { path })
    }

    /// Returns whether the sidecar of a document is missing or not what it should be.
    pub fn sidecar_differs(&self, feed: &FeedName, frozen: &Frozen) -> bool {
        let path = self.sidecar_path(feed, frozen.opening.name);
        fs::read(path).map_or(true, |found| found != Sidecar::of(frozen).to_bytes())
    }

    fn sidecar_path(&self, feed: &FeedName, document: DocumentName) -> PathBuf {
        let name = document.to_string().replace(".atom", ".json");
        self.sidecars.join(feed.as_str()).join(name)
    }

    /// Returns the feeds of which any file is there.
    pub fn feeds(&self) -> BTreeSet<FeedName> {
        let trees = [&self.www, &self.closed].map(|tree| tree.join("feeds"));
        let [open, closed] = trees;
        [open, closed, self.sidecars.clone()]
            .iter()
            .flat_map(names_in)
            .filter_map(|name| FeedName::parse(&name))
            .collect()
    }

    /// Returns the names of a feed's documents of which any file or record is there.
    pub fn documents(&self, feed: &FeedName) -> BTreeSet<DocumentName> {
        let files = names_in(self.folder(feed));
        let sidecars = names_in(self.sidecars.join(feed.as_str()));
        let stems = files.iter().chain(&sidecars).filter_map(|name| {
            let name = name.strip_suffix(".gz").unwrap_or(name);
            name.strip_suffix(".atom").or(name.strip_suffix(".json"))
        });
        let recorded = (1..=self.manifests.count(feed).unwrap_or(0))
            .filter_map(DocumentNumber::new)
            .filter_map(|number| self.manifests.get(feed, number).ok().flatten())
            .map(|record| record.name);
        let is_second_name = |name: &DocumentName| {
            let record = self.manifests.get(feed, name.number).ok().flatten();
            record.is_some_and(|record| name.epoch < record.name.epoch)
        };
        stems
            .filter_map(DocumentName::of_stem)
            .filter(|name| !is_second_name(name))
            .chain(recorded)
            .collect()
    }

    /// Returns the names of a feed's closed index blocks.
    pub fn blocks(&self, feed: &FeedName) -> BTreeSet<String> {
        let files = names_in(self.folder(feed)).into_iter();
        files
            .filter(|name| index::block_of_name(name).is_some())
            .collect()
    }

    /// Returns the bytes of a closed index block, if it is there.
    pub fn block(&self, feed: &FeedName, name: &str) -> Option<Vec<u8>> {
        fs::read(self.folder(feed).join(name)).ok()
    }

    /// Returns what is left of a document.
    pub fn salvage(&self, feed: &FeedName, document: DocumentName) -> Salvaged {
        let path = self.folder(feed).join(document.to_string());
        let file = fs::read(&path).ok();
        let twin = fs::read(twin_of(&path)).and_then(|twin| gunzip(&twin)).ok();
        let sidecar = fs::read(self.sidecar_path(feed, document));
        let sidecar = sidecar.ok().and_then(|bytes| Sidecar::of_bytes(&bytes));
        let record = self.manifests.get(feed, document.number).ok().flatten();
        let record = record.filter(|record| record.name == document && !record.is_lost());
        let expected = [
            sidecar.as_ref().map(|sidecar| sidecar.sha256),
            record.map(|record| record.identity.digest),
        ];
        // Where nothing else tells, two that agree are right.
        let nothing_tells = expected == [None, None];
        let agree = nothing_tells && file.is_some() && file == twin;
        let found: Vec<Bytes> = [file, twin]
            .into_iter()
            .flatten()
            .map(Bytes::from)
            .collect();
        let sound = found
            .iter()
            .find(|bytes| agree || expected.contains(&Some(Digest::of(bytes))))
            .cloned();
        let proven = sound.is_some();
        let unproven = found.into_iter().next().filter(|_| nothing_tells);
        Salvaged {
            bytes: sound.or(unproven),
            proven,
            sidecar,
            record,
        }
    }

    /// Does what the view asks for. What is archived already is left alone. Returns how many documents
    /// were not.
    ///
    /// # Errors
    ///
    /// See [`ArchiveError`].
    pub fn archive(&self, log: &dyn Series, wanted: ArchiveUpTo) -> Result<u64, ArchiveError> {
        let Some(head) = log.feed(wanted.feed)? else {
            return Ok(0);
        };
        let settings = settings_of(log, wanted.feed, head.revision)?;
        let name = &settings.name;
        let (mut made, mut together) = (0, vec![]);
        {
            let _writing = self.writing();
            self.choose_tree(name, settings.is_closed())?;
        }
        let last = wanted.document.map_or(0, DocumentNumber::get);
        for number in self.manifests.count(name)? + 1..=last {
            let Some(number) = DocumentNumber::new(number) else {
                continue;
            };
            let frozen = Frozen::render(log, wanted.feed, number)?;
            // What completes a block of the index lists the records before its own.
            let alone = frozen.is_none() || number.get().is_multiple_of(INDEX_BLOCK_DOCUMENTS);
            let bytes: usize = together
                .iter()
                .map(|frozen: &Frozen| frozen.bytes.len())
                .sum();
            if alone || together.len() == TOGETHER_MAX || bytes > TOGETHER_BYTES_MAX {
                made += self.write_together(name, &mut together)?;
            }
            match frozen {
                Some(frozen) if !alone => together.push(frozen),
                _ => made += u64::from(self.make(log, wanted.feed, name, number, None)?.is_some()),
            }
        }
        made += self.write_together(name, &mut together)?;
        Ok(made)
    }

    fn write_together(
        &self,
        feed: &FeedName,
        documents: &mut Vec<Frozen>,
    ) -> Result<u64, ArchiveError> {
        let documents = std::mem::take(documents);
        if !documents.is_empty() {
            let _writing = self.writing();
            self.write(feed, &documents)?;
        }
        Ok(u64::try_from(documents.len()).unwrap_or(u64::MAX))
    }

    /// Makes the files of document `number`, unless it is open or lost, if possible with the compressed
    /// twin of the archive `like`. Returns the document's name, and whether the files were there already.
    ///
    /// # Errors
    ///
    /// See [`ArchiveError`].
    pub fn make(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        name: &FeedName,
        number: DocumentNumber,
        like: Option<&Self>,
    ) -> Result<Option<(DocumentName, Remade)>, ArchiveError> {
        let _writing = self.writing();
        if let Some(head) = log.feed(feed)? {
            let settings = settings_of(log, feed, head.revision)?;
            self.choose_tree(name, settings.is_closed())?;
        }
        if let Some(frozen) = Frozen::render(log, feed, number)? {
            if let Some(like) = like {
                self.adopt_twin(like, name, &frozen)?;
            }
            let document = frozen.opening.name;
            let remade = self.write(name, &[frozen])?;
            return Ok(Some((document, remade)));
        }
        let opening = log.opening(feed, number)?;
        if let Some((opening, successor)) = opening.zip(log.opening(feed, number.next())?) {
            let lost = Archived::lost(&opening, &successor);
            let settings = settings_of(log, feed, opening.revision)?;
            create_folder(&self.folder(name)).map_err(failed("create", &self.folder(name)))?;
            let mut files = FrozenFiles::default();
            self.close_index_block(&mut files, name, &settings, &lost)?;
            files.put_in_place()?;
            self.manifests.record(name, &lost)?;
        }
        Ok(None)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets records of documents that are not closed: they are of another log.
    ///
    /// # Errors
    ///
    /// See [`ArchiveError`].
    pub fn forget_open(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        name: &FeedName,
    ) -> Result<(), ArchiveError> {
        let _writing = self.writing();
        if let Some(head) = log.feed(feed)? {
            self.manifests.forget(name, head.open.opening.name.number)?;
        }
        Ok(())
    }

    /// Copies the compressed twin of a document from another archive, because another compressor would
    /// make other bytes of it. One that is not of this document is not copied.
    fn adopt_twin(
        &self,
        from: &Self,
        feed: &FeedName,
        frozen: &Frozen,
    ) -> Result<(), ArchiveError> {
        let name = frozen.opening.name.to_string();
        let twin = fs::read(twin_of(&from.folder(feed).join(&name)));
        let decodes = |twin: &Vec<u8>| gunzip(twin).is_ok_and(|bytes| bytes == *frozen.bytes);
        let Some(twin) = twin.ok().filter(decodes) else {
            return Ok(());
        };
        let folder = self.folder(feed);
        create_folder(&folder).map_err(failed("create", &folder))?;
        let path = twin_of(&folder.join(name));
        let mut files = FrozenFiles::default();
        files.write(&path, &twin, frozen.successor.opened)?;
        files.put_in_place()
    }

    /// Writes archived documents of a feed and records them. Returns whether they were there already: the
    /// worst of them.
    fn write(&self, feed: &FeedName, documents: &[Frozen]) -> Result<Remade, ArchiveError> {
        let folder = self.folder(feed);
        let sidecars = self.sidecars.join(feed.as_str());
        for folder in [&folder, &sidecars] {
            create_folder(folder).map_err(failed("create", folder))?;
        }
        let mut files = FrozenFiles::default();
        let (mut records, mut worst) = (vec![], Remade::Identical);
        for frozen in documents {
            let mtime = frozen.successor.opened;
            let path = folder.join(frozen.opening.name.to_string());
            // A twin is kept only if it is the one recorded, or none is.
            let recorded = self.manifests.get(feed, frozen.opening.name.number);
            let recorded = recorded.ok().flatten().map(|recorded| recorded.gzip);
            let (gzip, twin) = files.write_twin(&path, &frozen.bytes, mtime, recorded)?;
            let document = files.write(&path, &frozen.bytes, mtime)?;
            if let Some(linked) = linked_name(frozen) {
                // The document before links to it by this name, and a web server without us cannot redirect.
                let path = folder.join(linked.to_string());
                let (_, twin) = files.write_twin(&path, &frozen.bytes, mtime, recorded)?;
                worst = worst
                    .max(twin)
                    .max(files.write(&path, &frozen.bytes, mtime)?);
            }
            let sidecar = self.sidecar_path(feed, frozen.opening.name);
            let sidecar = files.write(&sidecar, &Sidecar::of(frozen).to_bytes(), mtime)?;
            let archived = frozen.archived_as(Coded::of(&gzip));
            // Before the record, so that a block that is linked to is always there.
            let block = self.close_index_block(&mut files, feed, &frozen.settings, &archived)?;
            records.push(archived);
            worst = [twin, document, sidecar, block]
                .into_iter()
                .fold(worst, Remade::max);
        }
        files.put_in_place()?;
        for archived in &records {
            self.manifests.record(feed, archived)?;
        }
        Ok(worst)
    }

    /// Writes the index block that a document completes, if it completes one.
    fn close_index_block(
        &self,
        files: &mut FrozenFiles,
        feed: &FeedName,
        settings: &Settings,
        last: &Archived,
    ) -> Result<Remade, ArchiveError> {
        let block = index::block_closed_by(&self.manifests, feed, &settings.id, last)?;
        let Some(block) = block else {
            return Ok(Remade::Identical);
        };
        let path = self.folder(feed).join(&block.name);
        let (_, twin) = files.write_twin(&path, &block.bytes, block.closed, None)?;
        Ok(twin.max(files.write(&path, &block.bytes, block.closed)?))
    }

    /// Returns whether a renamed document is missing under the name that leads to it, or another one is there.
    pub fn second_name_differs(&self, feed: &FeedName, frozen: &Frozen) -> bool {
        let Some(linked) = linked_name(frozen) else {
            return false;
        };
        let path = self.folder(feed).join(linked.to_string());
        let twin = fs::read(twin_of(&path)).and_then(|twin| gunzip(&twin));
        let is_right = |bytes: io::Result<Vec<u8>>| bytes.is_ok_and(|bytes| bytes == *frozen.bytes);
        !(is_right(fs::read(&path)) && is_right(twin))
    }

    /// Returns whether a closed index block or its twin is missing or not what it should be.
    pub fn block_differs(&self, feed: &FeedName, block: &index::Block) -> bool {
        let path = self.folder(feed).join(&block.name);
        let right = |bytes: Vec<u8>| *bytes == *block.bytes;
        let twin = fs::read(twin_of(&path)).and_then(|twin| gunzip(&twin));
        !(fs::read(path).is_ok_and(right) && twin.is_ok_and(right))
    }

    /// Returns whether everything committed up to now has been looked at.
    pub fn is_up_to(&self, commit: CommitNumber) -> bool {
        self.cursor() >= commit
    }

    /// Returns the last commit whose closed documents are files, as far as whoever follows the log has come.
    pub fn reached(&self) -> CommitNumber {
        CommitNumber(self.reached.load(Ordering::Relaxed))
    }

    /// Returns how many documents whoever follows the log has made files of.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    fn cursor(&self) -> CommitNumber {
        let text = fs::read_to_string(self.views.join("cursor")).unwrap_or_default();
        CommitNumber(text.trim().parse().unwrap_or(0))
    }

    /// Notes that everything up to a commit is done. Losing the note costs time, nothing else.
    fn save_cursor(&self, cursor: CommitNumber) -> Result<(), ArchiveError> {
        fs::create_dir_all(&self.views).map_err(failed("create", &self.views))?;
        let path = self.views.join("cursor");
        let temporary = self.views.join("cursor.new");
        fs::write(&temporary, format!("{cursor}\n"))
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(failed("write", &path))
    }

    /// Follows the log until the server stops and everything is archived.
    pub fn follow(&self, log: &Arc<dyn EntryLog>, stop: &Stop) {
        // A cursor beyond the log belongs to another log; begin again, which finds what is there.
        let mut cursor = self.cursor();
        if cursor > log.head().number {
            cursor = CommitNumber(0);
        }
        let mut saved = cursor;
        loop {
            self.reached.store(cursor.0, Ordering::Relaxed);
            match self.follow_on(&**log, cursor) {
                Ok(Some(last)) => {
                    let is_behind = last.0 == cursor.0 + COMMITS_TOGETHER;
                    cursor = last;
                    // What is closed meanwhile is put on the disk together.
                    if !is_behind && stop.is_requested_within(PACE) {
                        continue;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let error: &(dyn std::error::Error + 'static) = &error;
                    error!(
                        error,
                        "a document cannot be archived; it will be tried again"
                    );
                    if stop.is_requested_within(RETRY) {
                        break;
                    }
                }
            }
            if cursor.0 >= saved.0 + CURSOR_COMMITS {
                saved = self.note(cursor);
            }
        }
        self.note(cursor);
    }

    /// Notes that everything up to a commit is done.
    pub fn note(&self, cursor: CommitNumber) -> CommitNumber {
        if let Err(error) = self.save_cursor(cursor) {
            let error: &(dyn std::error::Error + 'static) = &error;
            error!(error, "the archive's cursor cannot be saved");
        }
        cursor
    }

    /// Takes the commits after `cursor` that there are, waiting for one. Returns the last of them, or
    /// `None` when there will be none.
    fn follow_on(
        &self,
        log: &dyn EntryLog,
        cursor: CommitNumber,
    ) -> Result<Option<CommitNumber>, ArchiveError> {
        let mut wanted: BTreeMap<FeedKey, Option<DocumentNumber>> = BTreeMap::new();
        let mut last = cursor;
        while last == cursor || (last < log.head().number && last.0 < cursor.0 + COMMITS_TOGETHER) {
            let Some(commit) = log.announcements().wait_for(last.next(), log)? else {
                break;
            };
            for ArchiveUpTo { feed, document } in ArchiveFiles.apply(&commit, log)? {
                let newest = wanted.entry(feed).or_insert(document);
                *newest = document.max(*newest);
            }
            last = commit.number;
        }
        for (feed, document) in wanted {
            match self.archive(log, ArchiveUpTo { feed, document }) {
                // One feed's damage must not hold up the others. It is looked at again when the
                // feed's next document is closed.
                Err(
                    error @ (ArchiveError::Log(LogError::Damaged { .. })
                    | ArchiveError::Manifest(ManifestError::Damaged { .. })),
                ) => {
                    let error: &(dyn std::error::Error + 'static) = &error;
                    error!(error, "a document cannot be archived");
                }
                Ok(0) => {}
                Ok(made) => {
                    self.made.fetch_add(made, Ordering::Relaxed);
                    let document = document.map(DocumentNumber::get);
                    let name = name_of(log, feed)?;
                    info!(feed = %name, document, "archived");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(last).filter(|last| *last > cursor))
    }
}

/// Returns the name of a feed, by which operators know it.
fn name_of(log: &dyn Series, feed: FeedKey) -> Result<String, LogError> {
    match log.feed(feed)? {
        Some(head) => Ok(settings_of(log, feed, head.revision)?.name.to_string()),
        None => Ok(feed.0.to_string()),
    }
}

fn folder_in(tree: &Path, feed: &FeedName) -> PathBuf {
    tree.join("feeds").join(feed.as_str())
}

/// Returns the names of the files in a folder, if there is one.
fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let items = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = items.map(|item| item.file_name().to_string_lossy().into_owned());
    names.collect()
}
