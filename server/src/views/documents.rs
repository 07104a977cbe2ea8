//! Documents as a reader asks for them: what a URL stands for now, and its bytes when they are
//! wanted.
//!
//! Pure over the log and the archive. A [`Resource`] knows its validators without its bytes, so that
//! a conditional request is answered from memory. What is kept in memory is never told to go away:
//! each feed's number of commits (striped, so that it needs no list of feeds) decides whether a
//! snapshot still holds.

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
/// Feeds whose ends are kept in memory.
const SNAPSHOTS_MAX: usize = 20_000;
/// Archived documents whose facts are kept in memory.
const ARCHIVED_MAX: usize = 100_000;
/// The bytes of bodies kept in memory.
const BODIES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a path below a feed stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `recent.atom`.
    Recent,
    /// `{n}.atom`.
    Document(DocumentName),
    /// `entries/{position}.atom`.
    Entry(Numbered),
    /// `index.json`.
    Index,
    /// `index-{k}.json`.
    IndexBlock(Numbered),
}

/// How bytes are coded for transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// As they are.
    Identity,
    /// gzip (RFC 1952).
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

/// What a URL stands for at one moment.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Its media type.
    pub media_type: &'static str,
    /// Whether its bytes are final and durable.
    pub frozen: bool,
    /// When it changed last, if that can serve as a validator.
    pub modified: Option<Instant>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// A file of the archive.
    File { feed: FeedName, archived: Archived },
    /// Something growing: the tag is of its state, the bytes are made on demand.
    Growing {
        tag: String,
        state: Arc<Snapshot>,
        form: Form,
    },
    /// Bytes at hand.
    Bytes(Bytes),
    /// Bytes at hand that are sent more than once.
    Made(Arc<Made>),
}

/// Bytes in both codings; the compressed ones are there once they are wanted.
#[derive(Debug)]
struct Made {
    /// When another one is to be made.
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
    /// The bytes.
    pub bytes: Bytes,
    /// Their SHA-256, where it is known without computing it.
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
            Content::Bytes(bytes) => tag_of(&Digest::of(bytes), coding),
            Content::Made(made) => tag_of(&made.identity.1, coding),
        }
    }
}

impl Resource {
    /// Returns something that is final and durable since `closed`, with its compressed form.
    pub fn frozen(media_type: &'static str, closed: Instant, bytes: Bytes, twin: Bytes) -> Self {
        Self::made(media_type, Some(closed), None, bytes, Some(twin))
    }

    /// Returns something that is made anew every so often, the next time after `lasts`.
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

    /// Returns how many bytes of bodies it keeps in memory, when it is asked for in all codings.
    pub fn held_bytes(&self) -> usize {
        match &self.content {
            // A compressed form is smaller.
            Content::Made(made) => 2 * made.identity.0.len(),
            Content::Bytes(bytes) => bytes.len(),
            Content::File { .. } | Content::Growing { .. } => 0,
        }
    }

    /// Whether it is known later whether it has changed.
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

/// A feed as it was after some commit.
#[derive(Debug)]
pub struct Snapshot {
    generation: u64,
    /// Its end.
    pub head: FeedHead,
    /// Its newest settings.
    pub settings: Settings,
    open_settings: Settings,
    /// The tags of `recent.atom` and of the permanent URL.
    tags: (String, String),
}

/// A body in memory is found by its entity tag, which is unique to its bytes.
#[derive(Clone)]
struct BodyWeight;

impl Weighter<String, Bytes> for BodyWeight {
    fn weight(&self, tag: &String, bytes: &Bytes) -> u64 {
        u64::try_from(tag.len() + bytes.len()).unwrap_or(u64::MAX)
    }
}

/// The documents of all feeds.
pub struct Documents {
    log: Arc<dyn Series>,
    archive: Archive,
    stripes: Vec<AtomicU64>,
    snapshots: Cache<FeedName, Arc<Snapshot>>,
    archived: Cache<(FeedName, DocumentName), Archived>,
    bodies: Cache<String, Bytes, BodyWeight>,
    /// The bytes of files that are being sent.
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

    /// Returns the log.
    pub fn log(&self) -> &Arc<dyn Series> {
        &self.log
    }

    /// Returns which feeds are open to everybody.
    pub fn open(&self) -> &OpenFeeds {
        &self.open
    }

    /// Lets readers see a commit. Called by the writer before it answers anybody.
    pub fn committed(&self, commit: &Commit) {
        self.open.committed(commit);
        for change in &commit.changes {
            if let Some(feed) = change.feed() {
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

    /// Returns a feed as it is now, or `None` if there is none of that name.
    ///
    /// # Errors
    ///
    /// Returns what cannot be read from the log.
    pub fn snapshot(&self, feed: &FeedName) -> Result<Option<Arc<Snapshot>>, ArchiveError> {
        if let Some(snapshot) = self.current(feed) {
            return Ok(Some(snapshot));
        }
        let Some(head) = self.log.named(feed)? else {
            return Ok(None);
        };
        // Counted before it is read: what is read may be newer than the count, never older.
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

    /// Returns what an address stands for if that is known without reading anything from a disk.
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

    /// Returns whether a resource is still what its URL stands for.
    pub fn holds(&self, resource: &Resource) -> bool {
        match &resource.content {
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

    /// Returns a feed's snapshot if it still holds.
    pub fn current(&self, feed: &FeedName) -> Option<Arc<Snapshot>> {
        let snapshot = self.snapshots.get(feed)?;
        self.is_current(&snapshot).then_some(snapshot)
    }

    /// Returns what an address stands for now, or `None` if nothing.
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
        if name.number >= state.head.open.opening.name.number {
            return Ok(None);
        }
        if let Some(archived) = self.archive.manifests.get(feed, name.number)? {
            if archived.name != name || archived.is_lost() {
                return Ok(None);
            }
            self.archived.insert((feed.clone(), name), archived);
            return Ok(Some(file(feed, archived)));
        }
        // Closed, but not yet a durable file: its bytes are final and nobody is told so.
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

    /// Returns what a document is called now that an epoch has given it another name.
    ///
    /// # Errors
    ///
    /// Returns what cannot be read from the log.
    pub fn renamed(
        &self,
        feed: &FeedName,
        name: DocumentName,
    ) -> Result<Option<DocumentName>, ArchiveError> {
        let Some(state) = self.snapshot(feed)? else {
            return Ok(None);
        };
        let opening = self.log.opening(state.head.feed, name.number)?;
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
        let Some(entry) = entry.filter(|entry| entry.document.epoch == numbered.epoch) else {
            return Ok(None);
        };
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
                let identity = self.body(resource, Coding::Identity)?;
                gzip(&identity.bytes, Compression::fast()).into()
            }
        };
        let digest = resource
            .digest(coding)
            .or_else(|| resource.frozen.then(|| Digest::of(&bytes)));
        if let Content::Growing { .. } = resource.content {
            self.bodies.insert(resource.tag(coding), bytes.clone());
        }
        Ok(Body { bytes, digest })
    }

    /// Returns the bytes of an archived document: its file's, or if that is gone or damaged, what
    /// the log gives, as long as it is the same.
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
            _ => Err(error),
        }
    }

    fn render(&self, state: &Snapshot, form: Form) -> Result<Bytes, ArchiveError> {
        let opening = &state.head.open.opening;
        let entries = self
            .log
            .entries(state.head.feed, opening.first..state.head.next)?;
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
