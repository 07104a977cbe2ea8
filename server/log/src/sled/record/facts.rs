//! Values of commits: their facts, and the end of the log at a settling.
//!
//! Pure.

use std::sync::Arc;

use bytes::Bytes;
use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, DocumentNumber, Epoch, FeedPattern, Position, Revision},
    follow::{FollowChange, FollowItem},
    history::{ChainHash, HistoryHash},
    timestamp::Timestamp,
};

use super::RECORD_BYTES;
use crate::{
    LogHead,
    codec::{Reader, RecordWriter, seal, unseal},
    sled::packing::unpack,
};

/// Facts of a commit, which stand for the commit in the log; settings and entries are records of
/// their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitFacts {
    pub instant: Timestamp,
    pub(in crate::sled) last: Timestamp,
    pub(in crate::sled) chain: ChainHash,
    pub(in crate::sled) epoch: Epoch,
    pub(in crate::sled) feeds: u64,
    pub changes: Vec<ChangeOutline>,
}

impl CommitFacts {
    pub(in crate::sled) fn outline(self, number: CommitNumber) -> Outline {
        Outline {
            number,
            instant: self.instant,
            changes: self.changes,
        }
    }

    /// Returns the end of the log after commit `number`, whose facts these are.
    pub(in crate::sled) fn end(&self, number: CommitNumber) -> LogHead {
        LogHead {
            number,
            last: self.last,
            chain: self.chain,
            epoch: self.epoch,
            feeds: self.feeds,
        }
    }

    pub(in crate::sled) fn encode(&self) -> Vec<u8> {
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

    pub(in crate::sled) fn decode(body: &[u8]) -> Option<Self> {
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
    // Nothing is allocated for `count` beforehand: a damaged count could be of any size.
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
pub(in crate::sled) struct FactsRecord {
    pub(in crate::sled) first: CommitNumber,
    body: RecordWriter,
}

impl FactsRecord {
    pub(in crate::sled) fn new(first: CommitNumber) -> Self {
        let body = RecordWriter::default();
        Self { first, body }
    }

    /// Returns whether the facts of the next commit belong into this record.
    pub(in crate::sled) fn takes(&self, facts: &[u8]) -> bool {
        // A length below 4 GiB takes 5 bytes. The facts of one commit stay in one record, however
        // long they are.
        self.body.0.is_empty() || self.body.0.len() + facts.len() + 5 <= RECORD_BYTES
    }

    pub(in crate::sled) fn push(&mut self, facts: &[u8]) {
        self.body.length(facts.len());
        self.body.bytes(facts);
    }

    /// Returns the record's bytes, to be stored in parts.
    pub(in crate::sled) fn encode(self) -> Vec<u8> {
        self.body.0
    }
}

/// Returns the facts in a stored record, without those of the first `index` commits. A damaged
/// record gives fewer.
pub(in crate::sled) fn facts_in(stored: &Bytes, index: u64) -> Vec<Vec<u8>> {
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
pub(in crate::sled) fn encode_end(end: &LogHead) -> Vec<u8> {
    let mut out = RecordWriter::default();
    out.long(end.number.0);
    out.instant(end.last);
    out.bytes(&end.chain.0.0);
    out.number(u64::from(end.epoch.0));
    out.number(end.feeds);
    seal(out.0)
}

pub(in crate::sled) fn decode_end(value: &[u8]) -> Option<LogHead> {
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
