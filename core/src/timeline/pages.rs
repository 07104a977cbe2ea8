//! Runs of a timeline's entries, merged from the feeds that it follows.
//!
//! Pure. A timeline is the merge of its *runs*: ranges of a feed's positions, and what follows brought along. Each is
//! in the order of its places, so a page costs a search in each run, and a step for each entry of the page.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range};

use super::{Batch, Delivery, Feeds, Following, Place};
use crate::feed::{FeedKey, Position};

/// Entries of a timeline that came in one way, in the order of their places.
struct Run<'f> {
    source: Source<'f>,
    /// Positions in the feed, or indexes in the batch.
    range: Range<u64>,
}

enum Source<'f> {
    Feed(FeedKey),
    Batch(&'f Batch),
}

impl Run<'_> {
    fn delivery(&self, index: u64, feeds: &impl Feeds) -> Delivery {
        let (place, feed, at) = match self.source {
            Source::Feed(feed) => {
                let at = Position(index);
                (Place::of_entry(feeds.instant(feed, at)), feed, at)
            }
            Source::Batch(batch) => {
                let index = usize::try_from(index).unwrap_or(usize::MAX);
                let (feed, at) = batch
                    .entries
                    .get(index)
                    .copied()
                    .expect("a run of a batch has its indexes");
                (batch.place(index), feed, at)
            }
        };
        Delivery { place, feed, at }
    }

    /// Returns the first index whose place is not before `is_before` says.
    fn split(&self, is_before: impl Fn(Place) -> bool, feeds: &impl Feeds) -> u64 {
        let Range { mut start, mut end } = self.range;
        while start < end {
            let middle = start + (end - start) / 2;
            if is_before(self.delivery(middle, feeds).place) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        start
    }
}

impl Following {
    /// Returns at most `limit` entries strictly older than `anchor`, newest first; the newest of all without an anchor.
    /// The anchor need not be the place of an entry. `feeds` are as they are at the end of what the reader sees.
    pub fn older(&self, anchor: Option<Place>, limit: usize, feeds: &impl Feeds) -> Vec<Delivery> {
        let runs = self.runs(feeds);
        let mut heads = BinaryHeap::new();
        let push = |heads: &mut BinaryHeap<_>, index: usize, end: u64| {
            let run = runs.get(index).filter(|run| run.range.start < end);
            if let Some(run) = run {
                heads.push((run.delivery(end - 1, feeds).place, index, end - 1));
            }
        };
        for (index, run) in runs.iter().enumerate() {
            let end = anchor.map_or(run.range.end, |anchor| {
                run.split(|place| place < anchor, feeds)
            });
            push(&mut heads, index, end);
        }
        let mut page = vec![];
        while page.len() < limit
            && let Some((_, index, at)) = heads.pop()
        {
            page.extend(runs.get(index).map(|run| run.delivery(at, feeds)));
            push(&mut heads, index, at);
        }
        page
    }

    /// Returns at most `limit` entries strictly newer than `anchor` and closest to it, newest first.
    pub fn newer(&self, anchor: Place, limit: usize, feeds: &impl Feeds) -> Vec<Delivery> {
        let runs = self.runs(feeds);
        let mut heads = BinaryHeap::new();
        let push = |heads: &mut BinaryHeap<_>, index: usize, at: u64| {
            let run = runs.get(index).filter(|run| at < run.range.end);
            if let Some(run) = run {
                heads.push(Reverse((run.delivery(at, feeds).place, index, at)));
            }
        };
        for (index, run) in runs.iter().enumerate() {
            let first = run.split(|place| place <= anchor, feeds);
            push(&mut heads, index, first);
        }
        let mut page = vec![];
        while page.len() < limit
            && let Some(Reverse((_, index, at))) = heads.pop()
        {
            page.extend(runs.get(index).map(|run| run.delivery(at, feeds)));
            push(&mut heads, index, at + 1);
        }
        page.reverse();
        page
    }

    fn runs(&self, feeds: &impl Feeds) -> Vec<Run<'_>> {
        let mut runs = vec![];
        for (feed, held) in &self.feeds {
            let next = feeds.feed(*feed).map(|feed| feed.next);
            let live = held.live.zip(next).map(|(first, next)| first..next);
            for range in held.past.iter().cloned().chain(live) {
                runs.push(Run {
                    source: Source::Feed(*feed),
                    range: range.start.0..range.end.0,
                });
            }
        }
        for batch in &self.batches {
            let count = u64::try_from(batch.entries.len()).unwrap_or(u64::MAX);
            runs.push(Run {
                source: Source::Batch(batch),
                range: 0..count,
            });
        }
        runs
    }
}
