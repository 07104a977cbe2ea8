//! State of a timeline in parts that a snapshot stores.
//!
//! Pure.

use std::ops::Range;

use super::{BroughtEntries, FollowState, HeldFeed, Other, Terms};
use crate::{
    feed::{FeedPattern, Position},
    timestamp::Timestamp,
};

/// Everything that a [`FollowState`] is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowStateParts<S> {
    /// Choices of the timeline.
    pub terms: Terms<S>,
    /// Feeds that the timeline follows by their names, in the order of their keys.
    pub items: Vec<S>,
    /// Patterns that the timeline follows.
    pub patterns: Vec<FeedPattern>,
    /// Feeds of which the timeline has entries or may get some, in the order of their keys.
    pub feeds: Vec<PartOfFeed<S>>,
    /// Entries that requests brought along, in the order of their places.
    pub batches: Vec<PartOfRequest<S>>,
}

/// A feed in a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOfFeed<S> {
    /// Key of the feed.
    pub feed: S,
    /// First position of the range that goes on.
    pub live: Option<Position>,
    /// Ranges that came as the feed gained them, and are over.
    pub past: Vec<Range<Position>>,
    /// Ranges that follows brought along.
    pub brought: Vec<Range<Position>>,
}

/// Entries that a request brought along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOfRequest<S> {
    /// Instant of the request.
    pub instant: Timestamp,
    /// Index of the first entry among those of the instant.
    pub first: u32,
    /// Entries in the order of their places.
    pub entries: Vec<(S, Position)>,
}

impl<S: Copy + Ord> FollowState<S> {
    /// Returns the parts of this state.
    pub fn parts(&self) -> FollowStateParts<S> {
        let feeds = self.feeds.iter().map(|held| {
            let other = held.other.as_deref().cloned().unwrap_or_default();
            PartOfFeed {
                feed: held.feed,
                live: held.live,
                past: other.past,
                brought: other.brought,
            }
        });
        let batches = self.batches.iter().map(|batch| PartOfRequest {
            instant: batch.instant,
            first: batch.first,
            entries: batch.entries.clone(),
        });
        FollowStateParts {
            terms: self.terms,
            items: self.items.clone(),
            patterns: self.patterns.clone(),
            feeds: feeds.collect(),
            batches: batches.collect(),
        }
    }

    /// Returns the state that has these parts.
    pub fn of_parts(parts: FollowStateParts<S>) -> Self {
        // `collect` would reuse the allocation of the parts, whose items are more than twice as
        // large, and never shrink that allocation.
        let mut feeds = Vec::with_capacity(parts.feeds.len());
        feeds.extend(parts.feeds.into_iter().map(|part| {
            let (past, brought) = (part.past, part.brought);
            let is_plain = past.is_empty() && brought.is_empty();
            HeldFeed {
                feed: part.feed,
                live: part.live,
                other: (!is_plain).then(|| Box::new(Other { past, brought })),
            }
        }));
        let batches = parts.batches.into_iter().map(|part| BroughtEntries {
            instant: part.instant,
            first: part.first,
            entries: part.entries,
        });
        Self {
            terms: parts.terms,
            items: parts.items,
            patterns: parts.patterns,
            feeds,
            batches: batches.collect(),
        }
    }
}
