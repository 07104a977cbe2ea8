//! Content of the log: commits, and the encoding that their chain hash covers.
//!
//! Pure. The encoding is for ever, because every log carries hashes of encodings. An encoding
//! depends on nothing but the commit's meaning, so that two kinds of log with the same commits have
//! the same chain.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;

use crate::{
    digest::Digest,
    feed::{CommitNumber, DocumentNumber, EntryId, Epoch, FeedKey, Position, Revision},
    follow::{FollowChange, FollowItem},
    history::HistoryHash,
    settings::{Defaults, Settings},
    timestamp::Timestamp,
};

/// One accepted group of changes; the log has all of them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Number of the commit; the numbers have no holes.
    pub number: CommitNumber,
    /// Instant of the commit. Entry i of the commit, from 0, has this instant plus i microseconds,
    /// and the next commit is later than all entries of this commit.
    pub instant: Timestamp,
    /// Changes of the commit, in the order in which they apply.
    pub changes: Vec<Change>,
}

/// One fact of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A feed was created (revision 1), or its settings changed.
    Settings {
        /// Feed whose settings these are.
        feed: FeedKey,
        /// Revision that these settings get.
        revision: Revision,
        /// All settings, including unchanged settings.
        settings: Settings,
    },
    /// A document was opened, and the document before, if any, is closed for ever. If the number is
    /// that of the open document, that document got a new header or a new name.
    Opened {
        /// Feed that the document belongs to.
        feed: FeedKey,
        /// Number of the opened document; the document's epoch is the epoch of the log.
        document: DocumentNumber,
        /// Position of the document's first entry, which may not exist yet.
        first: Position,
        /// Revision of the settings in the document's header.
        revision: Revision,
    },
    /// An entry was appended.
    Entry {
        /// Feed that the entry was appended to.
        feed: FeedKey,
        /// Position of the entry in the feed.
        at: Position,
        /// The entry's `atom:id`, unique in the feed.
        id: EntryId,
        /// Digest of the sent form of the entry.
        sent: Digest,
        /// Bytes of the completed entry, from `<entry` to `</entry>`.
        fragment: Bytes,
        /// Digest of `fragment`; the history hash covers this digest.
        digest: Digest,
    },
    /// A restoration that may have lost something took place.
    Epoch {
        /// The epoch that begins.
        epoch: Epoch,
    },
    /// Entries could not be recovered. Their positions stay empty, and the next entry opens a
    /// document.
    Lost {
        /// Feed that lost the entries.
        feed: FeedKey,
        /// Position after the last lost entry.
        next: Position,
        /// History hash after the last lost entry.
        history: HistoryHash,
    },
    /// The follows of a timeline changed.
    Following {
        /// Timeline whose follows change.
        feed: FeedKey,
        /// Feeds and patterns that the timeline now follows, and those that it no longer follows.
        change: Arc<FollowChange>,
    },
    /// The server's proposals changed. The new proposals apply to all timelines from now on, and to
    /// any other feed from the next revision of the feed's settings on.
    Defaults {
        /// Number of the change; the first change precedes the first timeline.
        revision: Revision,
        /// All proposals of the server, changed or not.
        defaults: Defaults,
    },
}

impl Change {
    /// Returns the feed that the change belongs to; `None` if the change concerns all feeds.
    pub fn feed(&self) -> Option<FeedKey> {
        match self {
            Self::Settings { feed, .. }
            | Self::Opened { feed, .. }
            | Self::Entry { feed, .. }
            | Self::Lost { feed, .. }
            | Self::Following { feed, .. } => Some(*feed),
            Self::Epoch { .. } | Self::Defaults { .. } => None,
        }
    }
}

/// Commit without the contents of settings and entries. Most views need no more, and an outline is
/// small, whatever the size of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Number of the commit; the numbers have no holes.
    pub number: CommitNumber,
    /// Instant of the commit, which is also the instant of the commit's first entry.
    pub instant: Timestamp,
    /// Changes of the commit, in the order in which they apply.
    pub changes: Vec<ChangeOutline>,
}

/// One fact of a commit, without the contents of settings and entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOutline {
    /// A feed was created (revision 1), or its settings changed.
    Settings {
        /// Feed whose settings changed.
        feed: FeedKey,
        /// Revision of the new settings.
        revision: Revision,
    },
    /// A document was opened, and the document before, if any, is closed for ever. If the number is
    /// that of the open document, that document got a new header or a new name.
    Opened {
        /// Feed that the document belongs to.
        feed: FeedKey,
        /// Number of the opened document.
        document: DocumentNumber,
        /// Position of the document's first entry.
        first: Position,
        /// Revision of the settings in the document's header.
        revision: Revision,
    },
    /// Consecutive entries were appended to one feed.
    Entries {
        /// Feed that the entries were appended to.
        feed: FeedKey,
        /// Position of the first entry.
        first: Position,
        /// Number of entries, 1 or more.
        count: u64,
    },
    /// A restoration that may have lost something took place.
    Epoch {
        /// The epoch that begins.
        epoch: Epoch,
    },
    /// Entries could not be recovered.
    Lost {
        /// Feed that lost the entries.
        feed: FeedKey,
        /// Position after the last lost entry.
        next: Position,
        /// History hash after the last lost entry.
        history: HistoryHash,
    },
    /// The follows of a timeline changed.
    Following {
        /// Timeline whose follows change.
        feed: FeedKey,
        /// Feeds and patterns that the timeline now follows or no longer follows. The log keeps
        /// settings and entries elsewhere, too, but not follows, so a reader of outlines needs the
        /// follows here.
        change: Arc<FollowChange>,
    },
    /// The server's proposals changed.
    Defaults {
        /// Number of the change.
        revision: Revision,
    },
}

impl ChangeOutline {
    /// Returns the feed that the change belongs to; `None` if the change concerns all feeds.
    pub fn feed(&self) -> Option<FeedKey> {
        match self {
            Self::Settings { feed, .. }
            | Self::Opened { feed, .. }
            | Self::Entries { feed, .. }
            | Self::Lost { feed, .. }
            | Self::Following { feed, .. } => Some(*feed),
            Self::Epoch { .. } | Self::Defaults { .. } => None,
        }
    }

    /// Returns the number of facts in the change; the memory of the change grows with this number.
    pub fn weight(&self) -> usize {
        match self {
            Self::Following { change, .. } => 1 + change.follow.len() + change.unfollow.len(),
            _ => 1,
        }
    }
}

impl Outline {
    /// Returns the outline of a commit.
    pub fn of(commit: &Commit) -> Self {
        let mut changes = vec![];
        for change in &commit.changes {
            match *change {
                Change::Settings { feed, revision, .. } => {
                    changes.push(ChangeOutline::Settings { feed, revision });
                }
                Change::Following { feed, ref change } => {
                    let change = Arc::clone(change);
                    changes.push(ChangeOutline::Following { feed, change });
                }
                Change::Defaults { revision, .. } => {
                    changes.push(ChangeOutline::Defaults { revision });
                }
                Change::Opened {
                    feed,
                    document,
                    first,
                    revision,
                } => changes.push(ChangeOutline::Opened {
                    feed,
                    document,
                    first,
                    revision,
                }),
                Change::Entry { feed, at, .. } => Self::count_entry(&mut changes, feed, at),
                Change::Epoch { epoch } => changes.push(ChangeOutline::Epoch { epoch }),
                Change::Lost {
                    feed,
                    next,
                    history,
                } => changes.push(ChangeOutline::Lost {
                    feed,
                    next,
                    history,
                }),
            }
        }
        Self {
            number: commit.number,
            instant: commit.instant,
            changes,
        }
    }

    /// Adds an entry to the changes of an outline. Consecutive entries of a feed share a change, so
    /// the outline of a large commit stays small.
    pub fn count_entry(changes: &mut Vec<ChangeOutline>, feed: FeedKey, at: Position) {
        match changes.last_mut() {
            Some(ChangeOutline::Entries {
                feed: last,
                first,
                count,
            }) if *last == feed && first.0 + *count == at.0 => *count += 1,
            _ => changes.push(ChangeOutline::Entries {
                feed,
                first: at,
                count: 1,
            }),
        }
    }

    /// Returns the number of facts in the changes; the memory of the outline grows with this
    /// number.
    pub fn weight(&self) -> usize {
        self.changes.iter().map(ChangeOutline::weight).sum()
    }

    /// Returns the changed feeds, each once, in the order of their first change.
    pub fn feeds(&self) -> Vec<FeedKey> {
        let mut seen = HashSet::new();
        let feeds = self.changes.iter().filter_map(ChangeOutline::feed);
        feeds.filter(|feed| seen.insert(*feed)).collect()
    }

    /// Returns the epoch that holds after the commit, if the commit began one.
    pub fn epoch(&self) -> Option<Epoch> {
        self.changes.iter().rev().find_map(|change| match change {
            ChangeOutline::Epoch { epoch } => Some(*epoch),
            _ => None,
        })
    }
}

/// First bytes of every encoding, with the version of the encoding.
const ENCODING: &[u8] = b"simplefeed commit 1\n";

impl Commit {
    /// Returns the number of entries in this commit.
    pub fn entries(&self) -> u64 {
        let entries = self
            .changes
            .iter()
            .filter(|change| matches!(change, Change::Entry { .. }));
        u64::try_from(entries.count()).expect("a commit's entries fit into memory")
    }

    /// Returns the approximate size of this commit in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let bytes = self.changes.iter().map(|change| match change {
            Change::Entry { fragment, id, .. } => fragment.len() + id.as_str().len(),
            _ => 0,
        });
        bytes.sum::<usize>() + self.changes.len() * size_of::<Change>()
    }

    /// Returns the instant of the commit's last entry, or the commit's instant if there is no
    /// entry. The next commit must be later.
    pub fn last_instant(&self) -> Timestamp {
        // A commit without entries still has an instant.
        self.instant.plus_micros(self.entries().saturating_sub(1))
    }

    /// Returns the bytes that the chain hash covers.
    ///
    /// `simplefeed commit 1` and a line feed; number and instant (8 bytes each); the number of
    /// changes (4 bytes); then each change as one byte for the kind (1 settings, 2 opened, 3 entry,
    /// 4 epoch, 5 lost, 6 following, 7 defaults) and the fields in order. Numbers are big-endian; a
    /// feed is 16 bytes, a digest 32. Text stands behind a length of 4 bytes. Settings and defaults
    /// are text: their JSON. A fragment is represented by a length (4 bytes) and a digest. A change
    /// of follows is the requested backfill (4 bytes), the list of items to follow, and the list of
    /// items to unfollow. Each list stands behind the number of items (4 bytes). An item is a byte
    /// 0 and a feed, or a byte 1 and the text of a pattern.
    pub fn encode(&self) -> Vec<u8> {
        // An estimate: numbers, two digests and an id fit into 192 bytes for most entries.
        let mut out = Vec::with_capacity(64 + self.changes.len() * 192);
        out.extend_from_slice(ENCODING);
        out.extend_from_slice(&self.number.0.to_be_bytes());
        out.extend_from_slice(&self.instant.micros().to_be_bytes());
        out.extend_from_slice(&length_bytes(self.changes.len()));
        for change in &self.changes {
            encode_change(change, &mut out);
        }
        out
    }
}

fn encode_change(change: &Change, out: &mut Vec<u8>) {
    match change {
        Change::Settings {
            feed,
            revision,
            settings,
        } => {
            out.push(1);
            out.extend_from_slice(feed.0.as_bytes());
            out.extend_from_slice(&revision.0.to_be_bytes());
            let json = serde_json::to_vec(settings).expect("settings have a JSON form");
            push_bytes(&json, out);
        }
        Change::Opened {
            feed,
            document,
            first,
            revision,
        } => {
            out.push(2);
            out.extend_from_slice(feed.0.as_bytes());
            out.extend_from_slice(&document.get().to_be_bytes());
            out.extend_from_slice(&first.0.to_be_bytes());
            out.extend_from_slice(&revision.0.to_be_bytes());
        }
        Change::Entry {
            feed,
            at,
            id,
            sent,
            fragment,
            digest,
        } => {
            out.push(3);
            out.extend_from_slice(feed.0.as_bytes());
            out.extend_from_slice(&at.0.to_be_bytes());
            push_bytes(id.as_str().as_bytes(), out);
            out.extend_from_slice(&sent.0);
            // The fragment's digest stands for the fragment, so a log can prove the chain without
            // fragments.
            out.extend_from_slice(&length_bytes(fragment.len()));
            out.extend_from_slice(&digest.0);
        }
        Change::Epoch { epoch } => {
            out.push(4);
            out.extend_from_slice(&epoch.0.to_be_bytes());
        }
        Change::Lost {
            feed,
            next,
            history,
        } => {
            out.push(5);
            out.extend_from_slice(feed.0.as_bytes());
            out.extend_from_slice(&next.0.to_be_bytes());
            out.extend_from_slice(&history.0.0);
        }
        Change::Following { feed, change } => {
            out.push(6);
            out.extend_from_slice(feed.0.as_bytes());
            out.extend_from_slice(&change.backfill.to_be_bytes());
            push_items(&change.follow, out);
            push_items(&change.unfollow, out);
        }
        Change::Defaults { revision, defaults } => {
            out.push(7);
            out.extend_from_slice(&revision.0.to_be_bytes());
            let json = serde_json::to_vec(defaults).expect("defaults have a JSON form");
            push_bytes(&json, out);
        }
    }
}

fn push_items(items: &[FollowItem], out: &mut Vec<u8>) {
    out.extend_from_slice(&length_bytes(items.len()));
    for item in items {
        match item {
            FollowItem::Feed(feed) => {
                out.push(0);
                out.extend_from_slice(feed.0.as_bytes());
            }
            FollowItem::Pattern(pattern) => {
                out.push(1);
                push_bytes(pattern.to_string().as_bytes(), out);
            }
        }
    }
}

fn push_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&length_bytes(bytes.len()));
    out.extend_from_slice(bytes);
}

fn length_bytes(length: usize) -> [u8; 4] {
    u32::try_from(length)
        .expect("a commit is smaller than 4 GiB")
        .to_be_bytes()
}
