//! The entry log in memory: for tests, and the model that crash tests compare with.
//!
//! Shell: a lock. The model keeps the commits, and the settings, openings and entries of each feed,
//! in plain maps and lists. A lookup of commits, ids or entries goes through a whole list, which is
//! slow and hard to get wrong.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    path::PathBuf,
    sync::Arc,
};

use parking_lot::{RwLock, RwLockReadGuard};
use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    entry::Entry,
    feed::{CommitNumber, DocumentNumber, EntryId, FeedKey, FeedName, Position, Revision},
    history::ChainHash,
    plan::{FeedHead, KnownEntry, Opening},
    settings::{Defaults, Settings},
};

use super::{
    Append, Commits, Ids, LogError, LogHead, LogRoom, Series, WritableLog,
    announcements::Announcements,
    store::{LogStore, StoreError},
};
use crate::watermark::Watermark;

/// The entry log in memory.
#[derive(Debug, Default)]
pub struct MemoryLog {
    state: RwLock<MemoryState>,
    announcements: Announcements,
}

#[derive(Debug, Default)]
struct MemoryState {
    commits: Vec<(Commit, LogHead)>,
    names: BTreeMap<FeedName, FeedKey>,
    feeds: HashMap<FeedKey, MemoryFeed>,
    defaults: HashMap<Revision, Defaults>,
}

#[derive(Debug)]
struct MemoryFeed {
    head: FeedHead,
    settings: HashMap<Revision, Settings>,
    openings: HashMap<DocumentNumber, Opening>,
    entries: Vec<Entry>,
}

impl MemoryState {
    fn head(&self) -> LogHead {
        self.commits
            .last()
            .map_or(LogHead::START, |(_, head)| *head)
    }

    fn apply(&mut self, commit: &Commit) {
        let mut head = self.head();
        head.assert_before(commit);
        // Entry i of a commit, of whichever feed, has the commit's instant plus i microseconds.
        let mut entries = 0;
        for change in &commit.changes {
            match change {
                // An epoch belongs to the log and to no feed, and so do defaults.
                Change::Epoch { epoch } => {
                    head.epoch = *epoch;
                    continue;
                }
                Change::Defaults { revision, defaults } => {
                    self.defaults.insert(*revision, defaults.clone());
                    continue;
                }
                _ => {}
            }
            let entry_instant = commit.instant.plus_micros(entries);
            let feed = self.feed_of(change, commit, &mut head);
            feed.head
                .apply(change, commit.instant, entry_instant, head.epoch);
            match change {
                Change::Settings {
                    revision, settings, ..
                } => {
                    feed.settings.insert(*revision, settings.clone());
                }
                Change::Opened { document, .. } => {
                    feed.openings.insert(*document, feed.head.open.opening);
                }
                Change::Entry {
                    at,
                    id,
                    sent,
                    fragment,
                    ..
                } => {
                    // `apply` above has counted the entry.
                    assert!(at.next() == feed.head.next, "positions are dense");
                    entries += 1;
                    feed.entries.push(Entry {
                        at: *at,
                        id: id.clone(),
                        document: feed.head.open.opening.name,
                        commit: commit.number,
                        instant: entry_instant,
                        sent: *sent,
                        fragment: fragment.clone(),
                    });
                }
                Change::Lost { .. }
                | Change::Epoch { .. }
                | Change::Following { .. }
                | Change::Defaults { .. } => {}
            }
        }
        head.number = commit.number;
        // The last entry's instant, so that the next commit is later than all entries.
        head.last = commit.last_instant();
        head.chain = head.chain.extend(&commit.encode());
        self.commits.push((commit.clone(), head));
    }

    fn feed_of(&mut self, change: &Change, commit: &Commit, head: &mut LogHead) -> &mut MemoryFeed {
        let key = change.feed().expect("an epoch and defaults are of no feed");
        // The first revision of settings creates the feed.
        if let Change::Settings {
            settings,
            revision: Revision::FIRST,
            ..
        } = change
        {
            // Timelines are not counted.
            head.feeds += u64::from(!settings.is_timeline());
            self.names.insert(settings.name.clone(), key);
            let feed = MemoryFeed {
                head: FeedHead::create(settings, commit.instant, head.epoch),
                settings: HashMap::new(),
                openings: HashMap::new(),
                entries: vec![],
            };
            self.feeds.insert(key, feed);
        }
        self.feeds
            .get_mut(&key)
            .expect("a feed is created before it is changed")
    }
}

impl MemoryLog {
    fn read_state(&self) -> RwLockReadGuard<'_, MemoryState> {
        self.state.read()
    }
}

/// Store of a log in memory, which lasts as long as the program.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(pub Arc<MemoryLog>);

impl LogStore for MemoryStore {
    fn log(&self) -> Arc<dyn WritableLog> {
        Arc::<MemoryLog>::clone(&self.0)
    }

    fn watermark(&self) -> Result<Watermark, StoreError> {
        Ok(Watermark::in_memory())
    }

    fn is_restored(&self) -> bool {
        false
    }

    fn epoch_has_begun(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn control_socket(&self) -> Option<PathBuf> {
        None
    }

    fn end_reading(&self) {}

    fn close(self: Box<Self>) -> Result<bool, StoreError> {
        Ok(true)
    }
}

impl Commits for MemoryLog {
    fn announcements(&self) -> &Announcements {
        &self.announcements
    }

    fn head(&self) -> LogHead {
        self.read_state().head()
    }

    fn commits(&self, from: CommitNumber, max: usize) -> Result<Vec<Commit>, LogError> {
        let state = self.read_state();
        let wanted = state
            .commits
            .iter()
            .filter(|(commit, _)| commit.number >= from);
        Ok(wanted.take(max).map(|(commit, _)| commit.clone()).collect())
    }

    fn chain(&self, number: CommitNumber) -> Result<Option<ChainHash>, LogError> {
        if number == CommitNumber(0) {
            return Ok(Some(ChainHash::START));
        }
        let state = self.read_state();
        Ok(state
            .commits
            .iter()
            .find(|(commit, _)| commit.number == number)
            .map(|(_, head)| head.chain))
    }
}

impl Append for MemoryLog {
    fn append(&self, commit: &Commit) -> Result<ChainHash, LogError> {
        // One lock for the whole commit, so that readers see all of it or nothing.
        let mut state = self.state.write();
        state.apply(commit);
        self.announcements.invalidate(commit);
        let chain = state.head().chain;
        drop(state);
        // Announced without the lock, because listeners may read the log.
        self.announcements.announce(commit);
        Ok(chain)
    }
}

impl Series for MemoryLog {
    fn entries(&self, feed: FeedKey, range: Range<Position>) -> Result<Vec<Entry>, LogError> {
        let state = self.read_state();
        let entries = state
            .feeds
            .get(&feed)
            .into_iter()
            .flat_map(|feed| &feed.entries);
        Ok(entries
            .filter(|entry| range.contains(&entry.at))
            .cloned()
            .collect())
    }

    fn feed(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError> {
        Ok(self
            .read_state()
            .feeds
            .get(&feed)
            .map(|feed| feed.head.clone()))
    }

    fn named(&self, name: &FeedName) -> Result<Option<FeedHead>, LogError> {
        let state = self.read_state();
        Ok(state
            .names
            .get(name)
            .and_then(|key| state.feeds.get(key))
            .map(|feed| feed.head.clone()))
    }

    fn settings(&self, feed: FeedKey, revision: Revision) -> Result<Option<Settings>, LogError> {
        let state = self.read_state();
        Ok(state
            .feeds
            .get(&feed)
            .and_then(|feed| feed.settings.get(&revision).cloned()))
    }

    fn defaults(&self, revision: Revision) -> Result<Option<Defaults>, LogError> {
        Ok(self.read_state().defaults.get(&revision).cloned())
    }

    fn opening(
        &self,
        feed: FeedKey,
        document: DocumentNumber,
    ) -> Result<Option<Opening>, LogError> {
        let state = self.read_state();
        Ok(state
            .feeds
            .get(&feed)
            .and_then(|feed| feed.openings.get(&document).copied()))
    }

    fn feeds(
        &self,
        after: Option<&FeedName>,
        max: usize,
    ) -> Result<Vec<(FeedName, FeedHead)>, LogError> {
        let state = self.read_state();
        let behind = state
            .names
            .iter()
            .filter(|(name, _)| after.is_none_or(|after| *name > after));
        let heads = behind.filter_map(|(name, key)| {
            state
                .feeds
                .get(key)
                .map(|feed| (name.clone(), feed.head.clone()))
        });
        Ok(heads.take(max).collect())
    }
}

impl Ids for MemoryLog {
    fn find_all(
        &self,
        feed: FeedKey,
        ids: &[&EntryId],
    ) -> Result<HashMap<EntryId, KnownEntry>, LogError> {
        let ids: HashSet<&EntryId> = ids.iter().copied().collect();
        // Cloned, so that the lock is free: `document_of` takes the lock again, and a second read
        // lock behind a waiting writer would never be granted.
        let entries: Vec<Entry> = match self.read_state().feeds.get(&feed) {
            Some(feed) => {
                let found = feed.entries.iter().filter(|entry| ids.contains(&entry.id));
                found.cloned().collect()
            }
            None => vec![],
        };
        let known = entries.into_iter().map(|entry| {
            let known = KnownEntry {
                at: entry.at,
                document: crate::contract::document_of(self, feed, &entry)?,
                sent: entry.sent,
                fragment: Digest::of(&entry.fragment),
            };
            Ok((entry.id, known))
        });
        known.collect()
    }
}

impl LogRoom for MemoryLog {}
