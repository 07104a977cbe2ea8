//! Requests to follow and unfollow.
//!
//! Pure. Each request is a fact of the log; [`timeline`](crate::timeline) derives a timeline's
//! entries from the requests. A request names each feed by a key `S`.

use crate::feed::{FeedKey, FeedPattern};

/// Something to follow: a feed, or all feeds that match a pattern, including feeds that are created
/// later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FollowItem<S = FeedKey> {
    /// One feed, by the key `S`.
    Feed(S),
    /// All feeds whose names match the pattern.
    Pattern(FeedPattern),
}

/// Request to change the follows of a timeline. All changes of a request apply at once: unfollowed
/// items end, followed items begin, and a feed that the timeline follows before and after the
/// request is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowChange<S = FeedKey> {
    /// Items to follow from now on. An item that the timeline follows already stays unchanged.
    pub follow: Vec<FollowItem<S>>,
    /// Items to follow no longer. Entries that are already in the timeline stay.
    pub unfollow: Vec<FollowItem<S>>,
    /// Number of newest entries that each newly followed feed brings along, less those that the
    /// timeline already has. Of the entries of all these feeds together, only the newest
    /// [`BACKFILL_TOTAL_MAX`](crate::limits::BACKFILL_TOTAL_MAX) come.
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
