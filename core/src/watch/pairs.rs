//! The pairs of SUP documents: which are new, and of which feeds they tell.
//!
//! Pure.

use std::{collections::HashMap, hash::BuildHasher as _, time::Duration};

use super::{
    FeedNumber, SourceNumber, Watch,
    feeds::{CACHED, LAG, Why},
    sources::Source,
};
use crate::{instant::Instant, limits::SUP_PERIOD_SECONDS_MAX, sup::SupDocument};

/// How long a pair is known again, in microseconds, beside the longest window.
const SEEN_SLACK: i64 = 60_000_000;
/// So many pairs for each feed are known again, and some besides.
const SEEN_PER_FEED: usize = 16;
const SEEN_BESIDES: usize = 10_000;

/// The pairs of a document.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    ours: Vec<u64>,
    /// Those of feeds that are not ours, up to a bound.
    others: HashMap<u64, Duration>,
}

impl Source {
    /// Forgets the pairs that no document will have again.
    fn forget_pairs(&mut self, document: &SupDocument) {
        // As long as a cache may show an old copy of the longest window there is.
        let longest = document.periods.keys().next_back().copied().unwrap_or(0);
        let longest = i64::try_from(longest.max(document.period)).unwrap_or(i64::MAX);
        let window = document.updated.micros() - document.since.micros();
        let most = i64::from(SUP_PERIOD_SECONDS_MAX) * 1_000_000;
        let known = window.max(longest.saturating_mul(1_000_000)).min(most);
        let oldest = document.updated.micros().saturating_sub(known + SEEN_SLACK);
        self.seen.retain(|_, last| last.micros() >= oldest);
        if self.seen.len() > self.pairs_max() {
            // A publisher that tells that much must bear a look too many.
            self.seen.retain(|_, last| *last == document.updated);
        }
    }

    /// Returns how many pairs are known again.
    fn pairs_max(&self) -> usize {
        SEEN_PER_FEED * self.feeds.len() + SEEN_BESIDES
    }

    #[cfg(test)]
    pub(super) fn known_pairs(&self) -> usize {
        self.seen.len()
    }
}

impl Watch {
    /// Looks at the feeds that were told of, each once.
    pub(super) fn ping(&mut self, number: SourceNumber, now: Duration) {
        for (feed, update) in std::mem::take(&mut self.source_mut(number).told) {
            let state = self.feed_mut(feed);
            state.vain = 0;
            state.told_at = Some(now);
            if state.source == Some(number) {
                state.update = Some(update);
            }
            self.owe(feed);
            self.call(feed, now + CACHED, Why::Ping);
        }
    }

    /// Takes the pairs that are new (rule SUP-C4). Returns what there were.
    pub(super) fn take_pairs(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) -> Pairs {
        let hashing = self.hashing.clone();
        let source = self.source_mut(number);
        source.heard_at = Some(now);
        // Once for each id, however many pairs it has.
        let mut news: HashMap<&str, &str> = HashMap::new();
        let mut before: HashMap<&str, (&str, Duration)> = HashMap::new();
        let mut pairs = Pairs::default();
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
                Some(told_at) => {
                    let newest = before.entry(id).or_insert((update, told_at));
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
            // Even a replica that lags has shown it then.
            if state.seen_until.is_some_and(|seen| seen > told_at + LAG) {
                state.update = Some(update.into());
                self.changed.insert(feed);
            } else {
                called.push((feed, update));
            }
        }
        let told = &mut self.source_mut(number).told;
        for (feed, update) in called {
            // A walk goes from the newest document to the oldest.
            told.entry(feed).or_insert_with(|| update.into());
        }
        pairs
    }

    /// Takes the pairs of a window that ends now, and knows them again in the next one.
    pub(super) fn take_window(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) {
        let pairs = self.take_pairs(number, now, document);
        let source = self.source_mut(number);
        let most = 2 * source.pairs_max();
        let ours = pairs.ours.into_iter().take(most);
        source
            .seen
            .extend(ours.map(|pair| (pair, document.updated)));
        source.others = pairs.others;
        source.forget_pairs(document);
    }

    /// Takes it that what was told last of a feed is known.
    pub(super) fn recognise(&mut self, number: FeedNumber) {
        let feed = self.feed(number);
        if let (Some(source), Some(update)) = (feed.source, &feed.update) {
            let pair = self.hashing.hash_one((&*feed.id, &**update));
            // As long as the next document has it.
            self.source_mut(source).seen.insert(pair, Instant::MIN);
        }
    }
}
