//! A chapter: the commits of one file of the journal, with an index by feed and key.
//!
//! Pure, but for reads of the file. A chapter has places in the file and no content, because a
//! chapter may have a million entries.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Range,
    sync::Arc,
};

use bytes::Bytes;
use simplefeed_core::feed::{CommitNumber, FeedKey, Position};

use super::{
    journal::{JournalFile, JournalPlace, JournalRecord},
    record,
};
use crate::{LogError, LogHead};

/// Commits of one file of the journal.
#[derive(Debug)]
pub(super) struct Chapter {
    pub(super) file: Arc<JournalFile>,
    /// Whether an earlier process has left the chapter full, and may have begun to settle the
    /// chapter.
    pub(super) was_left: bool,
    /// Bytes of the records in the file.
    bytes: u64,
    /// Number of groups of entries.
    groups: usize,
    /// Facts of each commit, in order.
    commits: Vec<JournalPlace>,
    feeds: HashMap<FeedKey, FeedChange>,
    /// Openings, settings and names, by their keys.
    keyed: BTreeMap<Vec<u8>, JournalPlace>,
}

/// A feed that changed.
#[derive(Debug)]
pub(super) struct FeedChange {
    /// Head of the feed, after the last change.
    pub(super) head: Option<JournalPlace>,
    /// Groups of the feed's entries, by the position of the first entry.
    pub(super) groups: Vec<(Position, JournalPlace)>,
}

/// Bound on a chapter whose entries are spread over many feeds, in times of the usual size.
pub(super) const SPREAD_CHAPTERS: u64 = 3;
/// Approximate bytes of memory for a feed, and for an item that has a key.
const FEED_BYTES: usize = 192;
const KEYED_BYTES: usize = 110;

/// Number of groups for which a feed's list gets room at first, and at least whenever the list is
/// full.
const GROUPS_LEAST: usize = 2;
/// Number of groups of entries that a feed should gain, on average, before they are settled.
const GROUPS_MANY: usize = 12;

impl Chapter {
    pub(super) fn new(file: Arc<JournalFile>) -> Self {
        Self {
            file,
            was_left: false,
            bytes: 0,
            groups: 0,
            commits: vec![],
            feeds: HashMap::new(),
            keyed: BTreeMap::new(),
        }
    }

    /// Returns the number of the commit behind the last one.
    pub(super) fn next(&self) -> CommitNumber {
        let commits = u64::try_from(self.commits.len()).unwrap_or(u64::MAX);
        CommitNumber(self.file.first.0 + commits)
    }

    /// Returns approximately how many bytes of memory the chapter takes.
    pub(super) fn memory(&self) -> usize {
        let groups = self.groups * size_of::<(Position, JournalPlace)>();
        let commits = self.commits.len() * size_of::<JournalPlace>();
        // Lists have room for more: a list of groups for a quarter more, or for two groups, and the
        // list of commits for as many again.
        groups
            + groups / 4
            + 2 * commits
            + self.feeds.len() * FEED_BYTES
            + self.keyed.len() * KEYED_BYTES
    }

    /// Returns whether the feeds have few groups of entries each. A settling writes the record of
    /// each feed, so more entries should share that write.
    pub(super) fn is_spread(&self) -> bool {
        self.groups < GROUPS_MANY * self.feeds.len()
    }

    /// Returns the bytes of the records.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the next commit. Returns `None` if the record cannot be read.
    pub(super) fn add(&mut self, commit: &JournalRecord<'_>) -> Option<()> {
        self.bytes += commit.bytes();
        for item in commit.items() {
            let item = item?;
            let (key, place) = (item.key, item.place);
            match key.first()? {
                b'c' => self.commits.push(place),
                b'h' => self.feed_change(record::feed_of_key(key)?).head = Some(place),
                b'e' => {
                    let (feed, first) = record::entry_of_key(key)?;
                    let groups = &mut self.feed_change(feed).groups;
                    if groups.len() == groups.capacity() {
                        // Less room than `push` would reserve, because there is a list for each
                        // feed.
                        groups.reserve_exact((groups.len() / 4).max(GROUPS_LEAST));
                    }
                    groups.push((first, place));
                    self.groups += 1;
                }
                _ => drop(self.keyed.insert(key.to_vec(), place)),
            }
        }
        Some(())
    }

    fn feed_change(&mut self, feed: FeedKey) -> &mut FeedChange {
        self.feeds.entry(feed).or_insert_with(|| FeedChange {
            head: None,
            groups: vec![],
        })
    }

    /// Returns the place of a commit's facts.
    pub(super) fn facts(&self, number: CommitNumber) -> Option<JournalPlace> {
        let index = number.0.checked_sub(self.file.first.0)?;
        self.commits.get(usize::try_from(index).ok()?).copied()
    }

    /// Returns the place of the head of a feed that changed.
    pub(super) fn head(&self, feed: FeedKey) -> Option<JournalPlace> {
        self.feeds.get(&feed)?.head
    }

    /// Returns the place of the value of a key that is no key of a head, of entries or of facts.
    pub(super) fn keyed(&self, key: &[u8]) -> Option<JournalPlace> {
        self.keyed.get(key).copied()
    }

    /// Returns keys and places, in the order of the keys: those whose keys are `from` or larger.
    pub(super) fn keyed_from(
        &self,
        from: &[u8],
    ) -> impl Iterator<Item = (&Vec<u8>, &JournalPlace)> {
        self.keyed.range(from.to_vec()..)
    }

    /// Returns the position of the first entry that a feed gained, or `None` if the feed gained
    /// none.
    pub(super) fn first_of(&self, feed: FeedKey) -> Option<Position> {
        let (first, _) = self.feeds.get(&feed)?.groups.first()?;
        Some(*first)
    }

    /// Returns the groups that may have entries at the given positions.
    pub(super) fn groups(
        &self,
        feed: FeedKey,
        range: &Range<Position>,
    ) -> &[(Position, JournalPlace)] {
        let Some(FeedChange { groups, .. }) = self.feeds.get(&feed) else {
            return &[];
        };
        let end = groups.partition_point(|(first, _)| *first < range.end);
        // The group that begins before the range may reach into the range.
        let begin = groups.partition_point(|(first, _)| *first <= range.start);
        groups.get(begin.saturating_sub(1)..end).unwrap_or_default()
    }

    /// Returns the value at a place.
    pub(super) fn value(&self, place: JournalPlace) -> Result<Bytes, LogError> {
        self.file.value(place)
    }

    /// Returns the feeds that changed, sorted.
    pub(super) fn sorted_feeds(&self) -> Vec<(FeedKey, &FeedChange)> {
        let mut feeds: Vec<_> = self
            .feeds
            .iter()
            .map(|(feed, changed)| (*feed, changed))
            .collect();
        // By bytes, as keys of sled are sorted.
        feeds.sort_by_key(|(feed, _)| *feed.0.as_bytes());
        feeds
    }

    /// Returns the places of the facts of all commits, in order.
    pub(super) fn all_facts(&self) -> impl Iterator<Item = (CommitNumber, JournalPlace)> + '_ {
        (self.file.first.0..)
            .map(CommitNumber)
            .zip(self.commits.iter().copied())
    }

    /// Loses the facts of a commit.
    #[cfg(test)]
    pub(super) fn lose(&mut self, number: CommitNumber) {
        let index = usize::try_from(number.0 - self.file.first.0).unwrap();
        self.commits[index] = self.commits[index - 1].shortened();
    }
}

/// What readers see: the unsettled chapters, and the end of the log.
#[derive(Debug)]
pub(super) struct Chapters {
    /// Chapters to be settled, oldest first.
    pub(super) full: VecDeque<Arc<Chapter>>,
    /// The chapter that grows.
    pub(super) newest: Chapter,
    pub(super) head: LogHead,
}

impl Chapters {
    /// Returns the chapters, oldest first.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Chapter> {
        self.full
            .iter()
            .map(|chapter| &**chapter)
            .chain([&self.newest])
    }

    /// Returns the bytes of the journal that are not settled.
    pub(super) fn bytes(&self) -> u64 {
        self.all().map(Chapter::bytes).sum()
    }

    /// Returns the number of feeds that are to be settled. A feed counts once for each chapter that
    /// changes the feed.
    pub(super) fn feeds(&self) -> usize {
        self.all().map(|chapter| chapter.feeds.len()).sum()
    }
}
