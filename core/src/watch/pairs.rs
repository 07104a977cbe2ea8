//! The pairs of SUP documents: which pairs are new, and which feeds the pairs list.
//!
//! Pure.

use std::{collections::HashMap, hash::BuildHasher as _, time::Duration};

use super::{
    FeedNumber, SourceNumber, Watch,
    feeds::{CACHED, LAG, Why},
    sources::SupSource,
};
use crate::{limits::SUP_PERIOD_SECONDS_MAX, sup::SupDocument, timestamp::Timestamp};

/// Time for which a pair is remembered in addition to the longest window, in microseconds.
const SEEN_SLACK: i64 = 60_000_000;
/// Number of pairs to remember for each SUP-ID of watched feeds, in addition to [`SEEN_BESIDES`].
const SEEN_PER_FEED: usize = 16;
const SEEN_BESIDES: usize = 10_000;

/// The pairs of one document, hashed.
#[derive(Debug, Default)]
pub(super) struct PairHashes {
    ours: Vec<u64>,
    /// Pairs of feeds that are not watched, up to a bound, with the time at which each was first
    /// listed.
    others: HashMap<u64, Duration>,
}

impl SupSource {
    /// Forgets the pairs that no later document will list.
    fn forget_pairs(&mut self, document: &SupDocument) {
        // A cache may serve an old copy of the longest window for the length of that window.
        let longest = document.periods.keys().next_back().copied().unwrap_or(0);
        let longest = i64::try_from(longest.max(document.period)).unwrap_or(i64::MAX);
        let window = document.updated.micros() - document.since.micros();
        // A publisher can announce any period. The bound also keeps the sum below in range.
        let most = i64::from(SUP_PERIOD_SECONDS_MAX) * 1_000_000;
        let known = window.max(longest.saturating_mul(1_000_000)).min(most);
        let oldest = document.updated.micros().saturating_sub(known + SEEN_SLACK);
        self.seen.retain(|_, last| last.micros() >= oldest);
        if self.seen.len() > self.pairs_max() {
            // To bound memory, only the pairs of the newest document are kept. If a publisher has
            // too many updates, this causes superfluous looks.
            self.seen.retain(|_, last| *last == document.updated);
        }
    }

    /// Returns the bound on remembered pairs.
    fn pairs_max(&self) -> usize {
        SEEN_PER_FEED * self.feeds.len() + SEEN_BESIDES
    }

    #[cfg(test)]
    pub(super) fn known_pairs(&self) -> usize {
        self.seen.len()
    }
}

impl Watch {
    /// Makes the feeds due that documents have listed since the last ping, each once.
    pub(super) fn ping(&mut self, number: SourceNumber, now: Duration) {
        for (feed, update) in std::mem::take(&mut self.source_mut(number).told) {
            let state = self.feed_mut(feed);
            state.vain = 0;
            state.told_at = Some(now);
            // If the feed has joined another document meanwhile, the stored update belongs to that
            // document.
            if state.source == Some(number) {
                state.update = Some(update);
            }
            self.owe(feed);
            // Caches may keep the old representation for `CACHED`.
            self.call(feed, now + CACHED, Why::Ping);
        }
    }

    /// Finds the new pairs (rule SUP-C4). Returns all pairs of the document.
    pub(super) fn take_pairs(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) -> PairHashes {
        // The hash has a key, so publishers cannot choose colliding pairs.
        let hashing = self.hashing.clone();
        let source = self.source_mut(number);
        source.heard_at = Some(now);
        // Each id gets one look, whatever the number of pairs with this id.
        let mut news: HashMap<&str, &str> = HashMap::new();
        let mut before: HashMap<&str, (&str, Duration)> = HashMap::new();
        let mut pairs = PairHashes::default();
        for (id, update) in &document.updates {
            let pair = hashing.hash_one((&**id, &**update));
            let told_before = source.others.get(&pair).copied();
            if !source.feeds.contains_key(id) {
                if pairs.others.len() < source.pairs_max() {
                    pairs.others.insert(pair, told_before.unwrap_or(now));
                }
                continue;
            }
            pairs.ours.push(pair);
            match told_before {
                // The time of the first listing counts: a feed that was read later has shown the
                // update.
                Some(told_at) => {
                    let newest = before.entry(id).or_insert((update, told_at));
                    // The newest of several pairs of one id is the pair whose first listing is the
                    // latest.
                    if told_at > newest.1 {
                        *newest = (update, told_at);
                    }
                }
                None if source.seen.contains_key(&pair) => {}
                None => {
                    news.insert(id, update);
                }
            }
        }
        let feeds_of = |id: &str| source.feeds.get(id).into_iter().flatten().copied();
        let mut called = vec![];
        for (id, update) in news {
            called.extend(feeds_of(id).map(|feed| (feed, update)));
        }
        let mut joined = vec![];
        for (id, (update, told_at)) in before {
            joined.extend(feeds_of(id).map(|feed| (feed, update, told_at)));
        }
        for (feed, update, told_at) in joined {
            let state = self.feed_mut(feed);
            // Even a lagging replica had shown the update by the time of that look.
            if state.seen_until.is_some_and(|seen| seen > told_at + LAG) {
                state.update = Some(update.into());
                self.changed.insert(feed);
            } else {
                called.push((feed, update));
            }
        }
        let told = &mut self.source_mut(number).told;
        for (feed, update) in called {
            // A walk goes from the newest document to the oldest, so the first update found is the
            // newest.
            told.entry(feed).or_insert_with(|| update.into());
        }
        pairs
    }

    /// Handles the pairs of a window that ends now, and remembers these pairs for the next window.
    pub(super) fn take_window(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) {
        let pairs = self.take_pairs(number, now, document);
        let source = self.source_mut(number);
        // The limit is twice the bound: `forget_pairs` keeps the pairs of this window even beyond
        // the bound.
        let most = 2 * source.pairs_max();
        let ours = pairs.ours.into_iter().take(most);
        source
            .seen
            .extend(ours.map(|pair| (pair, document.updated)));
        source.others = pairs.others;
        source.forget_pairs(document);
    }

    /// Remembers the stored update of a feed, so that the update causes no ping.
    pub(super) fn recognise(&mut self, number: FeedNumber) {
        let feed = self.feed_numbered(number);
        if let (Some(source), Some(update)) = (feed.source, &feed.update) {
            let pair = self.hashing.hash_one((&*feed.id, &**update));
            // With `Timestamp::MIN`, the next document without this pair makes the watch forget the
            // pair.
            self.source_mut(source).seen.insert(pair, Timestamp::MIN);
        }
    }
}
