//! Archived documents as files, which any web server can serve for ever.
//!
//! Shell: files below `www`, and sidecars beside it. The order of the writes is the promise: twin, document and
//! sidecar, synced and then renamed into place; then the manifest. Only a document in the manifest is called immutable.
//! Documents that are closed at about the same time share the syncs, also those of several feeds.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsStr,
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
    limits::INDEX_BLOCK_DOCUMENTS,
    settings::Settings,
};
use simplefeed_log::{LogError, Series, durable, held::visible_path, seen::Seen, settings_of};
use simplefeed_process::{lack::unless_lacking, regular};
use simplefeed_resource::gzip::SMALLEST;
use tracing::warn;

use super::{
    frozen::Frozen,
    index,
    manifest::{Archived, Manifests, TOGETHER_MAX},
    sidecar::Sidecar,
    stranger::{Own, Stranger, document_of_another_log, name_in},
};
use crate::{
    error::ViewError,
    files::{
        Coded, FrozenFiles, Remade, TEMPORARY, decoded_twin, failed, gunzip, replace_unsynced,
        twin_of,
    },
    folders::Folders,
    follower::Grace,
};

/// Name of the view: of its folder, and in metrics.
pub const NAME: &str = "archive-files";
/// Bytes of rendered documents after which a batch is written, though it has fewer than `TOGETHER_MAX`.
const TOGETHER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Evidence for a document's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// Nothing: they may be damaged.
    Nothing,
    /// They are as some log wrote them: a twin has a checksum.
    Intact,
    /// They are those of this place: by a digest, or by a file and a twin that agree.
    Proven,
}

/// Remains of an archived document, for `recover`.
#[derive(Debug)]
pub struct Salvaged {
    /// Bytes of its file, or of its decoded twin.
    pub bytes: Option<Bytes>,
    /// Evidence for the bytes. Nothing contradicts bytes without one.
    pub evidence: Evidence,
    /// Its sidecar, unless that is missing or damaged.
    pub sidecar: Option<Sidecar<'static>>,
    /// Its record in the manifest, unless that is missing, damaged, or of another document.
    pub record: Option<Archived>,
    /// Whether one of the trees has other bytes only under this name.
    pub is_elsewhere: bool,
    /// Whether the tree that a web server may serve has a file of this name, or its twin.
    pub is_shown: bool,
}

/// Files of a document in one of the trees.
#[derive(Debug)]
struct Copies {
    file: Option<Vec<u8>>,
    /// The decoded twin.
    twin: Option<Vec<u8>>,
}

impl Copies {
    /// Reads the copies that can be read.
    fn read(path: &Path) -> Self {
        Self {
            file: regular::read_document(path).ok(),
            twin: decoded_twin(path, regular::DOCUMENT_BYTES_MAX).ok(),
        }
    }

    /// Reads the copies that are there.
    ///
    /// # Errors
    ///
    /// Returns the missing resource for which one cannot be read.
    fn found(path: &Path) -> Result<Self, ViewError> {
        let file = unless_lacking(regular::read_document(path));
        let twin = unless_lacking(decoded_twin(path, regular::DOCUMENT_BYTES_MAX));
        Ok(Self {
            file: file.map_err(failed("read", path))?,
            twin: twin.map_err(failed("read", path))?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Vec<u8>> {
        [&self.file, &self.twin].into_iter().flatten()
    }

    /// Whether the file and the twin prove each other.
    fn agree(&self) -> bool {
        self.file.is_some() && self.file == self.twin
    }
}

/// Returns the name by which the predecessor links to a document, if a restoration has renamed the document.
fn linked_name(frozen: &Frozen) -> Option<DocumentName> {
    let opening = &frozen.opening;
    (opening.linked != opening.name).then_some(opening.linked)
}

/// Feeds with work to do, each with its newest closed document; `None` if only its files may have to move.
pub(super) type Waiting = BTreeMap<FeedKey, Option<DocumentNumber>>;

/// What wakes the follower of the log.
type Wake = Box<dyn Fn() + Send + Sync>;

/// Folders and manifests of the archived documents. Clones share the progress and the lock.
#[derive(Clone)]
pub struct Archive {
    folders: Folders,
    views: PathBuf,
    /// Work of commits that the view has applied.
    pub(super) waiting: Arc<Mutex<Waiting>>,
    /// Work that readers of timelines have left.
    pub(super) wanted: Arc<Mutex<Waiting>>,
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

    /// Leaves a document to the follower of the log, which archives it and those before it. Timelines are archived only
    /// where somebody reads them.
    pub(super) fn want(&self, feed: FeedKey, document: DocumentNumber) {
        let mut wanted = self.wanted.lock();
        let newest = wanted.entry(feed).or_insert(None);
        *newest = (*newest).max(Some(document));
        drop(wanted);
        self.wake();
    }

    /// Lets the follower of the log look for work.
    pub(super) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Calls `wake` whenever a reader has left work for the follower of the log.
    pub fn when_wanted(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A second one would be another server over the same archive.
        let _first = self.wake.set(Box::new(wake));
    }

    /// Returns the number of a feed's first documents that belong into files: all that are closed; of a timeline those
    /// that somebody has asked for.
    pub(super) fn documents_due(
        &self,
        name: &FeedName,
        settings: &Settings,
        open: DocumentNumber,
    ) -> Result<u64, ViewError> {
        let closed = open.get() - 1;
        if settings.is_timeline() {
            let asked_for = self.manifests.count(name)?;
            let filed = self.filed_documents(name).last().copied().unwrap_or(0);
            let asked_for = asked_for.max(filed);
            return Ok(asked_for.min(closed));
        }
        Ok(closed)
    }

    /// Returns the numbers of the documents that have a file, recorded or not. Records can be lost, and a web server shows
    /// what is in the folder.
    pub(super) fn filed_documents(&self, name: &FeedName) -> BTreeSet<u64> {
        let files = fs::read_dir(self.folder(name))
            .into_iter()
            .flatten()
            .flatten();
        let documents = files.filter_map(|file| DocumentName::of_file(file.file_name().to_str()?));
        documents.map(|name| name.number.get()).collect()
    }

    fn folder(&self, feed: &FeedName) -> PathBuf {
        // A move removes the folder in the closed tree last, so that folder decides.
        let closed = folder_in(&self.folders.closed, feed);
        if closed.is_dir() {
            closed
        } else {
            folder_in(&self.folders.www, feed)
        }
    }

    /// Whether the tree that a web server may serve has a folder of the feed.
    pub fn shows(&self, feed: &FeedName) -> bool {
        folder_in(&self.folders.www, feed).exists()
    }

    /// Moves the files of a feed to the tree where they belong: a closed feed may have been opened. The feed is in the
    /// closed tree as long as it has a folder there, so a move that was broken off is begun again.
    #[expect(
        clippy::disallowed_methods,
        reason = "the next move of the feed removes what comes back"
    )]
    fn choose_tree(&self, settings: &Settings) -> Result<(), ViewError> {
        let feed = &settings.name;
        let closed = folder_in(&self.folders.closed, feed);
        // The folder marks the feed as closed, even before its first document is archived.
        if settings.is_closed() {
            return self.create_folders(&[&closed]);
        }
        if !closed.is_dir() {
            return Ok(());
        }
        let open = folder_in(&self.folders.www, feed);
        self.create_folders(&[&open])?;
        let mut paths = vec![];
        for item in fs::read_dir(&closed).map_err(failed("read", &closed))? {
            let item = item.map_err(failed("read", &closed))?;
            let path = item.path();
            if !item.file_type().is_ok_and(|kind| kind.is_file()) {
                let why =
                    "it is no regular file; remove it, so that the feed's files can move to `www`";
                return Err(failed("move", &path)(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    why,
                )));
            }
            paths.push(path);
        }
        // An interrupted write left such a file; it is no frozen file.
        paths.retain(|path| !path.to_string_lossy().ends_with(TEMPORARY));
        // Before anything is copied.
        let mut moving = vec![];
        for path in paths {
            let is_copied = self.may_move(&path, &open, feed)?;
            moving.push((path, is_copied));
        }
        for paths in moving.chunks(TOGETHER_MAX) {
            // A copy and not a rename: the trees may be on two file systems.
            let mut files = FrozenFiles::of(&self.folders);
            for (path, is_copied) in paths {
                let to = open.join(path.file_name().unwrap_or_default());
                if *is_copied {
                    files.copy(path, &to)?;
                } else {
                    // A move that was cut off may have put it there without a sync.
                    files.leave(&to)?;
                }
            }
            files.put_in_place()?;
        }
        // One rename removes the folder at once. No feed can have this name.
        let gone = closed.with_file_name(format!("{feed}{TEMPORARY}!"));
        // A removal that was cut off may have left this folder.
        let _leftover = fs::remove_dir_all(&gone);
        // Before the files go: a folder that comes back decides the tree, and must be whole.
        durable::rename(&closed, &gone).map_err(failed("remove", &closed))?;
        fs::remove_dir_all(&gone).map_err(failed("remove", &gone))
    }

    /// Returns whether a file is to be copied to the open tree: not over a right one, nor over another log's second name.
    ///
    /// # Errors
    ///
    /// [`ViewError::Replaced`] if another log's document is there, or why it cannot be read.
    fn may_move(&self, from: &Path, to: &Path, feed: &FeedName) -> Result<bool, ViewError> {
        let file = from.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let name = file.strip_suffix(".gz").unwrap_or(file);
        let path = to.join(name);
        let there = Copies::found(&path)?;
        let Some(place) = DocumentName::of_file(name) else {
            // Of an index block, the copies there are not worse.
            return Ok(!there.agree());
        };
        let copies = Copies::found(&from.with_file_name(name))?;
        let named = copies.all().find_map(|bytes| name_in(bytes, feed));
        let own = Own {
            feed,
            name: named.unwrap_or(place),
            copies: copies.all().map(Vec::as_slice).collect(),
        };
        let told = self.told_digests(feed, own.name);
        let is_told = |bytes: &Vec<u8>| told.contains(&Some(Digest::of(bytes)));
        let same = if name == file {
            &there.file
        } else {
            &there.twin
        };
        let is_right = |bytes: &Vec<u8>| is_told(bytes) || own.has(Some(bytes));
        if same.as_ref().is_some_and(is_right) {
            return Ok(false);
        }
        let other = document_of_another_log(&path, &own).map_err(failed("read", &path))?;
        match other {
            // Both trees may have the document, where a move was cut off. Those there are not worse.
            None => {
                let is_it = |bytes: &Vec<u8>| name_in(bytes, feed) == Some(own.name);
                Ok(!(there.agree() && there.all().any(is_it)))
            }
            Some(_) if place != own.name => {
                warn!(path = %visible_path(&path).display(), "another document has this name, and is left alone");
                Ok(false)
            }
            Some(_) => Err(replaced_by(path)),
        }
    }

    /// Returns the digests of a document's bytes in its record and in its sidecar.
    fn told_digests(&self, feed: &FeedName, name: DocumentName) -> [Option<Digest>; 2] {
        let record = self.manifests.get(feed, name.number).ok().flatten();
        let record = record.filter(|record| record.name == name);
        let sidecar = regular::read_document(self.sidecar_path(feed, name)).ok();
        let sidecar = sidecar.and_then(|bytes| Sidecar::of_bytes(&bytes));
        [
            record.map(|record| record.identity.digest),
            sidecar.map(|sidecar| sidecar.sha256),
        ]
    }

    /// Returns the bytes of an archived document, plain or compressed.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if the bytes differ from the record.
    pub fn read(
        &self,
        feed: &FeedName,
        archived: &Archived,
        gzip: bool,
    ) -> Result<Bytes, ViewError> {
        let (suffix, coded) = if gzip {
            (".gz", archived.gzip)
        } else {
            ("", archived.identity)
        };
        let name = format!("{}{suffix}", archived.name);
        let mut path = self.folder(feed).join(&name);
        let mut read = regular::read_at_most(&path, coded.bytes);
        if read.is_err() {
            // The feed may have been opened, and its folder moved, since the path was made.
            path = self.folder(feed).join(&name);
            read = regular::read_at_most(&path, coded.bytes);
        }
        let bytes = match read {
            Err(error) if regular::is_too_long(&error) => vec![],
            read => read.map_err(failed("read", &path))?,
        };
        // Each read checks the digest, so a damaged file is never served.
        if Coded::of(&bytes) == coded {
            return Ok(bytes.into());
        }
        Err(ViewError::Damaged { path })
    }

    /// Returns whether the sidecar of a document is missing, or differs from the one that the log gives.
    ///
    /// # Errors
    ///
    /// Returns the error of a missing resource; a fault of the file is a difference.
    pub fn sidecar_differs(&self, feed: &FeedName, frozen: &Frozen) -> Result<bool, ViewError> {
        let path = self.sidecar_path(feed, frozen.opening.name);
        let found = found_in(&path, regular::read_document(&path))?;
        Ok(found.is_none_or(|found| found != Sidecar::of(frozen).to_bytes()))
    }

    fn sidecar_path(&self, feed: &FeedName, document: DocumentName) -> PathBuf {
        let name = document.to_string().replace(".atom", ".json");
        self.folders.sidecars.join(feed.as_str()).join(name)
    }

    /// Returns the feeds with a folder in either tree or among the sidecars, or with records.
    pub fn feeds(&self) -> BTreeSet<FeedName> {
        let trees = [&self.folders.www, &self.folders.closed].map(|tree| tree.join("feeds"));
        let [open, closed] = trees;
        let folders = [open, closed, self.folders.sidecars.clone()];
        let named = folders.iter().flat_map(names_in);
        let named = named.filter_map(|name| FeedName::parse(&name));
        named.chain(self.manifests.feeds()).collect()
    }

    /// Returns the names of a feed's documents that have a file, a sidecar or a record.
    pub fn documents(&self, feed: &FeedName) -> BTreeSet<DocumentName> {
        let folders = self.folders_of_feeds().into_iter();
        let files = folders.flat_map(|folder| names_in(folder.join(feed.as_str())));
        let files: Vec<String> = files.collect();
        let sidecars = names_in(self.folders.sidecars.join(feed.as_str()));
        let stems = files.iter().chain(&sidecars).filter_map(|name| {
            let name = name.strip_suffix(".gz").unwrap_or(name);
            name.strip_suffix(".atom").or(name.strip_suffix(".json"))
        });
        let recorded = (1..=self.manifests.count(feed).unwrap_or(0))
            .filter_map(DocumentNumber::new)
            .filter_map(|number| self.manifests.get(feed, number).ok().flatten())
            .map(|record| record.name);
        let names: BTreeSet<DocumentName> = stems.filter_map(DocumentName::of_stem).collect();
        // A renamed document has a file under its older name, too. Its record has the newer one; without a record, its own
        // link.
        let is_second_name = |name: &DocumentName| {
            let record = self.manifests.get(feed, name.number).ok().flatten();
            if let Some(record) = record {
                let digest = record.identity.digest;
                let is_copy = |bytes: &Vec<u8>| Digest::of(bytes) == digest;
                return name.epoch < record.name.epoch
                    && self.has_copies(feed, *name, is_copy) != Some(false);
            }
            let is_newer =
                |other: &DocumentName| other.number == name.number && other.epoch > name.epoch;
            let newer: Vec<_> = names.iter().filter(|other| is_newer(other)).collect();
            let is_copy = |bytes: &Vec<u8>| {
                let linked = name_in(bytes, feed);
                linked.is_some_and(|linked| newer.contains(&&linked))
            };
            !newer.is_empty() && self.has_copies(feed, *name, is_copy) == Some(true)
        };
        let found = names.iter().filter(|name| !is_second_name(name));
        found.copied().chain(recorded).collect()
    }

    /// Returns the copies of a document in the two trees.
    fn copies(&self, feed: &FeedName, name: DocumentName) -> [Copies; 2] {
        let file = Path::new(feed.as_str()).join(name.to_string());
        self.folders_of_feeds()
            .map(|folder| Copies::read(&folder.join(&file)))
    }

    /// Whether each tree that has files of this name has a copy of a document among them; `None` if no file can be read.
    fn has_copies(
        &self,
        feed: &FeedName,
        name: DocumentName,
        is_copy: impl Fn(&Vec<u8>) -> bool,
    ) -> Option<bool> {
        let trees = self.copies(feed, name);
        let mut trees = trees
            .iter()
            .filter(|tree| tree.all().next().is_some())
            .peekable();
        trees.peek()?;
        // A copy in one tree does not excuse another document in the other one, which may have been shown.
        Some(trees.all(|tree| tree.all().any(&is_copy)))
    }

    /// Returns the names of a feed's closed index blocks that have a file, in either tree.
    pub fn blocks(&self, feed: &FeedName) -> BTreeSet<String> {
        let folders = self.folders_of_feeds().into_iter();
        let files = folders.flat_map(|folder| names_in(folder.join(feed.as_str())));
        files
            .filter(|name| index::block_of_name(name).is_some())
            .collect()
    }

    /// Returns the bytes of a closed index block, if it is there. Readers know the shown one.
    pub fn block(&self, feed: &FeedName, name: &str) -> Option<Vec<u8>> {
        let mut folders = self.folders_of_feeds().into_iter();
        folders
            .find_map(|folder| regular::read_document(folder.join(feed.as_str()).join(name)).ok())
    }

    /// Returns the remains of a document, as far as they can be read.
    pub fn salvage(&self, feed: &FeedName, document: DocumentName) -> Salvaged {
        let trees = self.copies(feed, document);
        let [shown, closed] = &trees;
        let sidecar = regular::read_document(self.sidecar_path(feed, document));
        let sidecar = sidecar.ok().and_then(|bytes| Sidecar::of_bytes(&bytes));
        let record = self.manifests.get(feed, document.number).ok().flatten();
        let record = record.filter(|record| record.name == document && !record.is_lost());
        let expected = [
            sidecar.as_ref().map(|sidecar| sidecar.sha256),
            record.map(|record| record.identity.digest),
        ];
        let is_expected = |bytes: &&Vec<u8>| expected.contains(&Some(Digest::of(bytes)));
        let found = || shown.all().chain(closed.all());
        let agreed = |copies: &'_ Copies| copies.file.clone().filter(|_| copies.agree());
        // A feed that is closed here may have been shown by another log: readers know what was shown.
        let is_closed = folder_in(&self.folders.closed, feed).is_dir();
        let nothing_tells = expected == [None, None];
        let sound = agreed(shown).filter(|_| is_closed);
        let sound = sound.or_else(|| found().find(is_expected).cloned());
        let sound = sound.or_else(|| {
            // Without any digest, a file and a twin that agree prove each other.
            let agreeing = agreed(shown).or_else(|| agreed(closed));
            agreeing.filter(|_| nothing_tells)
        });
        let proven = sound.is_some();
        // A twin has a checksum, so it is as it was written, by whichever log.
        let is_named = |bytes: &&Vec<u8>| name_in(bytes, feed) == Some(document);
        let twins = || [&shown.twin, &closed.twin].into_iter().flatten();
        let intact = twins().find(is_named).filter(|_| nothing_tells && !proven);
        let evidence = match intact {
            _ if proven => Evidence::Proven,
            Some(_) => Evidence::Intact,
            None => Evidence::Nothing,
        };
        // Bytes that contradict a digest are not returned at all.
        let bytes = sound.or_else(|| intact.cloned());
        let bytes = bytes.or_else(|| found().next().filter(|_| nothing_tells).cloned());
        let digest = bytes.as_ref().map(|bytes| Digest::of(bytes));
        let has_other = |copies: &Copies| {
            copies.all().next().is_some() && copies.all().all(|other| Some(other) != bytes.as_ref())
        };
        let is_elsewhere = if bytes.is_some() {
            trees.iter().any(has_other)
        } else {
            // No rot: a twin, which has a checksum, or a name that only another log has given.
            let named = |bytes: &Option<Vec<u8>>| bytes.as_ref().and_then(|it| name_in(it, feed));
            let has_document = |copies: &Copies| {
                let file = named(&copies.file);
                named(&copies.twin).is_some()
                    || file.is_some_and(|name| name.epoch > document.epoch)
            };
            trees.iter().any(has_document)
        };
        // What tells of other bytes is of another log's document.
        let is_own = |told: Digest| !proven || Some(told) == digest;
        Salvaged {
            evidence,
            is_elsewhere,
            is_shown: shown.all().next().is_some(),
            sidecar: sidecar.filter(|sidecar| is_own(sidecar.sha256)),
            record: record.filter(|record| is_own(record.identity.digest)),
            bytes: bytes.map(Bytes::from),
        }
    }

    /// Archives all documents of a feed up to `newest`, in the tree where the feed's files belong now; without `newest`
    /// the files are only moved there, if need be. Documents in the manifest are left alone. Returns the number of
    /// documents that it archived: not all of them, if `grace` is over.
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
        // The lock ends here, because `make` and `write_together` take it themselves.
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
            let frozen = Frozen::render(log, feed, number)?;
            // A document that completes an index block needs the records before its own.
            let alone = frozen.is_none() || number.get().is_multiple_of(INDEX_BLOCK_DOCUMENTS);
            let bytes: usize = together
                .iter()
                .map(|frozen: &Frozen| frozen.bytes.len())
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

    /// Compares the newest record of a closed document with the log, once a feed, and forgets records of documents that the log
    /// has not: who copies an older folder over a later one may leave them. Those of timelines are not compared, which would
    /// take long.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub fn check_records(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        name: &FeedName,
    ) -> Result<(), ViewError> {
        if self.checked.lock().contains(&feed) {
            return Ok(());
        }
        // Nobody records documents meanwhile.
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
            // By its bytes: two logs that part may give the same instants.
            let is_own = match Frozen::render(log, feed, number) {
                Ok(Some(frozen)) => record.identity.digest == Digest::of(&frozen.bytes),
                Ok(None) => record.is_lost(),
                // The log cannot contradict the document.
                Err(LogError::Damaged { .. }) => true,
                Err(error) => return Err(error.into()),
            };
            if is_own {
                break;
            }
            own -= 1;
        }
        if let Some(first) = DocumentNumber::new(own + 1).filter(|first| first.get() <= count) {
            warn!(feed = %name, document = %first, "the records of its documents from this one on are another log's");
            self.manifests.forget(name, first)?;
        }
        self.checked.lock().insert(feed);
        Ok(())
    }

    /// Archives the feeds of a list that have a single document to archive. They share their syncs, of which each would
    /// need nine. Returns those feeds; [`archive`](Self::archive) is for the others.
    ///
    /// # Errors
    ///
    /// Returns why the documents cannot be written. Some of them may be archived.
    pub(super) fn archive_singles(
        &self,
        log: &dyn Series,
        feeds: &[(FeedKey, Option<DocumentNumber>)],
    ) -> Result<BTreeSet<FeedKey>, ViewError> {
        let (mut singles, mut bytes) = (vec![], 0);
        for (feed, newest) in feeds {
            // `archive` reports the damage of a feed.
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

    /// Returns a feed's document `newest` and the feed's name, if all documents before it are archived. A document that
    /// completes an index block is left to `archive`.
    fn single(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        newest: DocumentNumber,
    ) -> Result<Option<(FeedName, Frozen)>, ViewError> {
        let Some(head) = log.feed(feed)? else {
            return Ok(None);
        };
        let settings = settings_of(log, feed, head.revision)?;
        self.check_records(log, feed, &settings.name)?;
        let before = self.manifests.count_before_hole(&settings.name)?;
        if newest.get() != before + 1 || newest.get().is_multiple_of(INDEX_BLOCK_DOCUMENTS) {
            return Ok(None);
        }
        {
            let _writing = self.folders.writing();
            self.choose_tree(&settings)?;
        }
        let frozen = Frozen::render(log, feed, newest)?;
        Ok(frozen.map(|frozen| (settings.name, frozen)))
    }

    fn write_together(
        &self,
        feed: &FeedName,
        documents: &mut Vec<Frozen>,
    ) -> Result<u64, ViewError> {
        let documents = std::mem::take(documents);
        if !documents.is_empty() {
            let _writing = self.folders.writing();
            self.write(feed, &documents)?;
        }
        Ok(u64::try_from(documents.len()).unwrap_or(u64::MAX))
    }

    /// Makes the files of document `number`, unless the document is open or lost. Takes the compressed twin from the
    /// archive `like`, where that twin fits. Returns the document's name, and whether the files were there already.
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
        if let Some(frozen) = Frozen::render(log, feed, number)? {
            if let Some(like) = like {
                self.adopt_twin(like, name, &frozen)?;
            }
            let document = frozen.opening.name;
            let remade = self.write(name, &[frozen])?;
            return Ok(Some((document, remade)));
        }
        // A closed document that cannot be rendered has lost entries. Its record keeps the manifest without holes.
        let opening = log.opening(feed, number)?;
        if let Some((opening, successor)) = opening.zip(log.opening(feed, number.next())?) {
            let lost = Archived::lost(&opening, &successor);
            let settings = settings_of(log, feed, opening.revision)?;
            self.create_folders(&[&self.folder(name)])?;
            let mut files = FrozenFiles::of(&self.folders);
            // A lost document completes an index block, too.
            self.close_index_block(&mut files, name, &settings, &lost)?;
            files.put_in_place()?;
            self.manifests.record(name, &[lost])?;
        }
        Ok(None)
    }

    /// Forgets the records from the open document on: they belong to another log.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub fn forget_open(
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

    /// Copies the compressed twin of a document from another archive, because another compressor would give other
    /// bytes. A twin with other content is not copied.
    fn adopt_twin(&self, from: &Self, feed: &FeedName, frozen: &Frozen) -> Result<(), ViewError> {
        let name = frozen.opening.name.to_string();
        let file = Path::new(feed.as_str()).join(&name);
        let twins = from.folders_of_feeds().into_iter();
        let mut twins = twins.map(|folder| regular::read_document(twin_of(&folder.join(&file))));
        let length = frozen.bytes.len();
        let decodes =
            |twin: &Vec<u8>| gunzip(twin, length).is_ok_and(|bytes| bytes == *frozen.bytes);
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

    fn create_folders(&self, folders: &[&Path]) -> Result<(), ViewError> {
        let created = self.folders.create(folders);
        created.map_err(|(folder, error)| failed("create", folder)(error))
    }

    /// Writes archived documents of a feed and records them. Returns the worst outcome among their files.
    fn write(&self, feed: &FeedName, documents: &[Frozen]) -> Result<Remade, ViewError> {
        self.write_all(&[(feed, documents)])
    }

    /// Writes archived documents of several feeds, which share their syncs.
    fn write_all(&self, feeds: &[(&FeedName, &[Frozen])]) -> Result<Remade, ViewError> {
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
        self.folders.keep_locked().map_err(|error| {
            let source = io::Error::new(io::ErrorKind::ResourceBusy, error);
            failed("lock", &self.folders.www)(source)
        })?;
        let mut files = FrozenFiles::of(&self.folders);
        // Before anything is written, so that no failed write is missed.
        for folder in &folders {
            files.open_folder(folder)?;
        }
        let begins = |documents: &[Frozen]| {
            let first = documents.first();
            first.is_some_and(|frozen| frozen.opening.name.number == DocumentNumber::OLDEST)
        };
        if feeds.iter().any(|(_, documents)| begins(documents)) {
            // A process may have been killed before it synced the names of new folders.
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

    /// Checks that a document does not take the place of another log's, in either tree: the other log may have shown a feed
    /// that this one has closed.
    fn check_place(&self, feed: &FeedName, frozen: &Frozen) -> Result<(), ViewError> {
        let name = frozen.opening.name;
        for folder in self.folders_of_feeds() {
            let path = folder.join(feed.as_str()).join(name.to_string());
            let other = document_of_another_log(&path, &Own::of(frozen));
            let Some(other) = other.map_err(failed("read", &path))? else {
                continue;
            };
            // Where the record has these very bytes, this log is the one that was served, and the file was put there, or is
            // damaged. The sidecar tells that only where the file may be this log's own with rot: it may have been made
            // beside another folder.
            let [recorded, sidecar] = self.told_digests(feed, name);
            let sidecar = sidecar.filter(|_| other == Stranger::Likely);
            let own = Digest::of(&frozen.bytes);
            if ![recorded, sidecar].contains(&Some(own)) {
                return Err(replaced_by(path));
            }
        }
        Ok(())
    }

    /// Returns the folder of the view's own records.
    pub(super) fn folder_of_records(&self) -> &Path {
        &self.views
    }

    /// Returns the folders in which each feed has one, in the two trees.
    pub(super) fn folders_of_feeds(&self) -> [PathBuf; 2] {
        [&self.folders.www, &self.folders.closed].map(|tree| tree.join("feeds"))
    }

    /// Adds the files of a feed's documents. Returns the records of these, and the worst outcome.
    fn add_files(
        &self,
        files: &mut FrozenFiles,
        feed: &FeedName,
        documents: &[Frozen],
    ) -> Result<(Vec<Archived>, Remade), ViewError> {
        let folder = self.folder(feed);
        let (mut records, mut worst) = (vec![], Remade::Identical);
        for frozen in documents {
            let mtime = frozen.successor.opened;
            let path = folder.join(frozen.opening.name.to_string());
            // Readers may have the recorded twin, so only that one is kept. Without a record, any right one is.
            let recorded = self.manifests.get(feed, frozen.opening.name.number);
            let recorded = recorded.ok().flatten().map(|recorded| recorded.gzip);
            let (gzip, twin) = files.write_twin(&path, &frozen.bytes, mtime, SMALLEST, recorded)?;
            let document = files.write(&path, &frozen.bytes, mtime)?;
            if let Some(linked) = linked_name(frozen) {
                // The predecessor links to this name for ever, and a web server without us cannot redirect.
                let path = folder.join(linked.to_string());
                let other = document_of_another_log(&path, &Own::of(frozen));
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
            let archived = frozen.archived_as(Coded::of(&gzip));
            // Before the record, because the growing index links to the block as soon as the record is there.
            let block = self.close_index_block(files, feed, &frozen.settings, &archived)?;
            records.push(archived);
            worst = [twin, document, sidecar, block]
                .into_iter()
                .fold(worst, Remade::max);
        }
        Ok((records, worst))
    }

    /// Writes the index block that a document completes, if it completes one.
    fn close_index_block(
        &self,
        files: &mut FrozenFiles,
        feed: &FeedName,
        settings: &Settings,
        last: &Archived,
    ) -> Result<Remade, ViewError> {
        let block = index::block_closed_by(&self.manifests, feed, &settings.id, last)?;
        let Some(block) = block else {
            return Ok(Remade::Identical);
        };
        let path = self.folder(feed).join(&block.name);
        let (_, twin) = files.write_twin(&path, &block.bytes, block.closed, SMALLEST, None)?;
        Ok(twin.max(files.write(&path, &block.bytes, block.closed)?))
    }

    /// Returns whether a renamed document is missing under the name that its predecessor links to, or is wrong there.
    ///
    /// # Errors
    ///
    /// Returns the error of a missing resource; a fault of the file is a difference.
    pub fn second_name_differs(&self, feed: &FeedName, frozen: &Frozen) -> Result<bool, ViewError> {
        let Some(linked) = linked_name(frozen) else {
            return Ok(false);
        };
        let path = self.folder(feed).join(linked.to_string());
        let twin = found_in(&path, decoded_twin(&path, frozen.bytes.len()))?;
        let file = found_in(&path, regular::read_document(&path))?;
        let is_right = |bytes: Option<Vec<u8>>| bytes.is_some_and(|bytes| bytes == *frozen.bytes);
        let differs = !(is_right(file) && is_right(twin));
        // A document that has this name of its own is left alone.
        let other = || document_of_another_log(&path, &Own::of(frozen));
        Ok(differs && other().is_ok_and(|other| other.is_none()))
    }

    /// Returns whether a closed index block or its twin is missing, or differs from `block`.
    ///
    /// # Errors
    ///
    /// Returns the error of a missing resource; a fault of the file is a difference.
    pub fn block_differs(&self, feed: &FeedName, block: &index::Block) -> Result<bool, ViewError> {
        let path = self.folder(feed).join(&block.name);
        let right = |bytes: Vec<u8>| *bytes == *block.bytes;
        let twin = found_in(&path, decoded_twin(&path, block.bytes.len()))?;
        let file = found_in(&path, regular::read_document(&path))?;
        Ok(!(file.is_some_and(right) && twin.is_some_and(right)))
    }

    /// Returns whether the cursor on the disk has reached `commit`.
    pub fn is_up_to(&self, commit: CommitNumber) -> bool {
        self.cursor().commit >= commit
    }

    /// Returns the number of documents that the follower of the log has archived since the start.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    pub(super) fn count_made(&self, documents: u64) {
        self.made.fetch_add(documents, Ordering::Relaxed);
    }

    /// Returns the last commit whose work is done.
    pub fn cursor(&self) -> Seen {
        let text = regular::read_text(self.views.join("cursor")).unwrap_or_default();
        let mut words = text.split(' ');
        let mut read = || {
            let commit = CommitNumber(words.next()?.parse().ok()?);
            let chain = ChainHash(Digest::parse(words.next()?)?);
            Some(Seen { commit, chain })
        };
        // A damaged cursor must not make the log count as replaced. Without a cursor, the follower finds the files.
        let cursor = read().filter(|cursor| text == text_of(*cursor));
        cursor.unwrap_or(Seen::NOTHING)
    }

    /// Writes the cursor: everything up to that commit is done. Losing it costs time, nothing else.
    ///
    /// # Errors
    ///
    /// Returns why it cannot be written.
    pub fn save_cursor(&self, cursor: Seen) -> Result<(), ViewError> {
        self.create_folders(&[&self.views])?;
        let path = self.views.join("cursor");
        let text = text_of(cursor);
        replace_unsynced(&path, text.as_bytes()).map_err(failed("write", &path))
    }
}

/// Returns the text of the cursor's file: the number of a commit, its chain hash, and the CRC-32 of both.
fn text_of(cursor: Seen) -> String {
    let text = format!("{} {}", cursor.commit, cursor.chain.0);
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text} {sum:08x}\n")
}

fn folder_in(tree: &Path, feed: &FeedName) -> PathBuf {
    tree.join("feeds").join(feed.as_str())
}

/// Returns that the document in a file is of another log.
fn replaced_by(path: PathBuf) -> ViewError {
    let source = LogError::replaced_beside(&visible_path(&path));
    ViewError::Replaced { path, source }
}

/// Returns the value read from a file, or `None` if the file is at fault.
fn found_in<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, ViewError> {
    unless_lacking(read).map_err(failed("read", path))
}

/// Returns the names of the files in a folder, if there is one.
fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let items = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = items.map(|item| item.file_name().to_string_lossy().into_owned());
    names.collect()
}
