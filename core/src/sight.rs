//! Closed feeds that somebody may see.
//!
//! Pure.

use crate::feed::{FeedName, FeedPattern};

/// Closed feeds that the sender of a request may see, as a list of patterns.
#[derive(Clone, Debug, Default)]
pub struct Sight(Vec<FeedPattern>);

impl Sight {
    /// Returns the sight of the closed feeds that match at least one of the patterns.
    pub fn of(patterns: Vec<FeedPattern>) -> Self {
        Self(patterns)
    }

    /// Returns whether the sender may see the closed feed `feed`.
    pub fn shows(&self, feed: &FeedName) -> bool {
        self.0.iter().any(|pattern| pattern.matches(feed))
    }

    /// Returns whether the sender may see every closed feed that can match a pattern.
    pub fn covers(&self, pattern: &FeedPattern) -> bool {
        self.0.iter().any(|seen| seen.covers(pattern))
    }

    /// Returns whether the sender may see every closed feed.
    pub fn is_all(&self) -> bool {
        self.covers(&FeedPattern::all())
    }

    /// Returns whether the sender may see no closed feed at all.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the patterns of the closed feeds that the sender may see.
    pub fn patterns(&self) -> &[FeedPattern] {
        &self.0
    }
}
