//! The keys and values of a commit, as they stand in the journal.
//!
//! Pure.

use std::{collections::HashMap, sync::Arc};

use simplefeed_core::{
    commit::{Change, ChangeOutline, Commit, Outline},
    digest::Digest,
    feed::{DocumentName, EntryId, FeedKey, Position},
    plan::{FeedHead, Opening},
};

use super::record::{self, CommitFacts, EntryRecord};
use crate::codec;
use crate::{LogError, LogHead};

/// Keys and their values, with checksums. If a key occurs twice, its last value counts.
pub(super) type Items = Vec<(Vec<u8>, Vec<u8>)>;

/// A commit being turned into keys and values, which are to be stored together or not at all.
pub(super) struct CommitKeys<'c> {
    commit: &'c Commit,
    items: Items,
    head: LogHead,
    /// Heads of the feeds that the commit changes, as the changes so far leave them.
    feeds: HashMap<FeedKey, FeedHead>,
    open: Option<(FeedKey, EntryRecord)>,
    changes: Vec<ChangeOutline>,
    entries: u64,
}

impl<'c> CommitKeys<'c> {
    pub(super) fn new(commit: &'c Commit, head: LogHead) -> Self {
        Self {
            commit,
            items: vec![],
            head,
            feeds: HashMap::new(),
            open: None,
            changes: vec![],
            entries: 0,
        }
    }

    pub(super) fn change(
        &mut self,
        change: &Change,
        stored: impl Fn(FeedKey) -> Result<Option<FeedHead>, LogError>,
    ) -> Result<(), LogError> {
        let instant = self.commit.instant;
        // Entry i of the commit, of whichever feed, is i microseconds later than the commit.
        let entry_instant = instant.plus_micros(self.entries);
        let feed = match change {
            Change::Epoch { epoch } => {
                self.head.epoch = *epoch;
                self.changes.push(ChangeOutline::Epoch { epoch: *epoch });
                return Ok(());
            }
            Change::Defaults { revision, defaults } => {
                let json = serde_json::to_vec(defaults).expect("defaults have a JSON form");
                self.store_body(record::defaults_key(*revision), json);
                let revision = *revision;
                self.changes.push(ChangeOutline::Defaults { revision });
                return Ok(());
            }
            // The timeline's head stays as it is, so that a follow costs no record of its own.
            Change::Following { feed, change } => {
                let (feed, change) = (*feed, Arc::clone(change));
                self.changes.push(ChangeOutline::Following { feed, change });
                return Ok(());
            }
            Change::Settings { feed, .. }
            | Change::Opened { feed, .. }
            | Change::Entry { feed, .. }
            | Change::Lost { feed, .. } => *feed,
        };
        // The stored head is read once: later changes of the commit start from the head that
        // earlier changes have made.
        if let std::collections::hash_map::Entry::Vacant(place) = self.feeds.entry(feed) {
            let now = match (stored(feed)?, change) {
                (Some(head), _) => head,
                (None, Change::Settings { settings, .. }) => {
                    // The first settings create the feed. Timelines are not counted.
                    self.head.feeds += u64::from(!settings.is_timeline());
                    FeedHead::create(settings, instant, self.head.epoch)
                }
                (None, _) => {
                    return Err(LogError::damaged(format!("feed {} does not exist", feed.0)));
                }
            };
            place.insert(now);
        }
        let epoch = self.head.epoch;
        let now = self
            .feeds
            .get_mut(&feed)
            .expect("the feed was put there above");
        if let Change::Entry { at, .. } = change {
            // A hole could never be filled, because stored entries do not change.
            assert!(*at == now.next, "positions are dense");
        }
        now.apply(change, instant, entry_instant, epoch);
        let opening = now.open.opening;
        self.store_change(change, &opening);
        Ok(())
    }

    /// Stores a change. `opening` is the opening of the feed's open document after the change.
    fn store_change(&mut self, change: &Change, opening: &Opening) {
        match change {
            Change::Settings {
                feed,
                revision,
                settings,
            } => {
                let json = serde_json::to_vec(settings).expect("settings have a JSON form");
                self.store_body(record::settings_key(*feed, *revision), json);
                let mut key = codec::RecordWriter::default();
                key.feed(*feed);
                self.items
                    .push((record::name_key(&settings.name), codec::seal(key.0)));
                self.changes.push(ChangeOutline::Settings {
                    feed: *feed,
                    revision: *revision,
                });
            }
            Change::Opened {
                feed,
                document,
                first,
                revision,
            } => {
                let opening = record::encode_opening(opening);
                self.items
                    .push((record::document_key(*feed, *document), opening));
                let (feed, document, first, revision) = (*feed, *document, *first, *revision);
                self.changes.push(ChangeOutline::Opened {
                    feed,
                    document,
                    first,
                    revision,
                });
            }
            Change::Entry {
                feed,
                at,
                id,
                sent,
                fragment,
                ..
            } => {
                self.store_entry(*feed, *at, id, *sent, fragment, opening.name);
            }
            Change::Lost {
                feed,
                next,
                history,
            } => self.changes.push(ChangeOutline::Lost {
                feed: *feed,
                next: *next,
                history: *history,
            }),
            // `change` has recorded these, because they change no head.
            Change::Epoch { .. } | Change::Following { .. } | Change::Defaults { .. } => {}
        }
    }

    fn store_entry(
        &mut self,
        feed: FeedKey,
        at: Position,
        id: &EntryId,
        sent: Digest,
        fragment: &[u8],
        document: DocumentName,
    ) {
        // A record has entries of one feed, one document and consecutive positions.
        let fits = self
            .open
            .as_ref()
            .is_some_and(|(open, record)| *open == feed && record.takes(at, document, fragment));
        if !fits {
            self.close_record();
            let (number, instant) = (self.commit.number, self.commit.instant);
            self.open = Some((feed, EntryRecord::new(at, document, number, instant)));
        }
        if let Some((_, record)) = &mut self.open {
            record.push(self.entries, id, sent, fragment);
        }
        self.entries += 1;
        Outline::count_entry(&mut self.changes, feed, at);
    }

    fn close_record(&mut self) {
        if let Some((feed, record)) = self.open.take() {
            let key = record::entry_key(feed, record.first);
            self.store_body(key, record.encode());
        }
    }

    fn store_body(&mut self, key: Vec<u8>, body: Vec<u8>) {
        self.items.push((key, codec::seal(body)));
    }

    /// Returns the items of the commit, the facts first, and the end of the log after the commit.
    pub(super) fn finish(mut self, commit: &Commit, head: LogHead) -> (Items, LogHead) {
        self.close_record();
        // One head for each feed, as the whole commit leaves the feed.
        for (feed, now) in &self.feeds {
            self.items
                .push((record::head_key(*feed), record::encode_head(now)));
        }
        let chain = head.chain.extend(&commit.encode());
        let LogHead { epoch, feeds, .. } = self.head;
        let last = commit.last_instant();
        let facts = CommitFacts {
            instant: commit.instant,
            last,
            chain,
            epoch,
            feeds,
            changes: std::mem::take(&mut self.changes),
        };
        let end = facts.end(commit.number);
        // First, although known last: the key of the commit marks the beginning of a record in the
        // journal.
        let facts = codec::seal(facts.encode());
        self.items
            .insert(0, (record::commit_key(commit.number), facts));
        (self.items, end)
    }
}
