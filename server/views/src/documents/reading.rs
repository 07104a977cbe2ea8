//! Documents for readers: the resource behind a URL now, and the source of its bytes.
//!
//! Shell: the log and the archive, with caches. A stale snapshot need not be removed, because
//! counters of commits tell whether a snapshot is current. Feeds whose keys hash alike share a
//! counter, so that there is no list of feeds.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use flate2::Compression;
use quick_cache::{Weighter, sync::Cache};
use simplefeed_core::{
    commit::{Change, Commit},
    document::{entry_document, feed_document},
    feed::{DocumentName, DocumentNumber, EpochNumber, FeedKey, FeedName, Position},
    header::{DocumentForm, ENTRY_TYPE, FEED_TYPE, header},
    limits::INDEX_BLOCK_DOCUMENTS,
    plan::FeedHead,
    settings::Settings,
};
use simplefeed_log::{LogError, settings_of};
use simplefeed_resource::{
    ByteSource, CodedBytes, Coding, EntityTag, Generation, Resource, Validity,
    gzip::{SMALLEST, gzip},
    head_tag::HeadTag,
    read_error::ReadError,
};
use tracing::warn;

use super::{
    archive::Archive, frozen::FrozenDocument, in_flight::InFlight, index, manifest::ManifestRecord,
};
use crate::{
    error::ViewError,
    files::CodedFile,
    shown::{ShownSeries, TimelineSources},
};

/// Number of counters of commits for feeds. Feeds whose keys hash alike share a counter.
const STRIPES: usize = 4_096;
/// Index of the counter of the commits that make feeds, or change settings, the server's proposals
/// or the epoch. This counter stands behind the counters of feeds. The entries of a timeline may
/// depend on any of these commits.
const SETTINGS_COUNTER: usize = STRIPES;
/// Index of the counter of all commits.
const COMMITS_COUNTER: usize = STRIPES + 1;
/// Maximum number of feeds whose snapshots are kept in memory.
const SNAPSHOTS_MAX: usize = 20_000;
/// Maximum number of archived documents whose facts are kept in memory.
const ARCHIVED_MAX: usize = 20_000;
/// Maximum size of all bodies in memory, in bytes.
const BODIES_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Resource that a path below a feed names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `recent.atom`: the open document, at the feed's entry point.
    Recent,
    /// `{n}.atom`: a document at its permanent URL, open or archived.
    Document(DocumentName),
    /// `entries/{position}.atom`: one entry as an Atom Entry Document.
    Entry(EpochNumber),
    /// `index.json`: the growing block of the archive index.
    Index,
    /// `index-{k}.json`: a closed block of the archive index.
    IndexBlock(EpochNumber),
}

/// State of a feed after some commit.
#[derive(Debug)]
pub struct FeedSnapshot {
    generation: Generation,
    /// End of the feed: the next position, the history hash and the open document.
    pub head: FeedHead,
    /// Newest settings of the feed; the open document may have older settings.
    pub settings: Settings,
    open_settings: Settings,
    /// Entity tags of `recent.atom` and of the permanent URL, without coding.
    tags: (String, String),
}

/// A growing resource with a body in memory. Only the newest body stays, because no reader asks for
/// an older body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Growing {
    /// The open document of a feed: at the entry point if `true`, else at its permanent URL.
    Document(FeedKey, bool, Coding),
    /// The growing block of a feed's index.
    Index(FeedName),
}

/// A body, with the tag of its state.
#[derive(Clone, Debug)]
struct KeptBody {
    tag: String,
    bytes: Bytes,
}

/// Gives the weight of a body in memory, which is the number of bytes that it takes.
#[derive(Clone)]
struct BodyWeight;

impl Weighter<Growing, KeptBody> for BodyWeight {
    fn weight(&self, _: &Growing, body: &KeptBody) -> u64 {
        let bytes = size_of::<(Growing, KeptBody)>() + body.tag.len() + body.bytes.len();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Documents of all feeds, with the caches in front of log and archive.
pub struct Documents {
    log: Arc<dyn ShownSeries>,
    archive: Archive,
    stripes: Arc<[AtomicU64]>,
    snapshots: Cache<FeedName, Arc<FeedSnapshot>>,
    archived: Cache<(FeedName, DocumentName), ManifestRecord>,
    bodies: Cache<Growing, KeptBody, BodyWeight>,
    /// Bytes of files that are being sent.
    in_flight: InFlight,
}

impl std::fmt::Debug for Documents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Documents").finish_non_exhaustive()
    }
}

impl Documents {
    /// Returns the documents of a log and its archive.
    pub fn new(log: Arc<dyn ShownSeries>, archive: Archive) -> Self {
        Self {
            log,
            archive,
            stripes: std::iter::repeat_with(AtomicU64::default)
                .take(STRIPES + 2)
                .collect(),
            snapshots: Cache::new(SNAPSHOTS_MAX),
            archived: Cache::new(ARCHIVED_MAX),
            bodies: Cache::with_weighter(1_000, BODIES_BYTES_MAX, BodyWeight),
            in_flight: InFlight::default(),
        }
    }

    /// Returns the feeds that the documents are made from.
    pub fn log(&self) -> &Arc<dyn ShownSeries> {
        &self.log
    }

    /// Makes everything stale that was read before a commit. The log calls this while it shows the
    /// commit to readers.
    pub fn committed(&self, commit: &Commit) {
        let count = |index: usize| {
            if let Some(counter) = self.stripes.get(index) {
                counter.fetch_add(1, Ordering::Release);
            }
        };
        for change in &commit.changes {
            // From here on, snapshots of the feed are stale. Snapshots of other feeds with the same
            // counter are read again without need.
            if let Some(feed) = change.feed() {
                count(stripe_of(feed));
            }
            if matches!(
                change,
                Change::Settings { .. } | Change::Defaults { .. } | Change::Epoch { .. }
            ) {
                count(SETTINGS_COUNTER);
            }
        }
        // This counter grows last, because a generation that finds it unchanged looks at no other
        // counter.
        count(COMMITS_COUNTER);
    }

    /// Returns the current snapshot of a feed, or `None` if no feed has that name.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn snapshot(&self, feed: &FeedName) -> Result<Option<Arc<FeedSnapshot>>, ViewError> {
        if let Some(snapshot) = self.current(feed) {
            return Ok(Some(snapshot));
        }
        let Some(head) = self.log.named(feed)? else {
            return Ok(None);
        };
        // The counters are read first, so that the state read after them may be newer than the
        // counters, never older.
        let generation = self.generation_of(head.feed)?;
        // The head that came with the name may be older than the counters.
        let Some(head) = self.log.feed(head.feed)? else {
            return Ok(None);
        };
        let settings = settings_of(&*self.log, head.feed, head.revision)?;
        let open_settings = settings_of(&*self.log, head.feed, head.open.opening.revision)?;
        let tag = HeadTag::new(head.clone());
        let tags = (tag.recent(), tag.permanent());
        let snapshot = Arc::new(FeedSnapshot {
            generation,
            head,
            settings,
            open_settings,
            tags,
        });
        self.snapshots.insert(feed.clone(), Arc::clone(&snapshot));
        Ok(Some(snapshot))
    }

    /// Returns the generation of a feed's snapshots.
    fn generation_of(&self, feed: FeedKey) -> Result<Generation, ViewError> {
        let own = stripe_of(feed);
        loop {
            // A new feed that a pattern matches increments the counter of settings.
            let before =
                Generation::of_all(&self.stripes, vec![own, SETTINGS_COUNTER], COMMITS_COUNTER);
            let Some(sources) = self.log.sources(feed)? else {
                // A feed with entries of its own changes only with commits that name the feed.
                return Ok(Generation::of(&self.stripes, own));
            };
            let TimelineSources::These(sources) = sources else {
                // Any commit may concern a timeline of so many feeds.
                return Ok(Generation::of(&self.stripes, COMMITS_COUNTER));
            };
            let mut watched: Vec<usize> = sources.into_iter().map(stripe_of).collect();
            watched.extend([own, SETTINGS_COUNTER]);
            watched.sort_unstable();
            watched.dedup();
            let generation = Generation::of_all(&self.stripes, watched, COMMITS_COUNTER);
            // If a commit came meanwhile, the timeline may follow other feeds by now.
            if before.is_current() {
                return Ok(generation);
            }
        }
    }

    /// Returns the resource of an address, if all facts for it are in memory.
    pub fn at_once(self: &Arc<Self>, feed: &FeedName, address: &Address) -> Option<Resource> {
        let form = match address {
            Address::Recent => DocumentForm::Recent,
            Address::Document(name) => {
                if let Some(archived) = self.archived.get(&(feed.clone(), *name)) {
                    return Some(self.archived_resource(feed, archived));
                }
                DocumentForm::Open
            }
            Address::Entry(_) | Address::Index | Address::IndexBlock(_) => return None,
        };
        let state = self.current(feed)?;
        let open = Address::Document(state.head.open.opening.name);
        (form == DocumentForm::Recent || *address == open)
            .then(|| self.growing_resource(&state, form))
    }

    /// Returns a feed's snapshot from memory, if the snapshot is current.
    pub fn current(&self, feed: &FeedName) -> Option<Arc<FeedSnapshot>> {
        let snapshot = self.snapshots.get(feed)?;
        snapshot.generation.is_current().then_some(snapshot)
    }

    /// Makes the recent document of a feed in advance, for readers that are about to ask for it.
    pub fn prepare(self: &Arc<Self>, feed: &FeedName, coding: Coding) {
        if let Ok(Some(resource)) = self.resource(feed, &Address::Recent) {
            // A failure is ignored, because each of these readers meets the failure again.
            let _failed = resource.source().read(coding).is_err();
        }
    }

    /// Returns the resource of an address now, or `None` if the address names nothing.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub fn resource(
        self: &Arc<Self>,
        feed: &FeedName,
        address: &Address,
    ) -> Result<Option<Resource>, ViewError> {
        if let Some(resource) = self.at_once(feed, address) {
            return Ok(Some(resource));
        }
        let Some(state) = self.snapshot(feed)? else {
            return Ok(None);
        };
        // Records of the open document, or of later documents, belong to another log.
        let closed = state.head.open.opening.name.number.get() - 1;
        match address {
            Address::Recent => Ok(Some(self.growing_resource(&state, DocumentForm::Recent))),
            Address::Document(name) => self.read_document(feed, &state, *name),
            Address::Entry(numbered) => self.read_entry(feed, &state, *numbered),
            Address::Index => {
                let manifests = &self.archive.manifests;
                let archived = manifests.count(feed)?.min(closed);
                let id = &state.settings.id;
                // The growing block changes only with the number of archived documents.
                let (key, tag) = (Growing::Index(feed.clone()), archived.to_string());
                let bytes = if let Some(bytes) = self.kept_body(&key, &tag) {
                    bytes
                } else {
                    let block = |archived| index::growing_block(manifests, feed, id, archived);
                    let bytes = match block(archived) {
                        // A power cut has damaged records of the last write, which the view writes
                        // again.
                        Err(ViewError::DamagedRecord { .. }) => {
                            let whole = manifests.count_before_hole(feed)?.min(closed);
                            // This body is not kept, because the number in the tag counts the
                            // damaged records, too.
                            return Ok(Some(index_resource(block(whole)?)));
                        }
                        bytes => bytes?,
                    };
                    self.keep_body(key, tag, &bytes);
                    bytes
                };
                Ok(Some(index_resource(bytes)))
            }
            Address::IndexBlock(numbered)
                if numbered.number.saturating_mul(INDEX_BLOCK_DOCUMENTS) > closed =>
            {
                // A block with documents that this log has not closed is still growing, or belongs
                // to another log.
                Ok(None)
            }
            Address::IndexBlock(numbered) => {
                // A failed comparison hides no block, and the next request compares again.
                let _unknown = self
                    .archive
                    .check_records(&*self.log, state.head.feed, feed);
                let (id, manifests) = (&state.settings.id, &self.archive.manifests);
                let block = index::closed_block(manifests, feed, id, numbered.number);
                let block = match block {
                    // A power cut has damaged records of the last write, which the view writes
                    // again.
                    Err(ViewError::DamagedRecord { document, .. })
                        if manifests.count_before_hole(feed)? < document =>
                    {
                        None
                    }
                    block => block?,
                };
                // The epoch is part of the name, and a block has only one name. So another epoch
                // names no block.
                let block =
                    block.filter(|block| index::block_of_name(&block.name) == Some(*numbered));
                Ok(block.map(|block| {
                    let closed = Some(block.closed);
                    let validity = Validity::Forever;
                    Resource::of_bytes("application/json", closed, validity, block.bytes)
                }))
            }
        }
    }

    /// Returns the sizes in bytes of an archived document, plain and with gzip; `None` if the
    /// document has no file, or is lost.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub fn size(
        &self,
        feed: &FeedName,
        document: DocumentNumber,
    ) -> Result<Option<(u64, u64)>, ViewError> {
        let archived = self.archived_record(feed, document)?;
        let archived = archived.filter(|archived| !archived.is_lost());
        Ok(archived.map(|archived| (archived.identity.bytes, archived.gzip.bytes)))
    }

    /// Returns the record of an archived document. A damaged record counts as missing: until the
    /// view has written the record again, the log gives the same bytes.
    fn archived_record(
        &self,
        feed: &FeedName,
        document: DocumentNumber,
    ) -> Result<Option<ManifestRecord>, ViewError> {
        match self.archive.manifests.get(feed, document) {
            Err(ViewError::DamagedRecord { .. }) => Ok(None),
            found => found,
        }
    }

    /// Returns a body from memory, if the body is of the state with this tag.
    fn kept_body(&self, of: &Growing, tag: &str) -> Option<Bytes> {
        let body = self.bodies.get(of).filter(|body| body.tag == tag);
        body.map(|body| body.bytes)
    }

    fn keep_body(&self, of: Growing, tag: String, bytes: &Bytes) {
        let bytes = bytes.clone();
        self.bodies.insert(of, KeptBody { tag, bytes });
    }

    fn read_document(
        self: &Arc<Self>,
        feed: &FeedName,
        state: &Arc<FeedSnapshot>,
        name: DocumentName,
    ) -> Result<Option<Resource>, ViewError> {
        if name == state.head.open.opening.name {
            return Ok(Some(self.growing_resource(state, DocumentForm::Open)));
        }
        // The document is not opened yet, or is open under a name of another epoch.
        if name.number >= state.head.open.opening.name.number {
            return Ok(None);
        }
        // A failed comparison hides no document, because each read is compared with the digest
        // anyway.
        let _unknown = self
            .archive
            .check_records(&*self.log, state.head.feed, feed);
        if let Some(archived) = self.archived_record(feed, name.number)? {
            // A name of another epoch leads to a redirect, which is made elsewhere. A lost document
            // has no resource.
            if archived.name != name || archived.is_lost() {
                return Ok(None);
            }
            self.archived.insert((feed.clone(), name), archived);
            return Ok(Some(self.archived_resource(feed, archived)));
        }
        // The document is closed, but not yet a durable file. Its bytes are final, but not called
        // immutable.
        let frozen = FrozenDocument::render(&*self.log, state.head.feed, name.number)?;
        let frozen = frozen.filter(|frozen| frozen.opening.name == name);
        if frozen.is_some() && state.settings.is_timeline() {
            // The next reader finds a file, which caches may keep.
            self.archive.want(state.head.feed, name.number);
        }
        Ok(frozen.map(|frozen| {
            let closed = Some(frozen.successor.opened);
            Resource::of_bytes(FEED_TYPE, closed, Validity::Once, frozen.bytes)
        }))
    }

    /// Returns the newest name of a document that an epoch has renamed.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn renamed(
        &self,
        feed: &FeedName,
        name: DocumentName,
    ) -> Result<Option<DocumentName>, ViewError> {
        let Some(state) = self.snapshot(feed)? else {
            return Ok(None);
        };
        let opening = self.log.opening(state.head.feed, name.number)?;
        // The document before links to the oldest of these names. Each older name leads to the
        // newest.
        let opening = opening
            .filter(|opening| (opening.linked.epoch..opening.name.epoch).contains(&name.epoch));
        Ok(opening.map(|opening| opening.name))
    }

    fn read_entry(
        &self,
        feed: &FeedName,
        state: &FeedSnapshot,
        numbered: EpochNumber,
    ) -> Result<Option<Resource>, ViewError> {
        let at = Position(numbered.number);
        if at >= state.head.next {
            return Ok(None);
        }
        let entry = self.log.entries(state.head.feed, at..at.next())?.pop();
        // An entry's URL has the epoch of its document, so one position never names two contents.
        let Some(entry) = entry.filter(|entry| entry.document.epoch == numbered.epoch) else {
            return Ok(None);
        };
        // An entry is frozen together with its document, and then has the date of the cut.
        let archived = self.archived_record(feed, entry.document.number)?;
        let bytes = entry_document(&entry.fragment);
        let modified = archived.map_or(entry.instant, |archived| archived.closed);
        let validity = match archived {
            Some(_) => Validity::Forever,
            None => Validity::Once,
        };
        Ok(Some(Resource::of_bytes(
            ENTRY_TYPE,
            Some(modified),
            validity,
            bytes,
        )))
    }

    /// Returns the bytes of an archived document from the file. If the file is gone or damaged,
    /// returns the bytes that the log gives, as long as they have the recorded digest.
    fn file_bytes(
        &self,
        feed: &FeedName,
        archived: &ManifestRecord,
        coding: Coding,
    ) -> Result<Bytes, ViewError> {
        let error = match self.archive.read(feed, archived, coding == Coding::Gzip) {
            Ok(bytes) => return Ok(bytes),
            Err(error) => error,
        };
        warn!(%feed, document = %archived.name, %error, "served from the log; `rebuild` repairs the file");
        let head = self.log.named(feed)?;
        let frozen = match head {
            Some(head) => FrozenDocument::render(&*self.log, head.feed, archived.name.number)?,
            None => None,
        };
        let bytes = frozen.map(|frozen| match coding {
            Coding::Identity => (frozen.bytes, archived.identity),
            // Compressed at the level of archived twins, because other levels give other bytes than
            // the recorded ones.
            Coding::Gzip => (gzip(&frozen.bytes, SMALLEST).into(), archived.gzip),
        });
        match bytes {
            Some((bytes, expected)) if CodedFile::of(&bytes) == expected => Ok(bytes),
            // Other bytes under an immutable URL would be worse than an error.
            _ => Err(error),
        }
    }

    fn render_form(&self, state: &FeedSnapshot, form: DocumentForm) -> Result<Bytes, ViewError> {
        let opening = &state.head.open.opening;
        let entries = self
            .log
            .entries(state.head.feed, opening.first..state.head.next)?;
        let expected = state.head.next.0 - opening.first.0;
        let found = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        // If the number of entries differs from the number in the head, the log contradicts itself.
        if found != expected {
            let what = format!("the open document has {found} of {expected} entries");
            return Err(LogError::Damaged { what }.into());
        }
        // The header has the settings of the opening, because a header never changes while the
        // document grows.
        let header = header(opening, &state.open_settings, form, state.head.updated);
        let fragments: Vec<&Bytes> = entries.iter().map(|entry| &entry.fragment).collect();
        Ok(feed_document(&header, &fragments))
    }

    fn archived_resource(self: &Arc<Self>, feed: &FeedName, archived: ManifestRecord) -> Resource {
        let tag = EntityTag::Digests {
            identity: archived.identity.digest,
            gzip: archived.gzip.digest,
        };
        let source = ArchivedBytes {
            documents: Arc::clone(self),
            feed: feed.clone(),
            archived,
        };
        let closed = Some(archived.closed);
        Resource::new(FEED_TYPE, closed, Validity::Forever, tag, Arc::new(source))
    }

    fn growing_resource(
        self: &Arc<Self>,
        state: &Arc<FeedSnapshot>,
        form: DocumentForm,
    ) -> Resource {
        let tag = match form {
            DocumentForm::Recent => state.tags.0.clone(),
            DocumentForm::Open | DocumentForm::Archived { .. } => state.tags.1.clone(),
        };
        let opening = state.head.open.opening;
        let renamed = opening.name.epoch.began();
        // The document of an empty feed may be opened anew with another header, and an epoch
        // changes every header. So the latest of these instants counts.
        let modified = opening.opened.max(renamed).max(state.head.updated);
        let tag = EntityTag::Shared(tag);
        let source = GrowingBytes {
            documents: Arc::clone(self),
            tag: tag.clone(),
            state: Arc::clone(state),
            form,
        };
        let validity = Validity::Generation(state.generation.clone());
        Resource::new(FEED_TYPE, Some(modified), validity, tag, Arc::new(source))
    }
}

fn stripe_of(feed: FeedKey) -> usize {
    let mut hasher = DefaultHasher::new();
    feed.hash(&mut hasher);
    let stripes = u64::try_from(STRIPES).expect("stripes are few");
    usize::try_from(hasher.finish() % stripes).expect("stripes are few")
}

/// Returns the growing block of an archive index.
fn index_resource(bytes: Bytes) -> Resource {
    Resource::of_bytes("application/json", None, Validity::Once, bytes)
}

/// Source of an archived document's bytes: its files.
#[derive(Debug)]
struct ArchivedBytes {
    documents: Arc<Documents>,
    feed: FeedName,
    archived: ManifestRecord,
}

impl ByteSource for ArchivedBytes {
    fn at_once(&self, _: Coding) -> Option<CodedBytes> {
        None
    }

    fn read(&self, coding: Coding) -> Result<CodedBytes, ReadError> {
        let Self {
            documents,
            feed,
            archived,
        } = self;
        let coded = match coding {
            Coding::Identity => archived.identity,
            Coding::Gzip => archived.gzip,
        };
        // Slow readers of one document share one copy of the bytes.
        let bytes = documents.in_flight.get(coded.digest, || {
            documents.file_bytes(feed, archived, coding)
        })?;
        Ok(CodedBytes {
            bytes,
            digest: Some(coded.digest),
        })
    }
}

/// Source of an open document's bytes: the log, and the bodies kept in memory.
#[derive(Debug)]
struct GrowingBytes {
    documents: Arc<Documents>,
    tag: EntityTag,
    state: Arc<FeedSnapshot>,
    form: DocumentForm,
}

impl GrowingBytes {
    fn growing_key(&self, coding: Coding) -> Growing {
        let is_recent = matches!(self.form, DocumentForm::Recent);
        Growing::Document(self.state.head.feed, is_recent, coding)
    }
}

impl ByteSource for GrowingBytes {
    fn at_once(&self, coding: Coding) -> Option<CodedBytes> {
        let tag = self.tag.in_coding(coding);
        let bytes = self.documents.kept_body(&self.growing_key(coding), &tag)?;
        Some(CodedBytes {
            bytes,
            digest: None,
        })
    }

    fn read(&self, coding: Coding) -> Result<CodedBytes, ReadError> {
        if let Some(content) = self.at_once(coding) {
            return Ok(content);
        }
        let bytes = match coding {
            Coding::Identity => self.documents.render_form(&self.state, self.form)?,
            Coding::Gzip => {
                let identity = self.read(Coding::Identity)?;
                // Compressed at the fast level, because these bytes change soon.
                gzip(&identity.bytes, Compression::fast()).into()
            }
        };
        let tag = self.tag.in_coding(coding);
        self.documents
            .keep_body(self.growing_key(coding), tag, &bytes);
        Ok(CodedBytes {
            bytes,
            digest: None,
        })
    }
}
