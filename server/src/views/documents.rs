//! Documents for readers: the resource behind a URL now, and its bytes on demand.
//!
//! Pure over the log and the archive. A [`Resource`] knows its validators without its bytes, so that memory answers a
//! conditional request. No snapshot is ever removed for being stale: a counter of the feed's commits (striped, so
//! that it needs no list of feeds) decides whether a snapshot is current.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant as Moment},
};

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use flate2::Compression;
use quick_cache::{Weighter, sync::Cache};
use simplefeed_core::{
    commit::Commit,
    digest::Digest,
    document::{entry_document, feed_document},
    feed::{DocumentName, FeedKey, FeedName, Numbered, Position},
    header::{ENTRY_TYPE, FEED_TYPE, Form, header},
    instant::Instant,
    plan::FeedHead,
    settings::Settings,
};

use super::{
    archive_files::Archive,
    error::ArchiveError,
    frozen::Frozen,
    frozen_files::{SMALLEST, gzip, twin},
    in_flight::InFlight,
    index,
    manifest::{Archived, Coded},
    open_feeds::OpenFeeds,
};
use tracing::warn;

use crate::{
    head_tag::HeadTag,
    log::{Series, settings_of},
};

/// Counters of commits, shared by the feeds whose keys hash alike.
const STRIPES: usize = 4_096;
/// Feeds whose snapshots are kept in memory.
const SNAPSHOTS_MAX: usize = 20_000;
/// Archived documents whose facts are kept in memory.
const ARCHIVED_MAX: usize = 100_000;
/// Bytes of bodies kept in memory.
const BODIES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Resource that a path below a feed names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `recent.atom`: the open document, at the feed's entry point.
    Recent,
    /// `{n}.atom`: a document at its permanent URL, open or archived.
    Document(DocumentName),
    /// `entries/{position}.atom`: one entry as an Atom Entry Document.
    Entry(Numbered),
    /// `index.json`: the growing block of the archive index.
    Index,
    /// `index-{k}.json`: a closed block of the archive index.
    IndexBlock(Numbered),
}

/// Content coding of the bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// The bytes as they are, without a coding.
    Identity,
    /// Compressed with gzip (RFC 1952).
    Gzip,
}

impl Coding {
    /// Returns the letter that ends the entity tags of this coding (rule H-2).
    pub fn letter(self) -> char {
        match self {
            Self::Identity => 'i',
            Self::Gzip => 'g',
        }
    }
}

/// State of a URL at one moment: its validators, and the source of its bytes.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Media type, as in `Content-Type`.
    pub media_type: &'static str,
    /// Whether its bytes are final and durable.
    pub frozen: bool,
    /// Instant of its last change, if that can serve as a validator.
    pub modified: Option<Instant>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// A durable file of the archive.
    File { feed: FeedName, archived: Archived },
    /// An open document: the tag covers its state, and its bytes are made on demand.
    Growing {
        tag: String,
        state: Arc<Snapshot>,
        form: Form,
    },
    /// Bytes that were made for this request.
    Bytes(Bytes),
    /// Bytes that serve more than one request.
    Made(Arc<Made>),
}

/// Bytes in both codings; the compressed ones are made on first demand.
#[derive(Debug)]
struct Made {
    /// Moment at which other bytes take their place; `None` for final ones.
    lasts_until: Option<Moment>,
    identity: (Bytes, Digest),
    gzip: OnceLock<(Bytes, Digest)>,
}

impl Made {
    fn at_once(&self, coding: Coding) -> Option<&(Bytes, Digest)> {
        match coding {
            Coding::Identity => Some(&self.identity),
            Coding::Gzip => self.gzip.get(),
        }
    }

    fn coded(&self, coding: Coding) -> &(Bytes, Digest) {
        match coding {
            Coding::Identity => &self.identity,
            Coding::Gzip => self
                .gzip
                // The best level, because the result is sent more than once.
                .get_or_init(|| digested(gzip(&self.identity.0, SMALLEST).into())),
        }
    }
}

fn digested(bytes: Bytes) -> (Bytes, Digest) {
    let digest = Digest::of(&bytes);
    (bytes, digest)
}

/// The bytes of a resource in one coding.
#[derive(Clone, Debug)]
pub struct Body {
    /// Coded bytes, as they are sent.
    pub bytes: Bytes,
    /// SHA-256 of the coded bytes; `None` unless the resource is frozen.
    pub digest: Option<Digest>,
}

impl Resource {
    /// Returns the opaque part of the entity tag in a coding, without its quotes.
    pub fn tag(&self, coding: Coding) -> String {
        match &self.content {
            Content::File { archived, .. } => {
                let coded = match coding {
                    Coding::Identity => archived.identity,
                    Coding::Gzip => archived.gzip,
                };
                tag_of(&coded.digest, coding)
            }
            Content::Growing { tag, .. } => format!("{tag}{}", coding.letter()),
            // Both codings hash the identity, because the compressed bytes may not exist yet. The letter differs.
            Content::Bytes(bytes) => tag_of(&Digest::of(bytes), coding),
            Content::Made(made) => tag_of(&made.identity.1, coding),
        }
    }
}

impl Resource {
    /// Returns a resource that is final and durable since `closed`, with its compressed form.
    pub fn frozen(media_type: &'static str, closed: Instant, bytes: Bytes, twin: Bytes) -> Self {
        Self::made(media_type, Some(closed), None, bytes, Some(twin))
    }

    /// Returns a resource that another one replaces after `lasts`.
    pub fn renewed(media_type: &'static str, bytes: Bytes, lasts: Duration) -> Self {
        let until = Moment::now() + lasts;
        Self::made(media_type, None, Some(until), bytes, None)
    }

    fn made(
        media_type: &'static str,
        closed: Option<Instant>,
        lasts_until: Option<Moment>,
        bytes: Bytes,
        twin: Option<Bytes>,
    ) -> Self {
        let made = Made {
            lasts_until,
            identity: digested(bytes),
            gzip: twin
                .map(digested)
                .map_or_else(OnceLock::new, OnceLock::from),
        };
        Self {
            media_type,
            frozen: closed.is_some(),
            modified: closed,
            content: Content::Made(Arc::new(made)),
        }
    }

    /// Returns the bytes of bodies that this resource keeps in memory, once both codings are made.
    pub fn held_bytes(&self) -> usize {
        match &self.content {
            // Two codings, of which the compressed one is smaller.
            Content::Made(made) => 2 * made.identity.0.len(),
            Content::Bytes(bytes) => bytes.len(),
            Content::File { .. } | Content::Growing { .. } => 0,
        }
    }

    /// Whether [`Documents::holds`] can find out later that the resource is unchanged.
    pub fn lasts(&self) -> bool {
        match self.content {
            Content::File { .. } | Content::Growing { .. } | Content::Made(_) => true,
            Content::Bytes(_) => false,
        }
    }

    /// Returns the digest of the bytes in a coding, where it is recorded.
    fn digest(&self, coding: Coding) -> Option<Digest> {
        match (&self.content, coding) {
            (Content::File { archived, .. }, Coding::Identity) => Some(archived.identity.digest),
            (Content::File { archived, .. }, Coding::Gzip) => Some(archived.gzip.digest),
            (Content::Made(made), _) if self.frozen => {
                made.at_once(coding).map(|(_, digest)| *digest)
            }
            _ => None,
        }
    }
}

fn tag_of(digest: &Digest, coding: Coding) -> String {
    format!(
        "{}{}",
        BASE64URL_NOPAD.encode(&digest.half()),
        coding.letter()
    )
}

/// State of a feed after some commit.
#[derive(Debug)]
pub struct Snapshot {
    generation: u64,
    /// End of the feed: its next position, history hash and open document.
    pub head: FeedHead,
    /// Newest settings of the feed; the open document may have older ones.
    pub settings: Settings,
    open_settings: Settings,
    /// Entity tags of `recent.atom` and of the permanent URL, without coding.
    tags: (String, String),
}

/// Weight of a body in memory. Its key is its entity tag, which is unique to its bytes.
#[derive(Clone)]
struct BodyWeight;

impl Weighter<String, Bytes> for BodyWeight {
    fn weight(&self, tag: &String, bytes: &Bytes) -> u64 {
        u64::try_from(tag.len() + bytes.len()).unwrap_or(u64::MAX)
    }
}

/// Documents of all feeds, with the caches in front of log and archive.
pub struct Documents {
    log: Arc<dyn Series>,
    archive: Archive,
    stripes: Vec<AtomicU64>,
    snapshots: Cache<FeedName, Arc<Snapshot>>,
    archived: Cache<(FeedName, DocumentName), Archived>,
    bodies: Cache<String, Bytes, BodyWeight>,
    /// Bytes of files that are being sent.
    in_flight: InFlight,
    open: OpenFeeds,
}

impl std::fmt::Debug for Documents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Documents").finish_non_exhaustive()
    }
}

impl Documents {
    /// Returns the documents of a log and its archive.
    pub fn new(log: Arc<dyn Series>, archive: Archive) -> Self {
        Self {
            log,
            archive,
            stripes: std::iter::repeat_with(AtomicU64::default)
                .take(STRIPES)
                .collect(),
            snapshots: Cache::new(SNAPSHOTS_MAX),
            archived: Cache::new(ARCHIVED_MAX),
            bodies: Cache::with_weighter(1_000, BODIES_BYTES_MAX, BodyWeight),
            in_flight: InFlight::default(),
            open: OpenFeeds::default(),
        }
    }

    /// Returns the feeds that the documents are made from.
    pub fn log(&self) -> &Arc<dyn Series> {
        &self.log
    }

    /// Returns the names of all feeds, and which of them are open to everybody.
    pub fn open(&self) -> &OpenFeeds {
        &self.open
    }

    /// Makes a commit visible to readers. The writer calls it before it answers any request.
    pub fn committed(&self, commit: &Commit) {
        self.open.committed(commit);
        for change in &commit.changes {
            if let Some(feed) = change.feed() {
                // Snapshots of the feed are stale from here on; others of the same stripe are read again for nothing.
                self.stripe(feed).fetch_add(1, Ordering::Release);
            }
        }
    }

    fn stripe(&self, feed: FeedKey) -> &AtomicU64 {
        let mut hasher = DefaultHasher::new();
        feed.hash(&mut hasher);
        let count = u64::try_from(self.stripes.len()).expect("stripes are few");
        let index = usize::try_from(hasher.finish() % count).expect("stripes are few");
        self.stripes.get(index).expect("the index is a remainder")
    }

    /// Returns the current snapshot of a feed, or `None` if no feed has that name.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn snapshot(&self, feed: &FeedName) -> Result<Option<Arc<Snapshot>>, ArchiveError> {
        if let Some(snapshot) = self.current(feed) {
            return Ok(Some(snapshot));
        }
        let Some(head) = self.log.named(feed)? else {
            return Ok(None);
        };
        // The counter first: the state read after it may be newer than the counter, never older.
        let generation = self.stripe(head.feed).load(Ordering::Acquire);
        let Some(head) = self.log.feed(head.feed)? else {
            return Ok(None);
        };
        let settings = settings_of(&*self.log, head.feed, head.revision)?;
        let open_settings = settings_of(&*self.log, head.feed, head.open.opening.revision)?;
        let tag = HeadTag::new(head.clone());
        let tags = (tag.recent(), tag.permanent());
        let snapshot = Arc::new(Snapshot {
            generation,
            head,
            settings,
            open_settings,
            tags,
        });
        self.snapshots.insert(feed.clone(), Arc::clone(&snapshot));
        Ok(Some(snapshot))
    }

    /// Returns the resource of an address if memory alone has it.
    pub fn at_once(&self, feed: &FeedName, address: &Address) -> Option<Resource> {
        let form = match address {
            Address::Recent => Form::Recent,
            Address::Document(name) => {
                if let Some(archived) = self.archived.get(&(feed.clone(), *name)) {
                    return Some(file(feed, archived));
                }
                Form::Open
            }
            Address::Entry(_) | Address::Index | Address::IndexBlock(_) => return None,
        };
        let state = self.current(feed)?;
        let open = Address::Document(state.head.open.opening.name);
        (form == Form::Recent || *address == open).then(|| growing(&state, form))
    }

    /// Returns whether a resource is still the one at its URL.
    pub fn holds(&self, resource: &Resource) -> bool {
        match &resource.content {
            // An archived document never changes.
            Content::File { .. } => true,
            Content::Growing { state, .. } => self.is_current(state),
            Content::Bytes(_) => false,
            Content::Made(made) => made.lasts_until.is_none_or(|until| Moment::now() < until),
        }
    }

    fn is_current(&self, snapshot: &Snapshot) -> bool {
        let generation = self.stripe(snapshot.head.feed).load(Ordering::Acquire);
        generation == snapshot.generation
    }

    /// Returns a feed's snapshot from memory, if it is current.
    pub fn current(&self, feed: &FeedName) -> Option<Arc<Snapshot>> {
        let snapshot = self.snapshots.get(feed)?;
        self.is_current(&snapshot).then_some(snapshot)
    }

    /// Returns the resource of an address now, or `None` if it names nothing.
    ///
    /// # Errors
    ///
    /// See [`ArchiveError`].
    pub fn resource(
        &self,
        feed: &FeedName,
        address: &Address,
    ) -> Result<Option<Resource>, ArchiveError> {
        if let Some(resource) = self.at_once(feed, address) {
            return Ok(Some(resource));
        }
        let Some(state) = self.snapshot(feed)? else {
            return Ok(None);
        };
        match address {
            Address::Recent => Ok(Some(growing(&state, Form::Recent))),
            Address::Document(name) => self.document(feed, &state, *name),
            Address::Entry(numbered) => self.entry(feed, &state, *numbered),
            Address::Index => {
                let archived = self.archive.manifests.count(feed)?;
                let id = &state.settings.id;
                // The growing block changes only with this number, so it can stand in the key.
                let key = format!("index {feed} {archived}");
                let bytes = match self.bodies.get(&key) {
                    Some(bytes) => bytes,
                    None => index::growing_block(&self.archive.manifests, feed, id, archived)?,
                };
                self.bodies.insert(key, bytes.clone());
                Ok(Some(at_hand("application/json", false, None, bytes)))
            }
            Address::IndexBlock(numbered) => {
                let id = &state.settings.id;
                let block =
                    index::closed_block(&self.archive.manifests, feed, id, numbered.number)?;
                // The epoch is part of the name, and a block has only one name.
                let block =
                    block.filter(|block| index::block_of_name(&block.name) == Some(*numbered));
                Ok(block.map(|block| {
                    at_hand("application/json", true, Some(block.closed), block.bytes)
                }))
            }
        }
    }

    fn document(
        &self,
        feed: &FeedName,
        state: &Arc<Snapshot>,
        name: DocumentName,
    ) -> Result<Option<Resource>, ArchiveError> {
        if name == state.head.open.opening.name {
            return Ok(Some(growing(state, Form::Open)));
        }
        // The document is not opened yet, or its open one has another epoch.
        if name.number >= state.head.open.opening.name.number {
            return Ok(None);
        }
        if let Some(archived) = self.archive.manifests.get(feed, name.number)? {
            // Another epoch's name leads to a redirect instead, and a lost document to nothing.
            if archived.name != name || archived.is_lost() {
                return Ok(None);
            }
            self.archived.insert((feed.clone(), name), archived);
            return Ok(Some(file(feed, archived)));
        }
        // Closed, but not yet a durable file: its bytes are final, but not called immutable.
        let frozen = Frozen::render(&*self.log, state.head.feed, name.number)?;
        let frozen = frozen.filter(|frozen| frozen.opening.name == name);
        Ok(frozen.map(|frozen| {
            at_hand(
                FEED_TYPE,
                false,
                Some(frozen.successor.opened),
                frozen.bytes,
            )
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
    ) -> Result<Option<DocumentName>, ArchiveError> {
        let Some(state) = self.snapshot(feed)? else {
            return Ok(None);
        };
        let opening = self.log.opening(state.head.feed, name.number)?;
        // The predecessor links to the first of these names. Each one before the newest leads to it.
        let opening = opening
            .filter(|opening| (opening.linked.epoch..opening.name.epoch).contains(&name.epoch));
        Ok(opening.map(|opening| opening.name))
    }

    fn entry(
        &self,
        feed: &FeedName,
        state: &Snapshot,
        numbered: Numbered,
    ) -> Result<Option<Resource>, ArchiveError> {
        let at = Position(numbered.number);
        if at >= state.head.next {
            return Ok(None);
        }
        let entry = self.log.entries(state.head.feed, at..at.next())?.pop();
        // An entry's URL has the epoch of its document, so one position never names two contents.
        let Some(entry) = entry.filter(|entry| entry.document.epoch == numbered.epoch) else {
            return Ok(None);
        };
        // An entry is frozen with its document, and has the date of the cut then.
        let archived = self.archive.manifests.get(feed, entry.document.number)?;
        let bytes = entry_document(&entry.fragment);
        let modified = archived.map_or(entry.instant, |archived| archived.closed);
        Ok(Some(at_hand(
            ENTRY_TYPE,
            archived.is_some(),
            Some(modified),
            bytes,
        )))
    }

    /// Returns the bytes of a resource if they are in memory.
    pub fn body_at_once(&self, resource: &Resource, coding: Coding) -> Option<Body> {
        let bytes = match &resource.content {
            Content::Made(made) => made.at_once(coding)?.0.clone(),
            _ => self.bodies.get(&resource.tag(coding))?,
        };
        Some(Body {
            bytes,
            digest: resource.digest(coding),
        })
    }

    /// Returns the bytes of a resource.
    ///
    /// # Errors
    ///
    /// See [`ArchiveError`].
    pub fn body(&self, resource: &Resource, coding: Coding) -> Result<Body, ArchiveError> {
        if let Some(body) = self.body_at_once(resource, coding) {
            return Ok(body);
        }
        let bytes = match (&resource.content, coding) {
            (Content::File { feed, archived }, _) => {
                // Slow readers of one document share one copy of its bytes.
                let tag = resource.tag(coding);
                self.in_flight
                    .get(tag, || self.file_bytes(feed, archived, coding))?
            }
            (Content::Bytes(bytes), Coding::Identity) => bytes.clone(),
            (Content::Made(made), _) => made.coded(coding).0.clone(),
            (Content::Growing { state, form, .. }, Coding::Identity) => {
                self.render(state, *form)?
            }
            (_, Coding::Gzip) => {
                // The fast level, because these bytes change soon or are sent once.
                let identity = self.body(resource, Coding::Identity)?;
                gzip(&identity.bytes, Compression::fast()).into()
            }
        };
        let digest = resource
            .digest(coding)
            // Hashed for `Repr-Digest`, which only frozen bytes have.
            .or_else(|| resource.frozen.then(|| Digest::of(&bytes)));
        // Files are shared while they are sent, and all other resources hold their bytes.
        if let Content::Growing { .. } = resource.content {
            self.bodies.insert(resource.tag(coding), bytes.clone());
        }
        Ok(Body { bytes, digest })
    }

    /// Returns the bytes of an archived document: those of its file, or, if that is gone or damaged, those that the log
    /// gives, as long as they have the recorded digest.
    fn file_bytes(
        &self,
        feed: &FeedName,
        archived: &Archived,
        coding: Coding,
    ) -> Result<Bytes, ArchiveError> {
        let error = match self.archive.read(feed, archived, coding == Coding::Gzip) {
            Ok(bytes) => return Ok(bytes),
            Err(error) => error,
        };
        warn!(%feed, document = %archived.name, %error, "served from the log; `rebuild` repairs the file");
        let head = self.log.named(feed)?;
        let frozen = match head {
            Some(head) => Frozen::render(&*self.log, head.feed, archived.name.number)?,
            None => None,
        };
        let bytes = frozen.map(|frozen| match coding {
            Coding::Identity => (frozen.bytes, archived.identity),
            Coding::Gzip => {
                let twin = twin(&frozen.bytes, Some(archived.gzip));
                (twin.into(), archived.gzip)
            }
        });
        match bytes {
            Some((bytes, expected)) if Coded::of(&bytes) == expected => Ok(bytes),
            // Other bytes under an immutable URL would be worse than an error.
            _ => Err(error),
        }
    }

    fn render(&self, state: &Snapshot, form: Form) -> Result<Bytes, ArchiveError> {
        let opening = &state.head.open.opening;
        let entries = self
            .log
            .entries(state.head.feed, opening.first..state.head.next)?;
        // The settings of the opening, because a header never changes while its document grows.
        let header = header(opening, &state.open_settings, form, state.head.updated);
        let fragments: Vec<&Bytes> = entries.iter().map(|entry| &entry.fragment).collect();
        Ok(feed_document(&header, &fragments))
    }
}

fn file(feed: &FeedName, archived: Archived) -> Resource {
    Resource {
        media_type: FEED_TYPE,
        frozen: true,
        modified: Some(archived.closed),
        content: Content::File {
            feed: feed.clone(),
            archived,
        },
    }
}

fn growing(state: &Arc<Snapshot>, form: Form) -> Resource {
    let tag = match form {
        Form::Recent => state.tags.0.clone(),
        Form::Open | Form::Archived { .. } => state.tags.1.clone(),
    };
    let opening = state.head.open.opening;
    let renamed = opening.name.epoch.began();
    let content = Content::Growing {
        tag,
        state: Arc::clone(state),
        form,
    };
    Resource {
        media_type: FEED_TYPE,
        frozen: false,
        // An empty feed's document may be opened anew with another header, and an epoch changes any.
        modified: Some(opening.opened.max(renamed).max(state.head.updated)),
        content,
    }
}

fn at_hand(
    media_type: &'static str,
    frozen: bool,
    modified: Option<Instant>,
    bytes: Bytes,
) -> Resource {
    Resource {
        media_type,
        frozen,
        modified,
        content: Content::Bytes(bytes),
    }
}

/// Returns a listing that grows with the feeds.
pub fn growing_listing(bytes: Bytes) -> Resource {
    at_hand("application/json", false, None, bytes)
}
