//! Requests to follow and unfollow.
//!
//! Pure. Such requests are facts of the log; [`timeline`](crate::timeline) derives a timeline's
//! entries from them. A request names each feed by a key `S`.

use crate::feed::{FeedKey, FeedPattern};

/// Something to follow: a feed, or the feeds that match a pattern, later ones included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FollowItem<S = FeedKey> {
    /// One feed, by the key `S`.
    Feed(S),
    /// All feeds whose names match.
    Pattern(FeedPattern),
}

/// Request to change the follows of a timeline. All changes of a request apply at once: unfollowed
/// items end, followed items begin, and a feed that the timeline follows before and after is left
/// alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowChange<S = FeedKey> {
    /// Items to follow from now on. An item that the timeline follows already stays unchanged.
    pub follow: Vec<FollowItem<S>>,
    /// Items to follow no longer. Entries that the timeline has already stay.
    pub unfollow: Vec<FollowItem<S>>,
    /// Number of newest entries that each newly followed feed brings along. Of the entries of all
    /// these feeds, only the newest [`BACKFILL_TOTAL_MAX`](crate::limits::BACKFILL_TOTAL_MAX) come.
    pub backfill: u32,
}

impl<S> Default for FollowChange<S> {
    fn default() -> Self {
        Self {
            follow: vec![],
            unfollow: vec![],
            backfill: 0,
        }
    }
}
