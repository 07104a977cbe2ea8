//! The graph of follows, as the writer needs it.
//!
//! Pure: the seam to the timelines.

use simplefeed_core::{feed::FeedKey, follow::FollowItem, plan::FeedHead};

/// Graph of follows, as the commits of the log leave it. No call makes the writer wait.
pub trait Follows: Send + Sync {
    /// Returns the items that a timeline follows; `None` while the graph lags far behind.
    fn items(&self, timeline: FeedKey) -> Option<Vec<FollowItem>>;

    /// Returns the end of a timeline as readers see that end, or `None` if the end is not known
    /// yet.
    fn head(&self, timeline: FeedKey) -> Option<FeedHead>;

    /// Returns the number of timelines, or `None` if the number is not known yet.
    fn timelines(&self) -> Option<u64>;
}
