//! How commits, entries and feeds are laid out, in the journal and in sled.
//!
//! Pure. Keys begin with a byte for their kind and sort big-endian; every value ends with its
//! CRC-32.
//!
//! ```text
//! V                            storage version
//! S                            end of the log at the last settling
//! p commit part                facts of consecutive commits: instant, chain, epoch, feeds, changes
//! e feed position part         consecutive entries: groups of one commit and one document, oldest first
//! f feed                       head of the feed, and its newest entries
//! d feed document              opening of a document
//! s feed revision part         settings, as JSON
//! g revision part              defaults, as JSON
//! n name                       feed that has the name
//! ```
//!
//! In the journal, a commit consists of facts (`c`), heads of feeds (`h`) and items (`e d s g n`),
//! without parts. sled holds facts and entries packed, so that sled has few keys, and heads beside
//! a feed's newest entries (`f`, see [`tail`]). A packed record is compressed, if the compressed
//! form is shorter. A record of entries that was a feed's tail consists of several such blocks.
//!
//! No value in sled exceeds [`VALUE_BYTES_MAX`]: sled puts larger values into separate files, and
//! never syncs these files. A longer body continues in the next part.

use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem;
use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    digest::Digest,
    entry::Entry,
    feed::{
        CommitNumber, DocumentName, DocumentNumber, EntryId, Epoch, FeedKey, FeedName, FeedPattern,
        Position, Revision,
    },
    follow::{FollowChange, FollowItem},
    history::{ChainHash, HistoryHash},
    plan::{FeedHead, OpenDocument, Opening},
    timestamp::Timestamp,
};
use uuid::Uuid;

use super::{
    LogError, LogHead,
    packing::{PART_BYTES_MAX, unpack},
    tail,
};
use crate::codec::{Reader, RecordWriter, seal, unseal};

/// Version of this layout. A log of another one is refused.
pub(super) const STORAGE_VERSION: u32 = 4;
/// Key of the storage version, the only one of its kind.
pub(super) const VERSION_KEY: &[u8] = b"V";

/// Bytes of entries or facts that share a record in sled. Compressed, they mostly fit into one
/// part.
pub(super) const RECORD_BYTES: usize = 16 * 1024;
/// Bytes for which a head has room at first: enough for nearly all, with their checksums.
const HEAD_BYTES_LIKELY: usize = 192;
/// Bytes for which a group has room beside the entries: enough for a head and a checksum.
const GROUP_HEAD_BYTES: usize = 64;
/// Bytes for which an entry has room beside the fragment: enough for a head without a long id.
const ENTRY_HEAD_BYTES: usize = 64;
/// Key of the end of the log at the last settling, the only one of its kind.
pub(super) const SETTLED_KEY: &[u8] = b"S";
/// Bytes of the part number at the end of a key in sled.
pub(super) const PART_KEY_BYTES: usize = 4;

// ---- keys ----------------------------------------------------------------------------------

pub(super) fn commit_key(number: CommitNumber) -> Vec<u8> {
    key_of(b'c', &[&number.0.to_be_bytes()])
}

/// Returns the key of the facts of commits from `first` on.
pub(super) fn facts_key(first: CommitNumber) -> Vec<u8> {
    key_of(b'p', &[&first.0.to_be_bytes()])
}

pub(super) fn entry_key(feed: FeedKey, at: Position) -> Vec<u8> {
    key_of(b'e', &[feed.0.as_bytes(), &at.0.to_be_bytes()])
}

pub(super) fn head_key(feed: FeedKey) -> Vec<u8> {
    key_of(b'h', &[feed.0.as_bytes()])
}

/// Returns the key of a feed's record, which has the feed's head and newest entries.
pub(super) fn feed_key(feed: FeedKey) -> Vec<u8> {
    key_of(b'f', &[feed.0.as_bytes()])
}

pub(super) fn document_key(feed: FeedKey, document: DocumentNumber) -> Vec<u8> {
    key_of(b'd', &[feed.0.as_bytes(), &document.get().to_be_bytes()])
}

pub(super) fn settings_key(feed: FeedKey, revision: Revision) -> Vec<u8> {
    key_of(b's', &[feed.0.as_bytes(), &revision.0.to_be_bytes()])
}

pub(super) fn defaults_key(revision: Revision) -> Vec<u8> {
    key_of(b'g', &[&revision.0.to_be_bytes()])
}

pub(super) fn name_key(name: &FeedName) -> Vec<u8> {
    key_of(b'n', &[name.as_str().as_bytes()])
}

pub(super) fn part_key(key: &[u8], part: u32) -> Vec<u8> {
    let mut key = key.to_vec();
    key.extend_from_slice(&part.to_be_bytes());
    key
}

fn key_of(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    // Enough for all keys but long names: the longest other key, of an entry, has 25 bytes, and 4
    // for the part.
    let mut key = Vec::with_capacity(32);
    key.push(kind);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

/// Returns the prefix of the keys of a feed's entries.
pub(super) fn entries_prefix(feed: FeedKey) -> Vec<u8> {
    key_of(b'e', &[feed.0.as_bytes()])
}

/// Returns the prefix of the keys of a feed's documents.
pub(super) fn documents_prefix(feed: FeedKey) -> Vec<u8> {
    key_of(b'd', &[feed.0.as_bytes()])
}

/// Returns the prefix of the keys of a feed's settings.
pub(super) fn settings_prefix(feed: FeedKey) -> Vec<u8> {
    key_of(b's', &[feed.0.as_bytes()])
}

/// Returns the feed of a key that has a feed behind the byte of the kind.
pub(super) fn feed_of_key(key: &[u8]) -> Option<FeedKey> {
    let feed = key.get(1..)?.first_chunk::<16>()?;
    Some(FeedKey(Uuid::from_bytes(*feed)))
}

/// Returns the revision of a key of settings, or `None` for another kind of key.
pub(super) fn revision_of_key(key: &[u8]) -> Option<Revision> {
    let (_, rest) = key.strip_prefix(b"s")?.split_first_chunk::<16>()?;
    Some(Revision(u32::from_be_bytes(*rest.first_chunk::<4>()?)))
}

/// Returns the commit number of a key of facts, or `None` for another kind of key.
pub(super) fn commit_of_key(key: &[u8]) -> Option<CommitNumber> {
    // The journal has one key for each commit, sled one for consecutive commits; both have the
    // number behind the kind.
    let number = key.strip_prefix(b"c").or(key.strip_prefix(b"p"))?;
    Some(CommitNumber(u64::from_be_bytes(
        *number.first_chunk::<8>()?,
    )))
}

/// Returns feed and position of an entry record's key, or `None` for another kind of key.
pub(super) fn entry_of_key(key: &[u8]) -> Option<(FeedKey, Position)> {
    let (feed, rest) = key.strip_prefix(b"e")?.split_first_chunk::<16>()?;
    // The part number behind the position is left out: all parts are one record.
    let at = rest.first_chunk::<8>()?;
    Some((
        FeedKey(Uuid::from_bytes(*feed)),
        Position(u64::from_be_bytes(*at)),
    ))
}

/// Returns the name of a name's key, or `None` for another kind of key.
pub(super) fn name_of_key(key: &[u8]) -> Option<FeedName> {
    FeedName::parse(std::str::from_utf8(key.strip_prefix(b"n")?).ok()?)
}

// ---- values --------------------------------------------------------------------------------

/// Returns `body` as parts, each with a number and a checksum.
pub(super) fn parts(body: &[u8]) -> impl Iterator<Item = (u32, Vec<u8>)> {
    (0..).zip(body.chunks(PART_BYTES_MAX).map(|part| seal(part.to_vec())))
}

/// Returns the number of parts of a body.
pub(super) fn count_parts(body: &[u8]) -> u32 {
    u32::try_from(body.len().div_ceil(PART_BYTES_MAX)).unwrap_or(u32::MAX)
}

fn write_name(name: DocumentName, out: &mut RecordWriter) {
    out.number(name.number.get());
    out.number(u64::from(name.epoch.0));
}

fn read_name(from: &mut Reader<'_>) -> Option<DocumentName> {
    let number = DocumentNumber::new(from.number()?)?;
    Some(DocumentName {
        number,
        epoch: Epoch(from.small()?),
    })
}

// ---- feeds and documents -------------------------------------------------------------------

/// Writes an opening. The fields of a restoration come last, and only after a restoration or a
/// loss.
fn write_opening(opening: &Opening, out: &mut RecordWriter, restored: bool) {
    write_name(opening.name, out);
    match opening.previous {
        Some(previous) => write_name(previous, out),
        // Documents are numbered from 1, so 0 stands for none.
        None => out.number(0),
    }
    out.number(opening.first.0);
    out.bytes(&opening.before.0.0);
    out.number(u64::from(opening.revision.0));
    out.instant(opening.opened);
    if restored || opening.name.epoch > Epoch::FIRST || opening.after_loss {
        out.number(u64::from(opening.linked.epoch.0));
        out.number(u64::from(opening.after_loss));
        out.number(opening.since.0);
    }
}

fn read_opening(from: &mut Reader<'_>) -> Option<Opening> {
    let name = read_name(from)?;
    let previous = match DocumentNumber::new(from.number()?) {
        Some(number) => Some(DocumentName {
            number,
            epoch: Epoch(from.small()?),
        }),
        None => None,
    };
    let mut opening = Opening {
        name,
        linked: name,
        previous,
        first: Position(from.number()?),
        before: HistoryHash(from.digest()?),
        revision: Revision(from.small()?),
        opened: from.instant()?,
        after_loss: false,
        since: Position(0),
    };
    // The fields are absent in a log that was never restored and has lost nothing.
    if !from.0.is_empty() {
        opening.linked.epoch = Epoch(from.small()?);
        opening.after_loss = from.number()? == 1;
        opening.since = Position(from.number()?);
    }
    Some(opening)
}

pub(super) fn encode_opening(opening: &Opening) -> Vec<u8> {
    let mut out = RecordWriter::default();
    write_opening(opening, &mut out, false);
    seal(out.0)
}

pub(super) fn decode_opening(body: &[u8]) -> Option<Opening> {
    read_opening(&mut Reader(body))
}

pub(super) fn encode_head(head: &FeedHead) -> Vec<u8> {
    let mut out = RecordWriter(Vec::with_capacity(HEAD_BYTES_LIKELY));
    out.feed(head.feed);
    out.number(u64::from(head.revision.0));
    out.number(head.next.0);
    out.bytes(&head.history.0.0);
    out.instant(head.updated);
    out.number(head.open.bytes);
    // A byte may follow. `read_opening` would take that byte for an optional field, so the optional
    // fields are written, too.
    write_opening(&head.open.opening, &mut out, head.open.lost);
    if head.open.lost {
        out.number(1);
    }
    seal(out.0)
}

pub(super) fn decode_head(body: &[u8]) -> Option<FeedHead> {
    let mut from = Reader(body);
    Some(FeedHead {
        feed: from.feed()?,
        revision: Revision(from.small()?),
        next: Position(from.number()?),
        history: HistoryHash(from.digest()?),
        updated: from.instant()?,
        open: OpenDocument {
            bytes: from.number()?,
            opening: read_opening(&mut from)?,
            lost: !from.0.is_empty(),
        },
    })
}

// ---- entries -------------------------------------------------------------------------------

/// Entries of one commit in one document, being packed into a record.
#[derive(Debug)]
pub(super) struct EntryRecord {
    pub(super) first: Position,
    document: DocumentName,
    commit: CommitNumber,
    instant: Timestamp,
    count: u64,
    body: RecordWriter,
}

impl EntryRecord {
    pub(super) fn new(
        first: Position,
        document: DocumentName,
        commit: CommitNumber,
        instant: Timestamp,
    ) -> Self {
        Self {
            first,
            document,
            commit,
            instant,
            count: 0,
            body: RecordWriter::default(),
        }
    }

    /// Returns whether the next entry belongs into this record.
    pub(super) fn takes(&self, at: Position, document: DocumentName, fragment: &[u8]) -> bool {
        // 256 bytes are for the header and the numbers before the fragment. An entry that needs
        // more continues in a second part.
        self.first.0 + self.count == at.0
            && self.document == document
            && self.body.0.len() + fragment.len() + 256 <= PART_BYTES_MAX
    }

    /// Adds an entry, the `offset`th of its commit.
    pub(super) fn push(&mut self, offset: u64, id: &EntryId, sent: Digest, fragment: &[u8]) {
        self.count += 1;
        self.body.0.reserve(fragment.len() + ENTRY_HEAD_BYTES);
        self.body.number(offset);
        self.body.bytes(&sent.0);
        let id = id.as_str().as_bytes();
        // Nearly always the fragment has the id, byte for byte, so the place of the id is stored,
        // counted from 1. Place 0 means that the id follows.
        let place = memmem::find(fragment, id);
        self.body.length(place.map_or(0, |place| place + 1));
        self.body.length(id.len());
        if place.is_none() {
            self.body.bytes(id);
        }
        self.body.length(fragment.len());
        self.body.bytes(fragment);
    }

    /// Returns the record's bytes, to be stored in parts.
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = RecordWriter(Vec::with_capacity(self.body.0.len() + GROUP_HEAD_BYTES));
        out.number(self.count);
        out.number(self.commit.0);
        out.instant(self.instant);
        write_name(self.document, &mut out);
        out.bytes(&self.body.0);
        out.0
    }
}

/// Returns the number of entries in a group.
pub(super) fn count_entries(group: &[u8]) -> Option<u64> {
    Reader(group).number()
}

/// Returns the entries of a stored record whose first entry is at `first`.
pub(super) fn decode_entries(first: Position, stored: &Bytes) -> Option<Vec<Entry>> {
    let mut entries = vec![];
    // Positions are not stored: the entries of a record have no holes.
    let mut next = first;
    for packed in tail::packed_groups(stored)? {
        let groups = &unpack(&packed)?;
        let mut from = Reader(groups);
        while !from.0.is_empty() {
            next = decode_group(next, groups, &mut from, &mut entries)?;
        }
    }
    (!entries.is_empty()).then_some(entries)
}

/// Adds the entries of the next group, whose first one is at `first`. Returns the position behind
/// them.
fn decode_group(
    first: Position,
    record: &Bytes,
    from: &mut Reader<'_>,
    entries: &mut Vec<Entry>,
) -> Option<Position> {
    let count = from.number()?;
    let commit = CommitNumber(from.number()?);
    let instant = from.instant()?;
    let document = read_name(from)?;
    // Nothing is allocated for `count` beforehand: a damaged one could be of any size.
    for index in 0..count {
        let offset = from.number()?;
        let sent = from.digest()?;
        let place = from.length()?;
        let id_length = from.length()?;
        let explicit = if place == 0 {
            Some(from.bytes(id_length)?)
        } else {
            None
        };
        let length = from.length()?;
        let fragment = from.bytes(length)?;
        let id = match explicit {
            Some(id) => id,
            None => fragment.get(place - 1..place - 1 + id_length)?,
        };
        entries.push(Entry {
            at: Position(first.0 + index),
            id: EntryId::parse(std::str::from_utf8(id).ok()?)?,
            document,
            commit,
            instant: instant.plus_micros(offset),
            sent,
            // Shares the record's memory instead of copying the fragment.
            fragment: record.slice_ref(fragment),
        });
    }
    Some(Position(first.0.checked_add(count)?))
}

// ---- commits -------------------------------------------------------------------------------

/// Facts of a commit, which stand for the commit in the log; settings and entries are records of
/// their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitFacts {
    pub instant: Timestamp,
    pub(super) last: Timestamp,
    pub(super) chain: ChainHash,
    pub(super) epoch: Epoch,
    pub(super) feeds: u64,
    pub changes: Vec<ChangeOutline>,
}

impl CommitFacts {
    pub(super) fn outline(self, number: CommitNumber) -> Outline {
        Outline {
            number,
            instant: self.instant,
            changes: self.changes,
        }
    }

    /// Returns the end of the log after commit `number`, whose facts these are.
    pub(super) fn end(&self, number: CommitNumber) -> LogHead {
        LogHead {
            number,
            last: self.last,
            chain: self.chain,
            epoch: self.epoch,
            feeds: self.feeds,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = RecordWriter::default();
        out.instant(self.instant);
        out.instant(self.last);
        out.bytes(&self.chain.0.0);
        // Epoch and feeds are those after the commit, so that the opening of a log needs only the
        // last commit.
        out.number(u64::from(self.epoch.0));
        out.number(self.feeds);
        for change in &self.changes {
            // These numbers are stored, so none of them ever gets another meaning.
            match *change {
                ChangeOutline::Settings { feed, revision } => {
                    out.number(1);
                    out.feed(feed);
                    out.number(u64::from(revision.0));
                }
                ChangeOutline::Opened {
                    feed,
                    document,
                    first,
                    revision,
                } => {
                    out.number(2);
                    out.feed(feed);
                    out.number(document.get());
                    out.number(first.0);
                    out.number(u64::from(revision.0));
                }
                ChangeOutline::Entries { feed, first, count } => {
                    out.number(3);
                    out.feed(feed);
                    out.number(first.0);
                    out.number(count);
                }
                ChangeOutline::Epoch { epoch } => {
                    out.number(4);
                    out.number(u64::from(epoch.0));
                }
                ChangeOutline::Lost {
                    feed,
                    next,
                    history,
                } => {
                    out.number(5);
                    out.feed(feed);
                    out.number(next.0);
                    out.bytes(&history.0.0);
                }
                ChangeOutline::Following { feed, ref change } => {
                    out.number(6);
                    out.feed(feed);
                    out.number(u64::from(change.backfill));
                    write_items(&change.follow, &mut out);
                    write_items(&change.unfollow, &mut out);
                }
                ChangeOutline::Defaults { revision } => {
                    out.number(7);
                    out.number(u64::from(revision.0));
                }
            }
        }
        out.0
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut from = Reader(body);
        let mut facts = Self {
            instant: from.instant()?,
            last: from.instant()?,
            chain: ChainHash(from.digest()?),
            epoch: Epoch(from.small()?),
            feeds: from.number()?,
            changes: vec![],
        };
        while !from.0.is_empty() {
            facts.changes.push(read_change(&mut from)?);
        }
        Some(facts)
    }
}

fn write_items(items: &[FollowItem], out: &mut RecordWriter) {
    out.length(items.len());
    for item in items {
        match item {
            FollowItem::Feed(feed) => {
                out.number(0);
                out.feed(*feed);
            }
            FollowItem::Pattern(pattern) => {
                let text = pattern.to_string();
                out.number(1);
                out.length(text.len());
                out.bytes(text.as_bytes());
            }
        }
    }
}

fn read_items(from: &mut Reader<'_>) -> Option<Vec<FollowItem>> {
    let count = from.length()?;
    let mut items = vec![];
    // Nothing is allocated for `count` beforehand: a damaged one could be of any size.
    for _ in 0..count {
        items.push(match from.number()? {
            0 => FollowItem::Feed(from.feed()?),
            1 => {
                let length = from.length()?;
                let text = std::str::from_utf8(from.bytes(length)?).ok()?;
                FollowItem::Pattern(FeedPattern::parse(text)?)
            }
            _ => return None,
        });
    }
    Some(items)
}

/// Facts of consecutive commits, being packed into a record.
#[derive(Debug)]
pub(super) struct FactsRecord {
    pub(super) first: CommitNumber,
    body: RecordWriter,
}

impl FactsRecord {
    pub(super) fn new(first: CommitNumber) -> Self {
        let body = RecordWriter::default();
        Self { first, body }
    }

    /// Returns whether the facts of the next commit belong into this record.
    pub(super) fn takes(&self, facts: &[u8]) -> bool {
        // A length below 4 GiB takes 5 bytes. The facts of one commit stay in one record, however
        // long they are.
        self.body.0.is_empty() || self.body.0.len() + facts.len() + 5 <= RECORD_BYTES
    }

    pub(super) fn push(&mut self, facts: &[u8]) {
        self.body.length(facts.len());
        self.body.bytes(facts);
    }

    /// Returns the record's bytes, to be stored in parts.
    pub(super) fn encode(self) -> Vec<u8> {
        self.body.0
    }
}

/// Returns the facts in a stored record, from the commit on that is `index` commits behind its
/// first one. A damaged record gives fewer.
pub(super) fn facts_in(stored: &Bytes, index: u64) -> Vec<Vec<u8>> {
    let Some(record) = unpack(stored) else {
        return vec![];
    };
    let mut from = Reader(&record);
    let mut next = || {
        let length = from.length()?;
        from.bytes(length).map(<[u8]>::to_vec)
    };
    for _ in 0..index {
        if next().is_none() {
            return vec![];
        }
    }
    std::iter::from_fn(next).collect()
}

/// Returns the value that names the end of the log at a settling.
pub(super) fn encode_end(end: &LogHead) -> Vec<u8> {
    let mut out = RecordWriter::default();
    out.long(end.number.0);
    out.instant(end.last);
    out.bytes(&end.chain.0.0);
    out.number(u64::from(end.epoch.0));
    out.number(end.feeds);
    seal(out.0)
}

pub(super) fn decode_end(value: &[u8]) -> Option<LogHead> {
    let mut from = Reader(unseal(value)?);
    Some(LogHead {
        number: CommitNumber(from.long()?),
        last: from.instant()?,
        chain: ChainHash(from.digest()?),
        epoch: Epoch(from.small()?),
        feeds: from.number()?,
    })
}

fn read_change(from: &mut Reader<'_>) -> Option<ChangeOutline> {
    Some(match from.number()? {
        1 => ChangeOutline::Settings {
            feed: from.feed()?,
            revision: Revision(from.small()?),
        },
        2 => ChangeOutline::Opened {
            feed: from.feed()?,
            document: DocumentNumber::new(from.number()?)?,
            first: Position(from.number()?),
            revision: Revision(from.small()?),
        },
        3 => ChangeOutline::Entries {
            feed: from.feed()?,
            first: Position(from.number()?),
            count: from.number()?,
        },
        4 => ChangeOutline::Epoch {
            epoch: Epoch(from.small()?),
        },
        5 => ChangeOutline::Lost {
            feed: from.feed()?,
            next: Position(from.number()?),
            history: HistoryHash(from.digest()?),
        },
        6 => {
            let (feed, backfill) = (from.feed()?, from.small()?);
            let change = FollowChange {
                follow: read_items(from)?,
                unfollow: read_items(from)?,
                backfill,
            };
            let change = Arc::new(change);
            ChangeOutline::Following { feed, change }
        }
        7 => ChangeOutline::Defaults {
            revision: Revision(from.small()?),
        },
        // A newer kind comes with a newer storage version, so an unknown one is damage.
        _ => return None,
    })
}

/// Returns the error for a value that fails its checksum or cannot be decoded.
pub(super) fn damaged(kind: &str, key: &[u8]) -> LogError {
    LogError::damaged(format!("{kind} {}", data_encoding::HEXLOWER.encode(key)))
}
