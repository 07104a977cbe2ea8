//! Requests to follow and unfollow.
//!
//! Pure. Such requests are facts of the log; [`timeline`](crate::timeline) tells which entries follow from them. Feeds
//! stand in them under a key `S`.

use crate::feed::{FeedKey, FeedPattern};

/// Something to follow: a feed, or the feeds that match a pattern, later ones included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item<S = FeedKey> {
    /// One feed, by its key `S`.
    Feed(S),
    /// All feeds whose names match.
    Pattern(FeedPattern),
}

/// Request to change the follows of a timeline. All of it counts at once: what is unfollowed ends, what is followed
/// begins, and a feed that goes on being followed is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowChange<S = FeedKey> {
    /// Items to follow from now on. An item that is followed already stays as it is.
    pub follow: Vec<Item<S>>,
    /// Items to follow no longer. Entries from before stay.
    pub unfollow: Vec<Item<S>>,
    /// Newest entries that each feed brings along which was not followed before. Of all feeds together, the newest
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
