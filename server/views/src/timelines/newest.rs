//! Newest entries of recently read timelines, kept current with the new entries of their feeds.
//!
//! Pure. A merge asks each followed feed for its newest entry. In a timeline of a hundred thousand
//! feeds, this takes milliseconds after each commit. The new entries since the last read are a
//! short list, however many feeds there are.

use std::collections::VecDeque;

use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, Position},
    timeline::{FollowState, Place, TimelineEntry},
    timestamp::Timestamp,
};

use super::graph::{Graph, SourceKey};

/// Number of feeds from which on a timeline's newest entries are kept.
pub(super) const SOURCES_MIN: usize = if cfg!(test) { 1 } else { 100 };
/// Number of entries with which a list begins, and the maximum number.
pub(super) const BEGIN_ENTRIES: usize = if cfg!(test) { 3 } else { 128 };
const ENTRIES_MAX: usize = if cfg!(test) { 7 } else { 256 };
/// Maximum number of gains that are remembered.
const GAINS_MAX: usize = if cfg!(test) { 20 } else { 65_536 };

/// Entries that a feed gained with a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gain {
    commit: CommitNumber,
    source: SourceKey,
    first: Position,
    count: u64,
    /// Instant of the first of these entries; the other entries follow in steps of 1 µs.
    instant: Timestamp,
}

impl Gain {
    /// Returns the entries of this gain that a timeline has.
    pub(super) fn deliveries(
        self,
        following: &FollowState<SourceKey>,
    ) -> impl Iterator<Item = TimelineEntry<SourceKey>> + use<'_> {
        let range = self.first..Position(self.first.0 + self.count);
        let ranges = following.gained(self.source, range);
        let positions = ranges.flat_map(|range| range.start.0..range.end.0);
        positions.map(move |at| TimelineEntry {
            place: Place::of_entry(self.instant.plus_micros(at - self.first.0)),
            feed: self.source,
            at: Position(at),
        })
    }
}

/// Recent new entries of all feeds, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct Gains {
    /// Commit behind which the list begins: the gains of all later commits are there.
    after: CommitNumber,
    all: VecDeque<Gain>,
}

impl Gains {
    /// Returns an empty list that begins behind a commit.
    pub(super) fn after(commit: CommitNumber) -> Self {
        let all = VecDeque::new();
        Self { after: commit, all }
    }

    /// Adds the gains of the next commit, which the graph has already.
    pub(super) fn note(&mut self, commit: &Outline, graph: &Graph) {
        let mut instant = commit.instant;
        for change in &commit.changes {
            let ChangeOutline::Entries { feed, first, count } = change else {
                continue;
            };
            if let Some(source) = graph.source(*feed) {
                self.all.push_back(Gain {
                    commit: commit.number,
                    source,
                    first: *first,
                    count: *count,
                    instant,
                });
            }
            // Entries of a commit follow each other in steps of 1 µs, over all feeds of the commit.
            instant = instant.plus_micros(*count);
        }
        while self.all.len() > GAINS_MAX
            && let Some(oldest) = self.all.pop_front()
        {
            // Other gains of this commit may be removed already, so the list begins behind the
            // commit.
            self.after = oldest.commit;
        }
    }

    /// Returns the gains after a commit; `None` if the list begins later, or has more than `max`
    /// such gains.
    pub(super) fn since(
        &self,
        commit: CommitNumber,
        max: usize,
    ) -> Option<impl Iterator<Item = &Gain>> {
        if commit < self.after {
            return None;
        }
        let begin = self.all.partition_point(|gain| gain.commit <= commit);
        (self.all.len() - begin <= max).then(|| self.all.range(begin..))
    }
}

/// The newest entries of a timeline, as of a commit.
#[derive(Debug)]
pub(super) struct NewestOfTimeline {
    applied: CommitNumber,
    /// Number of all entries of the timeline.
    count: u64,
    /// Number of requests that had brought entries along.
    requests: usize,
    /// The newest entries, oldest first.
    list: VecDeque<TimelineEntry<SourceKey>>,
}

impl NewestOfTimeline {
    /// Returns the list of the entries that a merge has found. `newest` has them with the newest
    /// first.
    pub(super) fn begin(
        applied: CommitNumber,
        count: u64,
        following: &FollowState<SourceKey>,
        newest: Vec<TimelineEntry<SourceKey>>,
    ) -> Self {
        Self {
            applied,
            count,
            requests: following.requests(),
            list: newest.into_iter().rev().collect(),
        }
    }

    /// Returns the newest entries as of a later commit; `None` if a merge is cheaper. `following`
    /// is the state at that commit.
    ///
    /// Follows between the two commits need no replay: the ranges of positions in `following`
    /// record each of them.
    pub(super) fn moved_on(
        mut self,
        applied: CommitNumber,
        following: &FollowState<SourceKey>,
        gains: &Gains,
    ) -> Option<Self> {
        let mut new: Vec<TimelineEntry<SourceKey>> = following.brought(self.requests).collect();
        // With more gains than feeds, a merge is cheaper, which asks each feed once.
        for gain in gains.since(self.applied, following.sources().len())? {
            new.extend(gain.deliveries(following));
        }
        new.sort_by_key(|delivery| delivery.place);
        self.count += u64::try_from(new.len()).unwrap_or(u64::MAX);
        self.list.extend(new);
        let excess = self.list.len().saturating_sub(ENTRIES_MAX);
        self.list.drain(..excess);
        self.applied = applied;
        self.requests = following.requests();
        Some(self)
    }

    /// Returns the number of all entries.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the newest entry's place.
    pub(super) fn end(&self) -> Option<Place> {
        self.list.back().map(|delivery| delivery.place)
    }

    /// Returns the entries older than a place that are in the list, newest first, and the place
    /// behind which a merge has to go on if `limit` is not reached.
    pub(super) fn older(
        &self,
        anchor: Option<Place>,
        limit: usize,
    ) -> (Vec<TimelineEntry<SourceKey>>, Option<Place>) {
        let end = anchor.map_or(self.list.len(), |anchor| {
            self.list
                .partition_point(|delivery| delivery.place < anchor)
        });
        let found: Vec<_> = self.list.range(..end).rev().take(limit).copied().collect();
        let goes_on = found.len() < limit && !self.is_whole();
        let oldest = self.list.front().map(|delivery| delivery.place);
        let from = match (anchor, oldest) {
            (Some(anchor), Some(oldest)) => Some(anchor.min(oldest)),
            (anchor, oldest) => anchor.or(oldest),
        };
        (found, from.filter(|_| goes_on))
    }

    /// Returns the entries newer than a place, newest first; `None` if unknown entries may lie
    /// between.
    pub(super) fn newer(
        &self,
        anchor: Option<Place>,
        limit: usize,
    ) -> Option<Vec<TimelineEntry<SourceKey>>> {
        let oldest = self.list.front().map(|delivery| delivery.place);
        if !self.is_whole() && anchor < oldest {
            // Entries between the anchor and the list are not known.
            return None;
        }
        let begin = anchor.map_or(0, |anchor| {
            self.list
                .partition_point(|delivery| delivery.place <= anchor)
        });
        let end = self.list.len().min(begin.saturating_add(limit));
        Some(self.list.range(begin..end).rev().copied().collect())
    }

    /// Returns the number of entries before an instant; `None` if the list begins later.
    pub(super) fn rank(&self, instant: Timestamp) -> Option<u64> {
        let before = self
            .list
            .partition_point(|delivery| delivery.place.instant() < instant);
        // If the list has an entry before the instant, all entries that the list lacks are before
        // the instant, too.
        let tells = before > 0 || self.is_whole();
        let behind = u64::try_from(self.list.len() - before).unwrap_or(u64::MAX);
        tells.then(|| self.count - behind)
    }

    /// Returns the place of an entry; `None` if the list does not have it.
    pub(super) fn place(&self, at: Position) -> Option<Place> {
        let listed = u64::try_from(self.list.len()).unwrap_or(u64::MAX);
        // Positions count from the oldest entry, and the list has the newest ones.
        let index = at.0.checked_sub(self.count - listed)?;
        let delivery = self.list.get(usize::try_from(index).ok()?)?;
        Some(delivery.place)
    }

    /// Returns the size of the list, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.list.len() * size_of::<TimelineEntry<SourceKey>>()
    }

    fn is_whole(&self) -> bool {
        u64::try_from(self.list.len()) == Ok(self.count)
    }
}
