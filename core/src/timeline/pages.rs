//! Pages of a timeline, merged from runs of entries of the followed feeds.
//!
//! Pure. A timeline is the merge of its *runs*: ranges of a feed's positions, and entries that
//! follows brought along. Each run is in the order of places, so a page costs a search in each run,
//! and a step for each entry of the page. A list of entries that were gathered beforehand is one
//! run instead of many.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range};

use super::{BroughtEntries, Entries, FollowState, GatheredEntries, Place, TimelineEntry};
use crate::{feed::Position, timestamp::Timestamp};

/// Entries of a timeline from one source, in the order of their places.
struct PlaceRun<'f, S> {
    source: RunSource<'f, S>,
    /// Positions in the feed, or indexes in the batch or the list.
    range: Range<u64>,
}

enum RunSource<'f, S> {
    Feed(S),
    Batch(&'f BroughtEntries<S>),
    List(&'f dyn GatheredEntries<S>),
}

impl<S: Copy + Ord> PlaceRun<'_, S> {
    fn delivery_at(&self, index: u64, feeds: &impl Entries<S>) -> TimelineEntry<S> {
        let (place, feed, at) = match self.source {
            RunSource::Feed(feed) => {
                let at = Position(index);
                (Place::of_entry(feeds.instant(feed, at)), feed, at)
            }
            RunSource::Batch(batch) => {
                let index = usize::try_from(index).unwrap_or(usize::MAX);
                let (feed, at) = batch
                    .entries
                    .get(index)
                    .copied()
                    .expect("a run of a batch has its indexes");
                (batch.place_of(index), feed, at)
            }
            RunSource::List(list) => return list.delivery(index),
        };
        TimelineEntry { place, feed, at }
    }

    /// Returns the first index whose place `is_before` does not accept.
    fn split_at(&self, is_before: impl Fn(Place) -> bool, feeds: &impl Entries<S>) -> u64 {
        let Range { mut start, mut end } = self.range;
        // Most searches are for places near the end, so the search begins there, in steps that
        // double.
        let mut step = 1;
        while start < end {
            let probe = end.saturating_sub(step).max(start);
            if is_before(self.delivery_at(probe, feeds).place) {
                start = probe + 1;
                break;
            }
            end = probe;
            step *= 2;
        }
        while start < end {
            let middle = start + (end - start) / 2;
            if is_before(self.delivery_at(middle, feeds).place) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        start
    }
}

impl<S: Copy + Ord> FollowState<S> {
    /// Returns the number of entries in the timeline.
    pub fn count(&self, feeds: &impl Entries<S>) -> u64 {
        let runs = self.page_runs(feeds);
        runs.iter().map(|run| run.range.end - run.range.start).sum()
    }

    /// Returns the number of entries that came before an instant.
    pub fn rank(&self, instant: Timestamp, feeds: &impl Entries<S>) -> u64 {
        let runs = self.page_runs(feeds);
        rank_at(&runs, instant, feeds)
    }

    /// Returns the place of the entry at a position of the timeline, or `None` if the timeline has
    /// no such position.
    pub fn place(&self, at: Position, feeds: &impl Entries<S>) -> Option<Place> {
        let mut runs = self.page_runs(feeds);
        runs.retain(|run| !run.range.is_empty());
        // In a single run, a position leads to the index without a search.
        if let [run] = &*runs {
            let index = run.range.start.checked_add(at.0)?;
            let is_there = run.range.contains(&index);
            return is_there.then(|| run.delivery_at(index, feeds).place);
        }
        let ends = runs.iter().map(|run| {
            let first = run.delivery_at(run.range.start, feeds).place.instant();
            (
                first,
                run.delivery_at(run.range.end - 1, feeds).place.instant(),
            )
        });
        let (mut low, mut high) = ends.reduce(|one, other| {
            // All runs lie between these instants.
            (one.0.min(other.0), one.1.max(other.1))
        })?;
        // The entry's instant is the last instant that at most `at` entries precede.
        while low < high {
            // The half is rounded up: else `low` would not move where `high` is the next
            // microsecond.
            let half = (high.micros() - low.micros() + 1) / 2;
            let middle = low.plus_micros(u64::try_from(half).unwrap_or(1));
            if rank_at(&runs, middle, feeds) <= at.0 {
                low = middle;
            } else {
                high = Timestamp::from_micros(middle.micros() - 1);
            }
        }
        let skipped = at.0 - rank_at(&runs, low, feeds).min(at.0);
        let mut at_once: Vec<Place> = vec![];
        for run in &runs {
            let first = run.split_at(|place| place.instant() < low, feeds);
            let places = (first..run.range.end).map(|index| run.delivery_at(index, feeds).place);
            at_once.extend(places.take_while(|place| place.instant() == low));
        }
        // Several runs may have entries of that instant. These entries stand in the order of their
        // places.
        at_once.sort();
        at_once.get(usize::try_from(skipped).ok()?).copied()
    }

    /// Returns at most `limit` entries strictly older than `anchor`, newest first; without an
    /// anchor, the newest entries of the timeline. The anchor need not be the place of an entry.
    /// `feeds` show the feeds after the last commit that the reader sees.
    pub fn older(
        &self,
        anchor: Option<Place>,
        limit: usize,
        feeds: &impl Entries<S>,
    ) -> Vec<TimelineEntry<S>> {
        let runs = self.page_runs(feeds);
        let mut heads = BinaryHeap::new();
        let push = |heads: &mut BinaryHeap<_>, index: usize, end: u64| {
            let run = runs.get(index).filter(|run| run.range.start < end);
            if let Some(run) = run {
                heads.push((run.delivery_at(end - 1, feeds).place, index, end - 1));
            }
        };
        for (index, run) in runs.iter().enumerate() {
            let end = anchor.map_or(run.range.end, |anchor| {
                run.split_at(|place| place < anchor, feeds)
            });
            push(&mut heads, index, end);
        }
        let mut page = vec![];
        while page.len() < limit
            && let Some((_, index, at)) = heads.pop()
        {
            page.extend(runs.get(index).map(|run| run.delivery_at(at, feeds)));
            push(&mut heads, index, at);
        }
        page
    }

    /// Returns at most `limit` entries strictly newer than `anchor` and closest to the anchor,
    /// newest first; without an anchor, the oldest entries of the timeline.
    pub fn newer(
        &self,
        anchor: Option<Place>,
        limit: usize,
        feeds: &impl Entries<S>,
    ) -> Vec<TimelineEntry<S>> {
        let runs = self.page_runs(feeds);
        let mut heads = BinaryHeap::new();
        let push = |heads: &mut BinaryHeap<_>, index: usize, at: u64| {
            let run = runs.get(index).filter(|run| at < run.range.end);
            if let Some(run) = run {
                heads.push(Reverse((run.delivery_at(at, feeds).place, index, at)));
            }
        };
        for (index, run) in runs.iter().enumerate() {
            let first = anchor.map_or(run.range.start, |anchor| {
                run.split_at(|place| place <= anchor, feeds)
            });
            push(&mut heads, index, first);
        }
        let mut page = vec![];
        while page.len() < limit
            && let Some(Reverse((_, index, at))) = heads.pop()
        {
            page.extend(runs.get(index).map(|run| run.delivery_at(at, feeds)));
            push(&mut heads, index, at + 1);
        }
        page.reverse();
        page
    }

    fn page_runs<'r>(&'r self, feeds: &'r impl Entries<S>) -> Vec<PlaceRun<'r, S>> {
        let mut runs = vec![];
        let of_feed = |feed: S, range: Range<Position>| PlaceRun {
            source: RunSource::Feed(feed),
            range: range.start.0..range.end.0,
        };
        if let Some(list) = feeds.gathered() {
            runs.push(PlaceRun {
                source: RunSource::List(list),
                range: 0..list.count(),
            });
            let apart = list.apart().iter();
            runs.extend(apart.map(|(feed, range)| of_feed(*feed, range.clone())));
        } else {
            for held in &self.feeds {
                let past = held
                    .other
                    .iter()
                    .flat_map(|other| other.past.iter().cloned());
                let live = held.live.map(|first| first..feeds.next(held.feed));
                runs.extend(past.chain(live).map(|range| of_feed(held.feed, range)));
            }
        }
        for batch in &self.batches {
            let count = u64::try_from(batch.entries.len()).unwrap_or(u64::MAX);
            runs.push(PlaceRun {
                source: RunSource::Batch(batch),
                range: 0..count,
            });
        }
        runs
    }
}

fn rank_at<S: Copy + Ord>(
    runs: &[PlaceRun<'_, S>],
    instant: Timestamp,
    feeds: &impl Entries<S>,
) -> u64 {
    let before = |run: &PlaceRun<'_, S>| {
        run.split_at(|place| place.instant() < instant, feeds) - run.range.start
    };
    runs.iter().map(before).sum()
}
