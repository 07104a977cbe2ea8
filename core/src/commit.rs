//! What the log stores: commits, and the encoding that their chain hash covers.
//!
//! Pure. The encoding is for ever: every log carries hashes of it. It depends on nothing but the
//! commit's meaning, so that two kinds of log that hold the same commits have the same chain.

use std::collections::HashSet;

use bytes::Bytes;

use crate::{
    digest::Digest,
    feed::{CommitNumber, DocumentNumber, EntryId, Epoch, FeedKey, Position, Revision},
    history::HistoryHash,
    instant::Instant,
    settings::Settings,
};

/// One accepted group of changes: all of it is in the log, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its number; there are no holes.
    pub number: CommitNumber,
    /// When it was made. Entry i of the commit has this instant plus i microseconds, and the next
    /// commit is later than all of them.
    pub instant: Instant,
    /// What it changes, in order.
    pub changes: Vec<Change>,
}

/// One fact of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A feed was created (revision 1), or its settings changed.
    Settings {
        /// The feed.
        feed: FeedKey,
        /// The number of these settings.
        revision: Revision,
        /// All of them, not only what changed.
        settings: Settings,
    },
    /// A document was opened; the one before it, if any, is closed for ever.
    Opened {
        /// The feed.
        feed: FeedKey,
        /// The document's number.
        document: DocumentNumber,
        /// The position its first entry has or will have.
        first: Position,
        /// The settings its header is made of.
        revision: Revision,
    },
    /// An entry was appended.
    Entry {
        /// The feed.
        feed: FeedKey,
        /// Its place.
        at: Position,
        /// Its id.
        id: EntryId,
        /// The digest of what was sent.
        sent: Digest,
        /// Its bytes.
        fragment: Bytes,
        /// Their digest.
        digest: Digest,
    },
    /// A restoration that may have lost something took place.
    Epoch {
        /// The epoch that begins.
        epoch: Epoch,
    },
    /// Entries could not be recovered: their positions stand for nothing, and the next entry opens a
    /// document.
    Lost {
        /// The feed.
        feed: FeedKey,
        /// The position after the last of them.
        next: Position,
        /// The history hash after it.
        history: HistoryHash,
    },
}

impl Change {
    /// Returns the feed that is changed; `None` if it is about all of them.
    pub fn feed(&self) -> Option<FeedKey> {
        match self {
            Self::Settings { feed, .. }
            | Self::Opened { feed, .. }
            | Self::Entry { feed, .. }
            | Self::Lost { feed, .. } => Some(*feed),
            Self::Epoch { .. } => None,
        }
    }
}

/// A commit without what it holds: which feeds it changed, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Its number.
    pub number: CommitNumber,
    /// When it was made.
    pub instant: Instant,
    /// The feeds it changed, each once, in the order of their first change.
    pub feeds: Vec<FeedKey>,
    /// The epoch that began with it, if one did.
    pub epoch: Option<Epoch>,
}

impl Outline {
    /// Returns the outline of a commit.
    pub fn of(commit: &Commit) -> Self {
        let epochs = commit.changes.iter().filter_map(|change| match change {
            Change::Epoch { epoch } => Some(*epoch),
            _ => None,
        });
        let feeds = commit.changes.iter().filter_map(Change::feed);
        Self::new(commit.number, commit.instant, feeds, epochs.last())
    }

    /// Returns an outline; `feeds` may name a feed more than once.
    pub fn new(
        number: CommitNumber,
        instant: Instant,
        feeds: impl Iterator<Item = FeedKey>,
        epoch: Option<Epoch>,
    ) -> Self {
        let mut seen = HashSet::new();
        Self {
            number,
            instant,
            feeds: feeds.filter(|feed| seen.insert(*feed)).collect(),
            epoch,
        }
    }
}

/// The version of the encoding; its first bytes.
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

    /// Returns about how many bytes this commit takes in memory.
    pub fn bytes(&self) -> usize {
        let bytes = self.changes.iter().map(|change| match change {
            Change::Entry { fragment, id, .. } => fragment.len() + id.as_str().len(),
            _ => 0,
        });
        bytes.sum::<usize>() + self.changes.len() * size_of::<Change>()
    }

    /// Returns the instant of the commit's last entry: the next commit must be later.
    pub fn last_instant(&self) -> Instant {
        self.instant.plus_micros(self.entries().saturating_sub(1))
    }

    /// Returns the bytes that the chain hash covers.
    ///
    /// `simplefeed commit 1` and a line feed; number and instant (8 bytes each); the number of
    /// changes (4 bytes); then each change as one byte for its kind (1 settings, 2 opened, 3 entry,
    /// 4 epoch, 5 lost) and its fields in order. Numbers are big-endian; a feed is 16 bytes, a digest 32.
    /// Text follows its length in 4 bytes. Settings are their JSON. Of a fragment, its length
    /// (4 bytes) and digest are covered.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.changes.len() * 192);
        out.extend_from_slice(ENCODING);
        out.extend_from_slice(&self.number.0.to_be_bytes());
        out.extend_from_slice(&self.instant.micros().to_be_bytes());
        out.extend_from_slice(&length(self.changes.len()));
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
            out.extend_from_slice(&length(fragment.len()));
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
    }
}

fn push_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&length(bytes.len()));
    out.extend_from_slice(bytes);
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length)
        .expect("a commit is smaller than 4 GiB")
        .to_be_bytes()
}
