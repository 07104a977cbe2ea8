//! Lists of followed feeds and of followers, a part at a time, in the order in which the log got
//! them.
//!
//! Shell: the graph, behind a lock. The cost of a part grows with the number of feeds in that part,
//! and not with the length of the list.

use std::{collections::HashMap, sync::atomic::Ordering};

use simplefeed_core::feed::{FeedKey, FeedName, FeedPattern};
use simplefeed_log::LogError;

use super::{
    Timelines,
    followers::TimelineKey,
    graph::{SourceKey, TimelineState},
};

/// Maximum number of friends' follows that are counted for one timeline.
const FRIENDS_FOLLOWS_MAX: usize = 100_000;
/// Number of closed followers that are looked at under one lock.
const CLOSED_TOGETHER: usize = 4_096;

/// Part of a list of feeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedListPart {
    /// Feeds of the part, in the order of the list.
    pub feeds: Vec<FeedKey>,
    /// Number of feeds in the whole list.
    pub count: u64,
    /// Whether the list goes on behind this part.
    pub has_more: bool,
}

/// Stretch of a list that a reader wants.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListStretch {
    /// Feed behind which the stretch begins; `None` for the beginning of the list.
    pub after: Option<FeedKey>,
    /// Maximum number of feeds of the stretch.
    pub max: usize,
}

/// The closed timelines that a reader may see.
#[derive(Clone, Copy)]
pub enum ClosedSight<'s> {
    /// None: the reader sees open timelines only.
    None,
    /// All: the reader sees every closed timeline.
    All,
    /// Those that the function returns `true` for.
    Some(&'s dyn Fn(FeedKey) -> Result<bool, LogError>),
}

impl std::fmt::Debug for ClosedSight<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::All => "All",
            Self::Some(_) => "Some(_)",
        })
    }
}

/// Closed feeds of a timeline, and the followed patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedSources {
    /// Names of the closed feeds that the timeline follows, or of which the timeline has, or may
    /// get, entries.
    pub feeds: Vec<FeedName>,
    /// Patterns that the timeline follows, which may match closed feeds.
    pub patterns: Vec<FeedPattern>,
}

impl Timelines {
    /// Returns a part of the feeds that a timeline follows by their names; `None` if there is no
    /// such timeline.
    ///
    /// All readers of the timeline see each of these feeds: an open timeline follows no closed
    /// feed, and a reader of a closed timeline needs the right to all followed feeds.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn following(
        &self,
        timeline: FeedKey,
        wanted: ListStretch,
    ) -> Result<Option<FeedListPart>, LogError> {
        let graph = self.read_graph()?;
        let Some((_, state)) = graph.timeline(timeline) else {
            return Ok(None);
        };
        let named = state.following.named();
        // A feed without a number in the graph is followed by no timeline.
        let behind = wanted.after.and_then(|after| graph.source(after));
        let begin = behind.map_or(0, |behind| named.partition_point(|feed| *feed <= behind));
        let rest = named.get(begin..).unwrap_or_default();
        let feeds = rest.iter().take(wanted.max);
        Ok(Some(FeedListPart {
            feeds: feeds
                .filter_map(|feed| Some(graph.feeds.get(*feed)?.key))
                .collect(),
            count: u64::try_from(named.len()).unwrap_or(u64::MAX),
            has_more: rest.len() > wanted.max,
        }))
    }

    /// Returns the patterns that a timeline follows, sorted; no patterns if there is no such
    /// timeline.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn patterns(&self, timeline: FeedKey) -> Result<Vec<FeedPattern>, LogError> {
        let graph = self.read_graph()?;
        let found = graph.timeline(timeline);
        Ok(found.map_or_else(Vec::new, |(_, state)| state.following.patterns().to_vec()))
    }

    /// Returns the feeds that a reader of a closed timeline needs a right to; `None` if there is no
    /// such timeline.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn closed_sources(&self, timeline: FeedKey) -> Result<Option<ClosedSources>, LogError> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(None);
        }
        let graph = self.read_graph()?;
        let Some((_, state)) = graph.timeline(timeline) else {
            return Ok(None);
        };
        // Some servers have few closed feeds and timelines of a hundred thousand sources, and
        // others the opposite. So the smaller set is gone through.
        let (following, closed) = (&state.following, graph.feeds.closed());
        let name_of = |source: SourceKey| Some(graph.feeds.get(source)?.name.clone());
        let sources = following.sources().len() + following.named().len();
        let feeds = if closed.len() < sources {
            let had = closed.iter().filter(|source| following.is_source(**source));
            had.filter_map(|source| name_of(*source)).collect()
        } else {
            let all = following.sources().chain(following.named().iter().copied());
            let had = all.filter(|source| closed.contains(source));
            had.filter_map(name_of).collect()
        };
        Ok(Some(ClosedSources {
            feeds,
            patterns: following.patterns().to_vec(),
        }))
    }

    /// Returns a part of the timelines that take the entries of a feed now, without the closed
    /// timelines that the reader may not see.
    ///
    /// For a reader of some closed timelines, every closed follower of the feed is looked at.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn followers(
        &self,
        feed: FeedKey,
        wanted: ListStretch,
        seen: ClosedSight<'_>,
    ) -> Result<FeedListPart, LogError> {
        let seen_closed = match seen {
            // Found first, and in slices, because rights are asked without the lock of the graph.
            ClosedSight::Some(is_seen) => self.seen_followers(feed, is_seen)?,
            ClosedSight::None | ClosedSight::All => vec![],
        };
        let graph = self.read_graph()?;
        let source = graph.source(feed);
        let Some(followers) = source.and_then(|source| graph.feeds.followers(source)) else {
            return Ok(FeedListPart::default());
        };
        let begin = match wanted.after.and_then(|after| graph.timeline(after)) {
            Some((behind, _)) => behind.saturating_add(1),
            None => 0,
        };
        // One more than wanted tells whether the list goes on.
        let (sees_all, one_more) = (
            matches!(seen, ClosedSight::All),
            wanted.max.saturating_add(1),
        );
        let mut feeds = followers.taking_from(begin, one_more, sees_all);
        let closed = seen_closed.iter().filter(|timeline| **timeline >= begin);
        feeds.extend(closed.take(one_more));
        feeds.sort_unstable();
        let has_more = feeds.len() > wanted.max;
        feeds.truncate(wanted.max);
        let hidden = if sees_all {
            0
        } else {
            let seen = u64::try_from(seen_closed.len()).unwrap_or(u64::MAX);
            followers.closed().len().saturating_sub(seen)
        };
        let states = feeds.into_iter().filter_map(|timeline| graph.at(timeline));
        Ok(FeedListPart {
            feeds: states.map(|state| state.key).collect(),
            count: followers.taking() - hidden,
            has_more,
        })
    }

    /// Returns the closed timelines that take a feed's entries and that a reader may see, sorted.
    fn seen_followers(
        &self,
        feed: FeedKey,
        is_seen: &dyn Fn(FeedKey) -> Result<bool, LogError>,
    ) -> Result<Vec<TimelineKey>, LogError> {
        let (mut seen, mut next) = (vec![], 0);
        loop {
            let slice: Vec<(TimelineKey, FeedKey)> = {
                let graph = self.read_graph()?;
                let source = graph.source(feed);
                let Some(followers) = source.and_then(|source| graph.feeds.followers(source))
                else {
                    return Ok(seen);
                };
                let slice = followers.closed().from(next, CLOSED_TOGETHER);
                let keyed = slice
                    .iter()
                    .filter_map(|one| Some((*one, graph.at(*one)?.key)));
                keyed.collect()
            };
            let Some((last, _)) = slice.last() else {
                return Ok(seen);
            };
            next = last.saturating_add(1);
            for (timeline, key) in slice {
                if is_seen(key)? {
                    seen.push(timeline);
                }
            }
        }
    }

    /// Returns at most `max` feeds that the friends of a timeline follow, most followed first, each
    /// with the number of these friends; `None` if there is no such timeline.
    ///
    /// Friends are the timelines whose owners the timeline follows. Left out are the feeds that the
    /// timeline follows, the owner's feed, and closed feeds that fail `shows`. The follows of
    /// closed friends that fail `is_seen` are left out, too, because the counts would reveal them.
    /// Of very many follows, only some are counted.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn friends_of_friends(
        &self,
        timeline: FeedKey,
        max: usize,
        is_seen: impl Fn(FeedKey) -> Result<bool, LogError>,
        shows: impl Fn(&FeedName) -> bool,
    ) -> Result<Option<Vec<(FeedKey, usize)>>, LogError> {
        // A count takes long for friends of thousands, so the count is made without the lock.
        let (state, friends) = {
            let graph = self.read_graph()?;
            let Some((_, state)) = graph.timeline(timeline) else {
                return Ok(None);
            };
            let owners = state.following.named().iter();
            let theirs = owners.flat_map(|owner| graph.owned_by(*owner));
            let friends = theirs.filter_map(|one| graph.at(*one));
            let friends: Vec<TimelineState> = friends.take(FRIENDS_FOLLOWS_MAX).cloned().collect();
            (state.clone(), friends)
        };
        let mut counts: HashMap<SourceKey, usize> = HashMap::new();
        let mut left = FRIENDS_FOLLOWS_MAX;
        for theirs in friends {
            // Checked before the follows count against the bound, because the bound would tell how
            // many follows a hidden timeline has.
            if theirs.is_closed && !is_seen(theirs.key)? {
                continue;
            }
            for feed in theirs.following.named() {
                *counts.entry(*feed).or_default() += 1;
            }
            left = left.saturating_sub(theirs.following.named().len().max(1));
            if left == 0 {
                break;
            }
        }
        let graph = self.read_graph()?;
        counts.retain(|feed, _| {
            let is_new =
                state.following.named().binary_search(feed).is_err() && state.owner != Some(*feed);
            let found = graph.feeds.get(*feed).filter(|_| is_new);
            found.is_some_and(|found| !found.is_closed || shows(&found.name))
        });
        let mut found: Vec<(SourceKey, usize)> = counts.into_iter().collect();
        let order = |(feed, count): &(SourceKey, usize)| (std::cmp::Reverse(*count), *feed);
        // Few feeds are wanted of many, and only the wanted ones are sorted.
        if let Some(last) = max.checked_sub(1).filter(|last| *last < found.len()) {
            found.select_nth_unstable_by_key(last, order);
            found.truncate(max);
        }
        found.sort_unstable_by_key(order);
        let keyed = found
            .into_iter()
            .filter_map(|(feed, count)| Some((graph.feeds.get(feed)?.key, count)));
        Ok(Some(keyed.collect()))
    }
}
