//! Lists of followed feeds and of followers, by name.
//!
//! Pure over the graph.

use std::{collections::HashMap, sync::atomic::Ordering};

use simplefeed_core::{
    feed::{FeedKey, FeedName, FeedPattern, Revision},
    follow::Item,
};

use super::{
    Timelines,
    graph::{Source, TimelineState},
};
use crate::log::{LogError, settings_of};

/// Items that a timeline follows, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedItems {
    /// Feeds that it follows by their names, sorted.
    pub feeds: Vec<FeedName>,
    /// Patterns, sorted.
    pub patterns: Vec<FeedPattern>,
}

impl Timelines {
    /// Returns the items that a timeline follows, by name; `None` if there is no such timeline.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn following(&self, timeline: FeedKey) -> Result<Option<FollowedItems>, LogError> {
        let graph = self.graph()?;
        let Some((_, state)) = graph.timeline(timeline) else {
            return Ok(None);
        };
        let mut feeds: Vec<FeedName> = graph.names(state.following.items());
        feeds.sort();
        let patterns = state.following.patterns().to_vec();
        Ok(Some(FollowedItems { feeds, patterns }))
    }

    /// Returns the closed feeds that a timeline has, or may get, entries of, and the patterns that it follows; `None` if
    /// there is no such timeline.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn closed_sources(&self, timeline: FeedKey) -> Result<Option<FollowedItems>, LogError> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(None);
        }
        let graph = self.graph()?;
        let Some((_, state)) = graph.timeline(timeline) else {
            return Ok(None);
        };
        // A server has few closed feeds, and a timeline may have a hundred thousand sources.
        let closed = graph.feeds.closed().iter();
        let had = closed.filter(|source| state.following.is_source(**source));
        let names = had.filter_map(|source| Some(graph.feeds.get(*source)?.name.clone()));
        Ok(Some(FollowedItems {
            feeds: names.collect(),
            patterns: state.following.patterns().to_vec(),
        }))
    }

    /// Returns the names of the timelines that take the entries of a feed now, sorted.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn followers(&self, feed: FeedKey) -> Result<Vec<FeedName>, LogError> {
        self.some_followers(feed, usize::MAX)
    }

    /// Returns the names of some timelines that take the entries of a feed now, sorted: of the first `max` that ever did.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn some_followers(&self, feed: FeedKey, max: usize) -> Result<Vec<FeedName>, LogError> {
        let keys: Vec<FeedKey> = {
            let graph = self.graph()?;
            let Some(source) = graph.source(feed) else {
                return Ok(vec![]);
            };
            let had = graph.feeds.followers(source);
            let had = had.map_or_else(Vec::new, |had| had.all.from(0, max));
            let states = had.into_iter().filter_map(|timeline| graph.at(timeline));
            let takes = |state: &&TimelineState| state.following.takes(source);
            states.filter(takes).map(|state| state.key).collect()
        };
        let mut names = vec![];
        for key in keys {
            names.push(settings_of(&*self.log, key, Revision::FIRST)?.name);
        }
        names.sort();
        Ok(names)
    }

    /// Returns the feeds that are followed by the timelines whose owners a timeline follows, without those that it
    /// follows itself and its owner's: most followed first, each with the number of these timelines. `None` if there is
    /// no such timeline. Follows of timelines that fail `is_seen` are not counted: the counts would reveal them.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn friends_of_friends(
        &self,
        timeline: FeedKey,
        is_seen: impl Fn(FeedKey) -> Result<bool, LogError>,
    ) -> Result<Option<Vec<(FeedName, usize)>>, LogError> {
        // Counting takes long for friends of thousands, so it is done without the lock.
        let (state, friends) = {
            let graph = self.graph()?;
            let Some((_, state)) = graph.timeline(timeline) else {
                return Ok(None);
            };
            let items = state.following.items();
            let owners = items.filter_map(|item| match item {
                Item::Feed(friend) => Some(friend),
                Item::Pattern(_) => None,
            });
            let theirs = owners.flat_map(|owner| graph.owned_by(owner));
            let friends: Vec<TimelineState> =
                theirs.filter_map(|one| graph.at(*one)).cloned().collect();
            (state.clone(), friends)
        };
        let mut counts: HashMap<Source, usize> = HashMap::new();
        for theirs in friends {
            if theirs.following.terms().is_closed && !is_seen(theirs.key)? {
                continue;
            }
            for item in theirs.following.items() {
                if let Item::Feed(feed) = item {
                    *counts.entry(feed).or_default() += 1;
                }
            }
        }
        counts.retain(|feed, _| {
            !state.following.has(&Item::Feed(*feed)) && state.owner != Some(*feed)
        });
        let graph = self.graph()?;
        let named = counts
            .into_iter()
            .filter_map(|(feed, count)| Some((graph.feeds.get(feed)?.name.clone(), count)));
        let mut found: Vec<(FeedName, usize)> = named.collect();
        drop(graph);
        found.sort_by(|(one, count), (other, theirs)| theirs.cmp(count).then(one.cmp(other)));
        Ok(Some(found))
    }
}
